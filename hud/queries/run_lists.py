"""Lists of runs: what lies behind the numbers of the health page."""

from __future__ import annotations

import sqlalchemy as sa

from hud.core.outcomes import denominator
from hud.queries.contexts import RunList, RunRow
from hud.queries.jobs import Row, select_runs, state_of, totals_of
from hud.queries.scope import Scope
from hud.store.tables import backend, run

PAGE = 50
DAY = 86_400

SHOWN = ("all", "day", "running", "stuck", "unreported", "resultless")
"""Which runs a list may show: ``day`` of the last day, ``unreported`` with results and without a report, ``resultless``
completed without results; both of the last day."""


def conditions(scope: Scope) -> dict[str, sa.ColumnElement[bool]]:
    """What runs of each kind of ``SHOWN`` fulfil."""
    lately = run.c.first_seen > scope.now - DAY
    open_, late = run.c.status == "in_progress", run.c.first_seen < scope.now - scope.stuck_after
    return {
        "all": sa.true(),
        "day": lately,
        "running": open_ & ~late,
        "stuck": open_ & late,
        "unreported": lately & (run.c.status == "announced"),
        "resultless": lately & (run.c.status == "completed") & (run.c.results == "none"),
    }


def run_list(scope: Scope, repo: str = "", show: str = "", page: int = 1) -> RunList:
    """Runs, the latest first.

    Args:
        scope: the reader's view.
        repo: of one backend, ``owner/name``; empty for every backend.
        show: one of ``SHOWN``; anything else is ``all``.
        page: from 1.
    """
    show = show if show in SHOWN else "all"
    wanted = conditions(scope)[show]
    if repo:
        wanted &= run.c.backend_id.in_(sa.select(backend.c.id).where(backend.c.repo_key == repo.lower()))
    total = scope.connection.execute(sa.select(sa.func.count()).select_from(run).where(wanted)).scalar_one()
    latest = select_runs().where(wanted).order_by(run.c.first_seen.desc(), run.c.id.desc())
    return RunList(
        runs=[_row(scope, row) for row in scope.rows(latest.limit(PAGE).offset((page - 1) * PAGE))],
        repo=repo,
        show=show,
        total=total,
        page=page,
        pages=max(1, -(-total // PAGE)),
    )


def _row(scope: Scope, row: Row) -> RunRow:
    totals = totals_of(row)
    return RunRow(
        run=row.key,
        repo=row.repo,
        workflow=row.workflow or "",
        job=row.job or "",
        attempt=row.attempt,
        event=row.event,
        pr=row.pr,
        sha=row.sha,
        at=row.first_seen,
        state=state_of(scope, row),
        results=row.results,
        passed=totals["passed"],
        counted=denominator(totals),
    )
