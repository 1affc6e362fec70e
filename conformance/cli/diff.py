"""``conformance diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import options as o
from conformance.cli.app import app
from conformance.errors import Exit
from conformance.reports.accounts import Accounts
from conformance.reports.diff import Diff
from conformance.reports.diff import diff as diff_runs
from conformance.reports.read import read_results, read_run

GROUPS = {
    "newly_failing": "newly failing",
    "missing": "missing: on the base, not on the head",
    "newly_skipped": "newly skipped",
    "fixed": "fixed",
    "still_failing": "failing on both",
    "appeared": "only on the head",
    "upstreams": "newly failing, on the CPU too: not the backend's",
}
"""Lists of a diff in the order of their weight, with the words that a person reads."""


def _read(path: Path) -> tuple[Accounts, bool | None]:
    """Results, and whether the run took a part of the tests, which only an output folder tells."""
    if not path.is_dir():
        return read_results(path), None
    run = read_run(path)
    return run.accounts, bool(run.summary["narrowed"] or run.summary["shard"])


def _sentences(found: Diff, base: Accounts, head: Accounts, limit: int) -> list[str]:
    lines = []
    for field, words in GROUPS.items():
        names = getattr(found, field)
        if names:
            lines.append(f"{len(names)} {words}:")
            for name in names[:limit]:
                outcomes = f"{base.outcome(name) or 'absent'} → {head.outcome(name) or 'absent'}"
                last = head.attempts[name][-1] if name in head.attempts else None
                message = " ".join((last.message or last.reason).split())[:200] if last else ""
                lines.append(f"  {name}  {outcomes}{'  ' + message if message else ''}")
            if len(names) > limit:
                lines.append(f"  and {len(names) - limit} more (--limit N, or --json for all)")
    if found.narrowed:
        lines.append("the head ran a selection: only variants of the tests that it ran can be missing")
    return lines


@app.command()
def diff(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="Run before: its output folder or results.jsonl.")],
    head: Annotated[Path, typer.Argument(metavar="HEAD", help="Run after.")],
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="Names that each list shows.")] = 20,
    as_json: o.JsonOption = False,
) -> None:
    """Tell what changed between two runs of one backend, by the rules of HUD's verdict.

    Exit codes: 0 nothing became worse, 1 tests newly fail or are missing, 2 usage or files that are no runs, 3 a run
    without results.
    """
    (before, _), (after, narrowed) = _read(base), _read(head)
    found = diff_runs(before, after, narrowed)
    if as_json:
        o.print_json(found.as_json())
    else:
        for line in _sentences(found, before, after, limit):
            typer.echo(line)
        counts = ", ".join(f"{len(getattr(found, field))} {field.replace('_', ' ')}" for field in GROUPS)
        typer.echo(f"{'worse' if found.worse else 'not worse'}: {counts}")
    raise typer.Exit(Exit.UNEXPECTED if found.worse else Exit.AS_EXPECTED)
