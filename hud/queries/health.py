"""Whether reports arrive."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from hud.queries.contexts import HealthPage, HealthRow, RefusalRow
from hud.queries.jobs import attempt, select_runs, state_of
from hud.queries.scope import Scope
from hud.store.tables import backend, refusal, run

MAX_OPEN = 50
MAX_REFUSALS = 50
_DAY = 86_400


def health_page(scope: Scope, allowlist_error: str | None) -> HealthPage:
    """Last report of each backend, what runs, what is stuck, what was refused."""
    expected = {found.repo.lower(): found for found in scope.expected}
    known = scope.rows(sa.select(backend))
    rows = [_row(scope, found, found.repo_key in expected if expected else None) for found in known]
    reported = {found.repo_key for found in known}
    rows += [
        HealthRow(
            repo=found.repo,
            level=found.level,
            expected=True,
            last_report=None,
            running=[],
            stuck=[],
            unreported=0,
            resultless=0,
        )
        for key, found in expected.items()
        if key not in reported
    ]
    recent = sa.select(sa.func.count()).select_from(run).where(run.c.first_seen > scope.now - _DAY)
    refused = sa.select(refusal).order_by(refusal.c.id.desc()).limit(MAX_REFUSALS)
    return HealthPage(
        backends=sorted(rows, key=lambda row: (-len(row.stuck), row.last_report or 0, row.repo.lower())),
        refusals=[
            RefusalRow(at=found.at, repo=found.repo, status=found.status, text=found.text)
            for found in scope.rows(refused)
        ],
        allowlist=allowlist_error,
        runs_last_day=scope.connection.execute(recent).scalar_one(),
    )


def _row(scope: Scope, known: sa.Row[Any], expected: bool | None) -> HealthRow:
    mine = run.c.backend_id == known.id
    unfinished = select_runs().where(mine, run.c.status == "in_progress").order_by(run.c.first_seen.desc())
    shown = scope.rows(unfinished.limit(MAX_OPEN))
    lately = (mine, run.c.first_seen > scope.now - _DAY)
    return HealthRow(
        repo=known.repo,
        level=known.level,
        expected=expected,
        last_report=known.last_seen,
        running=[attempt(scope, row) for row in shown if state_of(scope, row) == "running"],
        stuck=[attempt(scope, row) for row in shown if state_of(scope, row) == "stuck"],
        unreported=_count(scope, *lately, run.c.status == "announced"),
        resultless=_count(scope, *lately, run.c.status == "completed", run.c.results == "none"),
    )


def _count(scope: Scope, *conditions: sa.ColumnElement[bool]) -> int:
    query = sa.select(sa.func.count()).select_from(run).where(*conditions)
    return int(scope.connection.execute(query).scalar_one())
