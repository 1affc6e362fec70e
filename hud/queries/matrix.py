"""Which operators of a backend work in which dtypes."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import sqlalchemy as sa

from hud.core.outcomes import FAILING, OUTCOMES
from hud.queries.contexts import MatrixCell, MatrixPage, MatrixRow
from hud.queries.jobs import select_runs
from hud.queries.names import tests
from hud.queries.scope import Scope
from hud.store.tables import backend, run

STATES = ("failing", "partly", "passing", "skipped")

_DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "complex64", "complex128", "complex32"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
Cells = dict[tuple[str, str], Counter[str]]


def matrix_page(scope: Scope, repo: str, query: str = "", state: str = "") -> MatrixPage | None:
    """The latest complete run of the base branch, by operator and dtype.

    Args:
        scope: the reader's view.
        repo: ``owner/name``.
        query: text that an operator's name must contain.
        state: one of ``STATES``: only operators with such a cell.

    Returns:
        ``None`` where the backend is not known.
    """
    known = scope.connection.execute(sa.select(backend).where(backend.c.repo_key == repo.lower())).first()
    if known is None:
        return None
    row = _latest(scope, known.id)
    cells = _cells(scope, row) if row is not None else {}
    rows: dict[str, MatrixRow] = {}
    for (op, dtype), counts in cells.items():
        rows.setdefault(op, MatrixRow(op=op, cells={})).cells[dtype] = _cell(counts)
    dtypes = sorted({dtype for _, dtype in cells}, key=_dtype_order)
    every = sorted(rows.values(), key=lambda shown: shown.op)
    shown = [
        found
        for found in every
        if query.lower() in found.op.lower()
        and (state not in STATES or any(cell.state == state for cell in found.cells.values()))
    ]
    return MatrixPage(
        repo=known.repo,
        run=row.key if row is not None else None,
        sha=row.sha if row is not None else None,
        at=row.first_seen if row is not None else None,
        dtypes=dtypes,
        rows=shown,
        operators=len(every),
        states=dict(Counter(cell.state for found in every for cell in found.cells.values())),
        query=query,
        state=state if state in STATES else "",
    )


def _latest(scope: Scope, backend_id: int) -> sa.Row[Any] | None:
    query = (
        select_runs()
        .where(run.c.backend_id == backend_id, run.c.in_history)
        .order_by(run.c.order_at.desc(), run.c.order_place.desc(), run.c.attempt.desc(), run.c.id.desc())
        .limit(1)
    )
    return scope.connection.execute(query).first()


def _cells(scope: Scope, row: sa.Row[Any]) -> Cells:
    def count() -> Cells:
        snapshot = scope.snapshot(row.id, row.revision)
        named = tests(scope, snapshot.ids)
        cells: Cells = {}
        for place, number in enumerate(snapshot.ids):
            test = named[number]
            if test.op:
                cells.setdefault((test.op, test.dtype or "none"), Counter())[snapshot.outcome_at(place)] += 1
        return cells

    return scope.judgements.get(("matrix", row.id, row.revision), count)


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
