"""``relay emulator …``: serve a local GitHub, check workflow files."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from relay.emulator.app import create_app, running
from relay.emulator.middleware import Protocol
from relay.emulator.runner.model import WorkflowError
from relay.emulator.runner.workflow import load_workflow
from relay.emulator.settings import Settings, SettingsError, load_settings

app = typer.Typer(
    no_args_is_help=True,
    help="A local GitHub: REST API, webhooks, OIDC, git over HTTP, and a runner for workflow files.",
)


@app.command()
def serve(
    settings: Annotated[Path, typer.Option(help="Settings file (TOML); docs/emulator.md lists its fields.")],
    host: Annotated[str, typer.Option(help="Address to listen on. The control API has no password.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8700,
) -> None:
    """Serve until SIGINT or SIGTERM; jobs end with the server.

    Exit codes: 0 stopped, 2 the settings, the address or a repository cannot be used.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        held = load_settings(settings)
        listener = _listen(host, port)
        shown = f"[{host}]" if ":" in host else host
        asyncio.run(_serve(held, held.base_url or f"http://{shown}:{listener.getsockname()[1]}", listener))
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


async def _serve(settings: Settings, base_url: str, listener: socket.socket) -> None:
    async with running(settings, base_url) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            # uvicorn raises the signal again after its orderly end; by then there is nothing left to do.
            signal.signal(number, lambda *_: None)
        typer.echo(f"emulated GitHub on {base_url}")
        await uvicorn.Server(
            uvicorn.Config(
                create_app(server),
                http=Protocol,
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=5,
            )
        ).serve(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    return listener


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(help="Workflow files, by their path from the repository's root.")],
    root: Annotated[Path, typer.Option(help="Root of the repository, for the actions they use.")] = Path(),
) -> None:
    """Say whether the runner can run workflow files.

    Exit codes: 0 all can run, 1 a file cannot (one file:line per construct), 2 a file cannot be read.
    """

    def read(path: str) -> str | None:
        file = root / path
        try:
            return file.read_text(encoding="utf-8") if file.is_file() else None
        except (OSError, UnicodeDecodeError) as error:
            typer.echo(f"{file}: cannot be read: {error}", err=True)
            raise typer.Exit(2) from error

    found = False
    for file in files:
        text = read(str(file))
        if text is None:
            typer.echo(f"{root / file}: cannot be read", err=True)
            raise typer.Exit(2)
        try:
            workflow = load_workflow(text, str(file), read)
            typer.echo(f"{file}: {len(workflow.jobs)} job(s)")
        except WorkflowError as error:
            typer.echo(str(error), err=True)
            found = True
    raise typer.Exit(1 if found else 0)


if __name__ == "__main__":
    app()
