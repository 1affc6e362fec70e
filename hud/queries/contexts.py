"""The contexts of pages, which are the JSON documents of the API too. Times are seconds since the epoch, UTC."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from hud.core.outcomes import Outcome
from hud.core.verdicts import Verdict

Totals = dict[Outcome, int]


class BaseLine(BaseModel):
    """What a commit is compared with."""

    sha: str
    asked: str | None = Field(description="the pull request's own base, where the comparison had to go further back")
    run: str = Field(description="key of the run on that commit")


class Attempt(BaseModel):
    """One attempt of a job on a commit."""

    run: str
    run_id: str
    attempt: int
    state: str


class Counts(BaseModel):
    """How many tests something happened to; the lists of the same names may be cut."""

    new_failures: int = 0
    added: int = 0
    already_failing: int = 0
    uncertain: int = 0
    flaky: int = 0
    fixed: int = 0
    missing: int = 0
    on_cpu: int = 0
    new_on_cpu: int = Field(default=0, description="of the new failures, those that fail on the CPU too")


class JobRow(BaseModel):
    """One job on one commit: its latest attempt against the same job on the base."""

    workflow: str
    job: str
    run: str
    verdict: Verdict
    why: str
    state: str = Field(description="running, stuck, or GitHub's conclusion")
    inconsistent: bool = Field(description="the job says success although tests failed")
    new_failures: list[str]
    added: list[str] = Field(description="those of new_failures that the base does not have")
    already_failing: list[str]
    uncertain: list[str] = Field(description="failing, and the base cannot tell")
    flaky: list[str] = Field(description="failed and passed on this commit")
    fixed: list[str]
    missing: list[str] = Field(description="on the base, and not here although the plan should contain them")
    on_cpu: list[str] = Field(description="of the failing tests listed here, those that fail on the CPU too")
    counts: Counts
    narrowed: bool = Field(description="the job ran a selection of the base's tests")
    more: int = Field(description="names left out of the lists above because they are too many")
    totals: Totals
    results: Literal["none", "partial", "complete", "pruned"]
    base: BaseLine | None
    queue_seconds: float | None
    seconds: float | None = Field(description="how long it ran, or has been running")
    usual_seconds: float | None
    log_url: str | None
    attempts: list[Attempt]


class BackendRow(BaseModel):
    """One backend on one commit."""

    repo: str
    level: str
    verdict: Verdict
    why: str
    new_failures: list[str]
    added: list[str] = Field(description="those of new_failures that the base does not have")
    already_failing: list[str]
    uncertain: list[str]
    flaky: list[str]
    fixed: list[str]
    missing: list[str]
    on_cpu: list[str] = Field(description="of the failing tests listed here, those that fail on the CPU too")
    counts: Counts
    totals: Totals
    passed: int
    counted: int = Field(description="passed + failed + error + timed out + crashed: the denominator of the pass rate")
    inconsistent: bool
    blocks_merge: bool
    url: str | None = Field(description="page of the run behind the verdict")
    log_url: str | None
    jobs: list[JobRow]


class Push(BaseModel):
    """One commit that was pushed to the pull request."""

    sha: str
    base_sha: str | None
    first_seen: float


class PullPage(BaseModel):
    """Did this pull request break a backend?"""

    number: int
    upstream: str
    title: str
    author: str
    state: str
    sha: str
    base_sha: str | None
    base_ref: str | None
    push: int = Field(description="which of the pushes this is, from 1")
    pushes: list[Push]
    verdict: Verdict
    sentence: str
    backends: list[BackendRow]
    updated: float


class PullRow(BaseModel):
    """One pull request in a list."""

    number: int
    upstream: str
    title: str
    author: str
    state: str
    sha: str
    verdict: Verdict
    sentence: str
    backends: dict[Verdict, int] = Field(description="how many backends have each verdict")
    updated: float
    url: str


class PullList(BaseModel):
    """Pull requests, the latest first."""

    prs: list[PullRow]
    total: int
    page: int
    pages: int


class RunPoint(BaseModel):
    """One run of the base branch in a trend."""

    run: str
    runs: int = Field(description="how many jobs the figures are sums over")
    results: bool = Field(description="whether there is a row of results behind each figure")
    sha: str | None
    at: float
    state: str
    passed: int
    counted: int
    failing: int
    seconds: float | None
    queue_seconds: float | None


class BackendSummary(BaseModel):
    """A backend's standing on upstream's base branch."""

    repo: str
    level: str
    state: str = Field(description="passing, failing, running, stuck, infra, or no data")
    failing: int
    totals: Totals
    passed: int
    counted: int
    sha: str | None
    run: str | None
    runs: int = Field(description="how many jobs the figures are sums over")
    results: bool = Field(description="whether there is a row of results behind each figure")
    at: float | None
    last_report: float | None
    trend: list[RunPoint]
    url: str


class BackendList(BaseModel):
    """Are the backends healthy on upstream's base branch, and which need a look?"""

    backends: list[BackendSummary]


class HomePage(BackendList):
    """The backends, and the latest pull requests."""

    prs: list[PullRow]
    updated: float


class FailureDetail(BaseModel):
    """The words of a failure."""

    phase: str
    message: str
    trace: str
    fingerprint: str
    alike: int = Field(description="failures of this run with the same fingerprint")


class ResultRow(BaseModel):
    """One test of a run."""

    name: str
    file: str
    cls: str
    test: str
    op: str
    dtype: str
    outcome: Outcome
    seconds: float | None
    exact: bool = Field(description="whether seconds is exact, or within six per cent")
    fallback: bool
    cpu_outcome: str = Field(description="of a failure repeated on the CPU: an outcome, not_there, or empty")
    on_cpu: bool = Field(description="whether the failure is not the backend's own: it fails on the CPU too")
    rule: str
    reason: str
    issue: str
    expires: str = Field(description="the last day that the registry's rule counts")
    standing: Literal["new", "already failing", "uncertain", "flaky", ""] = Field(description="against the base")
    detail: FailureDetail | None


class Cluster(BaseModel):
    """Failures of one kind."""

    fingerprint: str
    message: str
    outcome: Outcome
    count: int
    example: str


class RunPage(BaseModel):
    """What exactly failed in this run, and how is it reproduced?"""

    key: str
    repo: str
    level: str
    workflow: str
    job: str
    event: str | None
    upstream: str | None
    pr: int | None
    sha: str | None
    base_sha: str | None
    branch: str | None
    run_id: str
    attempt: int
    state: str
    conclusion: str | None
    inconsistent: bool
    verdict: Verdict | None = Field(description="of this job, for a pull request's run")
    why: str
    base: BaseLine | None
    device: str | None
    profile: str | None = Field(description="of conformance: a name, or a path in a checkout of the backend")
    url: str | None
    artifact_url: str | None
    queue_seconds: float | None
    seconds: float | None
    first_seen: float
    updated: float
    results: Literal["none", "partial", "complete", "pruned"]
    totals: Totals
    tests: int
    reported: dict[str, int] = Field(description="the counts that the job's own report gave")
    cuts: dict[str, int]
    attempts: list[Attempt]
    clusters: list[Cluster] = Field(description="the most frequent kinds of failure")
    kinds: int = Field(description="how many kinds of failure there are")
    counts: dict[str, int] = Field(description="how many tests some of the filters list")
    outcome: str = Field(description="the filter in force")
    query: str
    op: str
    dtype: str
    kind: str = Field(description="fingerprint that the failures must have")
    page: int
    pages: int
    matching: int
    rows: list[ResultRow]
    triage: dict[str, object] | None = Field(description="the backend's own opinion; it changes no result")


class Cell(BaseModel):
    """One job on one commit in the matrix of a backend."""

    run: str
    results: bool = Field(description="whether there is a row of results behind each figure")
    state: str
    passed: int
    counted: int
    failing: int


class CommitRow(BaseModel):
    """One commit of the base branch, or one run that names no commit."""

    sha: str | None
    event: str | None
    at: float
    cells: list[Cell | None] = Field(description="one per job of the page, in its order")


class Criterion(BaseModel):
    """One published criterion of a level, and how the backend stands."""

    name: str
    limit: float
    value: float | None
    unit: Literal["share", "seconds"]
    met: bool | None = Field(description="null where there is no data")


class Readiness(BaseModel):
    """Whether a backend's recent runs meet the criteria for promotion; a level is changed by people, not here."""

    runs: int
    criteria: list[Criterion]
    ready: bool | None


class BackendPage(BaseModel):
    """What ran lately on this backend?"""

    repo: str
    level: str | None
    device: str | None
    expected: bool | None = Field(description="whether the allowlist has it now; null without an allowlist")
    summary: BackendSummary
    jobs: list[str] = Field(description="workflow / job, the columns of commits")
    commits: list[CommitRow]
    trend: list[RunPoint]
    readiness: Readiness
    prs: list[PullRow]


class Span(BaseModel):
    """A stretch of the base branch during which a test had one outcome."""

    outcome: Outcome
    first_run: str
    first_sha: str | None
    first_at: float
    until_run: str | None
    until_sha: str | None
    until_at: float | None


class TestLane(BaseModel):
    """One test in one job of one backend."""

    __test__ = False  # not a pytest class

    repo: str
    level: str
    workflow: str
    job: str
    outcome: Outcome | None = Field(description="now; null where the latest run does not have the test")
    since: Span | None
    spans: list[Span] = Field(description="the latest first")


class Sighting(BaseModel):
    """A failure of a test in one run."""

    run: str
    repo: str
    pr: int | None
    sha: str | None
    event: str | None
    at: float
    outcome: Outcome
    message: str


class TestPage(BaseModel):
    """Since when does this test fail, and where?"""

    __test__ = False  # not a pytest class

    name: str
    known: bool
    file: str
    cls: str
    test: str
    op: str
    dtype: str
    lanes: list[TestLane]
    failures: list[Sighting] = Field(description="the latest first")
    suggestions: list[str] = Field(description="where the name is not known: known names that contain it")


class MatrixCell(BaseModel):
    """The tests of one operator in one dtype."""

    state: Literal["passing", "partly", "failing", "skipped"]
    passed: int
    failing: int
    skipped: int
    total: int


class MatrixRow(BaseModel):
    """One operator."""

    op: str
    cells: dict[str, MatrixCell] = Field(description="by dtype")


class MatrixPage(BaseModel):
    """Which operators work in which dtypes?"""

    repo: str
    run: str | None
    sha: str | None
    at: float | None
    dtypes: list[str]
    rows: list[MatrixRow]
    matching: int = Field(description="operators that the filters leave, over all pages")
    page: int
    pages: int
    operators: int
    states: dict[str, int] = Field(description="cells by state")
    query: str
    state: str


Kind = Literal["newly failing", "still failing", "fixed", "missing", "newly skipped", "appeared"]


class DiffGroup(BaseModel):
    """Tests to which one thing happened."""

    kind: Kind
    count: int
    names: list[str]


class RunSide(BaseModel):
    """One side of a comparison."""

    run: str
    repo: str
    workflow: str
    job: str
    sha: str | None
    pr: int | None
    at: float
    state: str
    results: bool = Field(description="whether there is a row of results behind each figure")
    tests: int
    passed: int
    counted: int


class DiffPage(BaseModel):
    """What changed between two runs?"""

    base: RunSide
    head: RunSide
    narrowed: bool
    groups: list[DiffGroup] = Field(description="all, or the one that was asked for")
    only: str = Field(description="the kind that was asked for")
    page: int
    pages: int


class HealthRow(BaseModel):
    """Do the reports of one backend arrive?"""

    repo: str
    level: str
    expected: bool | None = Field(description="whether the allowlist has it now; null without an allowlist")
    last_report: float | None
    running: list[Attempt]
    stuck: list[Attempt]
    running_count: int
    stuck_count: int
    unreported: int = Field(description="runs whose results arrived without a report, in the last day")
    resultless: int = Field(description="completed runs without per-test results, in the last day")


class RefusalRow(BaseModel):
    """A report that was refused."""

    at: float
    repo: str | None
    status: int
    text: str


class HealthPage(BaseModel):
    """Do reports arrive?"""

    backends: list[HealthRow]
    refusals: list[RefusalRow]
    allowlist: str | None = Field(description="why the allowlist file is not in use, if so")
    runs_last_day: int
    stuck: int = Field(description="stuck jobs, over all backends")


class RunRow(BaseModel):
    """One run in a list."""

    run: str
    repo: str
    workflow: str
    job: str
    attempt: int
    event: str | None
    pr: int | None
    sha: str | None
    at: float
    state: str
    results: Literal["none", "partial", "complete", "pruned"]
    passed: int
    counted: int


class RunList(BaseModel):
    """Runs, the latest first."""

    runs: list[RunRow]
    repo: str
    show: str = Field(description="which runs: all, day, running, stuck, unreported or resultless")
    total: int
    page: int
    pages: int


class Event(BaseModel):
    """A run of the base branch in which tests broke or were fixed."""

    run: str
    repo: str
    sha: str | None
    at: float
    broken: list[str]
    fixed: list[str]


class Feed(BaseModel):
    """Newly broken and fixed tests on the base branch, the latest first."""

    events: list[Event]
