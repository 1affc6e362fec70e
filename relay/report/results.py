"""What a conformance run left in its output directory: ``summary.json`` and ``results.jsonl``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay.report.environment import ReportError
from relay.wire.callback import MAX_FAILED_MESSAGE, MAX_FAILED_TESTS

FAILED = ("failed", "error", "crashed", "timed_out", "xpassed")
"""Outcomes that make a run fail; each counts as failed in the three numbers that every client understands."""
_SKIPPED = ("skipped", "not_applicable", "deselected")
_PASSED = ("passed", "flaky", "xfailed")


@dataclass(frozen=True)
class Results:
    """Totals and the first failures of one run.

    Attributes:
        counts: ``passed``, ``failed``, ``skipped``, and every outcome under its own name in ``outcomes``.
        failed_tests: for ``failed_tests_detail``.
        conclusion: ``success``, ``failure``, or ``None`` if the run left no totals.
        file: the per-test results, if there are any.
    """

    counts: dict[str, Any] | None
    failed_tests: list[dict[str, Any]]
    conclusion: str | None
    file: Path | None


def read(directory: Path) -> Results:
    """Read an output directory. What a run that died early did not write, or all of it, is not an error.

    Raises:
        ReportError: a file is there but not readable as what it must be.
    """
    counts = conclusion = None
    summary_file = directory / "summary.json"
    if summary_file.is_file():
        outcomes = _outcomes(summary_file)
        failed = sum(outcomes.get(name, 0) for name in FAILED)
        counts = {
            "passed": sum(outcomes.get(name, 0) for name in _PASSED),
            "failed": failed,
            "skipped": sum(outcomes.get(name, 0) for name in _SKIPPED),
            "outcomes": outcomes,
        }
        conclusion = "failure" if failed else "success"
    lines = directory / "results.jsonl"
    if not lines.is_file():
        return Results(counts, [], conclusion, None)
    return Results(counts, _failures(lines), conclusion, lines)


def _outcomes(path: Path) -> dict[str, int]:
    try:
        outcomes = json.loads(path.read_text(encoding="utf-8"))["outcomes"]
        return {str(name): int(number) for name, number in outcomes.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"{path} is no summary of a conformance run ({error!r})") from error


def _failures(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                if not line.endswith("\n"):
                    break  # the run was killed while it wrote its last line
                raise ReportError(f"{path}:{number}: not JSON: {error}") from error
            if isinstance(row, dict) and row.get("outcome") in FAILED and row.get("id"):
                found.append(_failure(row))
                if len(found) == MAX_FAILED_TESTS:
                    break
    return found


def _failure(row: dict[str, Any]) -> dict[str, Any]:
    failure: dict[str, Any] = {"name": str(row["id"]), "outcome": row["outcome"]}
    if row.get("class"):
        failure["classname"] = str(row["class"])
    if row.get("message"):
        failure["message"] = str(row["message"])[:MAX_FAILED_MESSAGE]
    duration = row.get("duration")
    if isinstance(duration, (int, float)) and duration >= 0:
        failure["duration"] = duration
    return failure
