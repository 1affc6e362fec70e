"""What handlers share, and how they reach it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated

import sqlalchemy as sa
import structlog
from fastapi import Depends, Request
from fastapi.concurrency import contextmanager_in_threadpool

from hud.allowlist import Allowlist
from hud.queries.backends import home_page
from hud.queries.matrix import matrix_page
from hud.queries.scope import Memories, Scope
from hud.settings import Settings
from hud.store import Store
from hud.store.tables import backend

_log = structlog.get_logger()

READERS = 8
"""Pages that are made at once. One interpreter makes more of them no faster, and ingest would wait behind them all."""


@dataclass
class Hud:
    """One server's parts.

    Attributes:
        clock: seconds since the epoch.
        readers: who makes a page. A reader's view holds a connection from one thread to the next; who waits for a turn
            holds neither, so that those who have a connection always find a thread to give it back from.
        exports: the same for answers that are written as slowly as they are read.
    """

    settings: Settings
    store: Store
    allowlist: Allowlist
    clock: Callable[[], float] = time.time
    memories: Memories = field(default_factory=Memories)
    readers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READERS))
    exports: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READERS))

    @contextlib.contextmanager
    def scope(self) -> Iterator[Scope]:
        """A reader's view of the store."""
        with self.store.read() as connection:
            yield Scope(
                connection,
                self.clock(),
                self.settings.stuck_after_seconds,
                self.allowlist.backends(),
                self.memories,
            )

    def warm(self) -> None:
        """Ask the costly questions once, so that the first reader after a start does not wait for their answers."""
        try:
            with self.scope() as scope:
                home_page(scope)
                for repo in scope.rows(sa.select(backend.c.repo)):
                    matrix_page(scope, repo.repo)
            # What is remembered now stays: looking through all of it for garbage would stop a page for a moment.
            gc.collect()
            gc.freeze()
        except sa.exc.SQLAlchemyError as error:
            # Readers will be told what is wrong with the store; a warm start is a courtesy.
            _log.warning("not warmed", error=str(error))


def hud_of(request: Request) -> Hud:
    """The server's parts, from a request."""
    return request.app.state.hud  # type: ignore[no-any-return]


async def scope_of(request: Request) -> AsyncIterator[Scope]:
    """A reader's view until the answer is made; sending it may take as long as the reader likes."""
    hud = hud_of(request)
    async with hud.readers, contextmanager_in_threadpool(hud.scope()) as scope:
        yield scope


HudOf = Annotated[Hud, Depends(hud_of)]
ScopeOf = Annotated[Scope, Depends(scope_of, scope="function")]
