"""Actions: runs, jobs, logs, artifacts, workflow dispatch; the OIDC token service that jobs call."""

from __future__ import annotations

import hashlib
import io
import zipfile
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from relay.emulator import payloads
from relay.emulator.api.common import ApiError, Body, Permission, ServerDep, bearer, page
from relay.emulator.runner.runs import WORKFLOW_FOLDER, InputError, RunError
from relay.emulator.server import Server
from relay.emulator.state import Artifact, JobRecord, Repository, Run, State

router = APIRouter(prefix="/repos/{owner}/{name}/actions")
services = APIRouter(prefix="/_services")

ReadActions = Annotated[Repository, Depends(Permission("actions"))]
WriteActions = Annotated[Repository, Depends(Permission("actions", "write"))]


def find_run(server: Server, repository: Repository, number: int) -> Run:
    """A run of this repository; 404 if there is none."""
    run = server.state.runs.get(number)
    if run is None or run.repository.lower() != repository.full_name.lower():
        raise ApiError(404, "Not Found")
    return run


def runs_of(server: Server, repository: Repository) -> list[Run]:
    """The repository's runs, newest first."""
    name = repository.full_name.lower()
    return [run for run in reversed(server.state.runs.values()) if run.repository.lower() == name]


def find_job(server: Server, repository: Repository, number: int) -> tuple[Run, JobRecord]:
    """A job of this repository; 404 if there is none."""
    for run in runs_of(server, repository):
        for job in run.jobs:
            if job.id == number:
                return run, job
    raise ApiError(404, "Not Found")


def read_log(job: JobRecord) -> str:
    """What the job wrote so far."""
    try:
        return job.log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def workflow_run(state: State, item: Repository, run: Run) -> dict[str, Any]:
    """A run of a workflow, as the Actions chapter of the REST API shows it."""
    api = f"{state.base_url}/repos/{item.full_name}/actions/runs/{run.id}"
    workflow = workflow_id(run.workflow_file)
    return {
        "id": run.id,
        "name": run.workflow_name,
        "node_id": payloads.node_id("WorkflowRun", run.id),
        "check_suite_id": run.suite_id,
        "check_suite_node_id": payloads.node_id("CheckSuite", run.suite_id),
        "head_branch": run.head_branch,
        "head_sha": run.head_sha,
        "path": run.workflow_file,
        "run_number": run.number,
        "run_attempt": run.attempt,
        "event": run.event,
        "display_title": run.title,
        "status": run.status,
        "conclusion": run.conclusion,
        "workflow_id": workflow,
        "url": api,
        "html_url": f"{state.base_url}/{item.full_name}/actions/runs/{run.id}",
        "pull_requests": [],
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "run_started_at": run.started_at,
        "actor": payloads.user(state, run.actor, "Bot" if run.actor.endswith("[bot]") else "User"),
        "triggering_actor": payloads.user(state, run.actor, "Bot" if run.actor.endswith("[bot]") else "User"),
        "jobs_url": f"{api}/jobs",
        "logs_url": f"{api}/logs",
        "check_suite_url": f"{state.base_url}/repos/{item.full_name}/check-suites/{run.suite_id}",
        "artifacts_url": f"{api}/artifacts",
        "cancel_url": f"{api}/cancel",
        "rerun_url": f"{api}/rerun",
        "previous_attempt_url": f"{api}/attempts/{run.attempt - 1}" if run.attempt > 1 else None,
        "workflow_url": f"{state.base_url}/repos/{item.full_name}/actions/workflows/{workflow}",
        "head_commit": None,
        "repository": payloads.repository(state, item),
        "head_repository": payloads.repository(state, item),
    }


def workflow_id(file: str) -> int:
    """The number of a workflow file, stable per path."""
    return int.from_bytes(hashlib.sha256(file.encode()).digest()[:4], "big")


def workflow_job(state: State, item: Repository, run: Run, job: JobRecord) -> dict[str, Any]:
    """A job of a run."""
    api = f"{state.base_url}/repos/{item.full_name}"
    return {
        "id": job.id,
        "run_id": run.id,
        "run_url": f"{api}/actions/runs/{run.id}",
        "run_attempt": job.attempt,
        "node_id": payloads.node_id("CheckRun", job.id),
        "head_sha": run.head_sha,
        "url": f"{api}/actions/jobs/{job.id}",
        "html_url": f"{state.base_url}/{item.full_name}/actions/runs/{run.id}/job/{job.id}",
        "status": job.status,
        "conclusion": job.conclusion,
        "created_at": job.created_at,
        "started_at": job.started_at or job.created_at,
        "completed_at": job.completed_at,
        "name": job.name,
        "steps": [
            {
                "name": step.name,
                "status": step.status,
                "conclusion": step.conclusion,
                "number": step.number,
                "started_at": step.started_at,
                "completed_at": step.completed_at,
            }
            for step in job.steps
        ],
        "check_run_url": f"{api}/check-runs/{job.id}",
        "labels": job.labels,
        "runner_id": 1,
        "runner_name": "emulator",
        "runner_group_id": 1,
        "runner_group_name": "Default",
        "workflow_name": run.workflow_name,
        "head_branch": run.head_branch,
    }


@router.get("/runs")
async def runs(item: ReadActions, request: Request, server: ServerDep) -> JSONResponse:
    """Runs, newest first; filters ``event``, ``status``, ``head_sha``, ``branch``."""
    query = request.query_params
    chosen = [
        run
        for run in runs_of(server, item)
        if query.get("event") in (None, run.event)
        and query.get("status") in (None, run.status, run.conclusion)
        and query.get("head_sha") in (None, run.head_sha)
        and query.get("branch") in (None, run.head_branch)
    ]
    items, headers = page(request, chosen)
    found = [workflow_run(server.state, item, run) for run in items]
    return JSONResponse({"total_count": len(chosen), "workflow_runs": found}, headers=headers)


@router.get("/runs/{number}")
@router.get("/runs/{number}/attempts/{attempt}")
async def run(number: int, item: ReadActions, server: ServerDep, attempt: int | None = None) -> Any:
    """One run."""
    found = find_run(server, item, number)
    if attempt is not None and not 1 <= attempt <= found.attempt:
        raise ApiError(404, "Not Found")
    return workflow_run(server.state, item, found)


def _jobs(request: Request, server: Server, item: Repository, found: Run, jobs: list[JobRecord]) -> JSONResponse:
    items, headers = page(request, jobs)
    shown = [workflow_job(server.state, item, found, job) for job in items]
    return JSONResponse({"total_count": len(jobs), "jobs": shown}, headers=headers)


@router.get("/runs/{number}/jobs")
async def jobs(
    number: int, item: ReadActions, request: Request, server: ServerDep, filter: str = "latest"
) -> JSONResponse:
    """Jobs of a run's latest attempt, or of all."""
    found = find_run(server, item, number)
    return _jobs(request, server, item, found, found.jobs if filter == "all" else found.jobs_of())


@router.get("/runs/{number}/attempts/{attempt}/jobs")
async def attempt_jobs(
    number: int, attempt: int, item: ReadActions, request: Request, server: ServerDep
) -> JSONResponse:
    """Jobs of one attempt."""
    found = find_run(server, item, number)
    return _jobs(request, server, item, found, found.jobs_of(attempt))


@router.get("/jobs/{number}")
async def job(number: int, item: ReadActions, server: ServerDep) -> Any:
    """One job."""
    found, held = find_job(server, item, number)
    return workflow_job(server.state, item, found, held)


@router.get("/jobs/{number}/logs")
async def job_log(number: int, item: ReadActions, server: ServerDep) -> Response:
    """A job's log as text."""
    return PlainTextResponse(read_log(find_job(server, item, number)[1]))


@router.get("/runs/{number}/logs")
async def run_logs(number: int, item: ReadActions, server: ServerDep) -> Response:
    """The logs of the latest attempt as a ZIP archive."""
    found = find_run(server, item, number)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for index, held in enumerate(found.jobs_of()):
            archive.writestr(f"{index}_{held.name.replace('/', '_')}.txt", read_log(held))
    return Response(buffer.getvalue(), media_type="application/zip")


async def _rerun(server: Server, item: Repository, number: int, only_failed: bool) -> Response:
    found = find_run(server, item, number)
    try:
        await server.runs.rerun(item, found, only_failed, f"{server.settings.app.slug}[bot]")
    except RunError as error:
        raise ApiError(403, str(error)) from None
    return JSONResponse({}, 201)


@router.post("/runs/{number}/rerun", status_code=201)
async def rerun(number: int, item: WriteActions, server: ServerDep) -> Response:
    """The next attempt, of all jobs."""
    return await _rerun(server, item, number, only_failed=False)


@router.post("/runs/{number}/rerun-failed-jobs", status_code=201)
async def rerun_failed(number: int, item: WriteActions, server: ServerDep) -> Response:
    """The next attempt, of the failed jobs and those that need them."""
    return await _rerun(server, item, number, only_failed=True)


def _cancel(server: Server, item: Repository, number: int, force: bool) -> Response:
    try:
        server.runs.cancel(find_run(server, item, number), force)
    except RunError as error:
        raise ApiError(409, str(error)) from None
    return JSONResponse({}, 202)


@router.post("/runs/{number}/cancel", status_code=202)
async def cancel(number: int, item: WriteActions, server: ServerDep) -> Response:
    """Cancel a run: steps that ask for it (``always()``) still run."""
    return _cancel(server, item, number, force=False)


@router.post("/runs/{number}/force-cancel", status_code=202)
async def force_cancel(number: int, item: WriteActions, server: ServerDep) -> Response:
    """Cancel a run without letting any step run on."""
    return _cancel(server, item, number, force=True)


@router.post("/workflows/{workflow}/dispatches", status_code=204)
async def dispatch(workflow: str, item: WriteActions, body: Body, server: ServerDep) -> Response:
    """Start a workflow by hand."""
    if not isinstance(body.get("ref"), str):
        raise ApiError(422, 'Invalid request.\n\n"ref" wasn\'t supplied.')
    inputs = body.get("inputs") or {}
    if not isinstance(inputs, dict) or len(inputs) > 25:
        raise ApiError(422, "Invalid request.\n\n'inputs' must be an object of at most 25 properties.")
    try:
        file = f"{WORKFLOW_FOLDER}/{workflow}"
        await server.runs.dispatch_workflow(item, file, body["ref"], inputs, f"{server.settings.app.slug}[bot]")
    except InputError as error:
        raise ApiError(422, str(error)) from None
    return Response(status_code=204)


# --- artifacts ------------------------------------------------------------------------------------------------------


def artifact_object(server: Server, item: Repository, found: Run, artifact: Artifact) -> dict[str, Any]:
    """An artifact as the REST API shows it."""
    api = f"{server.state.base_url}/repos/{item.full_name}/actions/artifacts/{artifact.id}"
    return {
        "id": artifact.id,
        "node_id": payloads.node_id("Artifact", artifact.id),
        "name": artifact.name,
        "size_in_bytes": artifact.size,
        "url": api,
        "archive_download_url": f"{api}/zip",
        "expired": False,
        "digest": f"sha256:{artifact.digest}",
        "created_at": artifact.created_at,
        "updated_at": artifact.created_at,
        "expires_at": None,
        "workflow_run": {
            "id": found.id,
            "repository_id": item.id,
            "head_repository_id": item.id,
            "head_branch": found.head_branch,
            "head_sha": found.head_sha,
        },
    }


@router.get("/runs/{number}/artifacts")
async def artifacts(number: int, item: ReadActions, request: Request, server: ServerDep) -> JSONResponse:
    """Artifacts of a run."""
    found = find_run(server, item, number)
    items, headers = page(request, found.artifacts)
    shown = [artifact_object(server, item, found, artifact) for artifact in items]
    return JSONResponse({"total_count": len(found.artifacts), "artifacts": shown}, headers=headers)


@router.get("/artifacts/{number}/zip")
async def artifact_zip(number: int, item: ReadActions, server: ServerDep) -> Response:
    """The files of an artifact."""
    for found in runs_of(server, item):
        for artifact in found.artifacts:
            if artifact.id == number:
                buffer = io.BytesIO()
                with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
                    for file in sorted(path for path in artifact.path.rglob("*") if path.is_file()):
                        archive.write(file, file.relative_to(artifact.path))
                return Response(buffer.getvalue(), media_type="application/zip")
    raise ApiError(404, "Not Found")


# --- OIDC -----------------------------------------------------------------------------------------------------------


@services.get("/token/.well-known/openid-configuration")
async def discovery(server: ServerDep) -> Any:
    """OpenID Connect discovery."""
    return server.issuer.discovery()


@services.get("/token/.well-known/jwks")
async def jwks(server: ServerDep) -> Any:
    """The issuer's public keys."""
    return server.issuer.jwks()


@services.get("/actions/idtoken/{run_id}/{job_id}")
async def id_token(run_id: int, job_id: int, request: Request, server: ServerDep, audience: str | None = None) -> Any:
    """A token for the running job that holds the request token."""
    value = server.issuer.token_for(bearer(request) or "", run_id, job_id, audience)
    if value is None:
        raise ApiError(401, "The request token is not that of a running job with the permission id-token: write")
    return {"count": len(value), "value": value}
