"""How backends stand on upstream's base branch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from hud.allowlist import Expected
from hud.core.outcomes import OUTCOMES, Outcome, denominator, failing
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
from hud.queries.jobs import attempt_order, has_results, select_runs, state_of, totals_of
from hud.queries.pulls import latest_pulls_of, pull_list
from hud.queries.scope import Scope
from hud.store.batches import batches
from hud.store.history import BRANCH_EVENTS
from hud.store.tables import backend, run

TREND = 20
HOME_PULLS = 10
MATRIX_COMMITS = 50
JOBS = 4
"""Runs that are read for each commit of a trend; of a backend with more jobs, fewer commits are shown, each whole."""

_BATCH = 500
_STATES = ("failing", "stuck", "infra", "no data", "running", "passing")
"""The ones that need a look first."""


def home_page(scope: Scope) -> HomePage:
    """Backends, the ones that need a look first, and the latest pull requests."""
    return HomePage(backends=backend_list(scope).backends, prs=pull_list(scope, size=HOME_PULLS).prs, updated=scope.now)


def backend_list(scope: Scope) -> BackendList:
    """Every backend that is expected or ever reported."""
    known = scope.rows(sa.select(backend))
    points = base_points(scope, [row.id for row in known], TREND)
    summaries = [_summary(scope, row.repo, _level(scope, row), row, points.get(row.id, [])) for row in known]
    seen = {row.repo_key for row in known}
    summaries += [
        _summary(scope, expected.repo, expected.level, None, [])
        for expected in scope.expected
        if expected.repo.lower() not in seen
    ]
    return BackendList(backends=sorted(summaries, key=lambda row: (_STATES.index(row.state), row.repo.lower())))


def one_summary(scope: Scope, repo: str) -> BackendSummary | None:
    """One backend's standing; ``None`` where it is neither expected nor ever reported."""
    row, expected = _known(scope, repo)
    if row is not None:
        points = base_points(scope, [row.id], TREND).get(row.id, [])
        return _summary(scope, row.repo, _level(scope, row), row, points)
    return _summary(scope, expected.repo, expected.level, None, []) if expected is not None else None


def _known(scope: Scope, repo: str) -> tuple[sa.Row[Any] | None, Expected | None]:
    row = scope.connection.execute(sa.select(backend).where(backend.c.repo_key == repo.lower())).first()
    return row, next((found for found in scope.expected if found.repo.lower() == repo.lower()), None)


def backend_page(scope: Scope, repo: str, criteria: Criteria) -> BackendPage | None:
    """One backend: commits by jobs, trends, readiness, the latest pull requests.

    Returns:
        ``None`` where it is neither expected nor ever reported.
    """
    row, expected = _known(scope, repo)
    if row is None and expected is None:
        return None
    points = base_points(scope, [row.id], MATRIX_COMMITS).get(row.id, []) if row is not None else []
    jobs = sorted({(found.workflow, found.job) for rows in points for found in rows})
    level = expected.level if expected is not None else row.level if row is not None else None
    name = row.repo if row is not None else expected.repo if expected is not None else repo
    return BackendPage(
        repo=name,
        level=level,
        device=row.device if row is not None else None,
        expected=expected is not None if scope.expected else None,
        summary=_summary(scope, name, level or "", row, points[:TREND]),
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
                results=has_results(row),
                state=_state_of_run(scope, row),
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


def base_points(scope: Scope, backends: Sequence[int], limit: int) -> dict[int, list[list[sa.Row[Any]]]]:
    """By backend, the latest commits of the base branch that it ran on, newest first; of each, the runs that count."""
    one = run.alias("one")
    latest = (
        sa.select(one.c.id)
        .where(one.c.backend_id == backend.c.id, one.c.event.in_(BRANCH_EVENTS), one.c.pr.is_(None))
        .order_by(one.c.order_at.desc(), one.c.order_place.desc(), one.c.id.desc())
        .limit(limit * JOBS)
        .correlate(backend)
        .subquery()
    )
    # The numbers come first, by the index: asked for together with their rows, a database reads every run there is.
    listed = sa.select(sa.func.aggregate_strings(sa.cast(latest.c.id, sa.Text), ",")).scalar_subquery()
    told = scope.connection.execute(sa.select(listed).where(backend.c.id.in_(backends))).scalars()
    numbers = [int(number) for found in told if found for number in found.split(",")]
    rows = [row for some in batches(numbers, _BATCH) for row in scope.rows(select_runs().where(run.c.id.in_(some)))]
    # Sorting thousands of numbers here is quicker than sorting the rows there.
    rows.sort(key=lambda row: (row.order_at, row.order_place, row.id), reverse=True)
    points: dict[int, dict[str, list[sa.Row[Any]]]] = {}
    for row in rows:
        points.setdefault(row.backend_id, {}).setdefault(row.sha or row.key, []).append(row)
    for number, mine in points.items():
        if len(mine) <= limit and sum(map(len, mine.values())) == limit * JOBS:
            # The runs that were read end within a commit: it is shown whole.
            mine.update(_whole(scope, number, list(mine)[-1]))
    return {number: [_latest(rows) for rows in list(mine.values())[:limit]] for number, mine in points.items()}


def _whole(scope: Scope, backend_id: int, sha: str) -> dict[str, list[sa.Row[Any]]]:
    """All runs of a backend on a commit of the base branch, by its name; nothing where it is not the name of one."""
    query = select_runs().where(run.c.sha == sha, run.c.backend_id == backend_id)
    rows = scope.rows(query.where(run.c.event.in_(BRANCH_EVENTS), run.c.pr.is_(None)))
    return {sha: rows} if rows else {}


def _latest(rows: Sequence[sa.Row[Any]]) -> list[sa.Row[Any]]:
    """Of each job, the attempt that counts."""
    jobs: dict[int, sa.Row[Any]] = {}
    for row in rows:
        if row.lane_id not in jobs or attempt_order(jobs[row.lane_id]) < attempt_order(row):
            jobs[row.lane_id] = row
    return list(jobs.values())


def point(scope: Scope, rows: Sequence[sa.Row[Any]]) -> RunPoint:
    """One commit in a trend."""
    key = tuple((row.id, row.revision, state_of(scope, row)) for row in rows)
    return scope.memories.points.get(key, partial(_point, scope, rows))


def _point(scope: Scope, rows: Sequence[sa.Row[Any]]) -> RunPoint:
    totals = summed(rows)
    states = {row.key: _state_of_run(scope, row) for row in rows}
    worst = min(rows, key=lambda row: (_STATES.index(states[row.key]), row.key))
    known = [row.execution_time for row in rows if row.execution_time is not None]
    queued = [row.queue_time for row in rows if row.queue_time is not None]
    return RunPoint(
        run=worst.key,
        runs=len(rows),
        results=all(map(has_results, rows)),
        sha=worst.sha,
        at=worst.first_seen,
        state=states[worst.key],
        passed=totals["passed"],
        counted=denominator(totals),
        failing=failing(totals),
        seconds=max(known, default=None),
        queue_seconds=max(queued, default=None),
    )


def _summary(
    scope: Scope, repo: str, level: str, row: sa.Row[Any] | None, points: Sequence[Sequence[sa.Row[Any]]]
) -> BackendSummary:
    finished = [rows for rows in points if any(found.status == "completed" for found in rows)]
    current = (finished or points or [[]])[0]
    totals = summed(current)
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
        runs=len(current),
        results=shown.results if shown else False,
        at=shown.at if shown else None,
        last_report=row.last_seen if row is not None else None,
        trend=[point(scope, rows) for rows in reversed(points)],
        url=f"/backend/{repo}",
    )


def summed(rows: Sequence[sa.Row[Any]]) -> dict[Outcome, int]:
    """Tests by outcome over the jobs of a commit."""
    every = [totals_of(row) for row in rows]
    if len(every) == 1:
        return every[0]
    return {outcome: sum(totals[outcome] for totals in every) for outcome in OUTCOMES}


def _level(scope: Scope, row: sa.Row[Any]) -> str:
    """The allowlist's word, where it has one: it may have changed since the last report."""
    return next((found.level for found in scope.expected if found.repo.lower() == row.repo_key), row.level)


def _state_of_run(scope: Scope, row: sa.Row[Any]) -> str:
    state = state_of(scope, row)
    if state in ("stuck", "running"):
        return state
    if state == "failure" or failing(totals_of(row)):
        return "failing"
    return "passing" if state in ("success", "neutral", "skipped") else "infra"
