"""Failures that look alike: a message without what changes from run to run."""

from __future__ import annotations

import hashlib
import re

_CHANGING = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0x…"),
    (re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE), "#"),
    (re.compile(r"(?:/[\w.+-]+){2,}"), "/…"),
    (re.compile(r"\s+"), " "),
)


def shape(message: str) -> str:
    """The message with addresses, numbers and paths replaced, cut to the first 200 characters."""
    for pattern, replacement in _CHANGING:
        message = pattern.sub(replacement, message)
    return message.strip()[:200]


def fingerprint(outcome: str, message: str) -> str:
    """Sixteen hexadecimal digits, equal for failures of one kind."""
    return hashlib.blake2b(f"{outcome}\n{shape(message)}".encode(), digest_size=8).hexdigest()
