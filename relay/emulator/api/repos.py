"""Repositories: dispatches, contents, branches, commits; pull requests and their files."""

from __future__ import annotations

import base64
import json
import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from relay.emulator import git, payloads
from relay.emulator.api.common import ApiError, Body, Permission, ServerDep, page, validation_failed
from relay.emulator.state import Repository

_FULL_SHA = re.compile(r"[0-9a-f]{40}")

router = APIRouter(prefix="/repos/{owner}/{name}")

Metadata = Annotated[Repository, Depends(Permission("metadata"))]
ReadContents = Annotated[Repository, Depends(Permission("contents"))]
WriteContents = Annotated[Repository, Depends(Permission("contents", "write"))]
ReadPulls = Annotated[Repository, Depends(Permission("pull_requests"))]

MAX_EVENT_TYPE = 100
MAX_PAYLOAD_KEYS = 10
MAX_PAYLOAD_BYTES = 64 * 1024
"""Limits of "Create a repository dispatch event": characters, top-level properties, size of the JSON."""


@router.get("")
async def repository(item: Metadata, server: ServerDep) -> Any:
    """The repository."""
    return {**payloads.repository(server.state, item), "network_count": 0, "subscribers_count": 0}


@router.post("/dispatches", status_code=204)
async def dispatches(item: WriteContents, body: Body, server: ServerDep) -> Response:
    """Start the workflows that listen to ``event_type``."""

    def invalid(text: str) -> ApiError:
        return ApiError(422, f"Invalid request.\n\n{text}")

    for key in body:
        if key not in ("event_type", "client_payload"):
            raise invalid(f'"{key}" is not a permitted key.')
    event_type, payload = body.get("event_type"), body.get("client_payload", {})
    if event_type is None:
        raise invalid('"event_type" wasn\'t supplied.')
    if not isinstance(event_type, str):
        raise invalid(f"For 'properties/event_type', {json.dumps(event_type)} is not a string.")
    if not event_type:
        raise validation_failed("RepositoryDispatch", "event_type", "missing_field")
    if len(event_type) > MAX_EVENT_TYPE:
        raise validation_failed(
            "RepositoryDispatch",
            "event_type",
            "too_large",
            f"event_type is too long (maximum is {MAX_EVENT_TYPE} characters)",
        )
    if not isinstance(payload, dict):
        raise invalid("For 'properties/client_payload', the value is not an object.")
    if len(payload) > MAX_PAYLOAD_KEYS:
        raise invalid(f"No more than {MAX_PAYLOAD_KEYS} properties are allowed; {len(payload)} were supplied.")
    if (
        len(json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode(errors="replace"))
        >= MAX_PAYLOAD_BYTES
    ):
        raise validation_failed("RepositoryDispatch", "client_payload", "too_large", "client_payload is too large.")
    if item.git is not None:
        event = payloads.dispatch_event(server.state, item, event_type, payload)
        server.runs.dispatch(item, event_type, event, f"{server.settings.app.slug}[bot]")
    return Response(status_code=204)


# --- git ------------------------------------------------------------------------------------------------------------


async def _commit(item: Repository, reference: str) -> tuple[Any, str]:
    sha = await git.resolve(item.git, reference) if item.git is not None else None
    if sha is None:
        raise ApiError(404, f"No commit found for the ref {reference}")
    return item.git, sha


@router.get("/contents")
@router.get("/contents/{path:path}")
async def contents(item: ReadContents, request: Request, server: ServerDep, path: str = "", ref: str = "") -> Response:
    """A file (base64 in JSON, or as it is with ``Accept: application/vnd.github.raw+json``) or a folder's entries."""
    directory, sha = await _commit(item, ref or item.default_branch)
    path = path.strip("/")
    api, html = f"{server.state.base_url}/repos/{item.full_name}", f"{server.state.base_url}/{item.full_name}"
    shown = ref or item.default_branch

    def entry(name: str, full: str, kind: str, blob: str, size: int) -> dict[str, Any]:
        git_url = f"{api}/git/{'trees' if kind == 'dir' else 'blobs'}/{blob}"
        url, page_url = f"{api}/contents/{full}?ref={shown}", f"{html}/blob/{shown}/{full}"
        return {
            "name": name,
            "path": full,
            "sha": blob,
            "size": size,
            "url": url,
            "html_url": page_url,
            "git_url": git_url,
            "download_url": f"{html}/raw/{shown}/{full}" if kind == "file" else None,
            "type": kind,
            "_links": {"self": url, "git": git_url, "html": page_url},
        }

    folder = await git.list_folder(directory, sha, path)
    if folder is not None:
        return JSONResponse(
            [entry(name, f"{path}/{name}".lstrip("/"), kind, blob, size) for name, kind, blob, size in folder]
        )
    data = await git.read_file(directory, sha, path)
    if data is None:
        raise ApiError(404, "Not Found")
    if "raw" in request.headers.get("accept", ""):
        return Response(data, media_type="application/vnd.github.raw+json")
    parent, _, name = path.rpartition("/")
    listed = await git.list_folder(directory, sha, parent) or []
    blob = next(found for own, _, found, _ in listed if own == name)
    held = entry(name, path, "file", blob, len(data))
    return JSONResponse({**held, "content": base64.encodebytes(data).decode(), "encoding": "base64"})


def _rest_commit(server: ServerDep, item: Repository, found: git.Commit) -> dict[str, Any]:
    api, html = f"{server.state.base_url}/repos/{item.full_name}", f"{server.state.base_url}/{item.full_name}"
    return {
        "sha": found.sha,
        "node_id": payloads.node_id("Commit", int(found.sha[:8], 16)),
        "commit": {
            "author": {"name": found.author_name, "email": found.author_email, "date": found.timestamp},
            "committer": {"name": found.committer_name, "email": found.committer_email, "date": found.timestamp},
            "message": found.message,
            "tree": {"sha": found.tree, "url": f"{api}/git/trees/{found.tree}"},
            "url": f"{api}/git/commits/{found.sha}",
            "comment_count": 0,
        },
        "url": f"{api}/commits/{found.sha}",
        "html_url": f"{html}/commit/{found.sha}",
        "comments_url": f"{api}/commits/{found.sha}/comments",
        "author": None,
        "committer": None,
        "parents": [
            {"sha": sha, "url": f"{api}/commits/{sha}", "html_url": f"{html}/commit/{sha}"} for sha in found.parents
        ],
    }


@router.get("/commits/{reference:path}")
async def commit(reference: str, item: ReadContents, server: ServerDep) -> Any:
    """One commit, without its files."""
    directory, sha = await _commit(item, reference)
    return _rest_commit(server, item, (await git.commits(directory, sha, limit=1))[0])


@router.get("/branches/{branch:path}")
async def branch(branch: str, item: ReadContents, server: ServerDep) -> Any:
    """One branch."""
    directory, sha = await _commit(item, f"refs/heads/{branch}")
    found = _rest_commit(server, item, (await git.commits(directory, sha, limit=1))[0])
    return {"name": branch, "commit": found, "protected": False}


@router.get("/git/ref/{ref:path}")
async def reference(ref: str, item: ReadContents, server: ServerDep) -> Any:
    """One ref."""
    _, sha = await _commit(item, f"refs/{ref}")
    api = f"{server.state.base_url}/repos/{item.full_name}"
    return {
        "ref": f"refs/{ref}",
        "node_id": payloads.node_id("Ref", int(sha[:8], 16)),
        "url": f"{api}/git/refs/{ref}",
        "object": {"type": "commit", "sha": sha, "url": f"{api}/git/commits/{sha}"},
    }


@router.get("/git/commits/{sha}")
async def commit_object(sha: str, item: ReadContents, server: ServerDep) -> Any:
    """One commit as git's database has it; only its full SHA names it here."""
    if not _FULL_SHA.fullmatch(sha):
        raise ApiError(422, "The sha parameter must be exactly 40 characters and contain only [0-9a-f].")
    directory, found_sha = await _commit(item, sha)
    found = _rest_commit(server, item, (await git.commits(directory, found_sha, limit=1))[0])
    inner = {key: value for key, value in found["commit"].items() if key != "comment_count"}
    unsigned = {"verified": False, "reason": "unsigned", "signature": None, "payload": None, "verified_at": None}
    outer = {key: found[key] for key in ("sha", "node_id", "html_url", "parents")}
    return {**inner, **outer, "verification": unsigned}


# --- pull requests --------------------------------------------------------------------------------------------------


@router.get("/pulls")
async def pulls(item: ReadPulls, request: Request, server: ServerDep, state: str = "open") -> JSONResponse:
    """Pull requests, newest first."""
    chosen = [pull for pull in reversed(item.pulls.values()) if state in ("all", pull.state)]
    items, headers = page(request, chosen)
    return JSONResponse([await server.events.pull_object(item, pull) for pull in items], headers=headers)


@router.get("/pulls/{number}")
async def pull(number: int, item: ReadPulls, server: ServerDep) -> Any:
    """One pull request."""
    if number not in item.pulls:
        raise ApiError(404, "Not Found")
    return await server.events.pull_object(item, item.pulls[number])


@router.get("/pulls/{number}/files")
async def pull_files(number: int, item: ReadPulls, request: Request, server: ServerDep) -> JSONResponse:
    """The files that a pull request changes."""
    if number not in item.pulls:
        raise ApiError(404, "Not Found")
    held = item.pulls[number]
    files, headers = page(request, await server.events.pull_files(item, held))
    shown = [payloads.changed_file(server.state, item, held.head_sha, file) for file in files]
    return JSONResponse(shown, headers=headers)
