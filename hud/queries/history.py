"""Tests over time: the history of one, what broke and what was fixed lately, and the difference of two runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from hud.core.diffs import diff
from hud.core.history import changes
from hud.core.outcomes import FAILING, OUTCOMES, denominator
from hud.queries.contexts import DiffGroup, DiffPage, Event, Feed, RunSide, Sighting, Span, TestLane, TestPage
from hud.queries.jobs import select_runs, state_of, totals_of
from hud.queries.names import families, names
from hud.queries.scope import Scope
from hud.store.tables import backend, detail, failure, interval, lane, run, test

MAX_SPANS = 50
MAX_LANES = 200
MAX_SIGHTINGS = 50
MAX_SUGGESTIONS = 20
MAX_LISTED = 500
FEED_RUNS = 50


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


def diff_page(scope: Scope, base_key: str, head_key: str) -> DiffPage | None:
    """What changed between two runs.

    Returns:
        ``None`` where one of the runs does not exist.
    """
    rows = {row.key: row for row in scope.rows(select_runs().where(run.c.key.in_([base_key, head_key])))}
    base, head = rows.get(base_key), rows.get(head_key)
    if base is None or head is None:
        return None
    found = diff(
        scope.snapshot(base.id, base.revision),
        scope.snapshot(head.id, head.revision),
        lambda numbers: families(scope, numbers),
    )

    def listed(numbers: Sequence[int]) -> list[str]:
        return names(scope, numbers[:MAX_LISTED], head.device)

    return DiffPage(
        base=_side(scope, base),
        head=_side(scope, head),
        narrowed=found.narrowed,
        groups=[
            DiffGroup(kind="newly failing", count=len(found.newly_failing), names=listed(found.newly_failing)),
            DiffGroup(kind="still failing", count=len(found.still_failing), names=listed(found.still_failing)),
            DiffGroup(kind="missing", count=len(found.missing), names=listed(found.missing)),
            DiffGroup(kind="newly skipped", count=len(found.newly_skipped), names=listed(found.newly_skipped)),
            DiffGroup(kind="fixed", count=len(found.fixed), names=listed(found.fixed)),
            DiffGroup(kind="appeared", count=len(found.appeared), names=listed(found.appeared)),
        ],
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
        event = scope.judgements.get(key, partial(_event, scope, row, before))
        if event.broken or event.fixed:
            events.append(event)
    return Feed(events=events)


def _event(scope: Scope, row: sa.Row[Any], before: sa.Row[Any]) -> Event:
    changed = list(changes(scope.snapshot(before.id, before.revision), scope.snapshot(row.id, row.revision)))
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
    mine = sa.tuple_(run.c.order_at, run.c.order_place, run.c.attempt, run.c.id)
    here = sa.tuple_(row.order_at, row.order_place, row.attempt, row.id)
    query = sa.select(run).where(run.c.lane_id == row.lane_id, run.c.in_history, mine < here)
    order = (run.c.order_at.desc(), run.c.order_place.desc(), run.c.attempt.desc(), run.c.id.desc())
    return scope.connection.execute(query.order_by(*order).limit(1)).first()


def _find(scope: Scope, name: str) -> sa.Row[Any] | None:
    devices = [row.device for row in scope.rows(sa.select(backend.c.device).distinct()) if row.device]
    spellings = [name, f"{name}@"] + [name[: -len(device)] for device in devices if name.endswith(f"@{device}")]
    digests = [hashlib.blake2b(spelling.encode(), digest_size=16).digest() for spelling in spellings]
    return scope.connection.execute(sa.select(test).where(test.c.digest.in_(digests)).limit(1)).first()


def _lanes(scope: Scope, number: int) -> list[TestLane]:
    first, until = run.alias("first"), run.alias("until")
    query = (
        sa.select(
            interval.c.outcome,
            interval.c.lane_id,
            backend.c.repo,
            backend.c.level,
            lane.c.workflow,
            lane.c.job,
            first.c.key.label("first_run"),
            first.c.sha.label("first_sha"),
            first.c.first_seen.label("first_at"),
            until.c.key.label("until_run"),
            until.c.sha.label("until_sha"),
            until.c.first_seen.label("until_at"),
        )
        .join(lane, lane.c.id == interval.c.lane_id)
        .join(backend, backend.c.id == lane.c.backend_id)
        .join(first, first.c.id == interval.c.first_run)
        .outerjoin(until, until.c.id == interval.c.until_run)
        .where(interval.c.test_id == number)
        .order_by(first.c.order_at.desc(), first.c.order_place.desc(), first.c.attempt.desc(), first.c.id.desc())
    )
    found: dict[int, TestLane] = {}
    for row in scope.rows(query):
        span = Span.model_validate({**row._mapping, "outcome": OUTCOMES[row.outcome]})
        shown = found.get(row.lane_id)
        if shown is None:
            lasts = row.until_run is None
            shown = found[row.lane_id] = TestLane(
                repo=row.repo,
                level=row.level,
                workflow=row.workflow,
                job=row.job,
                outcome=span.outcome if lasts else None,
                since=span if lasts else None,
                spans=[],
            )
        if len(shown.spans) < MAX_SPANS:
            shown.spans.append(span)
    ordered = sorted(found.values(), key=lambda shown: (shown.outcome not in FAILING, shown.repo.lower(), shown.job))
    return ordered[:MAX_LANES]


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
        tests=sum(totals.values()),
        passed=totals["passed"],
        counted=denominator(totals),
    )
