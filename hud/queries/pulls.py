"""What a pull request does to every backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import sqlalchemy as sa

from hud.core.outcomes import OUTCOMES, denominator
from hud.core.sentences import sentence
from hud.core.verdicts import VERDICTS, Verdict, counted, worst
from hud.queries.contexts import BackendRow, JobRow, PullList, PullPage, PullRow, Push
from hud.queries.jobs import by_job, job_row, judge_job, select_runs
from hud.queries.scope import Scope
from hud.store.tables import backend, pull_head, run

PAGE = 25

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
    base_sha = head.base_sha or next((h.base_sha for h in reversed(heads) if h.base_sha), None)
    backends = _backends(scope, head, base_sha)
    verdict, words = sentence(
        [row.verdict for row in backends],
        sum(len(row.new_failures) for row in backends),
        sum(len(row.uncertain) for row in backends),
    )
    latest = max(heads, key=lambda found: found.at)
    updated = scope.connection.execute(sa.select(sa.func.max(run.c.updated)).where(*_of_commit(head))).scalar_one()
    return PullPage(
        number=number,
        upstream=head.upstream,
        title=next((h.title for h in (latest, *reversed(heads)) if h.title), ""),
        author=next((h.author for h in (latest, *reversed(heads)) if h.author), ""),
        state=latest.state,
        sha=head.sha,
        base_sha=base_sha,
        base_ref=head.base_ref,
        push=place + 1,
        pushes=[Push(sha=h.sha, base_sha=h.base_sha, first_seen=h.first_seen) for h in heads],
        verdict=verdict,
        sentence=words,
        backends=backends,
        updated=updated or head.first_seen,
    )


def pull_list(scope: Scope, page: int = 1, state: str | None = None) -> PullList:
    """Pull requests that backends reported on, the latest pushed first."""
    latest = sa.select(pull_head.c.upstream, pull_head.c.pr, sa.func.max(pull_head.c.at).label("at")).group_by(
        pull_head.c.upstream, pull_head.c.pr
    )
    if state is not None:
        latest = latest.having(sa.func.max(sa.case((pull_head.c.state == state, 1), else_=0)) == 1)
    total = scope.connection.execute(sa.select(sa.func.count()).select_from(latest.subquery())).scalar_one()
    found = scope.rows(latest.order_by(sa.desc("at"), pull_head.c.pr.desc()).limit(PAGE).offset((page - 1) * PAGE))
    pages = [pull_page(scope, row.pr, upstream=row.upstream) for row in found]
    return PullList(
        prs=[_summary(pull) for pull in pages if pull is not None],
        total=total,
        page=page,
        pages=max(1, -(-total // PAGE)),
    )


def latest_pulls_of(scope: Scope, backend_id: int, limit: int = 10) -> list[PullRow]:
    """The pull requests that a backend reported on last."""
    latest = (
        sa.select(run.c.upstream, run.c.pr, sa.func.max(run.c.first_seen).label("at"))
        .where(run.c.backend_id == backend_id, run.c.pr.is_not(None))
        .group_by(run.c.upstream, run.c.pr)
        .order_by(sa.desc("at"))
        .limit(limit)
    )
    pages = [pull_page(scope, row.pr, upstream=row.upstream) for row in scope.rows(latest)]
    return [_summary(pull) for pull in pages if pull is not None]


def _summary(pull: PullPage) -> PullRow:
    shared = {name: getattr(pull, name) for name in PullRow.model_fields if name not in ("backends", "url")}
    verdicts = Counter(row.verdict for row in pull.backends)
    return PullRow(**shared, backends=dict(verdicts), url=f"/pr/{pull.number}")


def _heads(scope: Scope, number: int, upstream: str | None) -> list[sa.Row[Any]]:
    """Commits of a pull request in the order they were pushed; of one upstream, the latest heard of."""
    heads = scope.rows(
        sa.select(pull_head).where(pull_head.c.pr == number).order_by(pull_head.c.first_seen, pull_head.c.id)
    )
    if not heads:
        return []
    wanted = upstream.lower() if upstream else heads[-1].upstream
    mine = [head for head in heads if head.upstream == wanted]
    # An event's own time orders pushes whose reports overtook each other; a closed event only repeats a commit.
    return sorted(mine, key=lambda head: (head.at, head.id))


def _of_commit(head: sa.Row[Any]) -> tuple[sa.ColumnElement[bool], ...]:
    return run.c.pr == head.pr, run.c.upstream == head.upstream, run.c.sha == head.sha, run.c.lane_id.is_not(None)


def _backends(scope: Scope, head: sa.Row[Any], base_sha: str | None) -> list[BackendRow]:
    rows = scope.rows(select_runs().where(*_of_commit(head)))
    groups: dict[str, list[sa.Row[Any]]] = {}
    for row in rows:
        groups.setdefault(row.repo, []).append(row)
    found = []
    for repo, runs in groups.items():
        jobs = []
        for attempts in by_job(runs):
            asked = attempts[-1].base_sha or base_sha
            jobs.append(job_row(scope, judge_job(scope, attempts, asked, head.base_ref), asked))
        found.append(_backend_row(repo, runs[-1].level, jobs))
    reported = {repo.lower() for repo in groups}
    for repo, level in _expected(scope, head):
        if repo.lower() not in reported:
            found.append(_backend_row(repo, level, []))
    return sorted(found, key=lambda row: (VERDICTS.index(row.verdict), -len(row.new_failures), row.repo.lower()))


def _expected(scope: Scope, head: sa.Row[Any]) -> list[tuple[str, str]]:
    """Backends that should report on a commit: the allowlist's or, without one, those that were and are active."""
    if scope.expected:
        return [(expected.repo, expected.level) for expected in scope.expected]
    active = sa.select(backend.c.repo, backend.c.level).where(
        backend.c.first_seen < head.first_seen, backend.c.last_seen > scope.now - _ACTIVE_SECONDS
    )
    return [(row.repo, row.level) for row in scope.rows(active)]


def _backend_row(repo: str, level: str, jobs: list[JobRow]) -> BackendRow:
    verdict: Verdict = worst(job.verdict for job in jobs)
    totals = {outcome: sum(job.totals[outcome] for job in jobs) for outcome in OUTCOMES}
    deciding = next((job for job in jobs if job.verdict == verdict), None)

    def every(pick: Callable[[JobRow], Iterable[str]]) -> list[str]:
        return list(dict.fromkeys(name for job in jobs for name in pick(job)))

    new, known = every(lambda job: job.new_failures), every(lambda job: job.already_failing)
    return BackendRow(
        repo=repo,
        level=level,
        verdict=verdict,
        why=_why(deciding, len(jobs), new),
        new_failures=new,
        already_failing=known,
        uncertain=every(lambda job: job.uncertain),
        flaky=every(lambda job: job.flaky),
        fixed=every(lambda job: job.fixed),
        missing=every(lambda job: job.missing),
        totals=totals,
        passed=totals["passed"],
        counted=denominator(totals),
        inconsistent=any(job.inconsistent for job in jobs),
        blocks_merge=level in _LEVELS_THAT_BLOCK,
        url=f"/run/{deciding.run}" if deciding else None,
        log_url=deciding.log_url if deciding else None,
        jobs=jobs,
    )


def _why(deciding: JobRow | None, jobs: int, new: list[str]) -> str:
    if deciding is None:
        return "no report has arrived for this commit"
    if new and jobs > 1:
        return f"{counted(len(new), 'new failing test')} over {jobs} jobs"
    return deciding.why
