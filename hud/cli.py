"""The command ``hud``. Exit codes: 0 done, 1 it could not be done, 2 wrong usage or settings."""

from __future__ import annotations

import json
from typing import Annotated

import sqlalchemy as sa
import typer
import uvicorn
from pydantic import ValidationError

from hud.settings import Settings
from hud.store import Store, open_store

cli = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

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
    # A stopping server does not wait for the readers of live updates, whose requests never end.
    uvicorn.run(app, host=host, port=port, log_level="info", access_log=False, timeout_graceful_shutdown=3)


@cli.command()
def migrate(as_json: Json = False) -> None:
    """Bring the store's tables to the form that this version needs."""
    settings = _settings()
    _open(settings).close()
    url = sa.make_url(settings.database_url).render_as_string(hide_password=True)
    typer.echo(json.dumps({"ok": True, "database": url}) if as_json else f"{url} is up to date.")


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="hud")


def _settings() -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False):
            typer.echo(f"HUD_{'.'.join(map(str, item['loc'])).upper()}: {item['msg']}", err=True)
        raise typer.Exit(2) from error


def _open(settings: Settings) -> Store:
    try:
        return open_store(settings.database_url)
    except sa.exc.ArgumentError as error:
        typer.echo(f"HUD_DATABASE_URL is no database URL: {error}", err=True)
        raise typer.Exit(2) from error
    except sa.exc.DBAPIError as error:
        url = sa.make_url(settings.database_url).render_as_string(hide_password=True)
        typer.echo(f"The store {url} cannot be opened: {error.orig}", err=True)
        raise typer.Exit(1) from error
