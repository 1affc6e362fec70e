"""Results in the formats that other tools read: CSV, JSON lines, JUnit XML."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from hud.core.outcomes import FAILING
from hud.queries.contexts import ResultRow

_COLUMNS = (
    *("id", "file", "class", "test", "op", "dtype", "outcome", "duration"),
    *("phase", "message", "trace", "rule", "reason", "issue", "expires", "fallback", "cpu_outcome"),
)
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_json_lines(rows: Iterable[ResultRow]) -> Iterator[str]:
    """The form that ``POST /api/v1/runs/{key}/tests`` takes; what was sent comes out again."""
    for row in rows:
        yield json.dumps(_record(row), ensure_ascii=False) + "\n"


def as_csv(rows: Iterable[ResultRow]) -> Iterator[str]:
    """RFC 4180, one header line. A text that a spreadsheet would take for a formula gets an apostrophe before it."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _COLUMNS)
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _harmless(value) for name, value in _record(row).items()})
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    if buffer.tell():
        yield buffer.getvalue()


def as_junit(rows: Iterable[ResultRow]) -> Iterator[str]:
    """One suite; an unexpected outcome is a failure or an error, the rest that did not pass is skipped."""
    suite = TestSuite("hud")
    for row in rows:
        case = TestCase(_xml(row.name.rpartition("::")[2] or row.name), _xml(row.cls or row.file), row.seconds or 0.0)
        message = _xml(row.detail.message if row.detail else row.reason)
        if row.outcome == "failed":
            case.result = [Failure(message)]
        elif row.outcome in FAILING:
            case.result = [Error(f"{row.outcome}: {message}")]
        elif row.outcome not in ("passed", "flaky", "xpassed"):
            case.result = [Skipped(f"{row.outcome}: {message}")]
        if row.detail and case.result and row.outcome in FAILING:
            case.result[0].text = _xml(row.detail.trace)
        suite.add_testcase(case)
    document = JUnitXml()
    document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    written: bytes = document.tostring()  # type: ignore[no-untyped-call]
    yield written.decode()


FORMATS: dict[str, tuple[str, Callable[[Iterable[ResultRow]], Iterator[str]]]] = {
    "csv": ("text/csv; charset=utf-8", as_csv),
    "jsonl": ("application/x-ndjson", as_json_lines),
    "xml": ("application/xml", as_junit),
}
"""By ending: media type and writer."""


def _record(row: ResultRow) -> dict[str, object]:
    detail = row.detail
    return {
        "id": row.name,
        "file": row.file,
        "class": row.cls,
        "test": row.test,
        "op": row.op,
        "dtype": row.dtype,
        "outcome": row.outcome,
        "duration": row.seconds,
        "phase": detail.phase if detail else "",
        "message": detail.message if detail else "",
        "trace": detail.trace if detail else "",
        "rule": row.rule,
        "reason": row.reason,
        "issue": row.issue,
        "expires": row.expires,
        "fallback": row.fallback,
        "cpu_outcome": row.cpu_outcome,
    }


def _harmless(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
