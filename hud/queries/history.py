"""Tests over time: the history of one, what broke and what was fixed lately, and the difference of two runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, get_args

import sqlalchemy as sa

from hud.core.diffs import diff
from hud.core.history import BLOCK_BITS, changes, opened_with
from hud.core.outcomes import FAILING, OUTCOMES, Outcome, denominator
from hud.queries.contexts import DiffGroup, DiffPage, Event, Feed, Kind, RunSide, Sighting, Span, TestLane, TestPage
from hud.queries.jobs import has_results, select_runs, state_of, totals_of
from hud.queries.names import families, look_up, names
from hud.queries.scope import Scope
from hud.store.history import ORDER, neighbour
from hud.store.tables import backend, change, detail, failure, lane, opening, run, test

MAX_SPANS = 50
MAX_LANES = 200
MAX_SIGHTINGS = 50
MAX_SUGGESTIONS = 20
MAX_LISTED = 500
FEED_RUNS = 50

KINDS: tuple[Kind, ...] = get_args(Kind)
"""What may have happened to a test between two runs."""

_STOP = (run.c.key, run.c.sha, run.c.first_seen)
"""Of a run at which a stretch of history begins or ends."""


def test_page(scope: Scope, name: str) -> TestPage:
    """The history of one test in every job that runs it.

    Args:
        scope: the reader's view.
        name: the test's id, with or without a device; each backend's own device stands for the same test.
    """
    row = _find(scope, name)
    if row is None:
        like = test.c.name.icontains(name, autoescape=True)
        found = scope.rows(sa.select(test.c.name).where(like).order_by(test.c.name).limit(MAX_SUGGESTIONS))
        suggestions = [known.name.removesuffix("@") for known in found] if len(name) > 2 else []
        empty = dict.fromkeys(("file", "cls", "test", "op", "dtype"), "")
        return TestPage(name=name, known=False, lanes=[], failures=[], suggestions=suggestions, **empty)
    return TestPage(
        name=name,
        known=True,
        file=row.file,
        cls=row.cls,
        test=row.test,
        op=row.op,
        dtype=row.dtype,
        lanes=_lanes(scope, row.id),
        failures=_sightings(scope, row.id),
        suggestions=[],
    )


def diff_page(scope: Scope, base_key: str, head_key: str, only: str = "", page: int = 1) -> DiffPage | None:
    """What changed between two runs.

    Args:
        scope: the reader's view.
        base_key, head_key: keys of the runs.
        only: one of ``KINDS``: nothing else is listed, and all of it, on pages.
        page: from 1.

    Returns:
        ``None`` where one of the runs does not exist.
    """
    rows = {row.key: row for row in scope.rows(select_runs().where(run.c.key.in_([base_key, head_key])))}
    base, head = rows.get(base_key), rows.get(head_key)
    if base is None or head is None:
        return None
    found = diff(scope.results(base.id, base.revision), scope.results(head.id, head.revision), partial(families, scope))
    groups: tuple[tuple[Kind, tuple[int, ...]], ...] = (
        ("newly failing", found.newly_failing),
        ("still failing", found.still_failing),
        ("missing", found.missing),
        ("newly skipped", found.newly_skipped),
        ("fixed", found.fixed),
        ("appeared", found.appeared),
    )
    shown = [(kind, numbers) for kind, numbers in groups if kind == only] or groups
    start, longest = 0, 0
    if only in KINDS:
        start, longest = (page - 1) * MAX_LISTED, len(shown[0][1])
    look_up(scope, {number for _, numbers in shown for number in numbers[start : start + MAX_LISTED]})
    return DiffPage(
        base=_side(scope, base),
        head=_side(scope, head),
        narrowed=found.narrowed,
        groups=[
            DiffGroup(
                kind=kind,
                count=len(numbers),
                names=names(scope, numbers[start : start + MAX_LISTED], head.device),
            )
            for kind, numbers in shown
        ],
        only=only if only in KINDS else "",
        page=page,
        pages=max(1, -(-longest // MAX_LISTED)),
    )


def feed(scope: Scope) -> Feed:
    """The latest runs of the base branch in which tests broke or were fixed."""
    latest = scope.rows(
        select_runs().where(run.c.in_history).order_by(run.c.first_seen.desc(), run.c.id.desc()).limit(FEED_RUNS)
    )
    events = []
    for row in latest:
        before = _previous(scope, row)
        if before is None:
            continue
        key = ("event", row.id, row.revision, before.id, before.revision)
        event = scope.memories.answers.get(key, partial(_event, scope, row, before))
        if event.broken or event.fixed:
            events.append(event)
    return Feed(events=events)


def _event(scope: Scope, row: sa.Row[Any], before: sa.Row[Any]) -> Event:
    changed = changes(scope.results(before.id, before.revision), scope.results(row.id, row.revision))
    broken = [c.test_id for c in changed if c.after in FAILING and c.before not in FAILING]
    fixed = [c.test_id for c in changed if c.before in FAILING and c.after == "passed"]
    return Event(
        run=row.key,
        repo=row.repo,
        sha=row.sha,
        at=row.first_seen,
        broken=names(scope, broken[:MAX_LISTED], row.device),
        fixed=names(scope, fixed[:MAX_LISTED], row.device),
    )


def _previous(scope: Scope, row: sa.Row[Any]) -> sa.Row[Any] | None:
    number = neighbour(scope.connection, row, later=False)
    found = scope.rows(sa.select(run.c.id, run.c.revision).where(run.c.id == number)) if number is not None else []
    return found[0] if found else None


def _find(scope: Scope, name: str) -> sa.Row[Any] | None:
    devices = [row.device for row in scope.rows(sa.select(backend.c.device).distinct()) if row.device]
    spellings = [name, f"{name}@"] + [name[: -len(device)] for device in devices if name.endswith(f"@{device}")]
    digests = [hashlib.blake2b(spelling.encode(), digest_size=16).digest() for spelling in spellings]
    return scope.connection.execute(sa.select(test).where(test.c.digest.in_(digests)).limit(1)).first()


def _lanes(scope: Scope, number: int) -> list[TestLane]:
    """A test in every job on the base branch: what the job's first run found, and what later ones changed."""
    opened, where = _openings(scope, number), run.c.id == change.c.run_id
    query = sa.select(change.c.lane_id, change.c.before, change.c.after, *_STOP).join(run, where)
    changed: dict[int, list[sa.Row[Any]]] = {}
    for row in scope.rows(query.where(change.c.test_id == number).order_by(*ORDER)):
        changed.setdefault(row.lane_id, []).append(row)
    named = sa.select(lane.c.id, lane.c.workflow, lane.c.job, backend.c.repo, backend.c.level).join(backend)
    lanes = {row.id: row for row in scope.rows(named)} if opened or changed else {}
    found = []
    for lane_id in {**opened, **changed}:
        spans = list(_spans(opened.get(lane_id), changed.get(lane_id, [])))
        if not spans:
            continue
        spans.reverse()
        row, lasts = lanes[lane_id], spans[0].until_run is None
        found.append(
            TestLane(
                repo=row.repo,
                level=row.level,
                workflow=row.workflow,
                job=row.job,
                outcome=spans[0].outcome if lasts else None,
                since=spans[0] if lasts else None,
                spans=spans[:MAX_SPANS],
            )
        )
    found.sort(key=lambda shown: (shown.outcome not in FAILING, shown.repo.lower(), shown.workflow, shown.job))
    return found[:MAX_LANES]


def _openings(scope: Scope, number: int) -> dict[int, tuple[sa.Row[Any], Outcome]]:
    """The first run of each job's history that has the test, and its outcome there."""
    query = (
        sa.select(opening.c.lane_id, opening.c.data, *_STOP)
        .join(run, run.c.id == opening.c.run_id)
        .where(opening.c.block == number >> BLOCK_BITS)
    )
    return {
        row.lane_id: (row, outcome)
        for row in scope.rows(query)
        if (outcome := opened_with(row.data, number)) is not None
    }


def _spans(opened: tuple[sa.Row[Any], Outcome] | None, changed: Sequence[sa.Row[Any]]) -> Iterator[Span]:
    """Stretches of one outcome, the earliest first. What was before the first change may have been pruned."""
    start: sa.Row[Any] | None = None
    outcome: Outcome | None = None
    if opened is not None and (not changed or changed[0].before is not None):
        start, outcome = opened
    for row in changed:
        if start is not None and outcome is not None:
            yield _span(outcome, start, row)
        start, outcome = row, None if row.after is None else OUTCOMES[row.after]
    if start is not None and outcome is not None:
        yield _span(outcome, start, None)


def _span(outcome: Outcome, first: sa.Row[Any], until: sa.Row[Any] | None) -> Span:
    return Span(
        outcome=outcome,
        first_run=first.key,
        first_sha=first.sha,
        first_at=first.first_seen,
        until_run=until.key if until is not None else None,
        until_sha=until.sha if until is not None else None,
        until_at=until.first_seen if until is not None else None,
    )


def _sightings(scope: Scope, number: int) -> list[Sighting]:
    query = (
        select_runs()
        .add_columns(failure.c.outcome, detail.c.message)
        .join(failure, failure.c.run_id == run.c.id)
        .outerjoin(detail, detail.c.id == failure.c.detail_id)
        .where(failure.c.test_id == number)
        .order_by(failure.c.run_id.desc())
        .limit(MAX_SIGHTINGS)
    )
    return [
        Sighting(
            run=row.key,
            repo=row.repo,
            pr=row.pr,
            sha=row.sha,
            event=row.event,
            at=row.first_seen,
            outcome=OUTCOMES[row.outcome],
            message=row.message or "",
        )
        for row in scope.rows(query)
    ]


def _side(scope: Scope, row: sa.Row[Any]) -> RunSide:
    totals = totals_of(row)
    return RunSide(
        run=row.key,
        repo=row.repo,
        workflow=row.workflow or "",
        job=row.job or "",
        sha=row.sha,
        pr=row.pr,
        at=row.first_seen,
        state=state_of(scope, row),
        results=has_results(row),
        tests=sum(totals.values()),
        passed=totals["passed"],
        counted=denominator(totals),
    )
