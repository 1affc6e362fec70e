"""What a pull request does to every backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from hud.core.outcomes import OUTCOMES, denominator
from hud.core.sentences import sentence
from hud.core.verdicts import VERDICTS, Verdict, counted, too_on_cpu, worst
from hud.queries.contexts import BackendRow, Counts, JobRow, PullList, PullPage, PullRow, Push
from hud.queries.jobs import Job, Judged, Row, by_job, job_row, judge_jobs, listed_numbers, select_runs
from hud.queries.names import look_up
from hud.queries.scope import Scope
from hud.store.tables import backend, pull_head, run

PAGE = 25

_RUNS = 50
"""Runs that are read for each pull request in a backend's list; with more of each, the list is shorter."""
_KINDS = ("new_failures", "added", "already_failing", "uncertain", "flaky", "fixed", "missing")
_LEVELS_THAT_BLOCK = ("L4",)
_ACTIVE_SECONDS = 7 * 86_400


def pull_page(scope: Scope, number: int, sha: str | None = None, upstream: str | None = None) -> PullPage | None:
    """What one commit of a pull request does; the latest commit where none is asked for.

    Returns:
        ``None`` where no report has told of this pull request, or of this commit.
    """
    heads = _heads(scope, number, upstream)
    if sha is not None:
        wanted = [place for place, head in enumerate(heads) if head.sha.startswith(sha)]
        if len(wanted) != 1:
            return None
        place = wanted[0]
    elif heads:
        place = len(heads) - 1
    else:
        return None
    head = heads[place]
    (commit,) = _judge_commits(scope, [_Asked(head, heads)])
    look_up(scope, {number for found in commit.backends for job in found.jobs for number in listed_numbers(job)})
    backends = [_backend_row(scope, found) for found in commit.backends]
    verdict, words = commit.sentence()
    return PullPage(
        **_described(heads, head),
        base_sha=commit.base_sha,
        base_ref=head.base_ref,
        push=place + 1,
        pushes=[Push(sha=h.sha, base_sha=h.base_sha, first_seen=h.first_seen) for h in heads],
        verdict=verdict,
        sentence=words,
        backends=backends,
        updated=commit.updated,
    )


def _described(heads: Sequence[Row], head: Row) -> dict[str, Any]:
    """What a pull request is called, by the names that pages and lists share."""
    latest = max(heads, key=lambda found: found.at)
    return {
        "number": head.pr,
        "upstream": head.upstream,
        "title": next((h.title for h in (latest, *reversed(heads)) if h.title), ""),
        "author": next((h.author for h in (latest, *reversed(heads)) if h.author), ""),
        "state": latest.state,
        "sha": head.sha,
    }


def pull_list(scope: Scope, page: int = 1, state: str | None = None, size: int = PAGE) -> PullList:
    """Pull requests that backends reported on, the latest pushed first; ``size`` of them on a page."""
    latest = sa.select(pull_head.c.upstream, pull_head.c.pr, sa.func.max(pull_head.c.at).label("at")).group_by(
        pull_head.c.upstream, pull_head.c.pr
    )
    if state is not None:
        latest = latest.having(sa.func.max(sa.case((pull_head.c.state == state, 1), else_=0)) == 1)
    total = scope.connection.execute(sa.select(sa.func.count()).select_from(latest.subquery())).scalar_one()
    found = scope.rows(latest.order_by(sa.desc("at"), pull_head.c.pr.desc()).limit(size).offset((page - 1) * size))
    return PullList(
        prs=_pull_rows(scope, [(row.upstream, row.pr) for row in found]),
        total=total,
        page=page,
        pages=max(1, -(-total // size)),
    )


def latest_pulls_of(scope: Scope, backend_id: int, limit: int = 10) -> list[PullRow]:
    """The pull requests that a backend reported on last."""
    recent = (
        sa.select(run.c.upstream, run.c.pr, run.c.first_seen)
        .where(run.c.backend_id == backend_id, run.c.pr.is_not(None))
        .order_by(run.c.first_seen.desc())
        .limit(limit * _RUNS)
        .subquery()
    )
    latest = (
        sa.select(recent.c.upstream, recent.c.pr, sa.func.max(recent.c.first_seen).label("at"))
        .group_by(recent.c.upstream, recent.c.pr)
        .order_by(sa.desc("at"))
        .limit(limit)
    )
    return _pull_rows(scope, [(row.upstream, row.pr) for row in scope.rows(latest)])


def _pull_rows(scope: Scope, pulls: Sequence[tuple[str, int]]) -> list[PullRow]:
    """The latest commit of each pull request, in the order asked for."""
    rows = scope.rows(sa.select(pull_head).where(pull_head.c.pr.in_({number for _, number in pulls})))
    heads = {
        (upstream, number): sorted(
            (row for row in rows if (row.upstream, row.pr) == (upstream, number)), key=_push_order
        )
        for upstream, number in pulls
    }
    commits = _judge_commits(scope, [_Asked(mine[-1], mine) for mine in heads.values()])
    listed = []
    for mine, commit in zip(heads.values(), commits, strict=True):
        verdict, words = commit.sentence()
        listed.append(
            PullRow(
                **_described(mine, mine[-1]),
                verdict=verdict,
                sentence=words,
                backends=dict(Counter(found.verdict for found in commit.backends)),
                updated=commit.updated,
                url=f"/pr/{mine[-1].pr}",
            )
        )
    return listed


def _heads(scope: Scope, number: int, upstream: str | None) -> list[Row]:
    """Commits of a pull request in the order they were pushed; of one upstream, the latest heard of."""
    heads = scope.rows(
        sa.select(pull_head).where(pull_head.c.pr == number).order_by(pull_head.c.first_seen, pull_head.c.id)
    )
    if not heads:
        return []
    wanted = upstream.lower() if upstream else heads[-1].upstream
    mine = [head for head in heads if head.upstream == wanted]
    return sorted(mine, key=_push_order)


def _push_order(head: Row) -> tuple[float, int]:
    """An event's own time orders pushes whose reports overtook each other; a closed event only repeats a commit."""
    return (head.at, head.id)


@dataclass(frozen=True)
class _Asked:
    """A commit of a pull request, and all that were pushed to it in order."""

    head: Row
    heads: Sequence[Row]

    def base_sha(self) -> str | None:
        return self.head.base_sha or next((h.base_sha for h in reversed(self.heads) if h.base_sha), None)


@dataclass(frozen=True)
class _Backend:
    """A backend on a commit: its jobs, judged."""

    repo: str
    level: str
    jobs: Sequence[Judged]

    @cached_property
    def verdict(self) -> Verdict:
        return worst(job.told.judgement.verdict for job in self.jobs)

    @cached_property
    def lists(self) -> Mapping[str, Sequence[int] | Sequence[str] | Sequence[int | str]]:
        """What happened to which tests in any of the jobs, each test once, by the names of ``contexts.Counts``."""
        kinds = [job.told.lists() for job in self.jobs]
        if len(kinds) == 1:
            return kinds[0]
        every = kinds[0] if kinds else _KINDS
        return {kind: list(dict.fromkeys(key for told in kinds for key in told[kind])) for kind in every}

    @cached_property
    def on_cpu(self) -> set[int | str]:
        """Tests that fail in any of the jobs, and on the CPU too."""
        return {key for job in self.jobs for key in job.told.judgement.on_cpu}


@dataclass(frozen=True)
class _Commit:
    """A commit of a pull request on every backend, worst first."""

    base_sha: str | None
    backends: Sequence[_Backend]
    updated: float

    def sentence(self) -> tuple[Verdict, str]:
        lists = [found.lists for found in self.backends]
        return sentence(
            [found.verdict for found in self.backends],
            sum(len(told["new_failures"]) for told in lists),
            sum(len(told["uncertain"]) for told in lists),
            sum(len(found.on_cpu.intersection(found.lists["new_failures"])) for found in self.backends if found.on_cpu),
        )


def _judge_commits(scope: Scope, asked: Sequence[_Asked]) -> list[_Commit]:
    """What commits do to every backend, with a few queries for all of them."""
    commits = [(one.head.upstream, one.head.pr, one.head.sha) for one in asked]
    query = select_runs().where(
        run.c.pr.in_({number for _, number, _ in commits}),
        run.c.sha.in_({sha for _, _, sha in commits}),
        run.c.lane_id.is_not(None),
    )
    runs: dict[tuple[str, int, str], dict[str, list[Row]]] = {}
    for row in scope.rows(query):
        runs.setdefault((row.upstream, row.pr, row.sha), {}).setdefault(row.repo, []).append(row)
    jobs = [
        (place, repo, Job(attempts, attempts[-1].base_sha or one.base_sha(), one.head.base_ref))
        for place, (one, commit) in enumerate(zip(asked, commits, strict=True))
        for repo, rows in runs.get(commit, {}).items()
        for attempts in by_job(rows)
    ]
    judged: dict[tuple[int, str], list[Judged]] = {}
    for (place, repo, _), found in zip(jobs, judge_jobs(scope, [job for _, _, job in jobs]), strict=True):
        judged.setdefault((place, repo), []).append(found)
    known = () if scope.expected else scope.rows(sa.select(backend))
    told = []
    for place, (one, commit) in enumerate(zip(asked, commits, strict=True)):
        mine = runs.get(commit, {})
        backends = [_Backend(repo, rows[-1].level, judged[place, repo]) for repo, rows in mine.items()]
        reported = {repo.lower() for repo in mine}
        backends += [
            _Backend(repo, level, ())
            for repo, level in _expected(scope, one.head, known)
            if repo.lower() not in reported
        ]
        updated = max((row.updated for rows in mine.values() for row in rows), default=one.head.first_seen)
        backends.sort(key=_worst_first)
        told.append(_Commit(one.base_sha(), backends, updated))
    return told


def _worst_first(found: _Backend) -> tuple[int, int, str]:
    return (VERDICTS.index(found.verdict), -len(found.lists["new_failures"]), found.repo.lower())


def _expected(scope: Scope, head: Row, known: Sequence[Row]) -> list[tuple[str, str]]:
    """Backends that should report on a commit: the allowlist's or, without one, those that were and are active."""
    if scope.expected:
        return [(expected.repo, expected.level) for expected in scope.expected]
    return [
        (row.repo, row.level)
        for row in known
        if row.first_seen < head.first_seen and row.last_seen > scope.now - _ACTIVE_SECONDS
    ]


def _backend_row(scope: Scope, found: _Backend) -> BackendRow:
    jobs = [job_row(scope, job) for job in found.jobs]
    totals = {outcome: sum(job.totals[outcome] for job in jobs) for outcome in OUTCOMES}
    deciding = next((job for job in jobs if job.verdict == found.verdict), None)
    lists, on_cpu = found.lists, found.on_cpu

    def named(kind: str) -> list[str]:
        return list(dict.fromkeys(name for job in jobs for name in getattr(job, kind)))

    return BackendRow(
        repo=found.repo,
        level=found.level,
        verdict=found.verdict,
        why=_why(deciding, len(jobs), lists["new_failures"], on_cpu),
        **{kind: named(kind) for kind in (*lists, "on_cpu")},
        counts=Counts(
            **{kind: len(keys) for kind, keys in lists.items()},
            on_cpu=len(on_cpu),
            new_on_cpu=len(on_cpu.intersection(lists["new_failures"])),
        ),
        totals=totals,
        passed=totals["passed"],
        counted=denominator(totals),
        inconsistent=any(job.inconsistent for job in jobs),
        blocks_merge=found.level in _LEVELS_THAT_BLOCK,
        url=f"/run/{deciding.run}" if deciding else None,
        log_url=deciding.log_url if deciding else None,
        jobs=jobs,
    )


def _why(deciding: JobRow | None, jobs: int, new: Sequence[int | str], on_cpu: Collection[int | str]) -> str:
    if deciding is None:
        return "no report has arrived for this commit"
    if new and jobs > 1:
        too = too_on_cpu(len(set(new).intersection(on_cpu)), len(new))
        return f"{counted(len(new), 'new failing test')} over {jobs} jobs{too}"
    return deciding.why
