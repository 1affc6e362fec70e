"""The command ``hud``. Exit codes: 0 done, 1 it could not be done, 2 wrong usage or settings."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import sqlalchemy as sa
import typer
import uvicorn
from pydantic import ValidationError

from hud.core.lines import Collector, LineError, parse_junit
from hud.core.outcomes import FAILING
from hud.core.reports import Conflict, ReportError, key_of
from hud.core.text import sha as as_sha
from hud.formats import FORMATS
from hud.queries.exports import NOTHING, every_result, find_run
from hud.queries.scope import Scope
from hud.settings import Settings
from hud.store import NoStoreOfHud, Store, open_store
from hud.store.prune import prune
from hud.store.reports import record_report
from hud.store.results import Part, record_results
from hud.store.tables import backend
from relay.wire import HudReport

cli = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)


class Form(str, Enum):
    """What ``hud export`` writes."""

    JSONL = "jsonl"
    CSV = "csv"
    JUNIT = "xml"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of sentences.")]


@cli.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8080,
) -> None:
    """Serve pages, API and ingest; the store's tables are brought up to date first."""
    from hud.app import create_app

    settings = _settings()
    app = create_app(settings, _open(settings))
    if settings.ingest_key is None:
        typer.echo("HUD_INGEST_KEY is not set: nothing can be sent in.", err=True)
    threading.Thread(target=app.state.hud.warm, daemon=True).start()
    # A stopping server does not wait for the readers of live updates, whose requests never end.
    uvicorn.run(app, host=host, port=port, log_level="info", access_log=False, timeout_graceful_shutdown=3)


@cli.command()
def migrate(as_json: Json = False) -> None:
    """Bring the store's tables to the form that this version needs."""
    settings = _settings()
    _open(settings).close()
    url = sa.make_url(settings.database_url).render_as_string(hide_password=True)
    typer.echo(json.dumps({"ok": True, "database": url}) if as_json else f"{url} is up to date.")


@cli.command("seed-demo")
def seed_demo() -> None:
    """Fill the store with made-up reports that show every verdict once."""
    from hud.seed import PULL, seed

    settings = _settings()
    store = _open(settings)
    with store.read() as connection:
        reported = connection.execute(sa.select(backend.c.id).limit(1)).first()
    if reported is not None:
        typer.echo("This store has reports already; seed-demo fills an empty one only.", err=True)
        raise typer.Exit(1)
    pages = seed(store, time.time())
    store.close()
    typer.echo(f"Pull request {PULL} shows every verdict. Run 'hud serve' and open: {' '.join(pages)}")


@cli.command("prune")
def prune_command(
    older_than: Annotated[str, typer.Option(help="Age, such as 90d, 26w or 36h.")],
    as_json: Json = False,
) -> None:
    """Forget runs that are older, except where a stretch of history that still lasts began, and each job's latest."""
    found = re.fullmatch(r"(\d{1,9})\s*([hdw])", older_than.strip())
    if found is None:
        text = f"--older-than: '{older_than}' is not a number of at most nine digits followed by h, d or w"
        typer.echo(text, err=True)
        raise typer.Exit(2)
    seconds = int(found[1]) * {"h": 3600, "d": 86_400, "w": 604_800}[found[2]]
    store = _open(_settings(), make=False)
    done = prune(store, time.time() - seconds)
    store.close()
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    else:
        typer.echo(f"Forgotten: {done.runs} runs, results of {done.results}, {done.changes} changes of outcomes.")


@cli.command()
def export(
    key: Annotated[str, typer.Argument(help="Key of the run: the last part of its page's address.")],
    form: Annotated[Form, typer.Option("--format", help="Form of the output.")] = Form.JSONL,
    output: Annotated[Path | None, typer.Option(help="File to write; standard output by default.")] = None,
) -> None:
    """Write every test of a run as JSON lines, CSV or JUnit XML."""
    settings = _settings()
    store = _open(settings, make=False)
    with store.read() as connection:
        scope = Scope(connection, time.time(), settings.stuck_after_seconds)
        row = find_run(scope, key)
        if row is None:
            typer.echo(f"No run has the key {key}.", err=True)
            raise typer.Exit(1)
        if row.results in NOTHING:
            typer.echo(f"The run {key} has no results of tests: {NOTHING[row.results]}.", err=True)
            raise typer.Exit(1)
        try:
            target = output.open("w", encoding="utf-8", newline="") if output is not None else sys.stdout
        except OSError as error:
            typer.echo(f"--output: {output} cannot be written: {error.strerror}", err=True)
            raise typer.Exit(2) from error
        with target if output is not None else contextlib.nullcontext():
            target.writelines(FORMATS[form.value][1](every_result(scope, row)))
    store.close()


importing = typer.Typer(no_args_is_help=True, help="Bring results in from files.")
cli.add_typer(importing, name="import")


@importing.command("junit")
def import_junit(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="JUnit XML file.")],
    repo: Annotated[str, typer.Option(help="Backend, owner/name.")],
    sha: Annotated[str, typer.Option(help="Tested upstream commit, the whole SHA.")],
    upstream: Annotated[str, typer.Option(help="Upstream repository, owner/name.")] = "pytorch/pytorch",
    workflow: Annotated[str, typer.Option(help="Name of the workflow.")] = "import",
    job: Annotated[str, typer.Option(help="Name of the job.")] = "junit",
    run_id: Annotated[str, typer.Option(help="The run's id at the backend.")] = "import",
    level: Annotated[str, typer.Option(help="The backend's level.")] = "L2",
    as_json: Json = False,
) -> None:
    """Store a run of a backend from a JUnit file, as if it had reported a periodic run of an upstream commit."""
    document = file.read_bytes()
    collected = Collector(None)
    try:
        for line in parse_junit(document):
            collected.add(line)
        collected.finish()
        report = _imported(repo, sha, upstream, workflow, job, run_id, level, collected)
    except (LineError, ReportError, ValidationError) as error:
        typer.echo(f"{file}: {error}", err=True)
        raise typer.Exit(2) from error
    store = _open(_settings())
    try:
        stored = record_report(store, report, key_of(report), time.time())
        accepted = record_results(store, stored.key, collected, Part(), time.time())
    except Conflict as error:
        typer.echo(f"{error}; give another --run-id", err=True)
        raise typer.Exit(1) from error
    finally:
        store.close()
    if as_json:
        typer.echo(json.dumps({"key": accepted.key, "tests": accepted.tests}))
    else:
        typer.echo(f"{accepted.tests} tests stored as the run {accepted.key}.")


def _imported(
    repo: str, sha: str, upstream: str, workflow: str, job: str, run_id: str, level: str, collected: Collector
) -> HudReport:
    if as_sha(sha) is None:
        raise ReportError("--sha", "must be a commit's whole SHA")
    conclusion = "failure" if any(outcome in FAILING for outcome in collected.outcomes()) else "success"
    return HudReport.model_validate(
        {
            "trusted": {"verified_repo": repo, "downstream_repo_level": level},
            "untrusted": {
                "callback_payload": {
                    "event_type": "periodic",
                    "delivery_id": as_sha(sha),
                    "payload": {"repository": {"full_name": upstream}, "sha": sha},
                    "workflow": {
                        "status": "completed",
                        "conclusion": conclusion,
                        "name": workflow,
                        "job_name": job,
                        "run_id": run_id,
                    },
                }
            },
        }
    )


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="hud")


def _settings() -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False):
            typer.echo(f"HUD_{'__'.join(map(str, item['loc'])).upper()}: {item['msg']}", err=True)
        raise typer.Exit(2) from error
    except (OSError, UnicodeDecodeError) as error:
        typer.echo(f".env cannot be read: {error}", err=True)
        raise typer.Exit(2) from error


def _open(settings: Settings, *, make: bool = True) -> Store:
    try:
        return open_store(settings.database_url, make=make)
    except NoStoreOfHud as error:
        url = sa.make_url(settings.database_url).render_as_string(hide_password=True)
        typer.echo(f"HUD_DATABASE_URL={url}: {error}", err=True)
        raise typer.Exit(2) from error
    except (sa.exc.ArgumentError, ValueError, ImportError) as error:
        typer.echo(f"HUD_DATABASE_URL is no database URL: {error}", err=True)
        raise typer.Exit(2) from error
    except sa.exc.DBAPIError as error:
        url = sa.make_url(settings.database_url).render_as_string(hide_password=True)
        typer.echo(f"The store {url} cannot be opened: {error.orig}", err=True)
        raise typer.Exit(1) from error
