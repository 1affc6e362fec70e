"""One job on one commit: its attempts, the run it is compared with, and its verdict."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from statistics import median
from typing import Any

import sqlalchemy as sa

from hud.core.diffs import diff
from hud.core.outcomes import CODE, FAILING, OUTCOMES, Outcome, fails_on_cpu_too
from hud.core.verdicts import Base, Head, JobState, Judgement, judge
from hud.queries.contexts import Attempt, BaseLine, Counts, JobRow
from hud.queries.names import families, names, numbers_of
from hud.queries.scope import Scope
from hud.store.batches import batches
from hud.store.history import BRANCH_EVENTS
from hud.store.tables import backend, branch_commit, failure, lane, run

MAX_NEW = 100
MAX_NAMES = 20
"""Names in one list of a context; more are counted only. What a reader came for, new failures, gets a longer list."""

_USUAL_RUNS = 20
_CONCLUSIVE = ("success", "failure")
_NEAR = (20, 200)
"""How many earlier commits of the base branch are asked for at once, before each job is asked for by itself."""
_BATCH = 500

Row = sa.Row[Any]

_COUNTED = ("totals", "reported")

JOIN = run.join(backend, backend.c.id == run.c.backend_id).outerjoin(lane, lane.c.id == run.c.lane_id)
COLUMNS = (
    *(
        column
        for column in run.c
        if column.name not in ("report", "cuts", "parts", "parts_of", "delivery_id", *_COUNTED)
    ),
    *(sa.cast(run.c[name], sa.Text).label(name) for name in _COUNTED),
    *(backend.c.repo, backend.c.device, lane.c.workflow, lane.c.job),
)
"""What lists need of runs; a report may be large and is read for one run at a time. Counts stay text: see totals_of."""


def select_runs() -> sa.Select[Any]:
    """Runs with the names of their backend, workflow and job."""
    return sa.select(*COLUMNS).select_from(JOIN)


def report_of(scope: Scope, row: Row) -> dict[str, Any]:
    """The backend's words about a run: its reports merged."""
    found = scope.connection.execute(sa.select(run.c.report).where(run.c.id == row.id)).scalar_one_or_none()
    return found or {}


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
class Told:
    """What comparing a job with its base gave.

    Attributes:
        judgement: names tests by number, or by id where only reports, and no per-test results, tell of them.
        fixed, missing: test numbers.
        narrowed: the job ran a selection of the base's tests.
    """

    judgement: Judgement[int] | Judgement[str]
    fixed: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    narrowed: bool = False

    @property
    def weight(self) -> int:
        """How much remembering this costs, in tests."""
        return sum(map(len, self.lists().values()))

    def lists(self) -> dict[str, Sequence[int] | Sequence[str]]:
        """What happened to which tests, by the names of ``contexts.Counts``."""
        return {
            "new_failures": self.judgement.new_failures,
            "added": self.judgement.added,
            "already_failing": self.judgement.already_failing,
            "uncertain": self.judgement.uncertain,
            "flaky": self.judgement.flaky,
            "fixed": self.fixed,
            "missing": self.missing,
        }


@dataclass(frozen=True)
class Judged:
    """A job's latest attempt, what it was compared with, and what came out."""

    row: Row
    attempts: Sequence[Row]
    asked_base: str | None
    base: Row | None
    told: Told


@dataclass(frozen=True)
class Job:
    """A job on a commit, to be compared with its base.

    Attributes:
        attempts: its runs on the commit, the one that counts last.
        base_sha, base_ref: what the pull request is based on.
    """

    attempts: Sequence[Row]
    base_sha: str | None
    base_ref: str | None


def judge_jobs(scope: Scope, jobs: Sequence[Job]) -> list[Judged]:
    """Say what commits do to jobs; the bases of all of them are looked for together."""
    judged = []
    for job, base in zip(jobs, find_bases(scope, jobs), strict=True):
        row = job.attempts[-1]
        key = (
            tuple((attempt.id, attempt.revision) for attempt in job.attempts),
            (base.id, base.revision) if base is not None else None,
            state_of(scope, row),
        )
        told = scope.memories.answers.get(key, partial(_judge, scope, job.attempts, base))
        judged.append(Judged(row, job.attempts, job.base_sha, base, told))
    return judged


def find_bases(scope: Scope, jobs: Sequence[Job]) -> list[Row | None]:
    """For each job its run on the base commit or, where that has no result, on the nearest earlier commit with one.

    ``push`` events tell the order of commits (spec/hud.md 2). A base that no push named has no earlier commits.
    """
    wanted = {job.base_sha for job in jobs if job.base_sha is not None}
    by_commit = _base_runs(scope, wanted)
    found = [_best(job, by_commit, job.base_sha) for job in jobs]
    missing: dict[tuple[str, str, str | None], list[int]] = {}
    for place, job in enumerate(jobs):
        if found[place] is None and job.base_sha is not None:
            key = (job.attempts[-1].upstream, job.base_sha, job.base_ref)
            missing.setdefault(key, []).append(place)
    for (upstream, sha, ref), places in missing.items():
        nearest = _nearest(scope, upstream, sha, ref, [jobs[place] for place in places])
        for place, row in zip(places, nearest, strict=True):
            found[place] = row
    return found


ByCommit = dict[tuple[int, str, str], list[Row]]
"""Runs of the base branch by job, upstream and commit."""


def _candidates() -> sa.Select[Any]:
    return select_runs().where(
        run.c.pr.is_(None),
        run.c.event.in_(BRANCH_EVENTS),
        run.c.status == "completed",
        (run.c.results == "complete") | run.c.conclusion.in_(_CONCLUSIVE),
    )


def _base_runs(scope: Scope, commits: Iterable[str]) -> ByCommit:
    found: ByCommit = {}
    for batch in batches(sorted(commits), _BATCH):
        for row in scope.rows(_candidates().where(run.c.sha.in_(batch))):
            found.setdefault((row.lane_id, row.upstream, row.sha), []).append(row)
    return found


def _best(job: Job, by_commit: ByCommit, sha: str | None) -> Row | None:
    """The run of a job on a commit that it can be compared with; the latest attempt."""
    row = job.attempts[-1]
    known = by_commit.get((row.lane_id, row.upstream, sha), ()) if sha is not None else ()
    return max((found for found in known if _usable(row, found)), key=attempt_order, default=None)


def _usable(row: Row, base: Row) -> bool:
    """Per-test results are compared with per-test results; only a job without any is content with a conclusion."""
    return base.results == "complete" or not has_results(row)


def _nearest(scope: Scope, upstream: str, sha: str, ref: str | None, jobs: Sequence[Job]) -> list[Row | None]:
    found: list[Row | None] = [None] * len(jobs)
    places = scope.rows(
        sa.select(branch_commit).where(branch_commit.c.sha == sha, branch_commit.c.upstream == upstream)
    )
    if not places:
        return found
    place = min(places, key=lambda row: (row.branch != ref, row.at))
    mine = (branch_commit.c.upstream == upstream) & (branch_commit.c.branch == place.branch)
    earlier = sa.tuple_(branch_commit.c.at, branch_commit.c.place) < sa.tuple_(place.at, place.place)
    order = (branch_commit.c.at.desc(), branch_commit.c.place.desc())
    commits = sa.select(branch_commit.c.sha).where(mine, branch_commit.c.at <= place.at, earlier).order_by(*order)
    seen = 0
    for count in _NEAR:
        listed = [row.sha for row in scope.rows(commits.offset(seen).limit(count))]
        seen += count
        by_commit = _base_runs(scope, listed)
        for at, job in enumerate(jobs):
            if found[at] is None:
                runs = (_best(job, by_commit, name) for name in listed)
                found[at] = next((row for row in runs if row is not None), None)
        if None not in found or len(listed) < count:
            return found
    for at, job in enumerate(jobs):
        if found[at] is None:
            found[at] = _nearest_of_one(scope, job, mine & earlier, order)
    return found


def _nearest_of_one(
    scope: Scope, job: Job, earlier: sa.ColumnElement[bool], order: Sequence[sa.ColumnElement[Any]]
) -> Row | None:
    row = job.attempts[-1]
    query = _candidates().where(run.c.lane_id == row.lane_id, run.c.upstream == row.upstream)
    if has_results(row):
        query = query.where(run.c.results == "complete")
    same = (branch_commit.c.sha == run.c.sha) & (branch_commit.c.upstream == run.c.upstream)
    nearest = scope.connection.execute(query.join(branch_commit, same).where(earlier).order_by(*order).limit(1)).first()
    return _best(job, _base_runs(scope, [nearest.sha]), nearest.sha) if nearest is not None else None


def _judge(scope: Scope, attempts: Sequence[Row], base: Row | None) -> Told:
    row = attempts[-1]
    if row.status != "completed":
        state: JobState = "stuck" if state_of(scope, row) == "stuck" else "running"
        return Told(judge(Head[int](state), None))
    if not has_results(row):
        return Told(_judge_reports(scope, row, base))
    head = scope.results(row.id, row.revision)
    failing = head.failing_ids()
    failed, passed = set[int](), set[int]()
    for other in attempts[:-1]:
        if has_results(other) and other.action != "closed":
            earlier = scope.results(other.id, other.revision)
            failed.update(number for number in earlier.failing_ids() if head.outcome_of(number) == "passed")
            passed.update(number for number in failing if earlier.outcome_of(number) in ("passed", "flaky"))
    facts = Head(
        conclusion=row.conclusion,
        failing=failing,
        flaky=[head.ids[place] for place in head.where({"flaky"})],
        passed_elsewhere=passed,
        failed_elsewhere=failed,
        on_cpu=on_cpu_too(scope, row.id) if failing else (),
    )
    if base is None or not has_results(base):
        return Told(judge(facts, _base_without_results(base)))
    before = scope.results(base.id, base.revision)
    outcomes = {number: outcome for number in failing if (outcome := before.outcome_of(number)) is not None}
    difference = diff(before, head, partial(families, scope))
    judgement = judge(facts, Base(base.conclusion, outcomes))
    return Told(judgement, difference.fixed, difference.missing, difference.narrowed)


def on_cpu_too(scope: Scope, run_number: int) -> list[int]:
    """Tests of a run that fail, and fail on the CPU too."""
    query = sa.select(failure.c.test_id, failure.c.outcome, failure.c.cpu).where(
        failure.c.run_id == run_number, failure.c.cpu.in_([CODE[kind] for kind in FAILING])
    )
    return [row.test_id for row in scope.rows(query) if fails_on_cpu_too(OUTCOMES[row.outcome], OUTCOMES[row.cpu])]


def _base_without_results(base: Row | None) -> Base[int] | None:
    return Base(base.conclusion, {}, results=False) if base is not None else None


def _judge_reports(scope: Scope, row: Row, base: Row | None) -> Judgement[str]:
    """Without per-test results the report's own list of failed tests is what there is to compare."""
    named, unnamed = _reported_failures(scope, row)
    facts = Head(conclusion=row.conclusion, failing=named, failing_unnamed=unnamed, results=False)
    if base is None:
        return judge(facts, None)
    outcomes: dict[str, Outcome] = {}
    known = True
    if base.results == "complete":
        before = scope.results(base.id, base.revision)
        for name, number in numbers_of(scope, named, row.device).items():
            outcome = before.outcome_of(number)
            if outcome is not None:
                outcomes[name] = outcome
    else:
        base_named, base_unnamed = _reported_failures(scope, base)
        known = base_unnamed == 0
        outcomes = {name: "failed" if name in base_named else "passed" for name in named}
    return judge(facts, Base(base.conclusion, outcomes, results=known))


def _reported_failures(scope: Scope, row: Row) -> tuple[list[str], int]:
    """Names of failed tests in a report, and how many more its totals tell of."""
    report = report_of(scope, row)
    named = list(dict.fromkeys(item["name"] for item in report.get("failed_tests_detail") or []))
    failed = int((report.get("test_results") or {}).get("failed", 0))
    return named, max(0, failed - len(named))


def listed_numbers(judged: Judged) -> Iterator[int]:
    """Numbers of the tests that :func:`job_row` names."""
    for kind, keys in judged.told.lists().items():
        yield from (key for key in keys[: _limit(kind)] if isinstance(key, int))


_FAILING_HERE = ("new_failures", "uncertain", "already_failing")


def _limit(kind: str) -> int:
    return MAX_NEW if kind in ("new_failures", "added") else MAX_NAMES


def job_row(scope: Scope, judged: Judged) -> JobRow:
    """The context of a judged job."""
    row, told = judged.row, judged.told
    lists = told.lists()
    named = {kind: name_all(scope, keys[: _limit(kind)], row.device) for kind, keys in lists.items()}
    on_cpu = set(told.judgement.on_cpu)
    failing = [key for kind in _FAILING_HERE for key in lists[kind][: _limit(kind)] if key in on_cpu]
    return JobRow(
        workflow=row.workflow,
        job=row.job,
        run=row.key,
        verdict=told.judgement.verdict,
        why=told.judgement.why,
        state=state_of(scope, row),
        inconsistent=told.judgement.inconsistent,
        **named,
        on_cpu=name_all(scope, failing, row.device),
        counts=Counts(
            **{kind: len(keys) for kind, keys in lists.items()},
            on_cpu=len(on_cpu),
            new_on_cpu=len(on_cpu.intersection(lists["new_failures"])),
        ),
        narrowed=told.narrowed,
        # ``added`` are some of the new failures, and their page gives only their number.
        more=sum(max(0, len(keys) - _limit(kind)) for kind, keys in lists.items() if kind != "added"),
        totals=totals_of(row),
        results=row.results,
        base=base_line(judged.base, judged.asked_base),
        queue_seconds=row.queue_time,
        seconds=row.execution_time if row.status == "completed" else scope.now - row.first_seen,
        usual_seconds=usual_seconds(scope, row.lane_id) if row.status != "completed" else None,
        log_url=row.log_url,
        attempts=[attempt(scope, found) for found in judged.attempts],
    )


def name_all(scope: Scope, keys: Sequence[int | str], device: str | None) -> list[str]:
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
    return _totals(row.totals, row.reported)


@lru_cache(maxsize=20_000)
def _totals(totals: str | None, reported: str | None) -> dict[Outcome, int]:
    """Pages ask for the counts of the same thousands of runs again and again; nobody changes the answer."""
    counts = json.loads(totals or "null") or json.loads(reported or "null") or {}
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
