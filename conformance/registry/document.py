"""YAML text → plain values that know where they stood.

libyaml reads it; plain scalars mean what the core schema of YAML 1.2 says, so that ``no`` is a word, ``1:30`` a text
and a date is left to the model that wants one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.error import MarkedYAMLError, YAMLError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError

from conformance.errors import ConformanceError
from conformance.memory import without_cycle_collection

_Base: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""Without libyaml the same in Python, ten times slower."""


class _Loader(_Base):  # type: ignore[misc]
    """Leaves the meaning of scalars to :func:`_scalar`; asking a resolver about each would take a third of the time."""

    def descend_resolver(self, *_: object) -> None:
        """Nothing depends on where a node stands."""

    def ascend_resolver(self) -> None:
        """See :meth:`descend_resolver`."""

    def resolve(self, *_: object) -> str:
        """One tag for all."""
        return ""


_QUOTED = ("'", '"', "|", ">")
"""Styles of scalars that are texts whatever they look like."""

_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{sign + word: float(f"{sign}inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_INTEGER = re.compile(r"[-+]?[0-9]+$")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")
_LONGEST_NUMBER = 40
"""Longer runs of digits are texts: no number that a file of ours asks for has them."""


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in "-+.0123456789" and len(text) <= _LONGEST_NUMBER:
        if _INTEGER.match(text):
            return int(text)
        if _FLOAT.match(text):
            return float(text)
    return text


class Document:
    """One file.

    Attributes:
        path: of the file, for messages.
        value: dictionaries, lists and scalars.
    """

    def __init__(self, path: Path, text: str) -> None:
        """Parses.

        Raises:
            ConformanceError: with ``file:line:column``; the text is no YAML, a key stands twice, an alias holds itself.
        """
        self.path = path
        self._open: set[int] = set()
        self._done: dict[int, Any] = {}
        try:
            with without_cycle_collection():
                self._root: Node | None = yaml.compose(text, Loader=_Loader)
                self.value: Any = self._build(self._root) if self._root is not None else None
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
            what = " ".join(str(error.problem or error.context or error).split())
            raise ConformanceError(f"{where}: not YAML: {what}") from error
        except ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            column = error.position - text.rfind("\n", 0, error.position)
            raise ConformanceError(f"{path}:{line}:{column}: not YAML: {error.reason}") from error
        except (YAMLError, RecursionError) as error:
            raise ConformanceError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
        finally:
            self._done.clear()

    def _build(self, node: Node) -> Any:
        if isinstance(node, ScalarNode):
            return node.value if node.style in _QUOTED else _scalar(node.value)
        key = id(node)
        if key in self._done:
            return self._done[key]
        if key in self._open:
            raise ConformanceError(f"{self._at(node)}: not YAML: the alias holds itself")
        self._open.add(key)
        value: Any
        if isinstance(node, SequenceNode):
            value = [self._build(item) for item in node.value]
        else:
            assert isinstance(node, MappingNode)
            value = {}
            for name, item in node.value:
                word = name.value if isinstance(name, ScalarNode) else None
                if word is None:
                    raise ConformanceError(f"{self._at(name)}: not YAML that is used here: a key must be a word")
                if word in value:
                    raise ConformanceError(f"{self._at(name)}: the key {word!r} stands twice")
                value[word] = self._build(item)
        self._open.remove(key)
        self._done[key] = value
        return value

    def _at(self, node: Node) -> str:
        return f"{self.path}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def position(self, location: tuple[int | str, ...]) -> tuple[int, int]:
        """Line and column, from 1, of the deepest part of ``location`` that the file has.

        Args:
            location: keys and indices from the root; a key's position is that of the key.
        """
        node, mark = self._root, self._root.start_mark if self._root is not None else None
        for part in location:
            if isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                mark = node.start_mark
            elif isinstance(node, MappingNode):
                found = next(((k, v) for k, v in node.value if k.value == part), None)
                if found is None:
                    break
                mark, node = found[0].start_mark, found[1]
            else:
                break
        return (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)

    def lines(self, name: str) -> list[int]:
        """Line of every item of the list under a key of the root."""
        if not isinstance(self._root, MappingNode):
            return []
        found = next((v for k, v in self._root.value if k.value == name), None)
        return [item.start_mark.line + 1 for item in found.value] if isinstance(found, SequenceNode) else []


def read_document(path: Path) -> Document:
    """Reads a file.

    Raises:
        ConformanceError: it cannot be read or is no YAML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConformanceError(f"{path}: cannot be read: {error}") from error
    return Document(path, text)


_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def dump(value: Any) -> str:
    """YAML for people: keys in their order, innermost lists and mappings in one line."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True
    )
    return text
