"""Which operators of a backend work in which dtypes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import add
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from hud.core.outcomes import FAILING, OUTCOMES, PASSING
from hud.queries.contexts import MatrixCell, MatrixPage, MatrixRow
from hud.queries.jobs import select_runs
from hud.queries.scope import Scope
from hud.store.history import ORDER
from hud.store.tables import backend, run

PAGE = 100
"""Operators of one page: a thousand cells or so."""

STATES = ("failing", "partly", "passing", "skipped")

_DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "complex64", "complex128", "complex32"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
_GROUPS = tuple(0 if outcome in PASSING else 1 if outcome in FAILING else 2 for outcome in OUTCOMES)
"""By outcome code, the place in ``_Counts``."""


def matrix_page(scope: Scope, repo: str, query: str = "", state: str = "", page: int = 1) -> MatrixPage | None:
    """The latest complete run of the base branch, by operator and dtype.

    Args:
        scope: the reader's view.
        repo: ``owner/name``.
        query: text that an operator's name must contain.
        state: one of ``STATES``: only operators with such a cell.
        page: from 1.

    Returns:
        ``None`` where the backend is not known.
    """
    known = scope.connection.execute(sa.select(backend).where(backend.c.repo_key == repo.lower())).first()
    if known is None:
        return None
    row = _latest(scope, known.id)
    table = _Table({}, (), {})
    if row is not None:
        table = scope.memories.matrices.get((row.id, row.revision), partial(_make_table, scope, row))
    shown = [
        (op, cells)
        for op, cells in table.rows.items()
        if query.lower() in op.lower()
        and (state not in STATES or any(found.state() == state for found in cells.values()))
    ]
    return MatrixPage(
        repo=known.repo,
        run=row.key if row is not None else None,
        sha=row.sha if row is not None else None,
        at=row.first_seen if row is not None else None,
        dtypes=list(table.dtypes),
        rows=[_shown(op, cells) for op, cells in shown[(page - 1) * PAGE : page * PAGE]],
        matching=len(shown),
        page=page,
        pages=max(1, -(-len(shown) // PAGE)),
        operators=len(table.rows),
        states=table.states,
        query=query,
        state=state if state in STATES else "",
    )


def _latest(scope: Scope, backend_id: int) -> sa.Row[Any] | None:
    query = (
        select_runs()
        # Runs of history are of no pull request; said here, the index has them in order.
        .where(run.c.backend_id == backend_id, run.c.pr.is_(None), run.c.in_history)
        .order_by(*(column.desc() for column in ORDER))
        .limit(1)
    )
    return scope.connection.execute(query).first()


State = Literal["passing", "partly", "failing", "skipped"]


class _Counts(NamedTuple):
    """The tests of one operator in one dtype."""

    passed: int
    failing: int
    skipped: int

    def state(self) -> State:
        if not self.failing:
            return "passing" if self.passed else "skipped"
        return "partly" if self.passed else "failing"


@dataclass(frozen=True)
class _Table:
    """A whole matrix, which is made once for each run: by operator and dtype."""

    rows: dict[str, dict[str, _Counts]]
    dtypes: Sequence[str]
    states: dict[str, int]

    @property
    def weight(self) -> int:
        """How much remembering this costs, in tests: a cell takes as much as several."""
        return 10 * sum(self.states.values())


def _make_table(scope: Scope, row: sa.Row[Any]) -> _Table:
    results, catalog = scope.results(row.id, row.revision), scope.memories.catalog
    # Cell and outcome in one number each: counting a hundred thousand numbers is one call.
    shifted = scope.memories.rosters.get(
        ("cells", results.roster),
        lambda: array("Q", (cell << 8 for cell in catalog.cells_of(scope.connection, results.ids))),
    )
    counted: dict[int, list[int]] = {}
    for both, count in Counter(map(add, shifted, results.plain())).items():
        counted.setdefault(both >> 8, [0, 0, 0])[_GROUPS[both & 0xFF]] += count
    rows: dict[str, dict[str, _Counts]] = {}
    for cell, counts in counted.items():
        op, dtype = catalog.cells[cell]
        if op:
            rows.setdefault(op, {})[dtype or "none"] = _Counts(*counts)
    return _Table(
        dict(sorted(rows.items())),
        sorted({dtype for cells in rows.values() for dtype in cells}, key=_dtype_order),
        dict(Counter(found.state() for cells in rows.values() for found in cells.values())),
    )


def _shown(op: str, cells: dict[str, _Counts]) -> MatrixRow:
    return MatrixRow(
        op=op,
        cells={
            dtype: MatrixCell(state=found.state(), **found._asdict(), total=sum(found))
            for dtype, found in cells.items()
        },
    )


def _dtype_order(dtype: str) -> tuple[int, str]:
    return (_DTYPES.index(dtype) if dtype in _DTYPES else len(_DTYPES), dtype)
