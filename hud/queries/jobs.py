"""One job on one commit: its attempts, the run it is compared with, and its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import sqlalchemy as sa

from hud.core.diffs import Diff, diff
from hud.core.outcomes import OUTCOMES, Outcome
from hud.core.text import link
from hud.core.verdicts import Base, Head, JobState, Judgement, judge
from hud.queries.contexts import Attempt, BaseLine, JobRow
from hud.queries.names import families, names, numbers_of
from hud.queries.scope import Scope
from hud.store.intervals import BRANCH_EVENTS
from hud.store.tables import backend, branch_commit, lane, run

MAX_NAMES = 1000
"""Names in one list of a context; more are counted only."""

_USUAL_RUNS = 20
_CONCLUSIVE = ("success", "failure")

Row = sa.Row[Any]

JOIN = run.join(backend, backend.c.id == run.c.backend_id).outerjoin(lane, lane.c.id == run.c.lane_id)
COLUMNS = (run, backend.c.repo, backend.c.device, lane.c.workflow, lane.c.job)


def select_runs() -> sa.Select[Any]:
    """Runs with the names of their backend, workflow and job."""
    return sa.select(*COLUMNS).select_from(JOIN)


def state_of(scope: Scope, row: Row) -> str:
    """``running``, ``stuck``, or GitHub's conclusion."""
    if row.status == "completed":
        return str(row.conclusion)
    return "stuck" if scope.now - row.first_seen > scope.stuck_after else "running"


def has_results(row: Row) -> bool:
    """Whether per-test results of a run are in the store: they may not have come, or have been pruned."""
    return row.results in ("partial", "complete")


def attempt_order(row: Row) -> tuple[float, float, int]:
    """Sort key of the runs of one job on one commit: GitHub's run ids grow; where they are no numbers, time tells."""
    number = float(row.run_id) if row.run_id.isdecimal() and len(row.run_id) < 20 else 0.0
    return (number, 0.0 if number else row.first_seen, row.attempt)


def by_job(rows: Iterable[Row]) -> list[list[Row]]:
    """Runs grouped by job, the attempts of each in order; the last one counts.

    A closed pull request dispatches once more, usually to cancel what still runs; that says nothing about the commit
    where another run does.
    """
    jobs: dict[int, list[Row]] = {}
    for row in rows:
        jobs.setdefault(row.lane_id, []).append(row)
    grouped = []
    for attempts in jobs.values():
        attempts.sort(key=lambda row: (row.action != "closed", attempt_order(row)))
        grouped.append(attempts)
    return sorted(grouped, key=lambda attempts: (attempts[-1].workflow, attempts[-1].job))


@dataclass(frozen=True)
class Judged:
    """A job's latest attempt, what it was compared with, and what came out.

    ``judgement`` names tests by number, or by id where only reports, and no per-test results, tell of them.
    """

    row: Row
    attempts: Sequence[Row]
    base: Row | None
    judgement: Judgement[int] | Judgement[str]
    difference: Diff | None


def judge_job(scope: Scope, attempts: Sequence[Row], base_sha: str | None, base_ref: str | None) -> Judged:
    """Say what the commit does to one job.

    Args:
        scope: the reader's view.
        attempts: runs of the job on the commit, the one that counts last.
        base_sha, base_ref: what the pull request is based on.
    """
    row = attempts[-1]
    base = find_base(scope, row, base_sha, base_ref)
    key = (
        tuple((attempt.id, attempt.revision) for attempt in attempts),
        (base.id, base.revision) if base is not None else None,
        state_of(scope, row),
    )
    judgement, difference = scope.judgements.get(key, lambda: _judge(scope, attempts, base))
    return Judged(row, attempts, base, judgement, difference)


def find_base(scope: Scope, row: Row, base_sha: str | None, base_ref: str | None) -> Row | None:
    """The run of the same job on the base commit or, where that has no result, on the nearest earlier commit with one.

    ``push`` events tell the order of commits (spec/hud.md 2). A base that no push named has no earlier commits.
    """
    if base_sha is None:
        return None
    usable = run.c.results == "complete"
    if not has_results(row):
        usable = usable | run.c.conclusion.in_(_CONCLUSIVE)
    candidates = select_runs().where(
        run.c.lane_id == row.lane_id,
        run.c.upstream == row.upstream,
        run.c.event.in_(BRANCH_EVENTS),
        run.c.pr.is_(None),
        run.c.status == "completed",
        usable,
    )
    exact = scope.rows(candidates.where(run.c.sha == base_sha))
    if exact:
        return max(exact, key=attempt_order)
    places = scope.rows(
        sa.select(branch_commit).where(branch_commit.c.sha == base_sha, branch_commit.c.upstream == row.upstream)
    )
    if not places:
        return None
    place = min(places, key=lambda found: (found.branch != base_ref, found.at))
    earlier = sa.tuple_(branch_commit.c.at, branch_commit.c.place) < sa.tuple_(place.at, place.place)
    nearest = (
        candidates.join(
            branch_commit, (branch_commit.c.sha == run.c.sha) & (branch_commit.c.upstream == run.c.upstream)
        )
        .where(branch_commit.c.branch == place.branch, earlier)
        .order_by(branch_commit.c.at.desc(), branch_commit.c.place.desc())
        .limit(1)
    )
    found = scope.rows(nearest)
    if not found:
        return None
    same = scope.rows(candidates.where(run.c.sha == found[0].sha))
    return max(same, key=attempt_order)


def _judge(
    scope: Scope, attempts: Sequence[Row], base: Row | None
) -> tuple[Judgement[int] | Judgement[str], Diff | None]:
    row = attempts[-1]
    if row.status != "completed":
        state: JobState = "stuck" if state_of(scope, row) == "stuck" else "running"
        return judge(Head[int](state), None), None
    if not has_results(row):
        return _judge_reports(scope, row, base), None
    head = scope.snapshot(row.id, row.revision)
    failing = head.failing_ids()
    failed, passed = set[int](), set[int]()
    for other in attempts[:-1]:
        if has_results(other) and other.action != "closed":
            earlier = scope.snapshot(other.id, other.revision)
            failed.update(number for number in earlier.failing_ids() if head.outcome_of(number) == "passed")
            passed.update(number for number in failing if earlier.outcome_of(number) in ("passed", "flaky"))
    facts = Head(
        conclusion=row.conclusion,
        failing=failing,
        flaky=[head.ids[place] for place in head.where({"flaky"})],
        passed_elsewhere=passed,
        failed_elsewhere=failed,
    )
    if base is None or not has_results(base):
        return judge(facts, _base_without_results(base)), None
    before = scope.snapshot(base.id, base.revision)
    outcomes = {number: outcome for number in failing if (outcome := before.outcome_of(number)) is not None}
    difference = diff(before, head, lambda numbers: families(scope, numbers))
    return judge(facts, Base(base.conclusion, outcomes)), difference


def _base_without_results(base: Row | None) -> Base[int] | None:
    return Base(base.conclusion, {}, results=False) if base is not None else None


def _judge_reports(scope: Scope, row: Row, base: Row | None) -> Judgement[str]:
    """Without per-test results the report's own list of failed tests is what there is to compare."""
    named, unnamed = _reported_failures(row)
    facts = Head(conclusion=row.conclusion, failing=named, failing_unnamed=unnamed, results=False)
    if base is None:
        return judge(facts, None)
    outcomes: dict[str, Outcome] = {}
    known = True
    if base.results == "complete":
        before = scope.snapshot(base.id, base.revision)
        for name, number in numbers_of(scope, named, row.device).items():
            outcome = before.outcome_of(number)
            if outcome is not None:
                outcomes[name] = outcome
    else:
        base_named, base_unnamed = _reported_failures(base)
        known = base_unnamed == 0
        outcomes = {name: "failed" if name in base_named else "passed" for name in named}
    return judge(facts, Base(base.conclusion, outcomes, results=known))


def _reported_failures(row: Row) -> tuple[list[str], int]:
    """Names of failed tests in a report, and how many more its totals tell of."""
    report = row.report or {}
    named = list(dict.fromkeys(item["name"] for item in report.get("failed_tests_detail") or []))
    failed = int((report.get("test_results") or {}).get("failed", 0))
    return named, max(0, failed - len(named))


def job_row(scope: Scope, judged: Judged, asked_base: str | None) -> JobRow:
    """The context of a judged job."""
    row, judgement, difference = judged.row, judged.judgement, judged.difference
    left_out = 0

    def listed(keys: Sequence[int] | Sequence[str]) -> list[str]:
        nonlocal left_out
        left_out += max(0, len(keys) - MAX_NAMES)
        return name_all(scope, keys[:MAX_NAMES], row.device)

    report = row.report or {}
    lists = {
        "new_failures": listed(judgement.new_failures),
        "added": listed(judgement.added),
        "already_failing": listed(judgement.already_failing),
        "uncertain": listed(judgement.uncertain),
        "flaky": listed(judgement.flaky),
        "fixed": listed(difference.fixed if difference else ()),
        "missing": listed(difference.missing if difference else ()),
    }
    return JobRow(
        workflow=row.workflow,
        job=row.job,
        run=row.key,
        verdict=judgement.verdict,
        why=judgement.why,
        state=state_of(scope, row),
        inconsistent=judgement.inconsistent,
        **lists,
        narrowed=difference.narrowed if difference else False,
        more=left_out,
        totals=totals_of(row),
        results=row.results,
        base=base_line(judged.base, asked_base),
        queue_seconds=row.queue_time,
        seconds=row.execution_time if row.status == "completed" else scope.now - row.first_seen,
        usual_seconds=usual_seconds(scope, row.lane_id) if row.status != "completed" else None,
        log_url=link(report.get("url")),
        attempts=[attempt(scope, found) for found in judged.attempts],
    )


def name_all(scope: Scope, keys: Sequence[int] | Sequence[str], device: str | None) -> list[str]:
    """Names of tests given by number or by id."""
    numbers = [key for key in keys if isinstance(key, int)]
    return names(scope, numbers, device) if numbers else [key for key in keys if isinstance(key, str)]


def attempt(scope: Scope, row: Row) -> Attempt:
    """The context of one attempt."""
    return Attempt(run=row.key, run_id=row.run_id, attempt=row.attempt, state=state_of(scope, row))


def base_line(base: Row | None, asked: str | None) -> BaseLine | None:
    """The context of what a job is compared with."""
    if base is None:
        return None
    return BaseLine(sha=base.sha, asked=asked if asked != base.sha else None, run=base.key)


def totals_of(row: Row) -> dict[Outcome, int]:
    """Tests by outcome: from per-test results, else from the counts of the job's report."""
    if row.totals is not None:
        return {outcome: row.totals.get(outcome, 0) for outcome in OUTCOMES}
    counts = (row.report or {}).get("test_results") or {}
    return {outcome: _count(counts.get(outcome)) for outcome in OUTCOMES}


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def usual_seconds(scope: Scope, lane_id: int) -> float | None:
    """The median duration of a job's latest finished runs."""
    query = (
        sa.select(run.c.execution_time)
        .where(run.c.lane_id == lane_id, run.c.execution_time.is_not(None), run.c.status == "completed")
        .order_by(run.c.first_seen.desc())
        .limit(_USUAL_RUNS)
    )
    known = [row.execution_time for row in scope.rows(query)]
    return median(known) if known else None
