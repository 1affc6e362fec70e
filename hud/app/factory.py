"""The application: routes, middleware, error answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import resources

import sqlalchemy.exc
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from hud.allowlist import Allowlist
from hud.app import api, ingest, live, pages
from hud.app.security import ReadToken, SecurityHeaders
from hud.app.state import Hud, HudOf
from hud.settings import Settings
from hud.store import Store, open_store

RETRY_AFTER_SECONDS = 5


def create_app(
    settings: Settings | None = None, store: Store | None = None, clock: Callable[[], float] = time.time
) -> FastAPI:
    """Make the application.

    Args:
        settings: from the environment by default.
        store: opened by ``settings.database_url`` by default; its tables are up to date.
        clock: seconds since the epoch.
    """
    settings = settings or Settings()
    app = FastAPI(
        title="HUD",
        summary="What upstream pull requests do to out-of-tree backends",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.hud = Hud(settings, store or open_store(settings.database_url), Allowlist(settings.allowlist), clock)
    app.include_router(ingest.router)
    app.include_router(live.router)
    app.include_router(api.router)
    app.include_router(pages.router)
    app.mount("/static", StaticFiles(directory=str(resources.files("hud.app") / "static")), name="static")
    app.add_api_route("/healthz", _healthz, include_in_schema=False)
    app.add_api_route("/readyz", _readyz, include_in_schema=False)
    app.add_middleware(ReadToken, token=settings.read_token)
    app.add_middleware(SecurityHeaders)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _bad_parameter)
    for kind in (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError, sqlalchemy.exc.TimeoutError):
        app.add_exception_handler(kind, _store_down)
    return app


def _healthz() -> PlainTextResponse:
    return PlainTextResponse("ok\n")


def _readyz(hud: HudOf) -> Response:
    """Ready when the store answers; a broken allowlist is named, but its last good version keeps serving."""
    hud.store.check()
    hud.allowlist.backends()
    return JSONResponse({"ok": True, "allowlist": hud.allowlist.error or "ok"})


def _wants_json(request: Request) -> bool:
    return request.url.path.startswith("/api/")


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if _wants_json(request):
        return JSONResponse({"ok": False, "error": error.detail}, error.status_code, headers)
    return pages.error_page(request, error.status_code, str(error.detail), headers)


def _bad_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    text = f"{field}: {first['msg']}"
    if _wants_json(request):
        return JSONResponse({"ok": False, "field": field, "error": text}, 422)
    return pages.error_page(request, 422, text, {})


def _store_down(request: Request, error: Exception) -> Response:
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    text = "the store does not answer; nothing was lost, try again"
    if _wants_json(request) or request.url.path == "/readyz":
        return JSONResponse({"ok": False, "error": text}, 503, headers)
    return pages.error_page(request, 503, text, headers)
