"""``conformance plan``."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from conformance.cli import options as o
from conformance.cli.app import app
from conformance.cli.request import build_request
from conformance.errors import Exit
from conformance.paths import cache_root
from conformance.runner.run import Session, plan_rows
from conformance.runner.scratch import scratch


@app.command()
def plan(
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
    as_json: o.JsonOption = False,
    listing: Annotated[bool, typer.Option("--list", help="Print every test with what happens to it.")] = False,
) -> None:
    """Say what a run would do with every test, and why, without running one.

    The files are imported, because upstream makes its tests at import.
    """
    request = build_request(
        profile=profile, upstream=upstream, suite=suite, device=device, labels=labels, unclassified=unclassified,
        keyword=keyword, changed=changed, pull=pull, shard=shard, jobs=jobs, timeout=None, times=times, unlock=unlock,
        targets=targets,
        collect_only=True,
    )  # fmt: skip
    with scratch(cache_root() / "plans") as folder:
        session = Session(request, lambda text: typer.echo(text, err=True))
        outcome = session.execute(folder / "state", quiet=as_json)
    rows = plan_rows(outcome.accounts)
    reasons = Counter(row["reason"] if row["action"] != "run" else "run" for row in rows)
    errors = [
        {"file": name, "outcome": attempts[-1].outcome, "message": attempts[-1].message}
        for name, attempts in sorted(outcome.accounts.attempts.items())
    ]
    if as_json:
        answer = {
            "planned": len(rows), "by_reason": dict(reasons.most_common()), "tests": rows, "errors": errors,
            "notes": outcome.selection_notes + outcome.notes,
        }  # fmt: skip
        o.print_json(answer)
    else:
        if listing:
            for row in rows:
                typer.echo(f"{row['action']:<14} {row['id']}" + (f"  [{row['reason']}]" if row["reason"] else ""))
        typer.echo(f"{len(rows)} tests planned")
        for reason, count in reasons.most_common():
            typer.echo(f"{count:>8}  {reason}")
        for error in errors:
            typer.echo(f"{error['outcome']}: {error['file']}: {error['message']}")
    if outcome.interrupted:
        typer.echo(f"conformance: interrupted by {outcome.interrupted}; the plan is incomplete", err=True)
        raise typer.Exit(Exit.ACCOUNTS)
