"""Which operators of a backend work in which dtypes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from hud.core.outcomes import FAILING, OUTCOMES
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
Cells = dict[tuple[str, str], Counter[str]]


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
    table = _table(scope, row) if row is not None else _Table((), (), {})
    shown = [
        found
        for found in table.rows
        if query.lower() in found.op.lower()
        and (state not in STATES or any(cell.state == state for cell in found.cells.values()))
    ]
    return MatrixPage(
        repo=known.repo,
        run=row.key if row is not None else None,
        sha=row.sha if row is not None else None,
        at=row.first_seen if row is not None else None,
        dtypes=list(table.dtypes),
        rows=shown[(page - 1) * PAGE : page * PAGE],
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
        .where(run.c.backend_id == backend_id, run.c.in_history)
        .order_by(*(column.desc() for column in ORDER))
        .limit(1)
    )
    return scope.connection.execute(query).first()


@dataclass(frozen=True)
class _Table:
    """A whole matrix, which is made once for each run."""

    rows: Sequence[MatrixRow]
    dtypes: Sequence[str]
    states: dict[str, int]

    @property
    def weight(self) -> int:
        """How much remembering this costs, in tests: a cell takes as much as several."""
        return 10 * sum(self.states.values())


def _table(scope: Scope, row: sa.Row[Any]) -> _Table:
    return scope.memories.answers.get(("matrix", row.id, row.revision), lambda: _make_table(_cells(scope, row)))


def _make_table(cells: Cells) -> _Table:
    rows: dict[str, MatrixRow] = {}
    for (op, dtype), counts in cells.items():
        rows.setdefault(op, MatrixRow(op=op, cells={})).cells[dtype] = _cell(counts)
    return _Table(
        sorted(rows.values(), key=lambda found: found.op),
        sorted({dtype for _, dtype in cells}, key=_dtype_order),
        dict(Counter(cell.state for found in rows.values() for cell in found.cells.values())),
    )


def _cells(scope: Scope, row: sa.Row[Any]) -> Cells:
    results, catalog = scope.results(row.id, row.revision), scope.memories.catalog
    numbers = scope.memories.rosters.get(
        ("cells", results.roster), lambda: array("I", catalog.cells_of(scope.connection, results.ids))
    )
    cells: Cells = {}
    for (cell, code), count in Counter(zip(numbers, results.plain(), strict=True)).items():
        op, dtype = catalog.cells[cell]
        if op:
            cells.setdefault((op, dtype or "none"), Counter())[OUTCOMES[code]] += count
    return cells


def _cell(counts: Counter[str]) -> MatrixCell:
    failing = sum(counts[outcome] for outcome in FAILING)
    passed = counts["passed"] + counts["flaky"] + counts["xpassed"]
    total = sum(counts[outcome] for outcome in OUTCOMES)
    state: Literal["passing", "partly", "failing", "skipped"]
    if not failing and not passed:
        state = "skipped"
    elif not failing:
        state = "passing"
    else:
        state = "partly" if passed else "failing"
    return MatrixCell(state=state, passed=passed, failing=failing, skipped=total - failing - passed, total=total)


def _dtype_order(dtype: str) -> tuple[int, str]:
    return (_DTYPES.index(dtype) if dtype in _DTYPES else len(_DTYPES), dtype)
