"""``conformance report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from conformance.cli.app import app
from conformance.reports.files import HTML, MARKDOWN
from conformance.reports.html import html
from conformance.reports.read import read_run
from conformance.reports.write import markdown, replace


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of a finished run.")],
    form: Annotated[Literal["html", "markdown"], typer.Option("--format", help="What to write.")] = "html",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Where it goes (default: report.html or report.md in DIR)."),
    ] = None,
) -> None:
    """Write again what a person reads of a run: accounts, failures by cause, operators × dtypes, slowest tests.

    `run` and `merge` leave the HTML page too. It holds everything and asks for nothing: mail it, or keep it as an
    artifact.
    """
    found = read_run(run)
    make, name = (html, HTML) if form == "html" else (markdown, MARKDOWN)
    target = output or run / name
    replace(target, make(found.accounts, found.summary))
    typer.echo(target)
