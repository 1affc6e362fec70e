"""YAML files → models, with errors that name file, line and column (C12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from conformance.errors import ConformanceError
from conformance.memory import without_cycle_collection
from conformance.near import near
from conformance.registry.document import Document, read_document
from conformance.registry.model import Capabilities, RegistryFile, Rule

Model = TypeVar("Model", bound=BaseModel)


def _keys(model: type[BaseModel]) -> set[str]:
    """Every key that a file of this model can have at some depth."""
    schema = model.model_json_schema()
    parts = [schema, *schema.get("$defs", {}).values()]
    return {name for part in parts for name in part.get("properties", {})}


def _message(error: Any, model: type[BaseModel]) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown key" + near(str(error["loc"][-1]), _keys(model))
    if error["type"] == "missing":
        return "is missing"
    text = str(error["msg"]).removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    if error["type"] in ("enum", "literal_error"):
        text += f", not {error['input']!r}" + near(str(error["input"]), str(error["ctx"]["expected"]).split("'")[1::2])
    return text


def validate(document: Document, model: type[Model]) -> Model:
    """Checks a document against a model.

    Raises:
        ConformanceError: with one line ``file:line:column: field: what`` per problem.
    """
    try:
        with without_cycle_collection():
            return model.model_validate(document.value if document.value is not None else {})
    except ValidationError as error:
        lines = []
        for item in error.errors():
            line, column = document.position(item["loc"])
            field = ".".join(str(part) for part in item["loc"])
            lines.append(f"{document.path}:{line}:{column}: {field + ': ' if field else ''}{_message(item, model)}")
        raise ConformanceError("\n".join(lines)) from error


def load_yaml(path: Path, model: type[Model]) -> Model:
    """Reads and validates one file.

    Raises:
        ConformanceError: with one line ``file:line:column: field: what`` per problem.
    """
    return validate(read_document(path), model)


def load_registry(path: Path) -> tuple[list[Rule], Document]:
    """Rules of a registry file, each knowing its line, and the document for the place of every key."""
    document = read_document(path)
    rules = validate(document, RegistryFile).rules
    for rule, line in zip(rules, document.lines("rules"), strict=True):
        rule._where = f"{path.name}:{line}"
    return rules, document


def load_rules(path: Path) -> list[Rule]:
    """Rules of a registry file, each knowing its line."""
    return load_registry(path)[0]


def load_capabilities(path: Path) -> Capabilities:
    """A capabilities file."""
    return load_yaml(path, Capabilities)
