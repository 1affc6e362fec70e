"""What all routes share: errors in GitHub's form, who is calling and what the caller may do, paging, JSON bodies."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import jwt
from fastapi import Depends, Request
from fastapi.responses import JSONResponse

from relay.emulator.server import Server
from relay.emulator.state import Repository, Token

DOCUMENTATION = "https://docs.github.com/rest"
T = TypeVar("T")


class ApiError(Exception):
    """An error answer in GitHub's form."""

    def __init__(
        self, status: int, message: str, errors: list[Any] | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.body: dict[str, Any] = {"message": message}
        if errors is not None:
            self.body["errors"] = errors
        self.body |= {"documentation_url": DOCUMENTATION, "status": str(status)}


async def answer_error(_request: Request, error: Exception) -> JSONResponse:
    """Exception handler of :class:`ApiError`."""
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, error.headers)


def validation_failed(resource: str, field: str, code: str, message: str | None = None) -> ApiError:
    """422 with one entry of ``errors`` ("Troubleshooting the REST API", validation failed)."""
    entry = {"resource": resource, "field": field, "code": code}
    if message is not None:
        entry["message"] = message
    return ApiError(422, "Validation Failed", [entry])


async def get_server(request: Request) -> Server:
    """The running server."""
    server: Server = request.app.state.server
    return server


ServerDep = Annotated[Server, Depends(get_server)]


async def find_repository(owner: str, name: str, server: ServerDep) -> Repository:
    """The repository that the path names; 404 if there is none."""
    found = server.state.repository(f"{owner}/{name.removesuffix('.git')}")
    if found is None:
        raise ApiError(404, "Not Found")
    return found


Repo = Annotated[Repository, Depends(find_repository)]


def bearer(request: Request) -> str | None:
    """The credential of the ``Authorization`` header, in any of the forms that GitHub takes."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() or None if scheme.lower() in ("bearer", "token") else None


async def require_app(request: Request, server: ServerDep) -> None:
    """The caller is the App itself.

    GitHub's rules for the JWT ("Generating a JSON Web Token (JWT) for a GitHub App"): RS256, ``iss`` is the App's id,
    ``exp`` at most ten minutes ahead, ``iat`` not in the future (a minute of clock drift is tolerated).
    """
    token = bearer(request)
    if token is None:
        raise ApiError(401, "A JSON web token could not be decoded")
    try:
        claims = jwt.decode(
            token,
            server.app_key,
            algorithms=["RS256"],
            leeway=0,
            options={"verify_aud": False, "verify_iat": False, "verify_iss": False, "verify_sub": False},
        )
    except jwt.ExpiredSignatureError:
        raise ApiError(
            401, "'Expiration time' claim ('exp') must be a numeric value representing the future time at which the "
            "assertion expires"
        ) from None  # fmt: skip
    except jwt.InvalidTokenError:
        raise ApiError(401, "A JSON web token could not be decoded") from None
    now = time.time()
    issued, expires = claims.get("iat"), claims.get("exp")
    if not isinstance(expires, (int, float)):
        raise ApiError(401, "Missing 'expiration time' claim ('exp') in assertion")
    if expires > now + 600 + 60:
        raise ApiError(401, "'Expiration time' claim ('exp') is too far in the future")
    if not isinstance(issued, (int, float)):
        raise ApiError(401, "Missing 'issued at' claim ('iat') in assertion")
    if issued > now + 60:
        raise ApiError(
            401, "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"
        )
    if str(claims.get("iss")) != str(server.settings.app.id):
        raise ApiError(401, "'Issuer' claim ('iss') must be an Integer or Client ID")


AppOnly = Depends(require_app)


def find_token(request: Request, server: Server) -> Token | None:
    """The token of the call, ``None`` for an anonymous one.

    Raises:
        ApiError: 401 for one that never was, or is not good any more.
    """
    value = bearer(request)
    if value is None:
        if "authorization" in request.headers:
            raise ApiError(401, "Bad credentials")
        return None
    token = server.state.tokens.get(value)
    if token is None or token.expires <= time.time():
        raise ApiError(401, "Bad credentials")
    return token


class Permission:
    """Dependency: the caller's token reaches the repository of the path and has a permission there.

    Reading is open to anonymous callers, as on a public repository.
    """

    def __init__(self, name: str, level: str = "read") -> None:
        self._name = name
        self._level = level

    async def __call__(self, request: Request, repository: Repo, server: ServerDep) -> Repository:
        """The repository, if the caller may."""
        token = find_token(request, server)
        if token is None:
            if self._level == "read":
                return repository
            raise ApiError(404 if self._name == "contents" else 401, "Not Found" if self._name == "contents" else
                           "Requires authentication")  # fmt: skip
        full_name = repository.full_name.lower()
        own = server.state.installations.get(repository.owner.lower()) if repository.settings.installed else None
        reached = token.installation == own and (token.repositories is None or full_name in token.repositories)
        if not reached and self._level == "read":
            return repository
        if not reached:
            raise ApiError(404, "Not Found")
        if not token.allows(self._name, self._level):
            raise ApiError(403, "Resource not accessible by integration")
        return repository


async def json_body(request: Request) -> dict[str, Any]:
    """The body as an object; an empty one is ``{}``.

    Raises:
        ApiError: 400 as GitHub answers it.
    """
    raw = await request.body()
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise ApiError(400, "Problems parsing JSON") from None
    if not isinstance(value, dict):
        raise ApiError(400, "Body should be a JSON object")
    return value


Body = Annotated[dict[str, Any], Depends(json_body)]


def page(request: Request, items: Sequence[T]) -> tuple[list[T], dict[str, str]]:
    """One page of a list and its ``Link`` header ("Using pagination in the REST API")."""

    def number(name: str, default: int, most: int) -> int:
        text = request.query_params.get(name, "")
        return min(max(int(text), 1), most) if text.isdecimal() else default

    size, current = number("per_page", 30, 100), number("page", 1, 1_000_000)
    last = max((len(items) + size - 1) // size, 1)
    url = request.url
    links = []
    for relation, target in (("prev", current - 1), ("next", current + 1), ("last", last), ("first", 1)):
        if (
            1 <= target <= last
            and not (relation == "last" and current >= last)
            and not (relation == "first" and current == 1)
        ):
            links.append(f'<{url.include_query_params(page=target, per_page=size)}>; rel="{relation}"')
    headers = {"Link": ", ".join(links)} if links else {}
    return list(items[(current - 1) * size : current * size]), headers
