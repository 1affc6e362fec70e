"""Server-sent events: a page is told that something it shows has changed, and loads itself again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from hud.app.api import Number
from hud.app.state import Hud, HudOf
from hud.store.tables import run

router = APIRouter(prefix="/api/v1", tags=["live"])

_LOOK_SECONDS = 2.0
_BEAT_SECONDS = 15.0
_LIFE_SECONDS = 600.0
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@router.get("/events")
async def all_events(hud: HudOf) -> StreamingResponse:
    """``changed`` whenever any report or result arrives."""
    return _stream(hud, sa.true())


@router.get("/pr/{number}/events")
async def pull_events(hud: HudOf, number: Number) -> StreamingResponse:
    """``changed`` whenever a report or result about a pull request arrives."""
    return _stream(hud, run.c.pr == number)


@router.get("/runs/{key}/events")
async def run_events(hud: HudOf, key: str) -> StreamingResponse:
    """``changed`` whenever a report or result of a run arrives."""
    return _stream(hud, run.c.key == key)


def _stream(hud: Hud, about: sa.ColumnElement[bool]) -> StreamingResponse:
    return StreamingResponse(_events(hud, about), media_type="text/event-stream", headers=_HEADERS)


async def _events(hud: Hud, about: sa.ColumnElement[bool]) -> AsyncIterator[str]:
    """Looks every two seconds; ends after ten minutes, and the browser connects again by itself."""
    seen = await run_in_threadpool(_mark, hud, about)
    yield "retry: 3000\n\n"
    quiet = 0.0
    for _ in range(int(_LIFE_SECONDS / _LOOK_SECONDS)):
        await asyncio.sleep(_LOOK_SECONDS)
        now = await run_in_threadpool(_mark, hud, about)
        quiet += _LOOK_SECONDS
        if now != seen:
            seen, quiet = now, 0.0
            yield "event: changed\ndata: {}\n\n"
        elif quiet >= _BEAT_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"


def _mark(hud: Hud, about: sa.ColumnElement[bool]) -> tuple[Any, ...]:
    query = sa.select(run.c.id, run.c.updated, run.c.revision).where(about).order_by(run.c.updated.desc()).limit(1)
    with hud.store.read() as connection:
        return tuple(connection.execute(query).first() or ())
