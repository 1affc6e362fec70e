"""Every test of a run, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from hud.queries.contexts import ResultRow
from hud.queries.jobs import select_runs
from hud.queries.runs import result_rows
from hud.queries.scope import Scope
from hud.store.batches import batches
from hud.store.tables import run

NOTHING = {"none": "none were sent in", "pruned": "they were pruned"}
"""Why a run has no results of tests, by the column ``results``."""

_BATCH = 500


def find_run(scope: Scope, key: str) -> sa.Row[Any] | None:
    """A run by its key."""
    return scope.connection.execute(select_runs().where(run.c.key == key)).first()


def every_result(scope: Scope, row: sa.Row[Any]) -> Iterator[ResultRow]:
    """The tests of a run in the order of the store; standing against the base is left empty."""
    snapshot = scope.snapshot(row.id)
    for places in batches(range(len(snapshot)), _BATCH):
        yield from result_rows(scope, row, snapshot, places, {}, {})
