"""Around every call: the fault that applies to it, and its entry in the ledger."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import struct
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from relay.emulator.faults import Fault
from relay.emulator.server import Server
from relay.emulator.settings import REPOSITORY_NAME

_MAX_BODY = 256 * 1024
"""Larger request bodies are carried out, but not kept in the ledger."""


class Protocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol; the connection is in the scope's state, so that a fault can reset it."""

    def connection_made(self, transport: Any) -> None:
        """Remember the connection for the calls that come over it."""
        self.app_state = {**self.app_state, "transport": transport}
        super().connection_made(transport)


def repository_of(path: str) -> str | None:
    """The ``owner/name`` that a path is about."""
    parts = path.removeprefix("/api/v3").strip("/").split("/")
    if parts[0] == "repos":
        parts = parts[1:]
    elif parts[0] in ("app", "orgs", "users", "installation", "rate_limit") or parts[0].startswith("_"):
        return None
    name = "/".join(parts[:2]).removesuffix(".git")
    return name if len(parts) >= 2 and REPOSITORY_NAME.fullmatch(name) else None


class Recorder:
    """ASGI middleware. Calls of the control API are neither recorded nor disturbed."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one call."""
        if scope["type"] != "http" or scope["path"].startswith("/_emulator"):
            await self.app(scope, receive, send)
            return
        server: Server = scope["app"].state.server
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["path"].removeprefix("/api/v3")
        repository = repository_of(path)
        query = scope["query_string"].decode("latin-1")
        entry = server.ledger.begin(scope["method"], path, query, repository, _kind(server, headers))
        body = bytearray()

        async def listen() -> Message:
            message = await receive()
            if message["type"] == "http.request" and len(body) <= _MAX_BODY:
                body.extend(message.get("body", b""))
            return message

        async def speak(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                message["headers"] = [
                    *message.get("headers", []),
                    (b"x-github-request-id", secrets.token_hex(8).upper().encode()),
                    (b"x-ratelimit-limit", b"5000"),
                    (b"x-ratelimit-remaining", b"4999"),
                    (b"x-ratelimit-used", b"1"),
                ]
            await send(message)

        fault = server.faults.match(scope["method"], path, repository)
        try:
            if fault is None:
                await self.app(scope, listen, speak)
            else:
                entry.fault = fault.id
                await self._disturbed(fault, scope, listen, speak)
        finally:
            kept = len(body) <= _MAX_BODY and "git" not in headers.get("content-type", "")
            server.ledger.end(entry, bytes(body) if kept else b"")

    async def _disturbed(self, fault: Fault, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(fault.delay)
        answers = fault.status is not None or fault.reset
        if not answers or fault.when == "after":
            held: list[Message] = []

            async def keep(message: Message) -> None:
                held.append(message)

            await self.app(scope, receive, keep)
            if not answers:
                await _trickle(held, fault.slow_body, send)
                return
        else:
            # The ledger shows what was asked even where nothing was done.
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass
        if fault.reset:
            _reset(scope)
            return
        assert fault.status is not None
        content = json.dumps(fault.body if fault.body is not None else {"message": "fault on request"}).encode()
        fields = {"content-type": "application/json", "content-length": str(len(content))}
        fields |= {name.lower(): value for name, value in fault.headers.items()}
        start: Message = {
            "type": "http.response.start",
            "status": fault.status,
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()],
        }
        await _trickle([start, {"type": "http.response.body", "body": content}], fault.slow_body, send)


async def _trickle(messages: list[Message], seconds: float, send: Send) -> None:
    for message in messages:
        body = message.get("body", b"")
        if message["type"] == "http.response.body" and seconds > 0 and len(body) > 1:
            step = max(len(body) // 20, 1)
            pieces = [body[index : index + step] for index in range(0, len(body), step)]
            for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(seconds / len(pieces))
            message = {**message, "body": b""}
        await send(message)


def _reset(scope: Scope) -> None:
    """Close the connection so that the client sees RST (``SO_LINGER`` with zero seconds)."""
    transport = scope["state"]["transport"]
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _kind(server: Server, headers: dict[str, str]) -> str:
    value = headers.get("authorization", "").partition(" ")[2].strip()
    if not value:
        return "none"
    token = server.state.tokens.get(value)
    return token.kind if token is not None else "jwt" if value.count(".") == 2 else "unknown"
