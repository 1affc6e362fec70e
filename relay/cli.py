"""Command line of the relay. Each command imports its own part, so a job needs only the ``report`` extra.

Exit codes: 0 done; 1 the thing asked about is not in order (lint findings, a refused report, nothing found);
2 wrong usage or configuration.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

if TYPE_CHECKING:
    from pydantic_settings import BaseSettings

    from relay.app.findings import Finding
    from relay.app.settings import Settings, StoreSettings
    from relay.store.database import Database

app = typer.Typer(
    name="relay",
    help="Cross-Repository CI Relay: upstream events out to downstream repositories, verified results back.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
allowlist_app = typer.Typer(help="The allowlist of downstream repositories.", no_args_is_help=True)
deliveries_app = typer.Typer(help="Webhook deliveries and their dispatches.", no_args_is_help=True)
tasks_app = typer.Typer(help="Effects that are owed, and dead letters.", no_args_is_help=True)
config_app = typer.Typer(help="The settings.", no_args_is_help=True)
token_app = typer.Typer(help="OIDC tokens of callers.", no_args_is_help=True)
app.add_typer(allowlist_app, name="allowlist")
app.add_typer(deliveries_app, name="deliveries")
app.add_typer(tasks_app, name="tasks")
app.add_typer(config_app, name="config")
app.add_typer(token_app, name="token")

S = TypeVar("S", bound="BaseSettings")
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def _fail(message: str, code: int) -> typer.Exit:
    typer.echo(f"relay: {message}", err=True)
    return typer.Exit(code)


def _settings() -> Settings:
    """Read the settings and set up logging, or say everything that is wrong with them."""
    from relay.app import logs
    from relay.app.settings import Settings

    settings = _part(Settings)
    logs.configure(settings.log_format, settings.log_level)
    return settings


def _part(kind: type[S]) -> S:
    """The settings that a command needs, or everything that is wrong with them."""
    from relay.app.settings import ConfigurationError, load

    try:
        return load(kind)
    except ConfigurationError as error:
        raise _fail(str(error), 2) from error


def _store_settings() -> StoreSettings:
    from relay.app import logs
    from relay.app.settings import StoreSettings

    settings = _part(StoreSettings)
    logs.configure(settings.log_format, "warning")  # what matters is printed
    return settings


def _database(settings: StoreSettings, *, make: bool = True) -> Database:
    """The store with its tables up to date; only a command that starts the relay may make one."""
    from sqlalchemy.exc import SQLAlchemyError

    from relay.store.database import Database, StoreUnavailable

    try:
        database = Database(settings.database_url)
        if not make:
            database.check_made()
        database.migrate()
    except (ValueError, ImportError, SQLAlchemyError, StoreUnavailable) as error:
        raise _fail(f"RELAY_DATABASE_URL: {error}", 2) from error
    return database


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8080,
    workers_only: Annotated[
        bool, typer.Option("--workers-only", help="Work and serve the operators' endpoints, take no events.")
    ] = False,
    api_only: Annotated[
        bool, typer.Option("--api-only", help="Take events; 'relay worker' processes do the work.")
    ] = False,
) -> None:
    """Run the relay: endpoints and workers in one process, or one of the two."""
    if workers_only and api_only:
        raise _fail("--workers-only and --api-only exclude each other", 2)
    settings = _settings()
    _database(settings).close()
    from relay.app import server
    from relay.app.settings import ConfigurationError

    try:
        server.serve(settings, host, port, workers=not api_only, endpoints=not workers_only)
    except ConfigurationError as error:
        raise _fail(str(error), 2) from error


@app.command()
def worker() -> None:
    """Do what is owed, without endpoints. Any number of workers share one database."""
    settings = _settings()
    _database(settings).close()
    from relay.app import server

    server.work(settings)


@app.command()
def report(
    status: Annotated[Literal["in_progress", "completed"], typer.Option(help="State of this job.")],
    url: Annotated[
        str, typer.Option(envvar="RELAY_CALLBACK_URL", help="The relay: its base address or the callback's.")
    ],
    conclusion: Annotated[
        str | None, typer.Option(help="Conclusion when completed, e.g. '${{ job.status }}'; else the results decide.")
    ] = None,
    job_name: Annotated[str | None, typer.Option(help="Name of this job; a matrix must give each leg its own.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Output directory of 'conformance run': totals, failures, per-test results.")
    ] = None,
    artifact_url: Annotated[str | None, typer.Option(help="Where the job's artifacts are.")] = None,
    triage_verdict: Annotated[
        Path | None, typer.Option(help="JSON file with the backend's opinion about the cause of a failure.")
    ] = None,
    event_type: Annotated[
        Literal["nightly", "periodic"] | None, typer.Option(help="For a run that no relay dispatched; needs --sha.")
    ] = None,
    sha: Annotated[str | None, typer.Option(help="Tested upstream commit of a nightly or periodic run.")] = None,
    upstream: Annotated[
        str, typer.Option(help="Upstream repository of a nightly or periodic run.")
    ] = "pytorch/pytorch",
    audience: Annotated[str, typer.Option(help="Audience of the OIDC token.")] = "pytorch-cross-repo-ci-relay",
    max_seconds: Annotated[float, typer.Option(min=1, help="Time for each step, all tries together.")] = 120,
    as_json: Json = False,
) -> None:
    """Report the state of this CI job to the relay (GitHub Actions, Buildkite, GitLab; see docs/relay.md).

    Exit codes: 0 reported, or nobody waits for a report (the run was not dispatched by a relay); 1 the relay or HUD
    refused it or cannot be reached; 2 the report cannot be made.
    """
    from relay.report.command import Options, run
    from relay.report.environment import NothingToReport, ReportError

    options = Options(
        status=status,
        url=url,
        conclusion=conclusion or None,
        job_name=job_name or None,
        results=results,
        artifact_url=artifact_url or None,
        triage_verdict=triage_verdict,
        event_type=event_type,
        sha=sha or None,
        upstream=upstream,
        audience=audience,
        max_seconds=max_seconds,
    )

    def say(line: str) -> None:
        typer.echo(line, err=as_json)

    try:
        outcome = run(options, os.environ, say)
    except NothingToReport as reason:
        typer.echo(
            json.dumps({"reported": False, "reason": str(reason)}) if as_json else f"nothing to report: {reason}"
        )
        return
    except ReportError as error:
        raise _fail(str(error), 1 if error.sent else 2) from error
    if as_json:
        typer.echo(json.dumps(outcome))


@allowlist_app.command("lint")
def allowlist_lint(
    file: Annotated[Path, typer.Argument(help="Allowlist file.")],
    as_json: Json = False,
) -> None:
    """Check an allowlist before it is merged. Prints 'file:line: message'; exit 0 clean, 1 findings, 2 unreadable."""
    from relay.core.allowlist import lint

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _fail(f"cannot read {file}: {error}", 2) from error
    allowlist, findings = lint(text, str(file))
    if as_json:
        typer.echo(json.dumps({"repositories": len(allowlist), "findings": [vars(finding) for finding in findings]}))
    else:
        for finding in findings:
            typer.echo(str(finding))
        if not findings:
            typer.echo(f"{file}: {len(allowlist)} repositories, no findings")
    if findings:
        raise typer.Exit(1)


@allowlist_app.command("show")
def allowlist_show(
    file: Annotated[Path, typer.Argument(help="Allowlist file.")],
    as_json: Json = False,
) -> None:
    """Show what the relay reads in an allowlist: one line per repository. Exit codes as 'lint'."""
    from relay.core.allowlist import AllowlistError, parse

    try:
        allowlist = parse(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise _fail(f"cannot read {file}: {error}", 2) from error
    except AllowlistError as error:
        raise _fail("\n".join(map(str, error.findings)), 1) from error
    _print([vars(target) for target in allowlist], ["repo", "level", "device", "oncalls", "events"], as_json)


@deliveries_app.command("list")
def deliveries_list(
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 20, as_json: Json = False
) -> None:
    """List deliveries with the state of their dispatches."""
    from relay.store import deliveries

    rows = _query(lambda connection: deliveries.listing(connection, limit=limit))
    _print(rows, ["id", "event", "action", "pr_number", "head_sha", "received_at", "dispatches"], as_json)


@deliveries_app.command("show")
def deliveries_show(
    delivery_id: Annotated[str, typer.Argument(help="X-GitHub-Delivery.")],
) -> None:
    """Show a delivery with its dispatches, jobs and tasks, as JSON. Exit 1 if it is not on record."""
    from relay.store import deliveries

    found = _query(lambda connection: deliveries.show(connection, delivery_id))
    if found is None:
        raise _fail(f"delivery {delivery_id!r} is not on record", 1)
    typer.echo(json.dumps(found, indent=2))


@deliveries_app.command("replay")
def deliveries_replay(
    delivery_id: Annotated[str, typer.Argument(help="X-GitHub-Delivery.")],
) -> None:
    """Queue the failed dispatches of a delivery again. Exit 1 if it is not on record."""
    import time

    from relay.store import deliveries

    settings = _store_settings()
    now = time.time()

    def work(connection: Any) -> Any:
        if not deliveries.messages(connection, [delivery_id]):
            return None
        return deliveries.replay(connection, delivery_id, now=now, give_up_at=now + settings.dispatch_retry_seconds)

    receipt = _query(work, settings)
    if receipt is None:
        raise _fail(f"delivery {delivery_id!r} is not on record", 1)
    typer.echo(f"{receipt.queued} of {receipt.targets} dispatches queued again")


@tasks_app.command("list")
def tasks_list(
    state: Annotated[
        Literal["ready", "leased", "done", "dead"] | None,
        typer.Option(help="Only this state; 'dead' are dead letters."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 50,
    as_json: Json = False,
) -> None:
    """List effects that are owed, done or dead."""
    from relay.store import tasks

    rows = _query(lambda connection: tasks.listing(connection, state=state, limit=limit))
    _print(rows, ["id", "kind", "state", "delivery_id", "repo", "attempts", "error"], as_json)


@tasks_app.command("retry")
def tasks_retry(
    ids: Annotated[list[int] | None, typer.Argument(help="Ids of dead tasks.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
) -> None:
    """Queue dead letters again. Exit 1 if a task is not on record or not dead; the others are queued all the same."""
    import time

    from relay.store import tasks

    if bool(ids) == everything:
        raise _fail("name the tasks' ids, or --all", 2)
    settings = _store_settings()
    now = time.time()
    wanted = None if everything else [number for number in ids or () if 0 < number < 2**63]

    def work(connection: Any) -> tuple[dict[int, str], int]:
        before = tasks.states(connection, wanted or [])
        give_up_at = now + settings.retention_seconds
        return before, tasks.revive(connection, now=now, give_up_at=give_up_at, ids=wanted)

    before, number = _query(work, settings)
    typer.echo(f"{number} tasks queued again")
    wrong = [
        f"task {task} is {before[task]}, not dead" if task in before else f"task {task} is not on record"
        for task in ids or ()
        if before.get(task) != "dead"
    ]
    if wrong:
        raise _fail("; ".join(wrong), 1)


@config_app.command("check")
def config_check(as_json: Json = False) -> None:
    """Check the settings without asking anyone: every error at once, and what is valid but probably not meant.

    Exit codes: 0 usable, 1 the allowlist or the database cannot be used, 2 the settings are not valid.
    """
    from relay.app.diagnosis import configuration

    settings = _settings()
    findings = configuration(settings, os.environ)
    if as_json:
        shown = settings.model_dump(mode="json")
        shown["database_url"] = _without_password(settings.database_url)
        typer.echo(json.dumps({"findings": [vars(finding) for finding in findings], "settings": shown}))
    else:
        for finding in findings:
            typer.echo(str(finding))
    _exit_by(findings)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check settings, store, allowlist, GitHub App, installations, clock, key servers and HUD. Changes nothing.

    Exit codes: 0 the relay can work (warnings are printed), 1 something does not, 2 the settings are not valid.
    """
    import asyncio

    from relay.app import logs
    from relay.app.diagnosis import configuration, surroundings
    from relay.app.service import Service

    settings = _settings()
    logs.configure(settings.log_format, "critical")  # the findings say it
    findings = configuration(settings, os.environ)

    def show(finding: Finding) -> None:
        if not as_json:
            typer.echo(str(finding))

    async def look() -> None:
        service = Service.create(settings, looking=True)
        try:
            async for finding in surroundings(service):
                findings.append(finding)
                show(finding)
        finally:
            await service.close()

    for finding in findings:
        show(finding)
    if not any(finding.verdict == "failed" and finding.subject == "RELAY_DATABASE_URL" for finding in findings):
        asyncio.run(look())
    if as_json:
        typer.echo(json.dumps({"findings": [vars(finding) for finding in findings]}))
    _exit_by(findings)


@token_app.command("verify")
def token_verify(
    file: Annotated[
        Path | None, typer.Argument(help="File with the token; else $RELAY_OIDC_TOKEN, else standard input.")
    ] = None,
    allowlist: Annotated[
        str | None, typer.Option(envvar="RELAY_ALLOWLIST", help="Path or URL, to say the repository's level.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say step by step whether the relay would take an OIDC token, and if not, why.

    The token is not printed. Only RELAY_OIDC_AUDIENCE and RELAY_OIDC_ISSUERS are needed.
    Exit codes: 0 accepted, 1 refused, 2 the token or the settings cannot be read.
    """
    import asyncio

    from relay.app import logs, token_check
    from relay.app.settings import TrustSettings

    settings = _part(TrustSettings)
    logs.configure("text", "critical")
    try:
        token = (
            file.read_text(encoding="utf-8") if file else os.environ.get("RELAY_OIDC_TOKEN") or sys.stdin.read()
        ).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _fail(f"cannot read {file}: {error}", 2) from error
    try:
        found = asyncio.run(token_check.with_network(token, settings, allowlist))
    except token_check.NoAllowlist as error:
        raise _fail(str(error), 2) from error
    if as_json:
        steps = [vars(step) for step in found.steps]
        answer = {"accepted": found.accepted, "repository": found.repository, "steps": steps, "claims": found.claims}
        typer.echo(json.dumps(answer, default=str))
    else:
        for step in found.steps:
            typer.echo(str(step))
        typer.echo(f"accepted as {found.repository}" if found.accepted else "refused")
    if not found.accepted:
        raise typer.Exit(1)


def _exit_by(findings: list[Finding]) -> None:
    if any(finding.verdict == "failed" for finding in findings):
        raise typer.Exit(1)


def _without_password(url: str) -> str:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return "(not a URL)"  # it may hold a password all the same


def _query(work: Any, settings: StoreSettings | None = None) -> Any:
    from relay.store.database import StoreUnavailable

    database = _database(settings or _store_settings(), make=False)
    try:
        return database.call(work)
    except StoreUnavailable as error:
        raise _fail(f"the store does not answer: {error}", 2) from error
    finally:
        database.close()


def _print(rows: list[dict[str, Any]], columns: list[str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, default=list))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    Console(width=None if sys.stdout.isatty() else 240).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{key} {number}" for key, number in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _mount_emulator() -> None:
    """``relay emulator …``: its imports are only made when it is asked for, and only where its extra is installed."""
    if sys.argv[1:2] != ["emulator"]:
        placeholder = typer.Typer(help="A local GitHub for tests and demonstrations (extra 'emulator').")
        placeholder.command("serve", help="Start the local GitHub.")(lambda: None)
        app.add_typer(placeholder, name="emulator")
        return
    try:
        module = importlib.import_module("relay.emulator.cli")
    except ImportError as error:
        raise SystemExit(
            f"relay: the emulator cannot be loaded ({error}); it comes with: pip install 'spyre-conformance[emulator]'"
        ) from error
    app.add_typer(module.app, name="emulator")


def main() -> None:
    """Console script."""
    _mount_emulator()
    app()
