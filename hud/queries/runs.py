"""What happened in one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa

from hud.core.lines import display_name
from hud.core.outcomes import CODE, FAILING, NOT_THERE, OUTCOMES, PASSING, Outcome, fails_on_cpu_too
from hud.core.snapshot import Entry, Note, Results, Snapshot
from hud.core.text import link
from hud.queries.contexts import Cluster, FailureDetail, ResultRow, RunPage
from hud.queries.jobs import (
    Job,
    Judged,
    attempt,
    attempt_order,
    base_line,
    judge_jobs,
    on_cpu_too,
    report_of,
    select_runs,
    state_of,
    totals_of,
)
from hud.queries.names import numbers_of, tests
from hud.queries.scope import Scope
from hud.store.tables import detail, failure, pull_head, run, test

PAGE = 100
MAX_CLUSTERS = 20

Standing = Literal["new", "already failing", "uncertain", "flaky", ""]

_LISTS = {
    "new": "new_failures",
    "added": "added",
    "known": "already_failing",
    "uncertain": "uncertain",
    "flickering": "flaky",
    "fixed": "fixed",
}
"""Filters that the comparison with the base answers, by the names of ``contexts.Counts``."""

_GROUPS: dict[str, frozenset[Outcome]] = {
    "failing": FAILING,
    "counted": FAILING | {"passed"},
    "ran": FAILING | PASSING,
    **{outcome: frozenset({outcome}) for outcome in OUTCOMES},
}
"""Filters that are a set of outcomes: any way of failing, what counts for the pass rate, what the matrix counts."""

FILTERS = (*_LISTS, "cpu", *_GROUPS, "fallback", "all")
"""What the page's ``outcome`` may be; ``cpu`` is what fails on the CPU too."""


@dataclass(frozen=True)
class Wanted:
    """Which tests of a run to list; an empty text asks for no condition.

    Attributes:
        outcome: one of ``FILTERS``; by default ``new`` where there are any, ``failing`` where something failed, else
            ``all``.
        query: text that a test's name must contain.
        op, dtype: of the test; the dtype ``none`` stands for tests that name none.
        kind: fingerprint of the failure.
    """

    outcome: str = ""
    query: str = ""
    op: str = ""
    dtype: str = ""
    kind: str = ""


def run_page(scope: Scope, key: str, wanted: Wanted = Wanted(), page: int = 1) -> RunPage | None:
    """One run with a page of its tests.

    Args:
        scope: the reader's view.
        key: the run's.
        wanted: which tests.
        page: from 1.

    Returns:
        ``None`` where no run has this key.
    """
    found = scope.rows(select_runs().where(run.c.key == key))
    if not found:
        return None
    row = found[0]
    attempts = _attempts(scope, row)
    judged = _judge(scope, row, attempts)
    results = scope.results(row.id, row.revision)
    standing = _standing(scope, row, judged)
    totals = totals_of(row)
    listed = _listed(scope, row, judged)
    chosen = wanted.outcome if wanted.outcome in FILTERS else _default_filter(totals, standing)
    places = _matching(scope, row, results, replace(wanted, outcome=chosen), listed)
    clusters = _clusters(scope, row)
    alike = {cluster.fingerprint: cluster.count for cluster in clusters}
    report, cuts = report_of(scope, row), _cuts(scope, row)
    conclusive = row.status == "completed"
    return RunPage(
        key=row.key,
        repo=row.repo,
        level=row.level,
        workflow=row.workflow or "",
        job=row.job or "",
        event=row.event,
        upstream=row.upstream,
        pr=row.pr,
        sha=row.sha,
        base_sha=row.base_sha,
        branch=row.branch,
        run_id=row.run_id,
        attempt=row.attempt,
        state=state_of(scope, row),
        conclusion=row.conclusion,
        inconsistent=bool(judged and judged.told.judgement.inconsistent)
        or (row.conclusion == "success" and any(totals[kind] for kind in FAILING)),
        verdict=judged.told.judgement.verdict if judged else None,
        why=judged.told.judgement.why if judged else "",
        base=base_line(judged.base, row.base_sha) if judged else None,
        device=row.device,
        profile=row.profile,
        url=row.log_url,
        artifact_url=link(report.get("artifact_url")),
        queue_seconds=row.queue_time,
        seconds=row.execution_time if conclusive else scope.now - row.first_seen,
        first_seen=row.first_seen,
        updated=row.updated,
        results=row.results,
        totals=totals,
        tests=sum(totals.values()),
        reported={name: count for name, count in (report.get("test_results") or {}).items() if isinstance(count, int)},
        cuts=cuts,
        attempts=[attempt(scope, found) for found in attempts],
        clusters=clusters[:MAX_CLUSTERS],
        kinds=len(clusters),
        counts={
            **{kind: len(numbers) for kind, numbers in listed.items()},
            **{kind: sum(totals[outcome] for outcome in _GROUPS[kind]) for kind in ("failing", "counted")},
        },
        outcome=chosen,
        query=wanted.query,
        op=wanted.op,
        dtype=wanted.dtype,
        kind=wanted.kind,
        page=page,
        pages=max(1, -(-len(places) // PAGE)),
        matching=len(places),
        rows=result_rows(scope, row, scope.snapshot(row.id), places[(page - 1) * PAGE : page * PAGE], standing, alike),
        triage=report.get("triage_verdict"),
    )


def _attempts(scope: Scope, row: sa.Row[Any]) -> list[sa.Row[Any]]:
    """Every run of the same job on the same commit, in order; of a run without a commit, only itself."""
    if row.lane_id is None or row.sha is None:
        return [row]
    same = select_runs().where(run.c.lane_id == row.lane_id, run.c.sha == row.sha, run.c.upstream == row.upstream)
    same = same.where(run.c.pr == row.pr if row.pr is not None else run.c.pr.is_(None))
    return sorted(scope.rows(same), key=attempt_order)


def _judge(scope: Scope, row: sa.Row[Any], attempts: Sequence[sa.Row[Any]]) -> Judged | None:
    if row.pr is None:
        return None
    others = [other for other in attempts if other.id != row.id]
    heads = sa.select(pull_head.c.base_sha, pull_head.c.base_ref).where(
        pull_head.c.pr == row.pr, pull_head.c.upstream == row.upstream, pull_head.c.sha == row.sha
    )
    head = scope.connection.execute(heads).first()
    base_sha = row.base_sha or (head.base_sha if head else None)
    return judge_jobs(scope, [Job([*others, row], base_sha, head.base_ref if head else None)])[0]


def _cuts(scope: Scope, row: sa.Row[Any]) -> dict[str, int]:
    return scope.connection.execute(sa.select(run.c.cuts).where(run.c.id == row.id)).scalar_one() or {}


def _standing(scope: Scope, row: sa.Row[Any], judged: Judged | None) -> dict[int, Standing]:
    if judged is None:
        return {}
    judgement = judged.told.judgement
    found: dict[int, Standing] = {}
    kinds: tuple[tuple[Standing, Sequence[int] | Sequence[str]], ...] = (
        ("new", judgement.new_failures),
        ("already failing", judgement.already_failing),
        ("uncertain", judgement.uncertain),
        ("flaky", judgement.flaky),
    )
    for word, keys in kinds:
        numbers = [key for key in keys if isinstance(key, int)]
        texts = [key for key in keys if isinstance(key, str)]
        numbers += numbers_of(scope, texts, row.device).values()
        found.update(dict.fromkeys(numbers, word))
    return found


def _default_filter(totals: dict[Outcome, int], standing: dict[int, Standing]) -> str:
    if "new" in standing.values():
        return "new"
    return "failing" if any(totals[kind] for kind in FAILING) else "all"


def _listed(scope: Scope, row: sa.Row[Any], judged: Judged | None) -> dict[str, set[int]]:
    """Tests of the run by the filter that lists them, beyond their outcome."""
    listed = {"cpu": set(on_cpu_too(scope, row.id))}
    if judged is not None:
        lists = judged.told.lists()
        for name, kind in _LISTS.items():
            texts = [key for key in lists[kind] if isinstance(key, str)]
            known = numbers_of(scope, texts, row.device).values() if texts else ()
            listed[name] = {*known, *(key for key in lists[kind] if isinstance(key, int))}
    return listed


def _matching(
    scope: Scope, row: sa.Row[Any], results: Results, wanted: Wanted, listed: Mapping[str, set[int]]
) -> Sequence[int]:
    """Places in the snapshot of the tests to list."""
    places: Iterable[int]
    if wanted.outcome in listed or wanted.outcome in _LISTS:
        numbers = sorted(listed.get(wanted.outcome, ()))
        places = (place for number in numbers if (place := results.roster.place(number)) is not None)
    elif wanted.outcome == "fallback":
        places = results.fell_back()
    elif wanted.outcome in _GROUPS:
        places = results.where(_GROUPS[wanted.outcome])
    else:
        places = range(len(results))
    if wanted.op or wanted.dtype:
        places = _in_cells(scope, results, list(places), wanted)
    if wanted.kind:
        alike = sa.select(failure.c.test_id).join(detail, detail.c.id == failure.c.detail_id)
        alike = alike.where(failure.c.run_id == row.id, detail.c.fingerprint == wanted.kind)
        places = _among(results, places, scope.connection.execute(alike).scalars())
    query = wanted.query.removesuffix(f"@{row.device}") if row.device else wanted.query
    if query:
        like = sa.select(test.c.id).where(test.c.name.icontains(query, autoescape=True))
        places = _among(results, places, scope.connection.execute(like).scalars())
    return places if isinstance(places, range) else list(places)


def _among(results: Results, places: Iterable[int], numbers: Iterable[int]) -> list[int]:
    known = set(numbers)
    return [place for place in places if results.ids[place] in known]


def _in_cells(scope: Scope, results: Results, places: Sequence[int], wanted: Wanted) -> list[int]:
    catalog = scope.memories.catalog
    cells = catalog.cells_of(scope.connection, [results.ids[place] for place in places])
    taken = {
        number
        for number, (op, dtype) in enumerate(catalog.cells)
        if wanted.op in ("", op) and wanted.dtype in ("", dtype or "none")
    }
    return [place for place, cell in zip(places, cells, strict=True) if cell in taken]


def result_rows(
    scope: Scope,
    row: sa.Row[Any],
    snapshot: Snapshot,
    places: Sequence[int],
    standing: Mapping[int, Standing],
    alike: Mapping[str, int],
) -> list[ResultRow]:
    """Contexts of some tests of a run.

    Args:
        scope: the reader's view.
        row: the run.
        snapshot: its results.
        places: which of them.
        standing: against the base, by test number.
        alike: how many failures of the run share a fingerprint.
    """
    numbers = [snapshot.ids[place] for place in places]
    known = tests(scope, numbers)
    words = _failures(scope, row.id, numbers)
    rows = []
    for place, number in zip(places, numbers, strict=True):
        entry, said, named = snapshot.entry_at(place), words.get(number), known[number]
        rows.append(_result_row(row, entry, named, said, standing.get(number, ""), alike))
    return rows


def _result_row(
    row: sa.Row[Any],
    entry: Entry,
    named: sa.Row[Any],
    said: sa.Row[Any] | None,
    standing: Standing,
    alike: Mapping[str, int],
) -> ResultRow:
    note = entry.note or Note()
    exact = said is not None and said.seconds is not None
    there = "" if said is None or said.cpu is None else NOT_THERE if said.cpu < 0 else OUTCOMES[said.cpu]
    return ResultRow(
        name=display_name(named.name, row.device),
        file=named.file,
        cls=named.cls,
        test=named.test,
        op=named.op,
        dtype=named.dtype,
        outcome=entry.outcome,
        seconds=said.seconds if said is not None and exact else entry.seconds,
        exact=exact,
        fallback=entry.fallback,
        cpu_outcome=there,
        on_cpu=fails_on_cpu_too(entry.outcome, there),
        **note._asdict(),
        standing=standing,
        detail=FailureDetail(
            phase=said.phase,
            message=said.message,
            trace=said.trace,
            fingerprint=said.fingerprint,
            alike=alike.get(said.fingerprint, 1),
        )
        if said is not None
        else None,
    )


def _failures(scope: Scope, run_number: int, numbers: Sequence[int]) -> dict[int, sa.Row[Any]]:
    query = (
        sa.select(failure.c.test_id, failure.c.seconds, failure.c.cpu, detail)
        .join(detail, detail.c.id == failure.c.detail_id)
        .where(failure.c.run_id == run_number, failure.c.test_id.in_(numbers))
    )
    return {found.test_id: found for found in scope.rows(query)}


def _clusters(scope: Scope, row: sa.Row[Any]) -> list[Cluster]:
    """All kinds of failure of a run, the most frequent first."""
    counts = (
        sa.select(
            detail.c.fingerprint,
            failure.c.outcome,
            sa.func.count().label("tests"),
            sa.func.min(detail.c.id).label("detail"),
            sa.func.min(failure.c.test_id).label("test"),
        )
        .join(detail, detail.c.id == failure.c.detail_id)
        .where(failure.c.run_id == row.id, failure.c.outcome.in_([CODE[kind] for kind in FAILING]))
        .group_by(detail.c.fingerprint, failure.c.outcome)
        .subquery()
    )
    query = (
        sa.select(counts, detail.c.message, test.c.name)
        .join(detail, detail.c.id == counts.c.detail)
        .join(test, test.c.id == counts.c.test)
        .order_by(counts.c.tests.desc(), counts.c.fingerprint)
    )
    return [
        Cluster(
            fingerprint=found.fingerprint,
            message=found.message,
            outcome=OUTCOMES[found.outcome],
            count=found.tests,
            example=display_name(found.name, row.device),
        )
        for found in scope.rows(query)
    ]
