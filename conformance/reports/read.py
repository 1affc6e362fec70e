"""The files of a finished run, back in memory: strict, because what is read decides about pull requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.errors import AccountsError, ConformanceError
from conformance.ids import parse
from conformance.reports.accounts import NOT_THERE, OUTCOMES, Accounts, Attempt, OnCpu, Planned
from conformance.reports.files import RESULTS, SUMMARY

_TEXTS = ("label", "phase", "message", "trace", "rule", "reason", "issue")
_Kind = type | tuple[type, ...]
_SUMMARY: dict[str, _Kind] = {
    "planned": int, "balanced": bool, "unexpected": list, "seconds": (int, float), "torch": str, "upstream": str,
    "profile": str, "expectations": str, "devices": int, "shard": str, "interrupted": str, "narrowed": list,
    "notes": list,
}  # fmt: skip


@dataclass(frozen=True)
class FinishedRun:
    """What ``conformance run`` left.

    Attributes:
        folder: as it was named on the command line.
        accounts: every attempt, and a plan made of the tests that have one.
        summary: content of ``summary.json``.
    """

    folder: Path
    accounts: Accounts
    summary: dict[str, Any]


def read_run(folder: Path) -> FinishedRun:
    """Reads the output folder of a run.

    Raises:
        ConformanceError: the folder holds no run, or an interrupted or damaged one; file and line are named.
    """
    summary = _read_summary(folder / SUMMARY)
    if summary["interrupted"]:
        raise ConformanceError(
            f"{folder}: this run was interrupted by {summary['interrupted']}; finish it with --resume first"
        )
    accounts = read_results(folder / RESULTS)
    if len(accounts.planned) != summary["planned"]:
        raise ConformanceError(
            f"{folder}: {RESULTS} holds {len(accounts.planned)} tests, but {SUMMARY} says {summary['planned']} were "
            "planned: the files are of different runs, or the run's accounts did not balance"
        )
    return FinishedRun(folder, accounts, summary)


def read_results(path: Path) -> Accounts:
    """Reads ``results.jsonl``; a test that is in it counts as planned.

    Raises:
        ConformanceError: it cannot be read, or a line of it is not a result.
        AccountsError: it is empty: never a success, because a lost run would look like one.
    """
    accounts = Accounts()
    for number, line in _lines(path):
        try:
            row = _object(line)
            name, attempt = _field(row, "id", str), _field(row, "attempt", int)
            parse(name)
            texts = {key: _field(row, key, str) for key in _TEXTS}
            # Lines of earlier versions do not have these.
            expires, profile, there, why = (
                _field({key: "", **row}, key, str) for key in ("expires", "profile", "cpu_outcome", "cpu_message")
            )
            result = Attempt(
                name,
                _field(row, "outcome", str),
                attempt,
                float(_field(row, "duration", (int, float))),
                texts["phase"], texts["message"], texts["trace"], texts["reason"],
                _field(row, "fallback", (bool, type(None))),
            )  # fmt: skip
            if result.outcome not in OUTCOMES:
                raise ValueError(f"outcome {result.outcome!r} is none of {', '.join(OUTCOMES)}")
            if there not in ("", NOT_THERE, *OUTCOMES):
                raise ValueError(f"cpu_outcome {there!r} is none of {', '.join(OUTCOMES)}, {NOT_THERE}")
            if attempt < 1 or any(attempt == other.attempt for other in accounts.attempts.get(name, ())):
                raise ValueError(f"attempt {attempt} of {name} is there twice, or less than 1")
        except ValueError as error:
            raise ConformanceError(f"{path}:{number}: {error}") from error
        accounts.plan(Planned(name, texts["label"], rule=texts["rule"]))
        accounts.record(result)
        if texts["issue"]:
            accounts.issues[texts["rule"]] = texts["issue"]
        if expires:
            accounts.expiries[texts["rule"]] = expires
        if there:
            accounts.on_cpu[name] = OnCpu(there, why)
        accounts.profile = accounts.profile or profile
    if not accounts.attempts:
        raise AccountsError(f"{path}: holds no result")
    return accounts


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as stream:
            yield from enumerate(stream, start=1)
    except OSError as error:
        raise ConformanceError(
            f"{path}: {error.strerror or error}; give the --output folder of a conformance run"
        ) from error


def _object(text: bytes) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row


def _field(row: dict[str, Any], name: str, kind: _Kind) -> Any:
    if name not in row:
        raise ValueError(f"no field {name!r}")
    value = row[name]
    # JSON's true is no number, though Python's is one.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, (int, float))):
        raise ValueError(f"field {name!r} is {json.dumps(value)[:60]}")
    return value


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = _object(path.read_bytes())
        for name, kind in _SUMMARY.items():
            _field(summary, name, kind)
    except OSError as error:
        raise ConformanceError(
            f"{path}: {error.strerror or error}; give the --output folder of a conformance run"
        ) from error
    except ValueError as error:
        raise ConformanceError(f"{path}: {error}") from error
    return summary
