"""The control API, ``/_emulator``: what people do on GitHub's pages, and what only a test may do.

No credentials: the server is meant for the loopback interface.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from relay.emulator import payloads
from relay.emulator.api.actions import find_run
from relay.emulator.api.apps import find_delivery
from relay.emulator.api.common import ApiError, ServerDep
from relay.emulator.events import EventError
from relay.emulator.faults import Fault
from relay.emulator.runner.runs import RunError
from relay.emulator.server import Server
from relay.emulator.state import Delivery, Pull, Repository, Run

router = APIRouter(prefix="/_emulator")


class _Command(BaseModel):
    model_config = ConfigDict(extra="forbid")

    repository: str | None = Field(default=None, description="default: the upstream")
    actor: str = Field(default="developer", pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,38}$")


class PushCommand(_Command):
    """A push of one ref from the author's clone."""

    ref: str
    delete: bool = False


class PullCommand(_Command):
    """A new pull request."""

    head_ref: str
    base_ref: str = "main"
    title: str = Field(min_length=1, max_length=256)
    body: str | None = None
    labels: list[str] = []
    draft: bool = False


class CloseCommand(_Command):
    """A pull request's end."""

    merged: bool = False


class LabelCommand(_Command):
    """A label to add or remove."""

    label: str = Field(min_length=1, max_length=50)


class TokenCommand(BaseModel):
    """Any OIDC token of this issuer.

    ``claims`` are signed as they are, over the defaults; a claim that is ``null`` is left out. With ``run_id`` the
    defaults are those of that run, else those of a made-up run of ``repository``.
    """

    model_config = ConfigDict(extra="forbid")

    repository: str | None = None
    audience: str | list[str] = "pytorch-cross-repo-ci-relay"
    run_id: int | None = None
    claims: dict[str, Any] = {}
    headers: dict[str, Any] = {}


def _repository(server: Server, name: str | None) -> Repository:
    if name is None:
        return server.state.upstream
    found = server.state.repository(name)
    if found is None:
        known = ", ".join(item.full_name for item in list(server.state.repositories.values())[:10])
        raise ApiError(404, f"repository {name!r} is not in the settings; there are: {known}")
    return found


def _pull(repository: Repository, number: int) -> Pull:
    if number not in repository.pulls:
        raise ApiError(404, f"{repository.full_name} has no pull request {number}")
    return repository.pulls[number]


def _pull_answer(pull: Pull, delivery: Delivery | None) -> dict[str, Any]:
    return {
        "number": pull.number,
        "head_sha": pull.head_sha,
        "base_sha": pull.base_sha,
        "state": pull.state,
        "labels": pull.labels,
        "delivery_id": delivery.guid if delivery is not None else None,
    }


@router.post("/push", status_code=201)
async def push(command: PushCommand, server: ServerDep) -> Any:
    """Push ``ref``; the answer names the commit and the delivery."""
    repository = _repository(server, command.repository)
    try:
        sha, delivery = await server.events.push(repository, command.ref, command.actor, command.delete)
    except EventError as error:
        raise ApiError(422, str(error)) from None
    return {"sha": sha, "delivery_id": delivery.guid if delivery is not None else None}


@router.post("/pulls", status_code=201)
async def open_pull(command: PullCommand, server: ServerDep) -> Any:
    """Open a pull request."""
    repository = _repository(server, command.repository)
    try:
        pull, delivery = await server.events.open_pull(
            repository,
            command.head_ref,
            command.base_ref,
            command.title,
            command.labels,
            command.actor,
            command.body,
            command.draft,
        )
    except EventError as error:
        raise ApiError(422, str(error)) from None
    return _pull_answer(pull, delivery)


@router.post("/pulls/{number}/synchronize")
async def synchronize(number: int, server: ServerDep, command: _Command | None = None) -> Any:
    """The author pushed to the head branch."""
    repository = _repository(server, command.repository if command else None)
    pull = _pull(repository, number)
    try:
        return _pull_answer(pull, await server.events.synchronize(repository, pull))
    except EventError as error:
        raise ApiError(422, str(error)) from None


@router.post("/pulls/{number}/closed")
async def closed(number: int, server: ServerDep, command: CloseCommand | None = None) -> Any:
    """Close, as merged or not."""
    repository = _repository(server, command.repository if command else None)
    pull = _pull(repository, number)
    try:
        return _pull_answer(pull, await server.events.close(repository, pull, bool(command and command.merged)))
    except EventError as error:
        raise ApiError(422, str(error)) from None


@router.post("/pulls/{number}/reopened")
async def reopened(number: int, server: ServerDep, command: _Command | None = None) -> Any:
    """Open again."""
    repository = _repository(server, command.repository if command else None)
    pull = _pull(repository, number)
    try:
        return _pull_answer(pull, await server.events.reopen(repository, pull))
    except EventError as error:
        raise ApiError(422, str(error)) from None


@router.post("/pulls/{number}/labeled")
async def labeled(number: int, command: LabelCommand, server: ServerDep) -> Any:
    """Add a label."""
    repository = _repository(server, command.repository)
    pull = _pull(repository, number)
    return _pull_answer(pull, await server.events.label(repository, pull, command.label))


@router.post("/pulls/{number}/unlabeled")
async def unlabeled(number: int, command: LabelCommand, server: ServerDep) -> Any:
    """Remove a label."""
    repository = _repository(server, command.repository)
    pull = _pull(repository, number)
    return _pull_answer(pull, await server.events.unlabel(repository, pull, command.label))


# --- deliveries -----------------------------------------------------------------------------------------------------


@router.get("/deliveries")
async def deliveries(server: ServerDep, guid: str | None = None, event: str | None = None) -> Any:
    """Every attempt, oldest first, with request and response."""
    return [
        payloads.delivery(item, full=True)
        for item in server.state.deliveries.values()
        if guid in (None, item.guid) and event in (None, item.event)
    ]


@router.post("/deliveries/{number}/redeliver", status_code=202)
async def redeliver(number: int, server: ServerDep) -> Any:
    """Deliver again, under the same GUID."""
    return payloads.delivery(server.webhooks.redeliver(find_delivery(server, number)))


@router.post("/check-runs/{number}/rerequest", status_code=202)
async def rerequest_check(number: int, server: ServerDep, command: _Command | None = None) -> Any:
    """Press "Re-run" on a check run."""
    repository = _repository(server, command.repository if command else None)
    if number not in repository.checks:
        raise ApiError(404, f"{repository.full_name} has no check run {number}")
    try:
        delivery = server.events.rerequest_check(repository, repository.checks[number], (command or _Command()).actor)
    except EventError as error:
        raise ApiError(422, str(error)) from None
    return {"delivery_id": delivery.guid if delivery is not None else None}


@router.post("/check-suites/{number}/rerequest", status_code=202)
async def rerequest_suite(number: int, server: ServerDep, command: _Command | None = None) -> Any:
    """Press "Re-run all checks" on a check suite."""
    repository = _repository(server, command.repository if command else None)
    if number not in repository.suites:
        raise ApiError(404, f"{repository.full_name} has no check suite {number}")
    try:
        suite = repository.suites[number]
        delivery = await server.events.rerequest_suite(repository, suite, (command or _Command()).actor)
    except EventError as error:
        raise ApiError(422, str(error)) from None
    return {"delivery_id": delivery.guid if delivery is not None else None}


# --- runs -----------------------------------------------------------------------------------------------------------


def _run(server: Server, run: Run) -> dict[str, Any]:
    delivery = (run.payload.get("client_payload") or {}).get("delivery_id")
    return {
        "id": run.id,
        "repository": run.repository,
        "workflow": run.workflow_name,
        "file": run.workflow_file,
        "title": run.title,
        "event": run.event,
        "event_type": run.payload.get("action"),
        "delivery_id": delivery,
        "attempt": run.attempt,
        "status": run.status,
        "conclusion": run.conclusion,
        "problems": run.problems,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "url": f"{server.state.base_url}/{run.repository}/actions/runs/{run.id}",
        "jobs": [
            {
                "id": job.id,
                "key": job.key,
                "name": job.name,
                "status": job.status,
                "conclusion": job.conclusion,
                "steps": [asdict(step) for step in job.steps],
            }
            for job in run.jobs_of()
        ],
        "artifacts": [
            {"id": item.id, "name": item.name, "size": item.size, "path": str(item.path)} for item in run.artifacts
        ],
    }


@router.get("/runs")
async def runs(
    server: ServerDep, repository: str | None = None, delivery_id: str | None = None, status: str | None = None
) -> Any:
    """Runs of all repositories, oldest first."""
    found = [_run(server, run) for run in server.state.runs.values()]
    return [
        run
        for run in found
        if repository in (None, run["repository"])
        and delivery_id in (None, run["delivery_id"])
        and status in (None, run["status"])
    ]


@router.get("/runs/{number}")
async def run(number: int, server: ServerDep) -> Any:
    """One run."""
    if number not in server.state.runs:
        raise ApiError(404, f"there is no run {number}")
    return _run(server, server.state.runs[number])


@router.post("/runs/{number}/rerun", status_code=202)
async def rerun(number: int, server: ServerDep, failed_only: bool = True) -> Any:
    """Press "Re-run failed jobs" (or "Re-run all jobs")."""
    if number not in server.state.runs:
        raise ApiError(404, f"there is no run {number}")
    held = server.state.runs[number]
    repository = _repository(server, held.repository)
    try:
        await server.runs.rerun(repository, find_run(server, repository, number), failed_only, "developer")
    except RunError as error:
        raise ApiError(409, str(error)) from None
    return _run(server, held)


# --- ledger, faults, tokens -----------------------------------------------------------------------------------------


@router.get("/ledger")
async def ledger(
    server: ServerDep,
    method: str | None = None,
    path: str | None = None,
    repository: str | None = None,
    status: int | None = None,
    after: int = 0,
    limit: int = 1000,
) -> Any:
    """Calls in order. ``path`` and ``repository`` are shell patterns; ``after`` is the id to go on from."""
    found: list[dict[str, Any]] = []
    for entry in server.ledger.find(method, path, repository, status, after):
        if len(found) == max(limit, 1):
            break
        found.append(entry)
    return found


@router.delete("/ledger", status_code=204)
async def clear_ledger(server: ServerDep) -> None:
    """Forget the calls so far (the file keeps them)."""
    server.ledger.clear()


@router.get("/faults")
async def faults(server: ServerDep) -> Any:
    """The faults in force and how often each hit."""
    return server.faults.all()


@router.post("/faults", status_code=201)
async def add_fault(fault: Fault, server: ServerDep, seed: int | None = None) -> Any:
    """Put a fault in force."""
    if seed is not None:
        server.faults.seed(seed)
    return server.faults.add(fault)


@router.delete("/faults", status_code=204)
async def clear_faults(server: ServerDep) -> None:
    """Remove every fault."""
    server.faults.clear()


@router.delete("/faults/{number}", status_code=204)
async def remove_fault(number: int, server: ServerDep) -> None:
    """Remove one fault."""
    if not server.faults.remove(number):
        raise ApiError(404, f"there is no fault {number}")


@router.post("/oidc/token", status_code=201)
async def token(command: TokenCommand, server: ServerDep) -> Any:
    """Sign a token, genuine or not as a test needs it."""
    if command.run_id is not None:
        if command.run_id not in server.state.runs:
            raise ApiError(404, f"there is no run {command.run_id}")
        held = server.state.runs[command.run_id]
        claims = server.issuer.claims(_repository(server, held.repository), held, None, None)
    else:
        repository = _repository(server, command.repository)
        number = server.state.new_id()
        held = Run(
            id=number,
            number=1,
            repository=repository.full_name,
            workflow_file=".github/workflows/ci.yml",
            workflow_name="CI",
            title="CI",
            event="repository_dispatch",
            payload={},
            inputs={},
            head_sha=f"{number:040x}",
            head_branch=repository.default_branch,
            actor=f"{server.settings.app.slug}[bot]",
            suite_id=number,
            directory=server.settings.data_dir,
        )
        claims = server.issuer.claims(repository, held, None, None)
    value = server.issuer.sign({**claims, "aud": command.audience, **command.claims}, command.headers)
    return {"token": value, "issuer": server.issuer.url, "expires_in": 300}


@router.post("/oidc/rotate", status_code=201)
async def rotate(server: ServerDep, forget: bool = False) -> Any:
    """Sign with a new key from now on; ``forget`` takes the old ones out of the JWKS."""
    return {"kid": server.issuer.rotate(forget)}


@router.get("/healthz")
async def healthz(server: ServerDep) -> Any:
    """The server is up and its repositories are ready."""
    return {"status": "ok", "base_url": server.state.base_url, "time": time.time()}


@router.post("/wait")
async def wait(server: ServerDep, seconds: float = 30) -> JSONResponse:
    """Wait until no run and no delivery is under way, at most ``seconds``; 408 if some still are."""
    deadline = time.monotonic() + min(max(seconds, 0), 600)
    while server.runs.busy or server.webhooks.busy:
        if time.monotonic() > deadline:
            return JSONResponse({"idle": False}, 408)
        await asyncio.sleep(0.02)
    return JSONResponse({"idle": True})
