"""Whether reports arrive."""

from __future__ import annotations

import sqlalchemy as sa

from hud.queries.contexts import Attempt, HealthPage, HealthRow, RefusalRow
from hud.queries.jobs import attempt, select_runs, state_of
from hud.queries.run_lists import conditions
from hud.queries.scope import Scope
from hud.store.tables import backend, refusal, run

MAX_OPEN = 1000
"""Unfinished runs that are listed, over all backends; more are counted only."""
MAX_REFUSALS = 50
_COUNTED = ("running", "stuck", "unreported", "resultless")


def health_page(scope: Scope, allowlist_error: str | None) -> HealthPage:
    """Last report of each backend, what runs, what is stuck, what was refused."""
    expected = {found.repo.lower(): found for found in scope.expected}
    unfinished = select_runs().where(run.c.status == "in_progress").order_by(run.c.first_seen.desc()).limit(MAX_OPEN)
    open_: dict[tuple[int, str], list[Attempt]] = {}
    for row in scope.rows(unfinished):
        open_.setdefault((row.backend_id, state_of(scope, row)), []).append(attempt(scope, row))
    counts = {kind: _by_backend(scope, kind) for kind in _COUNTED}
    rows = []
    known = scope.rows(sa.select(backend))
    for found in known:
        mine = {kind: counts[kind].get(found.id, 0) for kind in _COUNTED}
        rows.append(
            HealthRow(
                repo=found.repo,
                level=found.level,
                expected=found.repo_key in expected if expected else None,
                last_report=found.last_seen,
                running=open_.get((found.id, "running"), []),
                stuck=open_.get((found.id, "stuck"), []),
                running_count=mine["running"],
                stuck_count=mine["stuck"],
                unreported=mine["unreported"],
                resultless=mine["resultless"],
            )
        )
    reported = {found.repo_key for found in known}
    rows += [
        HealthRow(
            repo=found.repo,
            level=found.level,
            expected=True,
            last_report=None,
            running=[],
            stuck=[],
            running_count=0,
            stuck_count=0,
            unreported=0,
            resultless=0,
        )
        for key, found in expected.items()
        if key not in reported
    ]
    refused = sa.select(refusal).order_by(refusal.c.id.desc()).limit(MAX_REFUSALS)
    return HealthPage(
        backends=sorted(rows, key=lambda row: (-row.stuck_count, row.last_report or 0, row.repo.lower())),
        refusals=[
            RefusalRow(at=found.at, repo=found.repo, status=found.status, text=found.text)
            for found in scope.rows(refused)
        ],
        allowlist=allowlist_error,
        runs_last_day=sum(_by_backend(scope, "day").values()),
        stuck=sum(row.stuck_count for row in rows),
    )


def _by_backend(scope: Scope, kind: str) -> dict[int, int]:
    """How many runs of a kind each backend has."""
    query = sa.select(run.c.backend_id, sa.func.count().label("runs")).where(conditions(scope)[kind])
    return {row.backend_id: row.runs for row in scope.rows(query.group_by(run.c.backend_id))}
