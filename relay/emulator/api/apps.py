"""GitHub Apps: the App itself, its installations, installation tokens, its webhook deliveries."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from relay.emulator import payloads
from relay.emulator.api.common import ApiError, AppOnly, Body, Repo, ServerDep, find_token, page
from relay.emulator.state import Delivery

router = APIRouter()


@router.get("/app", dependencies=[AppOnly])
async def app(server: ServerDep) -> Any:
    """The authenticated App."""
    return payloads.app(server.state)


@router.get("/app/installations", dependencies=[AppOnly])
async def installations(request: Request, server: ServerDep) -> JSONResponse:
    """Where the App is installed: one installation per account."""
    items, headers = page(request, list(server.state.installations))
    return JSONResponse([payloads.installation(server.state, owner) for owner in items], headers=headers)


def _owner(server: ServerDep, number: int) -> str:
    for owner, held in server.state.installations.items():
        if held == number:
            return owner
    raise ApiError(404, "Not Found")


@router.get("/app/installations/{number}", dependencies=[AppOnly])
async def installation(number: int, server: ServerDep) -> Any:
    """One installation."""
    return payloads.installation(server.state, _owner(server, number))


@router.post("/app/installations/{number}/access_tokens", status_code=201, dependencies=[AppOnly])
async def access_tokens(number: int, body: Body, server: ServerDep) -> Any:
    """A token for an hour, for all repositories of the installation or those named, with all permissions or fewer."""
    owner, state = _owner(server, number), server.state
    reachable = {
        item.full_name.lower(): item
        for item in state.repositories.values()
        if item.owner.lower() == owner and item.settings.installed
    }
    chosen: frozenset[str] | None = None
    if body.get("repositories") is not None or body.get("repository_ids") is not None:
        names = {f"{owner}/{str(name).lower()}" for name in body.get("repositories") or []}
        numbers = set(body.get("repository_ids") or [])
        found = {name for name, item in reachable.items() if name in names or item.id in numbers}
        if len(found) < len(names | {name for name, item in reachable.items() if item.id in numbers}):
            raise ApiError(
                422,
                "There is at least one repository that does not exist or is not accessible to the parent installation.",
            )
        chosen = frozenset(found)
    permissions = dict(server.settings.app.permissions)
    if body.get("permissions") is not None:
        asked = {str(name): str(level) for name, level in dict(body["permissions"]).items()}
        for name, level in asked.items():
            if level not in ("read", "write") or not (
                permissions.get(name) == "write" or (permissions.get(name) == "read" and level == "read")
            ):
                raise ApiError(422, "The permissions requested are not granted to this installation.")
        permissions = {"metadata": "read", **asked}
    value, token = state.new_token("installation", number, chosen, permissions)
    return payloads.access_token(state, value, token)


@router.get("/repos/{owner}/{name}/installation", dependencies=[AppOnly])
async def repository_installation(repository: Repo, server: ServerDep) -> Any:
    """The installation that reaches a repository."""
    if not repository.settings.installed:
        raise ApiError(404, "Not Found")
    return payloads.installation(server.state, repository.owner)


@router.get("/orgs/{owner}/installation", dependencies=[AppOnly])
async def organization_installation(owner: str, server: ServerDep) -> Any:
    """The installation of an account."""
    if owner.lower() not in server.state.installations:
        raise ApiError(404, "Not Found")
    return payloads.installation(server.state, owner)


@router.get("/installation/repositories")
async def installation_repositories(request: Request, server: ServerDep) -> JSONResponse:
    """What an installation token reaches."""
    token = find_token(request, server)
    if token is None:
        raise ApiError(401, "Requires authentication")
    owner = _owner(server, token.installation)
    names = [
        item.full_name.lower()
        for item in server.state.repositories.values()
        if item.owner.lower() == owner
        and item.settings.installed
        and (token.repositories is None or item.full_name.lower() in token.repositories)
    ]
    items, headers = page(request, names)
    found = [payloads.repository(server.state, server.state.repositories[name]) for name in items]
    return JSONResponse({"total_count": len(names), "repositories": found}, headers=headers)


# --- deliveries -----------------------------------------------------------------------------------------------------


def find_delivery(server: ServerDep, number: int) -> Delivery:
    """A delivery attempt by its id; 404 if there is none."""
    found = server.state.deliveries.get(number)
    if found is None:
        raise ApiError(404, "Not Found")
    return found


@router.get("/app/hook/deliveries", dependencies=[AppOnly])
async def deliveries(server: ServerDep, per_page: int = 30) -> Any:
    """Newest first."""
    newest = list(server.state.deliveries.values())[::-1]
    return [payloads.delivery(item) for item in newest[: min(max(per_page, 1), 100)]]


@router.get("/app/hook/deliveries/{number}", dependencies=[AppOnly])
async def delivery(number: int, server: ServerDep) -> Any:
    """One delivery with its request and response."""
    return payloads.delivery(find_delivery(server, number), full=True)


@router.post("/app/hook/deliveries/{number}/attempts", status_code=202, dependencies=[AppOnly])
async def redeliver(number: int, server: ServerDep) -> Any:
    """Deliver once more."""
    server.webhooks.redeliver(find_delivery(server, number))
    return {}


@router.delete("/installation/token", status_code=204)
async def revoke(request: Request, server: ServerDep) -> Response:
    """Revoke the token of this very call."""
    if find_token(request, server) is None:
        raise ApiError(401, "Requires authentication")
    server.state.tokens.pop(request.headers["authorization"].partition(" ")[2].strip(), None)
    return Response(status_code=204)


@router.get("/rate_limit")
async def rate_limit(server: ServerDep) -> Any:
    """There is no limit here but the faults that were asked for."""
    rate = {"limit": 5000, "used": 0, "remaining": 5000, "reset": 0}
    return {"resources": {"core": rate}, "rate": rate}
