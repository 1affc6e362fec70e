"""GitHub's REST API as an App uses it (GitHub Docs, "Authenticating as a GitHub App installation").

An installation token is kept until shortly before it expires, so a dispatch costs one request.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jwt

from relay.adapters.http import HttpClient, NoAnswer, Response
from relay.core import retry
from relay.core.body import dump

_API_VERSION = "2022-11-28"
_RENEW_BEFORE_SECONDS = 300
_JWT_SECONDS = 540  # GitHub allows 600; the difference is for its clock and ours


class GitHubError(Exception):
    """GitHub did not do it.

    Attributes:
        again: how to try again, or ``None`` if that cannot help.
        status: HTTP status, ``None`` where there was no answer.
    """

    def __init__(self, message: str, *, again: retry.Again | None, status: int | None = None):
        super().__init__(message)
        self.again = again
        self.status = status


@dataclass
class _Token:
    value: str
    expires_at: float


class GitHubApp:
    """One App on one GitHub.

    Args:
        client: used for every request; it is not closed here.
        api_url: base of the REST API without a trailing slash.
        app_id: the App's id, issuer of its JWT.
        private_key: the App's RSA key, PEM.
    """

    def __init__(self, client: HttpClient, api_url: str, app_id: str, private_key: str):
        self._client = client
        self._api = api_url.rstrip("/")
        self._app_id = app_id
        # Reading the key checks it, which takes longer than many requests.
        self._private_key = jwt.get_algorithm_by_name("RS256").prepare_key(private_key)
        self._jwt = _Token("", 0.0)
        self._installations: dict[str, int] = {}
        self._tokens: dict[int, _Token] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def _app_jwt(self) -> str:
        now = int(time.time())
        if not now - _JWT_SECONDS / 2 < self._jwt.expires_at - _JWT_SECONDS <= now:
            claims = {"iat": now - 60, "exp": now + _JWT_SECONDS, "iss": self._app_id}
            self._jwt = _Token(jwt.encode(claims, self._private_key, algorithm="RS256"), now + _JWT_SECONDS)
        return self._jwt.value

    async def _send(
        self, method: str, path: str, token: str, body: str | None = None, params: dict[str, str] | None = None
    ) -> Response:
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {token}",
            "X-GitHub-Api-Version": _API_VERSION,
            "User-Agent": "spyre-conformance-relay",
        }
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            return await self._client.request(method, self._api + path, headers=headers, body=body, parameters=params)
        except NoAnswer as error:
            raise GitHubError(f"{method} {path}: no answer from GitHub ({error})", again=retry.Again()) from error

    def _failure(self, response: Response) -> GitHubError:
        verdict = retry.github(response.status, response.headers, response.text, time.time())
        return GitHubError(
            f"{response.request}: GitHub answered {response.status}: {_message(response)}",
            again=verdict if isinstance(verdict, retry.Again) else None,
            status=response.status,
        )

    async def _installation(self, repo: str) -> Response:
        """``GET /repos/{repo}/installation``."""
        response = await self._send("GET", f"/repos/{repo}/installation", self._app_jwt())
        if response.status == 404:
            raise GitHubError(f"the App is not installed on {repo}; its owner must install it", again=None, status=404)
        if response.status != 200:
            raise self._failure(response)
        return response

    async def _installation_token(self, repo: str) -> str:
        """Token for the installation that covers ``repo``; concurrent callers share one request."""
        key = repo.lower()
        token = self._cached_token(key)
        if token is not None:
            return token
        async with self._locks.setdefault(key.split("/")[0], asyncio.Lock()):
            token = self._cached_token(key)
            if token is not None:
                return token
            if key not in self._installations:
                self._installations[key] = int(_field(await self._installation(repo), "id"))
            installation = self._installations[key]
            token = self._cached_token(key)
            if token is not None:
                return token
            response = await self._send("POST", f"/app/installations/{installation}/access_tokens", self._app_jwt())
            if response.status == 404:
                self._installations.pop(key, None)  # uninstalled, perhaps installed anew under another id
            if response.status != 201:
                raise self._failure(response)
            expires = datetime.fromisoformat(str(_field(response, "expires_at")).replace("Z", "+00:00")).timestamp()
            self._tokens[installation] = _Token(str(_field(response, "token")), expires)
            return self._tokens[installation].value

    def _cached_token(self, key: str) -> str | None:
        installation = self._installations.get(key)
        token = self._tokens.get(installation) if installation is not None else None
        return token.value if token is not None and token.expires_at - _RENEW_BEFORE_SECONDS > time.time() else None

    def _forget(self, repo: str, token: str) -> None:
        """A token that GitHub no longer takes (the App was re-installed) must not be used again."""
        installation = self._installations.pop(repo.lower(), None)
        if installation is not None and installation in self._tokens and self._tokens[installation].value == token:
            del self._tokens[installation]

    async def _as_installation(
        self, repo: str, method: str, path: str, body: str | None = None, params: dict[str, str] | None = None
    ) -> Response:
        token = await self._installation_token(repo)
        response = await self._send(method, path, token, body, params)
        if response.status == 401:
            self._forget(repo, token)
            token = await self._installation_token(repo)
            response = await self._send(method, path, token, body, params)
        return response

    async def app(self) -> tuple[dict[str, Any], str | None]:
        """``GET /app``: the App as GitHub knows it, and the ``Date`` of the answer.

        Raises:
            GitHubError: no answer that says so.
        """
        response = await self._send("GET", "/app", self._app_jwt())
        if response.status != 200:
            raise self._failure(response)
        _field(response, "id")
        return response.json(), response.headers.get("date")

    async def permissions(self, repo: str) -> dict[str, str]:
        """What the App may do in a repository.

        Raises:
            GitHubError: not installed, or nobody knows.
        """
        found = _field(await self._installation(repo), "permissions")
        return {str(name): str(level) for name, level in dict(found).items()}

    async def dispatch(self, repo: str, event_type: str, client_payload: str) -> None:
        """``POST /repos/{repo}/dispatches``.

        Args:
            client_payload: a JSON object, as text: a fan-out sends it to many and reads it for none.

        Raises:
            GitHubError: not dispatched, or nobody knows.
        """
        body = f'{{"event_type":{dump(event_type)},"client_payload":{client_payload}}}'
        response = await self._as_installation(repo, "POST", f"/repos/{repo}/dispatches", body)
        if response.status != 204:
            raise self._failure(response)

    async def create_check_run(self, repo: str, body: dict[str, Any]) -> int:
        """``POST /repos/{repo}/check-runs``; returns the check run's id.

        Raises:
            GitHubError: not created, or nobody knows.
        """
        response = await self._as_installation(repo, "POST", f"/repos/{repo}/check-runs", dump(body))
        if response.status != 201:
            raise self._failure(response)
        return int(_field(response, "id"))

    async def update_check_run(self, repo: str, check_run_id: int, body: dict[str, Any]) -> None:
        """``PATCH /repos/{repo}/check-runs/{id}``.

        Raises:
            GitHubError: not updated, or nobody knows.
        """
        path = f"/repos/{repo}/check-runs/{check_run_id}"
        response = await self._as_installation(repo, "PATCH", path, dump(body))
        if response.status != 200:
            raise self._failure(response)

    async def find_check_runs(self, repo: str, head_sha: str, name: str) -> list[dict[str, Any]]:
        """``GET /repos/{repo}/commits/{sha}/check-runs`` of this App with that name, newest first.

        Raises:
            GitHubError: no answer that says so.
        """
        path = f"/repos/{repo}/commits/{head_sha}/check-runs"
        params = {"check_name": name, "filter": "all", "per_page": "100"}
        if self._app_id.isdigit():  # it may be the client id, which GitHub does not take here
            params["app_id"] = self._app_id
        response = await self._as_installation(repo, "GET", path, params=params)
        if response.status != 200:
            raise self._failure(response)
        runs = _field(response, "check_runs")
        return [run for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []

    async def rerun_failed_jobs(self, repo: str, run_id: str) -> None:
        """``POST /repos/{repo}/actions/runs/{id}/rerun-failed-jobs``; a run that is already running is fine.

        Raises:
            GitHubError: not started, or nobody knows.
        """
        path = f"/repos/{repo}/actions/runs/{run_id}/rerun-failed-jobs"
        response = await self._as_installation(repo, "POST", path)
        if response.status == 201:
            return
        if response.status in {403, 409} and "already running" in response.text.lower():
            return
        raise self._failure(response)

    async def cancel_run(self, repo: str, run_id: str) -> None:
        """``POST /repos/{repo}/actions/runs/{id}/cancel``; a run that ended already (409) is fine.

        Raises:
            GitHubError: not cancelled, or nobody knows.
        """
        response = await self._as_installation(repo, "POST", f"/repos/{repo}/actions/runs/{run_id}/cancel")
        if response.status not in {202, 409}:
            raise self._failure(response)

    async def pull_files(self, repo: str, number: int) -> list[str]:
        """``GET /repos/{repo}/pulls/{number}/files``: all names, both of a rename. GitHub lists at most 3,000.

        Raises:
            GitHubError: no answer that says so.
        """
        names: list[str] = []
        for page in range(1, 31):
            params = {"per_page": "100", "page": str(page)}
            response = await self._as_installation(repo, "GET", f"/repos/{repo}/pulls/{number}/files", params=params)
            if response.status != 200:
                raise self._failure(response)
            files = response.json()
            for file in files:
                names.extend(file[key] for key in ("filename", "previous_filename") if file.get(key))
            if len(files) < 100:
                break
        return names

    async def commit_exists(self, repo: str, sha: str) -> bool:
        """``GET /repos/{repo}/git/commits/{sha}``.

        Raises:
            GitHubError: no answer that says so.
        """
        response = await self._as_installation(repo, "GET", f"/repos/{repo}/git/commits/{sha}")
        if response.status in {404, 422}:
            return False
        if response.status != 200:
            raise self._failure(response)
        return True


def _message(response: Response) -> str:
    try:
        message = response.json()["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text
    return str(message)[:300]


def _field(response: Response, name: str) -> Any:
    """A field of a success answer; a proxy's page in its place is a failure like any other."""
    try:
        return response.json()[name]
    except (ValueError, KeyError, TypeError) as error:
        raise GitHubError(f"{response.request}: GitHub's answer has no field {name!r}", again=retry.Again()) from error
