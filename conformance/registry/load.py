"""YAML files → models, with errors that name file, line and column (C12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from conformance.errors import ConformanceError
from conformance.registry.model import Capabilities, RegistryFile, Rule

Model = TypeVar("Model", bound=BaseModel)


def _position(document: Any, location: tuple[int | str, ...]) -> tuple[int, int]:
    """Line and column (from 1) of the deepest part of ``location`` that the document has."""
    line, column = 0, 0
    node = document
    for part in location:
        marks = getattr(node, "lc", None)
        if marks is None:
            break
        try:
            if isinstance(part, int):
                line, column = marks.item(part)
            else:
                line, column = marks.key(part)
            node = node[part]
        except (KeyError, IndexError, TypeError):
            break
    return line + 1, column + 1


def _message(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown key"
    if error["type"] == "missing":
        return "is missing"
    text = str(error["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def load_yaml(path: Path, model: type[Model]) -> tuple[Model, Any]:
    """Reads and validates one file.

    Returns:
        The model and the YAML document with its positions.

    Raises:
        ConformanceError: with one line ``file:line:column: field: what`` per problem.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConformanceError(f"{path}: cannot be read: {error}") from error
    try:
        document = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ConformanceError(
            f"{where}: not YAML: {' '.join(str(error.problem or error.context or error).split())}"
        ) from error
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        # ruamel passes on what Python says of an impossible date or of endless nesting.
        raise ConformanceError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    try:
        return model.model_validate(document if document is not None else {}), document
    except ValidationError as error:
        lines = []
        for item in error.errors():
            line, column = _position(document, item["loc"])
            field = ".".join(str(part) for part in item["loc"])
            lines.append(f"{path}:{line}:{column}: {field + ': ' if field else ''}{_message(item)}")
        raise ConformanceError("\n".join(lines)) from error


def load_rules(path: Path) -> list[Rule]:
    """Rules of a registry file, each knowing its line."""
    registry, document = load_yaml(path, RegistryFile)
    for number, rule in enumerate(registry.rules):
        line, _ = _position(document, ("rules", number))
        rule._where = f"{path.name}:{line}"
    return registry.rules


def load_capabilities(path: Path) -> Capabilities:
    """A capabilities file."""
    return load_yaml(path, Capabilities)[0]
