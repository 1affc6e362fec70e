"""How backends stand on upstream's base branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from hud.core.outcomes import OUTCOMES, denominator, failing
from hud.core.readiness import Criteria, RunFacts, assess
from hud.queries.contexts import (
    BackendList,
    BackendPage,
    BackendSummary,
    Cell,
    CommitRow,
    Criterion,
    HomePage,
    Readiness,
    RunPoint,
)
from hud.queries.jobs import attempt_order, select_runs, state_of, totals_of
from hud.queries.pulls import latest_pulls_of, pull_list
from hud.queries.scope import Scope
from hud.store.intervals import BRANCH_EVENTS
from hud.store.tables import backend, run

TREND = 30
MATRIX_COMMITS = 50

_STATES = ("failing", "stuck", "infra", "no data", "running", "passing")
"""The ones that need a look first."""


def home_page(scope: Scope) -> HomePage:
    """Backends, the ones that need a look first, and the latest pull requests."""
    return HomePage(backends=backend_list(scope).backends, prs=pull_list(scope).prs, updated=scope.now)


def backend_list(scope: Scope) -> BackendList:
    """Every backend that is expected or ever reported."""
    known = scope.rows(sa.select(backend))
    summaries = [_summary(scope, row.repo, _level(scope, row), row) for row in known]
    seen = {row.repo_key for row in known}
    summaries += [
        _summary(scope, expected.repo, expected.level, None)
        for expected in scope.expected
        if expected.repo.lower() not in seen
    ]
    return BackendList(backends=sorted(summaries, key=lambda row: (_STATES.index(row.state), row.repo.lower())))


def backend_page(scope: Scope, repo: str, criteria: Criteria) -> BackendPage | None:
    """One backend: commits by jobs, trends, readiness, the latest pull requests.

    Returns:
        ``None`` where it is neither expected nor ever reported.
    """
    row = scope.connection.execute(sa.select(backend).where(backend.c.repo_key == repo.lower())).first()
    expected = next((found for found in scope.expected if found.repo.lower() == repo.lower()), None)
    if row is None and expected is None:
        return None
    points = base_points(scope, row.id, MATRIX_COMMITS) if row is not None else []
    jobs = sorted({(found.workflow, found.job) for rows in points for found in rows})
    level = expected.level if expected is not None else row.level if row is not None else None
    name = row.repo if row is not None else expected.repo if expected is not None else repo
    return BackendPage(
        repo=name,
        level=level,
        device=row.device if row is not None else None,
        expected=expected is not None if scope.expected else None,
        summary=_summary(scope, name, level or "", row),
        jobs=[" / ".join(part for part in job if part) for job in jobs],
        commits=[_commit_row(scope, rows, jobs) for rows in points],
        trend=[point(scope, rows) for rows in reversed(points)],
        readiness=_readiness(scope, points[: criteria.runs], criteria),
        prs=latest_pulls_of(scope, row.id) if row is not None else [],
    )


def _commit_row(scope: Scope, rows: Sequence[sa.Row[Any]], jobs: Sequence[tuple[str, str]]) -> CommitRow:
    by_job = {(row.workflow, row.job): row for row in rows}
    cells: list[Cell | None] = []
    for job in jobs:
        row = by_job.get(job)
        if row is None:
            cells.append(None)
            continue
        totals = totals_of(row)
        cells.append(
            Cell(
                run=row.key,
                state=_state(scope, [row]),
                passed=totals["passed"],
                counted=denominator(totals),
                failing=failing(totals),
            )
        )
    return CommitRow(sha=rows[0].sha, event=rows[0].event, at=min(row.first_seen for row in rows), cells=cells)


def _readiness(scope: Scope, points: Sequence[Sequence[sa.Row[Any]]], criteria: Criteria) -> Readiness:
    facts = []
    for rows in points:
        shown = point(scope, rows)
        if shown.state == "running":
            continue
        known = shown.seconds is not None
        facts.append(
            RunFacts(
                shown.passed,
                shown.counted,
                shown.state in ("infra", "stuck"),
                (shown.seconds or 0) + (shown.queue_seconds or 0) if known else None,
            )
        )
    standings = assess(facts, criteria)
    unknown = any(found.met is None for found in standings)
    return Readiness(
        runs=len(facts),
        criteria=[
            Criterion(
                name=found.name,
                limit=found.limit,
                value=found.value,
                unit="seconds" if found.seconds else "share",
                met=found.met,
            )
            for found in standings
        ],
        ready=None if unknown else all(found.met for found in standings),
    )


def base_points(scope: Scope, backend_id: int, limit: int) -> list[list[sa.Row[Any]]]:
    """The latest commits of the base branch that a backend ran on, newest first; of each, the runs that count."""
    query = (
        select_runs()
        .where(run.c.backend_id == backend_id, run.c.event.in_(BRANCH_EVENTS), run.c.pr.is_(None))
        .order_by(run.c.order_at.desc(), run.c.order_place.desc(), run.c.id.desc())
        .limit(limit * 4)
    )
    points: dict[str, dict[int, sa.Row[Any]]] = {}
    for row in scope.rows(query):
        jobs = points.setdefault(row.sha or row.key, {})
        if row.lane_id not in jobs or attempt_order(jobs[row.lane_id]) < attempt_order(row):
            jobs[row.lane_id] = row
    return [list(jobs.values()) for jobs in list(points.values())[:limit]]


def point(scope: Scope, rows: Sequence[sa.Row[Any]]) -> RunPoint:
    """One commit in a trend."""
    totals = {outcome: sum(totals_of(row)[outcome] for row in rows) for outcome in OUTCOMES}
    worst = min(rows, key=lambda row: (_STATES.index(_state(scope, [row])), row.key))
    known = [row.execution_time for row in rows if row.execution_time is not None]
    queued = [row.queue_time for row in rows if row.queue_time is not None]
    return RunPoint(
        run=worst.key,
        sha=worst.sha,
        at=worst.first_seen,
        state=_state(scope, rows),
        passed=totals["passed"],
        counted=denominator(totals),
        failing=failing(totals),
        seconds=max(known, default=None),
        queue_seconds=max(queued, default=None),
    )


def _summary(scope: Scope, repo: str, level: str, row: sa.Row[Any] | None) -> BackendSummary:
    points = base_points(scope, row.id, TREND) if row is not None else []
    finished = [rows for rows in points if any(found.status == "completed" for found in rows)]
    current = (finished or points or [[]])[0]
    totals = {outcome: sum(totals_of(found)[outcome] for found in current) for outcome in OUTCOMES}
    shown = point(scope, current) if current else None
    return BackendSummary(
        repo=repo,
        level=level,
        state=shown.state if shown else "no data",
        failing=failing(totals),
        totals=totals,
        passed=totals["passed"],
        counted=denominator(totals),
        sha=shown.sha if shown else None,
        run=shown.run if shown else None,
        at=shown.at if shown else None,
        last_report=row.last_seen if row is not None else None,
        trend=[point(scope, rows) for rows in reversed(points)],
        url=f"/backend/{repo}",
    )


def _level(scope: Scope, row: sa.Row[Any]) -> str:
    """The allowlist's word, where it has one: it may have changed since the last report."""
    return next((found.level for found in scope.expected if found.repo.lower() == row.repo_key), row.level)


def _state(scope: Scope, rows: Sequence[sa.Row[Any]]) -> str:
    states = set()
    for row in rows:
        state = state_of(scope, row)
        if state in ("stuck", "running"):
            states.add(state)
        elif state == "failure" or failing(totals_of(row)):
            states.add("failing")
        else:
            states.add("passing" if state in ("success", "neutral", "skipped") else "infra")
    return min(states, key=_STATES.index, default="no data")
