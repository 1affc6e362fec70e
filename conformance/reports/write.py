"""Files of a finished run (C29): ``results.jsonl``, ``junit.xml``, ``summary.json``, and the Markdown for a job
summary."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from conformance.ids import parse
from conformance.reports.accounts import BROKEN, Accounts

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold; test output often has terminal escapes."""

MARKDOWN_ROWS = 100


def replace(path: Path, text: str) -> None:
    """Writes a text file in one step, so that nobody reads half of it.

    A link stays one, and a file keeps its permissions; what is no file (a pipe, a terminal) is written to.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", errors="replace", newline="")
        return
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, delete=False, encoding="utf-8", errors="replace", newline=""
    ) as stream:
        stream.write(text)
    Path(stream.name).chmod(mode)
    Path(stream.name).replace(path)


def write_results(accounts: Accounts, path: Path) -> None:
    """JSON lines, the source of all other outputs."""
    replace(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in accounts.lines()))


def write_junit(accounts: Accounts, path: Path, name: str) -> None:
    """JUnit XML: one suite per file, a test's last attempt; deselected tests are left out, as pytest leaves them
    out."""
    document = JUnitXml(name)
    suites: dict[str, list[TestCase]] = {}
    for line in accounts.lines():
        if line["attempt"] != accounts.attempts[line["id"]][-1].attempt or line["outcome"] == "deselected":
            continue
        test = parse(line["id"])
        short = line["id"].removeprefix(f"{test.generic.rpartition('::')[0]}::")
        case = TestCase(_clean(short), _clean(f"{test.file}::{test.cls}" if test.cls else test.file), line["duration"])
        message = _clean(line["message"] or line["reason"])
        if line["outcome"] in ("failed", "flaky"):
            case.result = [Failure(message, line["outcome"])]
        elif line["outcome"] in BROKEN:
            case.result = [Error(message, line["outcome"])]
        elif line["outcome"] not in ("passed", "xpassed"):
            case.result = [Skipped(message, line["outcome"])]
        if case.result and line["trace"]:
            case.result[0].text = _clean(line["trace"])
        if line["outcome"] == "flaky":
            # It passed in the end; JUnit has no word for that which every reader knows.
            case.result = []
            case.system_out = f"flaky: failed in {line['attempt'] - 1} of {line['attempt']} attempts"
        suites.setdefault(line["file"], []).append(case)
    for file, cases in suites.items():
        suite = TestSuite(_clean(file))
        suite.add_testcases(cases)
        document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as stream:
        temporary = Path(stream.name)
    document.write(str(temporary))
    temporary.chmod(0o644)
    temporary.replace(path)


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def write_summary(summary: dict[str, Any], path: Path) -> None:
    """``summary.json``."""
    replace(path, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")


def _cell(text: str, limit: int = 160) -> str:
    line = " ".join(text.split())
    line = line if len(line) <= limit else line[: limit - 1] + "…"
    return line.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; numbers stand on the right."""
    listed = [list(row) for row in rows]
    right = [all(isinstance(row[place], int) for row in listed) for place in range(len(head))]
    lines = [
        head,
        ["---:" if number else "---" for number in right],
        *([_cell(str(c), 300) for c in r] for r in listed),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown(accounts: Accounts, summary: dict[str, Any]) -> str:
    """What a person reads first: the verdict, the counts, what is unexpected."""
    names = summary["unexpected"]
    verdict = "as expected" if not names and summary["balanced"] else f"{len(names)} unexpected"
    too = summary.get("breaks_on_cpu_too", [])
    if too:
        verdict += f", {len(too)} fail on the CPU too"
    if not summary["balanced"]:
        verdict += ", accounts do not balance"
    lines = [
        f"### Conformance {summary['profile']}: {verdict}",
        "",
        f"torch {summary['torch']} · upstream {summary['upstream'] or 'none'} · {summary['planned']} planned"
        f" · {summary['seconds']:.0f} s",
        "",
        "| outcome | tests |",
        "|---|---:|",
        *(f"| {outcome} | {count} |" for outcome, count in summary["outcomes"].items() if count),
    ]
    for title, listed in (("unexpected", names), ("not the backend's: fails on the CPU too", too)):
        if not listed:
            continue
        lines += ["", f"| {title} | outcome | message |", "|---|---|---|"]
        for name in listed[:MARKDOWN_ROWS]:
            last = accounts.attempts[name][-1]
            lines.append(f"| `{_cell(name, 300)}` | {accounts.outcome(name)} | {_cell(last.message or last.reason)} |")
        if len(listed) > MARKDOWN_ROWS:
            lines.append(f"\n{len(listed) - MARKDOWN_ROWS} more in `results.jsonl`.")
    for note in summary["notes"]:
        lines.append(f"\n> {_cell(note, 400)}")
    return "\n".join(lines) + "\n"
