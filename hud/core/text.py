"""Text from strangers: what can be stored, what can be linked, what is a commit."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Text that every database and UTF-8 can hold: lone surrogates become U+FFFD, NUL becomes its picture U+2400."""
    return _SURROGATE.sub("\ufffd", text).replace("\0", "\u2400")


def clean_tree(value: Any) -> Any:
    """:func:`clean` for every string in parsed JSON, keys included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [clean_tree(item) for item in value]
    if isinstance(value, dict):
        return {clean(str(key)): clean_tree(item) for key, item in value.items()}
    return value


def cut(text: str, limit: int) -> tuple[str, bool]:
    """At most ``limit`` bytes of UTF-8, whole characters, and whether something was left out."""
    data = text.encode()
    if len(data) <= limit:
        return text, False
    return data[: limit - 3].decode(errors="ignore") + "…", True


def link(url: object) -> str | None:
    """The URL if it is one to follow (http or https, with a host), else ``None``."""
    if not isinstance(url, str):
        return None
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return None
    return url.strip() if parts.scheme.lower() in ("http", "https") and parts.netloc else None


def sha(value: object) -> str | None:
    """A commit's name in lower case (SHA-1 or SHA-256, whole), else ``None``; git's null commit is none."""
    if not isinstance(value, str):
        return None
    text = value.strip().lower()
    return text if _SHA.fullmatch(text) and text.strip("0") else None
