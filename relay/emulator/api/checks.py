"""Check runs and check suites."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from relay.emulator import git, payloads
from relay.emulator.api.common import ApiError, Body, Permission, ServerDep, page, validation_failed
from relay.emulator.events import EventError
from relay.emulator.state import CheckRun, CheckSuite, Repository, now

router = APIRouter(prefix="/repos/{owner}/{name}")

ReadChecks = Annotated[Repository, Depends(Permission("checks"))]
WriteChecks = Annotated[Repository, Depends(Permission("checks", "write"))]

STATUSES = ("queued", "in_progress", "completed")
CONCLUSIONS = ("action_required", "cancelled", "failure", "neutral", "success", "skipped", "stale", "timed_out")
MAX_TEXT = 65_535
MAX_ANNOTATIONS = 50


def _find(item: Repository, number: int) -> CheckRun:
    if number not in item.checks:
        raise ApiError(404, "Not Found")
    return item.checks[number]


def _apply(check: CheckRun, body: dict[str, Any]) -> None:
    """Take the fields of a create or update request, all or none."""

    def text(field: str, most: int = 1024) -> str | None:
        value = body.get(field)
        if value is not None and not isinstance(value, str):
            raise ApiError(422, f"Invalid request.\n\nFor 'properties/{field}', {value!r} is not a string.")
        if value is not None and len(value) > most:
            raise validation_failed("CheckRun", field, "too_large")
        return value

    status, conclusion = text("status"), text("conclusion")
    if status is not None and status not in STATUSES:
        raise ApiError(422, f"Invalid request.\n\n{status} is not a member of {list(STATUSES)}.")
    if conclusion is not None and conclusion not in CONCLUSIONS:
        raise ApiError(422, f"Invalid request.\n\n{conclusion} is not a member of {list(CONCLUSIONS)}.")
    if status == "completed" and conclusion is None:
        raise validation_failed("CheckRun", "conclusion", "missing_field")
    output = body.get("output")
    if output is not None:
        if not isinstance(output, dict) or not isinstance(output.get("summary"), str):
            raise ApiError(422, 'Invalid request.\n\n"summary" wasn\'t supplied.')
        for field in ("summary", "text"):
            if isinstance(output.get(field), str) and len(output[field].encode()) > MAX_TEXT:
                raise validation_failed("CheckRun", f"output.{field}", "too_large")
        if len(output.get("annotations") or []) > MAX_ANNOTATIONS:
            raise ApiError(422, f"Invalid request.\n\nNo more than {MAX_ANNOTATIONS} items are allowed.")
    details, external, name = text("details_url", 2048), text("external_id"), text("name")
    if details is not None and not re.match(r"https?://", details):
        raise validation_failed("CheckRun", "details_url", "invalid", "details_url must use http or https scheme")
    started, completed = text("started_at"), text("completed_at")
    check.name = name or check.name
    check.details_url = details or check.details_url
    check.external_id = external if external is not None else check.external_id
    if output is not None:
        annotations = [*(check.output.get("annotations") or []), *(output.get("annotations") or [])]
        check.output = {**check.output, **output, "annotations": annotations}
    if conclusion is not None:
        # A conclusion completes the check run, whatever the status says.
        check.status, check.conclusion = "completed", conclusion
        check.completed_at = completed or now()
    elif status is not None:
        check.status, check.conclusion, check.completed_at = status, None, None
    if check.status != "queued" or started is not None:
        check.started_at = started or check.started_at or now()
    if isinstance(body.get("actions"), list):
        check.actions = body["actions"]


@router.post("/check-runs", status_code=201)
async def create(item: WriteChecks, body: Body, server: ServerDep) -> Any:
    """Create a check run on a commit of the repository."""
    for field in ("name", "head_sha"):
        if not isinstance(body.get(field), str) or not body[field]:
            raise ApiError(422, f'Invalid request.\n\n"{field}" wasn\'t supplied.')
    sha = body["head_sha"]
    if item.git is not None and (not re.fullmatch(r"[0-9a-f]{40}", sha) or await git.resolve(item.git, sha) is None):
        raise ApiError(422, f"No commit found for SHA: {sha}")
    suite = server.events.suite(item, sha)
    check = CheckRun(server.state.new_id(), suite.id, body["name"], sha, started_at=now())
    _apply(check, body)
    item.checks[check.id] = check
    server.events.check_changed(item, check, "created")
    if check.status == "completed":
        server.events.check_changed(item, check, "completed")
    return payloads.check_run(server.state, item, check)


@router.patch("/check-runs/{number}")
async def update(number: int, item: WriteChecks, body: Body, server: ServerDep) -> Any:
    """Update a check run."""
    check = _find(item, number)
    before = check.status
    _apply(check, body)
    if check.status == "completed" and before != "completed":
        server.events.check_changed(item, check, "completed")
    return payloads.check_run(server.state, item, check)


@router.get("/check-runs/{number}")
async def show(number: int, item: ReadChecks, server: ServerDep) -> Any:
    """One check run."""
    return payloads.check_run(server.state, item, _find(item, number))


def _listed(request: Request, server: ServerDep, item: Repository, checks: list[CheckRun]) -> JSONResponse:
    query = request.query_params
    name, status, wanted = query.get("check_name"), query.get("status"), query.get("filter", "latest")
    chosen = [check for check in checks if name in (None, check.name) and status in (None, check.status)]
    if wanted == "latest":
        chosen = list({check.name: check for check in chosen}.values())
    chosen.sort(key=lambda check: -check.id)
    items, headers = page(request, chosen)
    found = [payloads.check_run(server.state, item, check) for check in items]
    return JSONResponse({"total_count": len(chosen), "check_runs": found}, headers=headers)


async def _sha(item: Repository, reference: str) -> str:
    return await git.resolve(item.git, reference) or reference if item.git is not None else reference


@router.get("/commits/{reference:path}/check-runs")
async def of_commit(reference: str, item: ReadChecks, request: Request, server: ServerDep) -> JSONResponse:
    """Check runs of a commit."""
    sha = await _sha(item, reference)
    return _listed(request, server, item, [check for check in item.checks.values() if check.head_sha == sha])


@router.get("/commits/{reference:path}/check-suites")
async def suites(reference: str, item: ReadChecks, request: Request, server: ServerDep) -> JSONResponse:
    """Check suites of a commit."""
    sha = await _sha(item, reference)
    chosen = [suite for suite in item.suites.values() if suite.head_sha == sha]
    items, headers = page(request, chosen)
    found = [await _suite(server, item, suite) for suite in items]
    return JSONResponse({"total_count": len(chosen), "check_suites": found}, headers=headers)


async def _suite(server: ServerDep, item: Repository, suite: CheckSuite) -> dict[str, Any]:
    found = payloads.check_suite(server.state, item, suite, await server.events.commit(item, suite.head_sha))
    return {**found, "repository": payloads.repository(server.state, item)}


def _find_suite(item: Repository, number: int) -> CheckSuite:
    if number not in item.suites:
        raise ApiError(404, "Not Found")
    return item.suites[number]


@router.get("/check-suites/{number}")
async def suite(number: int, item: ReadChecks, server: ServerDep) -> Any:
    """One check suite."""
    return await _suite(server, item, _find_suite(item, number))


@router.get("/check-suites/{number}/check-runs")
async def of_suite(number: int, item: ReadChecks, request: Request, server: ServerDep) -> JSONResponse:
    """Check runs of a suite."""
    found = _find_suite(item, number)
    return _listed(request, server, item, [check for check in item.checks.values() if check.suite_id == found.id])


@router.post("/check-runs/{number}/rerequest", status_code=201)
async def rerequest(number: int, item: WriteChecks, server: ServerDep) -> Response:
    """As if "Re-run" were pressed."""
    try:
        server.events.rerequest_check(item, _find(item, number), item.owner)
    except EventError as error:
        raise ApiError(422, str(error)) from None
    return JSONResponse({}, 201)


@router.post("/check-suites/{number}/rerequest", status_code=201)
async def rerequest_suite(number: int, item: WriteChecks, server: ServerDep) -> Response:
    """As if "Re-run all checks" were pressed."""
    try:
        await server.events.rerequest_suite(item, _find_suite(item, number), item.owner)
    except EventError as error:
        raise ApiError(422, str(error)) from None
    return JSONResponse({}, 201)
