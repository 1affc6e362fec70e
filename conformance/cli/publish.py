"""What ``run`` and ``merge`` leave and say at their end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from conformance.cli.options import print_json
from conformance.errors import Exit
from conformance.reports.accounts import Accounts
from conformance.reports.actions import append_summary, error_commands, in_actions
from conformance.reports.files import HTML, JUNIT, RESULTS, SUMMARY, TIMES
from conformance.reports.html import html
from conformance.reports.write import markdown, replace, write_junit, write_results, write_summary
from conformance.times import Times


def publish(accounts: Accounts, summary: dict[str, Any], output: Path, as_json: bool) -> None:
    """Writes the files of a run, tells GitHub Actions where it runs, and prints the verdict.

    Args:
        accounts: of the run.
        summary: content of ``summary.json``.
        output: existing folder.
        as_json: print the summary for programs instead of sentences.
    """
    write_results(accounts, output / RESULTS)
    write_junit(accounts, output / JUNIT, f"conformance {summary['profile']}")
    write_summary(summary, output / SUMMARY)
    replace(output / HTML, html(accounts, summary))
    replace(output / TIMES, Times.of(accounts).text())
    if in_actions():
        append_summary(markdown(accounts, summary))
        for line in error_commands(accounts, summary["unexpected"]):
            typer.echo(line, err=as_json)
    if as_json:
        print_json(summary)
        return
    for name in summary["unexpected"]:
        last = accounts.attempts[name][-1]
        typer.echo(f"{accounts.outcome(name)}: {name}: {' '.join((last.message or last.reason).split())[:300]}")
    if too := summary.get("breaks_on_cpu_too"):
        typer.echo(f"{len(too)} failures are not the backend's: they fail on the CPU too")
    counts = ", ".join(f"{count} {name}" for name, count in summary["outcomes"].items())
    typer.echo(f"{summary['planned']} planned: {counts}; {summary['seconds']:.1f} s; results in {output}")


def verdict(accounts: Accounts, summary: dict[str, Any]) -> Exit:
    """The exit code of a run that reached its end; says what does not balance."""
    if not summary["balanced"]:
        for name in (*accounts.missing(), *accounts.unplanned()):
            typer.echo(f"accounts do not balance: {name} is planned or has a result, but not both", err=True)
        return Exit.ACCOUNTS
    return Exit.UNEXPECTED if summary["unexpected"] else Exit.AS_EXPECTED
