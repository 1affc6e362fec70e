"""``conformance schema``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from conformance.cli.app import app
from conformance.errors import ConformanceError
from conformance.profile import Profile
from conformance.registry.model import Capabilities, RegistryFile

MODELS: dict[str, type[BaseModel]] = {"profile": Profile, "registry": RegistryFile, "capabilities": Capabilities}


def schema_of(kind: str) -> dict[str, Any]:
    """JSON Schema of a kind of file, as published in ``conformance/schemas``."""
    schema = MODELS[kind].model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


@app.command()
def schema(
    kind: Annotated[str, typer.Argument(metavar="|".join(MODELS), help="Which file.")],
) -> None:
    """Print the JSON Schema of a file, for completion in an editor.

    An editor with the YAML language server takes it from the file's first line:
    `# yaml-language-server: $schema=PATH`.
    """
    if kind not in MODELS:
        raise ConformanceError(f"schema {kind}: expected one of {', '.join(MODELS)}")
    typer.echo(json.dumps(schema_of(kind), indent=2))
