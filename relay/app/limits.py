"""The rate limit of a repository, over all replicas."""

from __future__ import annotations

import asyncio
import time

from relay.core.ratelimit import Rate, TokenBuckets
from relay.store import buckets
from relay.store.database import Database

_SHARE = 0.1
_REMEMBERED = 10_000


class RepositoryLimits:
    """How fast each repository may report.

    One process keeps its buckets in memory. On PostgreSQL, where there may be others, the buckets are in the store; a
    process draws a tenth of the burst at a time, so that most callbacks cost no transaction, and remembers a refusal
    for as long as it holds. What a process has drawn and not used is the most by which the limit can be off.
    """

    def __init__(self, database: Database):
        self._shared = database if database.kind == "postgresql" else None
        self._here = TokenBuckets(_REMEMBERED)
        self._drawn: dict[str, int] = {}
        self._refused: dict[str, float] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def take(self, name: str, rate: Rate) -> float:
        """Take one token.

        Args:
            name: repository in lower case.

        Returns:
            0 if the call may go on, else the seconds until the next token.

        Raises:
            StoreUnavailable: nobody can tell.
        """
        if self._shared is None:
            return self._here.take(name, time.monotonic(), rate)
        if self._drawn.get(name, 0) < 1:
            # One draw at a time: callbacks that come together must not each take a share away.
            async with self._locks.setdefault(name, asyncio.Lock()):
                wait = await self._draw(self._shared, name, rate)
            if wait > 0:
                return wait
        self._drawn[name] -= 1
        return 0.0

    async def _draw(self, shared: Database, name: str, rate: Rate) -> float:
        """Make sure that there is a token here, or say how long there will be none."""
        wait = self._refused.get(name, 0.0) - time.monotonic()
        if wait > 0 or self._drawn.get(name, 0) >= 1:
            return max(0.0, wait)
        wanted = max(1, int(rate.burst * _SHARE))
        taken, wait = await shared.run(
            lambda connection: buckets.draw(connection, name, rate, wanted=wanted, now=time.time())
        )
        if len(self._drawn) >= _REMEMBERED:
            self._drawn.clear()
            self._refused.clear()
            self._locks.clear()
        self._drawn[name] = self._drawn.get(name, 0) + taken
        if not taken:
            self._refused[name] = time.monotonic() + wait
        return wait
