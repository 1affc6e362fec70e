"""What two failures of one cause have in common: the report's clusters and the signatures of new rules agree on it."""

from __future__ import annotations

import re

LONGEST = 300
"""Characters of a message that tell its cause."""

_CHANGING = re.compile(
    r"(?P<address>\b0x[0-9a-fA-F]+)"
    r"|(?P<path>(?:/[\w.+-]+){2,})"
    r"|(?P<number>(?<![\w.])[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?)",
    re.IGNORECASE,
)
_SHOWN = {"address": "<address>", "path": "/…", "number": "#"}


def constant_parts(message: str) -> list[str]:
    """The pieces of a message between what changes from test to test: addresses, numbers, paths."""
    parts, end = [], 0
    for match in _CHANGING.finditer(message):
        parts.append(message[end : match.start()])
        end = match.end()
    return [*parts, message[end:]]


def cause(message: str) -> str:
    """A message in one line with a sign for all that changes from test to test."""
    shown = _CHANGING.sub(lambda match: _SHOWN[match.lastgroup or ""], message)
    return " ".join(shown.split())[:LONGEST]
