"""Lists of tests as other commands write them."""

from __future__ import annotations

import json
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.ids import TestId, parse


def read_tests(path: Path) -> list[TestId]:
    """Ids of ``plan --json``, of a ``results.jsonl``, or one a line.

    Raises:
        ConformanceError: the file cannot be read, or something in it is no id.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConformanceError(f"{path}: cannot be read: {error}") from error
    try:
        names = dict.fromkeys(_names(text))
        return [parse(name) for name in names]
    except (ValueError, KeyError, TypeError) as error:
        raise ConformanceError(
            f"{path}: {error}; expected the output of `conformance plan --json`, a results.jsonl, or one id per line"
        ) from error


def _names(text: str) -> list[str]:
    if text.lstrip()[:1] != "{":
        return [line.strip() for line in text.splitlines() if line.strip()]
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line)["id"] for line in text.splitlines() if line.strip()]
    return [row["id"] for row in document["tests"]] if "tests" in document else [document["id"]]
