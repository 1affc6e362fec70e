"""Wires the parts into an application."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from relay.emulator import git, githttp
from relay.emulator.api import actions, apps, checks, control, pages, repos
from relay.emulator.api.common import ApiError, answer_error
from relay.emulator.events import Events
from relay.emulator.faults import Faults
from relay.emulator.ledger import Ledger
from relay.emulator.middleware import Recorder
from relay.emulator.oidc import Issuer
from relay.emulator.runner.attempt import Credentials
from relay.emulator.runner.processes import Guard, kill_tracked
from relay.emulator.runner.runs import Runs
from relay.emulator.server import Server
from relay.emulator.settings import Settings, SettingsError
from relay.emulator.state import JobRecord, Repository, Run, State
from relay.emulator.webhooks import Webhooks


def read_public_key(file: Path) -> bytes:
    """The App's public key.

    Raises:
        SettingsError: no such file, or not a PEM public key.
    """
    try:
        data = file.read_bytes()
        load_pem_public_key(data)
    except OSError as error:
        raise SettingsError(f"app.public_key_file: {file}: {error.strerror}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SettingsError(f"app.public_key_file: {file}: not a public key in PEM form") from error
    return data


@contextlib.contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Hold the data directory; two servers on one would mix their files.

    Raises:
        SettingsError: another server has it, or it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("a+")
    except OSError as error:
        raise SettingsError(f"data_dir: {directory}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SettingsError(f"data_dir: {directory} is in use by another emulator") from error
        yield


async def _mirror_all(state: State) -> None:
    limit = asyncio.Semaphore(os.cpu_count() or 1)

    async def one(repository: Repository) -> None:
        if repository.git is None or repository.settings.path is None:
            return
        async with limit:
            try:
                await git.mirror(repository.settings.path, repository.git, repository.default_branch)
            except git.GitError as error:
                raise SettingsError(f"repositories: {repository.full_name}: path: {error}") from error

    await asyncio.gather(*(one(repository) for repository in state.repositories.values()))


@contextlib.asynccontextmanager
async def running(settings: Settings, base_url: str) -> AsyncIterator[Server]:
    """The parts of a server, from the first copy of the repositories to the end of the last job's process.

    Args:
        base_url: how clients reach it.

    Raises:
        SettingsError: the data directory is in use, or the App's key or a repository cannot be read.
    """
    app_key = read_public_key(settings.app.public_key_file)
    with owned(settings.data_dir):
        state = State(settings, base_url)
        await _mirror_all(state)
        issuer, webhooks = Issuer(state), Webhooks(state)

        def credentials(run: Run, job: JobRecord, environment: str | None, allowed: dict[str, str]) -> Credentials:
            return job_credentials(state, issuer, run, job, environment, allowed)

        runs = Runs(state, credentials)
        ledger = Ledger(settings.data_dir / "ledger.jsonl")
        guard = Guard(runs.tracking)
        try:
            events = Events(state, webhooks)
            yield Server(settings, state, ledger, Faults(), webhooks, issuer, runs, events, app_key)
        finally:
            await runs.stop()
            await webhooks.stop()
            await asyncio.to_thread(kill_tracked, runs.tracking)
            await asyncio.to_thread(guard.close)
            ledger.close()


def create_app(server: Server) -> FastAPI:
    """The application of a running server."""
    application = FastAPI(title="GitHub emulator", docs_url=None, redoc_url=None, openapi_url=None)
    application.state.server = server
    application.add_exception_handler(ApiError, answer_error)
    application.add_exception_handler(RequestValidationError, _answer_invalid)
    application.add_middleware(Recorder)
    for prefix in ("", "/api/v3"):
        for module in (apps, checks, repos, actions):
            application.include_router(module.router, prefix=prefix)
    application.include_router(actions.services)
    application.include_router(control.router)
    application.include_router(githttp.router)
    application.include_router(pages.router)
    return application


def job_credentials(
    state: State, issuer: Issuer, run: Run, job: JobRecord, environment: str | None, allowed: dict[str, str]
) -> Credentials:
    """``GITHUB_TOKEN`` of a job with its permissions, and the OIDC request if ``id-token: write`` is among them."""
    repository = state.repositories[run.repository.lower()]
    permissions = {name.replace("-", "_"): level for name, level in allowed.items()}
    value, _ = state.new_token(
        "job",
        state.installations.get(repository.owner.lower(), 0),
        frozenset({repository.full_name.lower()}),
        permissions,
        24 * 3600,
    )
    url, request = None, None
    if "write" in (permissions.get("id_token"), permissions.get("*")):
        url, request = issuer.allow(repository, run, job, environment)

    def revoke() -> None:
        state.tokens.pop(value, None)
        if request is not None:
            issuer.forbid(request)

    return Credentials(value, url, request, revoke)


async def _answer_invalid(_request: Any, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
    return JSONResponse({"message": "Invalid request.\n\n" + "\n".join(problems), "status": "422"}, 422)
