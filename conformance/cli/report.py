"""``conformance report``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from conformance.cli import options as o
from conformance.cli.app import app
from conformance.errors import ConformanceError
from conformance.profile import load_profile
from conformance.reports.evidence import bundle as write_bundle
from conformance.reports.evidence import coverage
from conformance.reports.files import HTML, MARKDOWN
from conformance.reports.html import blocked, clusters, html, matrix, slowest
from conformance.reports.read import FinishedRun, read_run
from conformance.reports.write import markdown, replace


def _as_json(run: FinishedRun) -> dict[str, Any]:
    """What the page shows, for programs."""
    accounts = run.accounts

    def causes(**wanted: Any) -> list[dict[str, Any]]:
        return [{"outcome": c.outcome, "cause": c.cause, "tests": c.names} for c in clusters(accounts, **wanted)]

    return {
        "summary": run.summary,
        "coverage": asdict(coverage(accounts)),
        "failures": causes(),
        "failures_on_cpu_too": causes(on_cpu_too=True),
        "known_failures": causes(outcomes=("xfailed",)),
        "blocked_upstream": dict(blocked(accounts)),
        "operators": {
            op: {dtype: dict(cell.counts) for dtype, cell in cells.items()}
            for op, cells in matrix(accounts).rows.items()
        },
        "slowest": dict(slowest(accounts)),
    }


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of a finished run.")],
    form: Annotated[Literal["html", "markdown"], typer.Option("--format", help="What to write.")] = "html",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Where it goes (default: report.html or report.md in DIR)."),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="DIR",
            help="Write instead a folder of evidence: coverage, operators by dtype, versions, known failures, results, "
            "how to run it again.",
        ),
    ] = None,
    profile: o.ProfileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print instead all that the page shows.")] = False,
) -> None:
    """Write again what a person reads of a run: accounts, failures by cause, operators × dtypes, slowest tests.

    `run` and `merge` leave the HTML page too. It holds everything and asks for nothing: mail it, or keep it as an
    artifact.
    """
    chosen = {"--json": as_json, "--bundle": bundle is not None, "--output": output is not None}
    if len(both := [option for option, given in chosen.items() if given]) > 1:
        raise ConformanceError(f"{' and '.join(both)}: one at a time")
    found = read_run(run)
    if as_json:
        o.print_json(_as_json(found))
    elif bundle is not None:
        write_bundle(found, load_profile(profile or found.accounts.profile or None), bundle)
        typer.echo(bundle)
    elif profile is not None:
        raise ConformanceError("--profile: only --bundle needs it")
    else:
        make, name = (html, HTML) if form == "html" else (markdown, MARKDOWN)
        target = output or run / name
        replace(target, make(found.accounts, found.summary))
        typer.echo(target)
