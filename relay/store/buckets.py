"""Token buckets that all replicas share (spec 2: rate limits)."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from relay.core.ratelimit import Rate, refill
from relay.store.database import insert
from relay.store.schema import buckets


def draw(connection: Connection, name: str, rate: Rate, *, wanted: int, now: float) -> tuple[int, float]:
    """Take tokens out of a bucket, as many whole ones as there are.

    Args:
        wanted: at most so many.
        now: seconds since the epoch; replicas' clocks may differ, which costs or gives a few tokens.

    Returns:
        How many were taken, and the seconds until there will be one if none was.
    """
    connection.execute(
        insert(connection, buckets).values(name=name, tokens=rate.burst, since=now).on_conflict_do_nothing()
    )
    row = connection.execute(select(buckets).where(buckets.c.name == name).with_for_update()).one()
    tokens = refill(row.tokens, row.since, rate, now)
    taken = min(wanted, int(tokens))
    connection.execute(update(buckets).where(buckets.c.name == name).values(tokens=tokens - taken, since=now))
    return taken, 0.0 if taken else (1 - tokens) / rate.per_second
