"""``conformance merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import options as o
from conformance.cli.app import app
from conformance.cli.publish import publish, verdict
from conformance.reports.merge import merge as merge_runs
from conformance.reports.read import read_run
from conformance.runner.run import absolute_output, prepare_folder


@app.command()
def merge(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Output folders of the parts.")],
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Where the whole goes; an earlier run there is replaced.")
    ],
    as_json: o.JsonOption = False,
) -> None:
    """Make one run of its shards, or of parts that share no test (a checkout's tests and the wheel suite).

    The accounts are checked again: every shard must be there once, and no test may have two results. Exit codes are
    those of the run that it makes: 0 as expected, 1 unexpected results, 2 usage or runs that are not one, 3 a missing
    shard or accounts that do not balance.
    """
    accounts, summary = merge_runs([read_run(folder) for folder in runs])
    output = absolute_output(output)
    prepare_folder(output)
    publish(accounts, summary, output, as_json)
    raise typer.Exit(verdict(accounts, summary))
