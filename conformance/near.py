"""What somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Known names that look like ``name``, the nearest first; upper and lower case count as the same."""
    lower: dict[str, str] = {}
    for item in known:
        lower.setdefault(item.lower(), item)
    return [lower[match] for match in difflib.get_close_matches(name.lower(), lower, count, cutoff=0.65)]


def near(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the end of a message, empty where nothing is near."""
    found = near_names(name, known)
    return f"; did you mean {' or '.join(repr(item) for item in found)}?" if found else ""
