"""Tests by number and by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from hud.core.lines import display_name
from hud.queries.scope import Scope
from hud.store.batches import batches
from hud.store.tables import test

_BATCH = 500


def tests(scope: Scope, numbers: Iterable[int]) -> dict[int, sa.Row[Any]]:
    """Rows of the table ``test`` by number."""
    found: dict[int, sa.Row[Any]] = {}
    for batch in batches(numbers, _BATCH):
        found.update((row.id, row) for row in scope.rows(sa.select(test).where(test.c.id.in_(batch))))
    return found


def names(scope: Scope, numbers: Iterable[int], device: str | None) -> list[str]:
    """Ids of tests as the backend gave them, in the order asked for."""
    listed = list(numbers)
    look_up(scope, listed)
    return [display_name(scope.names[number], device) for number in listed]


def look_up(scope: Scope, numbers: Iterable[int]) -> None:
    """Read the names of tests into ``scope.names``: one list of many is quicker than many lists."""
    unknown = {number for number in numbers if number not in scope.names}
    for batch in batches(sorted(unknown), _BATCH):
        scope.names.update(
            (row.id, row.name) for row in scope.rows(sa.select(test.c.id, test.c.name).where(test.c.id.in_(batch)))
        )


def families(scope: Scope, numbers: Sequence[int]) -> list[int]:
    """The family of each test: file, class, test and operator, as one number."""
    return scope.memories.catalog.families(scope.connection, numbers)


def numbers_of(scope: Scope, ids: Iterable[str], device: str | None) -> dict[str, int]:
    """Numbers of the tests that are known by these ids."""
    found: dict[str, int] = {}
    for batch in batches(dict.fromkeys(ids), _BATCH):
        digests = {hashlib.blake2b(_stored(name, device).encode(), digest_size=16).digest(): name for name in batch}
        rows = scope.rows(sa.select(test.c.id, test.c.digest).where(test.c.digest.in_(list(digests))))
        found.update((digests[bytes(row.digest)], row.id) for row in rows)
    return found


def _stored(name: str, device: str | None) -> str:
    return name[: -len(device)] if device and name.endswith(f"@{device}") else name
