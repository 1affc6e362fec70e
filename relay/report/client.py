"""Sending: an OIDC token, the callback, the per-test results. Everything may be repeated safely.

The relay takes a repeated report as the first one, and HUD an upload likewise, so every step is tried again on
connection errors, 429 and 5xx, waiting as long as the server asks.
"""

from __future__ import annotations

import gzip
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from relay.report.environment import Environment, ReportError

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_CHUNK = 1024 * 1024
Say = Callable[[str], None]


class _Transient(Exception):
    """Worth another try. ``after`` is the wait that the server asked for, in seconds."""

    def __init__(self, message: str, after: float | None = None):
        super().__init__(message)
        self.after = after


class Client:
    """One job's connection to its relay.

    Args:
        max_seconds: for each step, all tries together.
        say: gets a line for every failed try.
    """

    def __init__(self, *, max_seconds: float = 120, say: Say = print):
        self._http = httpx.Client(timeout=httpx.Timeout(30, connect=10))
        self._max_seconds = max_seconds
        self._say = say

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    def token(self, environment: Environment, audience: str) -> str:
        """An OIDC token of this job for the relay.

        Raises:
            ReportError: the CI gives none; the text says what to configure.
        """
        if environment.token:
            return environment.token
        if environment.token_url and environment.token_request:
            url = httpx.URL(environment.token_url).copy_merge_params({"audience": audience})
            headers = {"Authorization": f"Bearer {environment.token_request}", "Accept": "application/json"}
            response = self._send("asking for an OIDC token", lambda: self._http.get(url, headers=headers))
            if response.is_success:
                value = _json(response).get("value")
                if isinstance(value, str) and value:
                    return value
            raise ReportError(f"the CI gave no OIDC token: HTTP {response.status_code}: {response.text[:300]}")
        if environment.token_command:
            command = [*environment.token_command, audience]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            except (OSError, subprocess.SubprocessError) as error:
                raise ReportError(f"'{' '.join(command)}' gave no OIDC token: {error}") from error
            return done.stdout.strip()
        raise ReportError(
            "no OIDC token can be had; on GitHub give the job 'permissions: id-token: write', on GitLab set "
            "RELAY_OIDC_TOKEN with 'id_tokens:', elsewhere set RELAY_OIDC_TOKEN"
        )

    def report(self, url: str, token: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST the callback; returns the relay's answer.

        Raises:
            ReportError: refused, or no answer within ``max_seconds``.
        """
        headers = {"Authorization": f"Bearer {token}"}
        response = self._send("reporting", lambda: self._http.post(url, json=body, headers=headers))
        if not response.is_success:
            raise ReportError(f"the relay answered {response.status_code}: {_reason(response)}", sent=True)
        return _json(response)

    def upload(self, url: str, token: str, path: Path) -> dict[str, Any]:
        """POST per-test results, gzip-compressed and streamed from a file; returns HUD's answer.

        Raises:
            ReportError: refused, or no answer within ``max_seconds``.
        """
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/x-ndjson",
            "Content-Encoding": "gzip",
        }
        with tempfile.TemporaryFile() as packed:
            with path.open("rb") as source, gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as target:
                while chunk := source.read(_CHUNK):
                    target.write(chunk)
            size = packed.tell()

            def post() -> httpx.Response:
                packed.seek(0)

                def chunks() -> Iterator[bytes]:
                    while chunk := packed.read(_CHUNK):
                        yield chunk

                return self._http.post(url, content=chunks(), headers={**headers, "Content-Length": str(size)})

            response = self._send("uploading results", post)
        if not response.is_success:
            raise ReportError(f"HUD answered {response.status_code} to the upload: {_reason(response)}", sent=True)
        return _json(response)

    def _send(self, doing: str, request: Callable[[], httpx.Response]) -> httpx.Response:
        def once() -> httpx.Response:
            try:
                response = request()
            except httpx.HTTPError as error:
                raise _Transient(str(error) or repr(error)) from error
            if response.status_code in _TRANSIENT:
                raise _Transient(f"HTTP {response.status_code}: {_reason(response)}", _after(response))
            return response

        exponential = wait_random_exponential(multiplier=1, max=30)

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome is not None else None
            asked = error.after if isinstance(error, _Transient) else None
            return exponential(state) if asked is None else asked + 0.1

        def before_sleep(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome is not None else None
            self._say(f"{doing}: {error}; trying again in {state.upcoming_sleep:.0f} s")

        try:
            return Retrying(
                retry=retry_if_exception(lambda error: isinstance(error, _Transient)),
                wait=wait,
                stop=stop_after_delay(self._max_seconds),
                before_sleep=before_sleep,
                reraise=True,
            )(once)
        except _Transient as error:
            raise ReportError(f"{doing} failed for {self._max_seconds:.0f} s: {error}", sent=True) from error


def _after(response: httpx.Response) -> float | None:
    value = response.headers.get("retry-after", "")
    return min(float(value), 60.0) if value.isdigit() else None


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        value = response.json()
    except ValueError as error:
        raise ReportError(f"the answer is not JSON: {response.text[:200]}") from error
    if not isinstance(value, dict):
        raise ReportError(f"the answer is not a JSON object: {response.text[:200]}")
    return value


def _reason(response: httpx.Response) -> str:
    try:
        value = response.json()
    except ValueError:
        return response.text[:500] or "no text"
    return (
        str(value.get("error") or value.get("detail") or value)[:1000] if isinstance(value, dict) else str(value)[:500]
    )
