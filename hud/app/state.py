"""What handlers share, and how they reach it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated

import sqlalchemy as sa
import structlog
from fastapi import Depends, Request

from hud.allowlist import Allowlist
from hud.queries.backends import home_page
from hud.queries.matrix import matrix_page
from hud.queries.scope import Memories, Scope
from hud.settings import Settings
from hud.store import Store
from hud.store.tables import backend

_log = structlog.get_logger()


@dataclass
class Hud:
    """One server's parts.

    Attributes:
        clock: seconds since the epoch.
    """

    settings: Settings
    store: Store
    allowlist: Allowlist
    clock: Callable[[], float] = time.time
    memories: Memories = field(default_factory=Memories)

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
        except sa.exc.SQLAlchemyError as error:
            # Readers will be told what is wrong with the store; a warm start is a courtesy.
            _log.warning("not warmed", error=str(error))


def hud_of(request: Request) -> Hud:
    """The server's parts, from a request."""
    return request.app.state.hud  # type: ignore[no-any-return]


def scope_of(request: Request) -> Iterator[Scope]:
    """A reader's view for the time of a request."""
    with hud_of(request).scope() as scope:
        yield scope


HudOf = Annotated[Hud, Depends(hud_of)]
ScopeOf = Annotated[Scope, Depends(scope_of)]
