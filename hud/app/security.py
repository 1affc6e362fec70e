"""Headers that keep strangers' text harmless, and who may read and write."""

from __future__ import annotations

import base64
import binascii
import hmac

from pydantic import SecretStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_OPEN_PATHS = ("/healthz", "/readyz", "/static/")


def same(given: str, key: SecretStr | None) -> bool:
    """Whether a key is the one configured, compared in constant time; never where none is configured."""
    return key is not None and hmac.compare_digest(given.encode(), key.get_secret_value().encode())


class SecurityHeaders:
    """Adds :data:`HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class ReadToken:
    """Where a read token is configured, asks readers for it; ingest has its own key."""

    def __init__(self, app: ASGIApp, token: SecretStr | None) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or self.token is None or scope["method"] == "POST" or self._allowed(scope):
            await self.app(scope, receive, send)
            return
        refuse = PlainTextResponse(
            "this HUD asks its readers for a token\n", 401, {"WWW-Authenticate": 'Basic realm="hud", charset="UTF-8"'}
        )
        await refuse(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        if scope["path"].startswith(_OPEN_PATHS):
            return True
        kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(given).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return False
        return same(given.strip(), self.token)
