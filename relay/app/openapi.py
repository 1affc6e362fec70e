"""The OpenAPI page of the two endpoints that read their body themselves: bytes first, for signatures and caps."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from relay.wire import Callback, ErrorAnswer

_COMPONENTS = "#/components/schemas/{model}"


def json_body(schema: dict[str, Any]) -> dict[str, Any]:
    """A required JSON body, for ``openapi_extra``."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def reference(model: type[BaseModel]) -> dict[str, Any]:
    """A reference to a model that :func:`describe` adds to the page."""
    return {"$ref": _COMPONENTS.format(model=model.__name__)}


def errors(**reasons: str) -> dict[int | str, dict[str, Any]]:
    """Answers with :class:`ErrorAnswer`: ``status_401="why"``."""
    return {
        int(name.removeprefix("status_")): {"model": ErrorAnswer, "description": text} for name, text in reasons.items()
    }


def header(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    """A required header parameter."""
    return {"name": name, "in": "header", "required": True, "schema": schema, "description": description}


def describe(app: FastAPI) -> None:
    """Add the callback's model and the bearer scheme to the application's page."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        page = generate()
        components = page.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        if Callback.__name__ not in schemas:
            model = Callback.model_json_schema(ref_template=_COMPONENTS)
            schemas |= model.pop("$defs", {})
            schemas[Callback.__name__] = model
            components["securitySchemes"] = {
                "oidc": {"type": "http", "scheme": "bearer", "description": "OIDC token of the job (docs/relay.md)"}
            }
        return page

    app.openapi = openapi  # type: ignore[method-assign]
