"""Reading a JSON body that a stranger wrote.

Python's parser takes more than JSON (``NaN``), keeps the last of two equal keys without a word and dies on deep
nesting. A body that two readers can read differently is refused here, before anything believes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

MAX_DEPTH = 64
_INT64 = 2**63
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"


class BodyError(ValueError):
    """The body is not a JSON object that every reader understands alike; the text says where it is wrong."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BodyError(f"the key {key[:80]!r} stands twice in one object")
            seen.add(key)
    return result


def _integer(text: str) -> int:
    if len(text) > 20 or not -_INT64 <= (value := int(text)) < _INT64:
        raise BodyError(f"the number {text[:24]} does not fit 64 bits")
    return value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BodyError(f"the number {text[:24]} is out of range")
    return value


def _constant(text: str) -> NoReturn:
    raise BodyError(f"{text} is not JSON (RFC 8259, section 6)")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant)


def _check_depth(root: dict[str, Any]) -> None:
    """Every later reader recurses: the parser itself gives up in time, others may not."""
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH):
        children = (child for node in level for child in (node.values() if isinstance(node, dict) else node))
        level = [child for child in children if isinstance(child, (dict, list))]
        if not level:
            return
    raise BodyError(_TOO_DEEP)


def _strings(root: Any) -> Iterator[str]:
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict):
            nodes.extend(node.keys())
            nodes.extend(node.values())
        elif isinstance(node, list):
            nodes.extend(node)


def _check_strings(root: Any, *, forbid_nul: bool) -> None:
    for text in _strings(root):
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise BodyError("a string holds half of a surrogate pair, which is not Unicode text")
        if forbid_nul and "\0" in text:
            raise BodyError("a string holds a NUL character")


def load_object(body: bytes, *, forbid_nul: bool = False) -> dict[str, Any]:
    """Parse ``body`` as one JSON object.

    Args:
        body: raw bytes, UTF-8.
        forbid_nul: refuse NUL characters inside strings, for bodies whose strings become SQL text.

    Raises:
        BodyError: not JSON, not an object, duplicate keys, ``NaN``/``Infinity``, numbers beyond 64 bits, nesting
            beyond :data:`MAX_DEPTH`, lone surrogates.
    """
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except BodyError:
        raise
    except UnicodeDecodeError as error:
        raise BodyError(f"the body is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise BodyError(f"the body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from error
    except RecursionError as error:
        raise BodyError(_TOO_DEEP) from error
    if not isinstance(value, dict):
        raise BodyError(f"the body must be a JSON object, not {type(value).__name__}")
    _check_depth(value)
    # Neither can be written without an escape; to look for one byte is much quicker than for two.
    if b"\\" in body and rb"\u" in body:
        _check_strings(value, forbid_nul=forbid_nul)
    return value


def dump(value: Any) -> str:
    """Compact JSON in ASCII: every database and every proxy keeps it as it is."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
