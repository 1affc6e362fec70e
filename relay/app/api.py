"""The HTTP surface: two endpoints for GitHub and jobs, four for operators."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relay.adapters.allowlist_source import AllowlistUnavailable
from relay.app import openapi, sweeper, webhook
from relay.app.callback import Callbacks
from relay.app.intake import CallbackError
from relay.app.service import Service
from relay.app.settings import Settings
from relay.app.workers import Workers
from relay.core.ratelimit import Rate
from relay.store.database import StoreUnavailable
from relay.wire import Callback, CallbackAnswer, ErrorAnswer

_log = structlog.get_logger(__name__)
_STORE_RETRY_SECONDS = 5
_PATHS = ("/github/webhook", "/github/callback", "/healthz", "/readyz", "/metrics", "/version")


def project_version() -> str:
    """Version of the installed distribution."""
    try:
        return version("spyre-conformance")
    except PackageNotFoundError:
        return "unknown"


class _TooLarge(Exception):
    """The body is over the cap."""

    def __init__(self, cap: int):
        super().__init__(f"the body is larger than {cap} bytes")


async def _read(request: Request, cap: int) -> bytes:
    """The whole body, given up as soon as it is over the cap, whatever Content-Length says."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > cap:
        raise _TooLarge(cap)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > cap:
            raise _TooLarge(cap)
    return bytes(body)


def _error(status: int, reason: str, retry_after: float | None = None) -> JSONResponse:
    headers = {} if retry_after is None else {"Retry-After": str(max(1, math.ceil(retry_after)))}
    return JSONResponse({"ok": False, "error": reason}, status, headers)


class _Observer:
    """ASGI middleware: a clean logging context for every request, and its time in the metrics."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        structlog.contextvars.clear_contextvars()
        started = time.perf_counter()
        path = scope["path"].rstrip("/")
        seconds = scope["app"].state.service.metrics.requests

        async def observe(message: Message) -> None:
            if message["type"] == "http.response.start":
                label = path if path in _PATHS else "other"
                seconds.labels(label, message["status"]).observe(time.perf_counter() - started)
            await send(message)

        await self._app(scope, receive, observe)


def create_app(settings: Settings, *, workers: bool = True, endpoints: bool = True) -> FastAPI:
    """Build the relay.

    Args:
        workers: also do what is owed; without, another process must (``relay worker``).
        endpoints: also take webhooks and callbacks; without, only the operators' endpoints are there.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = Service.create(settings)
        await asyncio.to_thread(service.database.migrate)
        crew = Workers(service)
        stop = asyncio.Event()
        running = []
        if workers:
            running = [asyncio.create_task(crew.run(stop)), asyncio.create_task(sweeper.run(service, crew, stop))]
        app.state.service, app.state.workers, app.state.callbacks = service, crew, Callbacks(service, crew)
        _log.info("started", version=project_version(), workers=workers, endpoints=endpoints)
        try:
            yield
        finally:
            stop.set()
            crew.wake()
            await asyncio.gather(*running)
            if not workers:
                await crew.close()
            await service.close()

    app = FastAPI(
        title="Cross-Repository CI Relay",
        version=project_version(),
        description="Sends upstream events to downstream repositories and brings their verified results back.",
        lifespan=lifespan,
    )
    _add_middleware(app)
    if endpoints:
        _add_endpoints(app, settings)
    _add_operators_endpoints(app)
    openapi.describe(app)
    return app


def _add_middleware(app: FastAPI) -> None:
    @app.exception_handler(StoreUnavailable)
    async def _store(_request: Request, error: StoreUnavailable) -> JSONResponse:
        _log.error("store_unavailable", error=str(error))
        return _error(503, "the relay's store does not answer; nothing was stored, try again", _STORE_RETRY_SECONDS)

    @app.exception_handler(_TooLarge)
    async def _large(_request: Request, error: _TooLarge) -> JSONResponse:
        return _error(413, str(error))

    app.add_middleware(_Observer)


def _add_endpoints(app: FastAPI, settings: Settings) -> None:
    client_rate = Rate(settings.client_rate_burst, settings.client_rate_per_minute)

    def limited(request: Request) -> JSONResponse | None:
        """The limit before authentication, per client address."""
        address = request.client.host if request.client is not None else "unknown"
        wait = app.state.service.client_buckets.take(address, time.monotonic(), client_rate)
        return _error(429, "too many requests from this address", wait) if wait > 0 else None

    unavailable = "The relay's store does not answer: nothing was stored, try again after `Retry-After` seconds"

    @app.post(
        "/github/webhook",
        tags=["github"],
        summary="Take a webhook of the upstream repository",
        responses={
            200: {"description": "Ignored, with the reason, or a ping"},
            202: {"description": "Stored; what it asks for will be done"},
            **openapi.errors(
                status_400="No signature, no event, no delivery id, or not the JSON of this event",
                status_401="The signature does not match",
                status_413="The body is over the cap",
                status_503=unavailable,
            ),
        },
        openapi_extra={
            **openapi.json_body({"type": "object"}),
            "parameters": [
                openapi.header("X-GitHub-Event", {"type": "string"}, "Name of the event"),
                openapi.header("X-GitHub-Delivery", {"type": "string", "maxLength": 100}, "Names the delivery"),
                openapi.header("X-Hub-Signature-256", {"type": "string"}, "`sha256=` and the HMAC of the body"),
            ],
        },
    )
    async def take_webhook(request: Request) -> Response:
        body = await _read(request, settings.webhook_max_bytes)
        service: Service = app.state.service
        answer = await webhook.receive(service, dict(request.headers), body)
        if answer.queued:
            app.state.workers.wake(*answer.queued)
        return JSONResponse(answer.body, answer.status)

    @app.post("/github/callback/", include_in_schema=False)
    @app.post(
        "/github/callback",
        tags=["jobs"],
        summary="Take a report of a downstream job",
        responses={
            200: {"model": CallbackAnswer, "description": "Accepted, a duplicate, or ignored with the reason"},
            **openapi.errors(
                status_400="Not JSON, a missing or mistyped field, no dispatch on record, an impossible transition",
                status_401="No token, or one that is not accepted; the text says which check it fails",
                status_403="A pipeline that is not registered, a required claim, or another dispatch's callback token",
                status_413="The body is over the cap",
                status_429="Too many reports; try again after `Retry-After` seconds",
                status_503=unavailable,
            ),
            "4XX": {"model": ErrorAnswer, "description": "HUD's own refusal of the report, passed on"},
        },
        openapi_extra={**openapi.json_body(openapi.reference(Callback)), "security": [{"oidc": []}]},
    )
    async def take_callback(request: Request) -> Response:
        refused = limited(request)
        service: Service = app.state.service
        if refused is not None:
            service.metrics.callbacks.labels("429").inc()
            return refused
        body = await _read(request, settings.callback_max_bytes)
        callbacks: Callbacks = app.state.callbacks
        try:
            answer = await callbacks.receive(request.headers.get("authorization"), body)
        except CallbackError as error:
            _log.warning("callback_refused", status=error.status, reason=error.reason)
            service.metrics.callbacks.labels(str(error.status)).inc()
            return _error(error.status, error.reason, error.retry_after)
        _log.info("callback", status=answer["status"], reason=answer.get("reason"))
        service.metrics.callbacks.labels(answer["status"]).inc()
        return JSONResponse(answer)


def _add_operators_endpoints(app: FastAPI) -> None:
    @app.get("/healthz", tags=["operators"], summary="The process answers")
    async def healthz() -> dict[str, bool]:
        return {"ok": True}

    @app.get(
        "/readyz",
        tags=["operators"],
        summary="The relay can take work",
        responses={503: {"description": "It cannot: no store, or no allowlist that was ever good"}},
    )
    async def readyz() -> JSONResponse:
        """503 without a store or without any good allowlist; an allowlist that is only old is reported, with 200."""
        service: Service = app.state.service
        checks: dict[str, Any] = {}
        ready = True
        try:
            await asyncio.to_thread(service.database.ping)
            checks["store"] = {"ok": True}
        except StoreUnavailable as error:
            ready = False
            checks["store"] = {"ok": False, "error": str(error)}
        try:
            allowlist = await service.allowlist.current()
            error_text = service.allowlist.error
            checks["allowlist"] = {"ok": error_text is None, "error": error_text, "repositories": len(allowlist)}
        except AllowlistUnavailable as error:
            ready = False
            checks["allowlist"] = {"ok": False, "error": str(error), "repositories": 0}
        return JSONResponse({"ready": ready, "checks": checks}, 200 if ready else 503)

    @app.get("/metrics", tags=["operators"], summary="Prometheus metrics")
    async def metrics() -> Response:
        service: Service = app.state.service
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/version", tags=["operators"], summary="Version of the relay")
    async def get_version() -> dict[str, str]:
        return {"name": "spyre-conformance", "version": project_version()}
