"""``conformance run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import options as o
from conformance.cli.app import app
from conformance.cli.publish import publish, verdict
from conformance.cli.request import build_request
from conformance.errors import Exit
from conformance.runner.mirror import remove
from conformance.runner.run import STATE, Outcome, Session, absolute_output, prepare_output


def _finish(outcome: Outcome, output: Path, as_json: bool) -> int:
    """Writes the files, prints the verdict.

    Returns:
        The exit code.
    """
    accounts, summary = outcome.accounts, outcome.summary()
    publish(accounts, summary, output, as_json)
    if outcome.interrupted:
        typer.echo(
            f"interrupted by {outcome.interrupted}: {summary['not_run']} known tests have no result, files not yet "
            f"imported are not counted; go on with the same command and --resume",
            err=True,
        )
        return Exit.ACCOUNTS
    remove(output / STATE)
    return verdict(accounts, summary)


@app.command()
def run(
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Where results go; an earlier run there is replaced.")
    ],
    targets: o.TargetsArgument = None,
    profile: o.ProfileOption = None,
    upstream: o.UpstreamOption = None,
    suite: o.SuiteOption = None,
    device: o.DeviceOption = None,
    labels: o.LabelsOption = None,
    unclassified: o.UnclassifiedOption = None,
    keyword: o.KeywordOption = "",
    changed: o.ChangedOption = None,
    pull: o.PullOption = None,
    shard: o.ShardOption = "",
    jobs: o.JobsOption = None,
    times: o.TimesOption = None,
    unlock: o.UnlockOption = False,
    timeout: o.TimeoutOption = None,
    attribute: Annotated[
        bool,
        typer.Option(
            "--attribute",
            help="Repeat on the CPU what failed on the device; what fails there too is not the backend's, is counted "
            "apart and does not fail the run.",
        ),
    ] = False,
    strict: Annotated[
        bool | None, typer.Option("--strict/--no-strict", help="Fail on unexpected passes (default: the profile's).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in --output.")] = False,
    as_json: o.JsonOption = False,
) -> None:
    """Run tests on the device, each accounted for, and write results.jsonl, junit.xml, summary.json and report.html.

    Exit codes: 0 as expected, 1 unexpected results, 2 usage, configuration or a backend that does not work, 3 nothing
    selected, interrupted, or accounts that do not balance.
    """
    request = build_request(
        profile=profile, upstream=upstream, suite=suite, device=device, labels=labels, unclassified=unclassified,
        keyword=keyword, changed=changed, pull=pull, shard=shard, jobs=jobs, timeout=timeout, times=times,
        attribute=attribute, unlock=unlock,
        targets=targets, strict=strict,
    )  # fmt: skip
    # Workers run in another folder.
    output = absolute_output(output)
    state = prepare_output(output, request, resume)
    outcome = Session(request, lambda text: typer.echo(text, err=True)).execute(state)
    raise typer.Exit(_finish(outcome, output, as_json))
