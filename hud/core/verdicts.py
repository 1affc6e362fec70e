"""What a pull request does to a backend, in one word of a fixed vocabulary (spec/hud.md 2).

The words and their order are the same in pages, titles, badges and JSON. A verdict is a function of what was reported
for the head commit and for the base it is compared with; nothing here reads a clock or a store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar, get_args

from hud.core.outcomes import FAILING, Outcome

Verdict = Literal[
    "broken by this PR",
    "unclear",
    "not this PR's fault",
    "flaky",
    "infra",
    "running",
    "not reported",
    "passed",
]
"""Worst first."""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

JobState = Literal["not reported", "running", "stuck", "completed"]

_INFRA = frozenset({"timed_out", "cancelled", "stale", "startup_failure", "action_required"})
"""Conclusions that say nothing about the code: the machine, the queue or a person ended the job."""

_BAD = frozenset({"failure"})

K = TypeVar("K", int, str)
"""What names a test: its number in the store or, where only a report tells of it, its id."""


@dataclass(frozen=True)
class Head(Generic[K]):
    """What is known of one job on the commit under test; the latest attempt.

    Attributes:
        state: where the job stands.
        conclusion: GitHub's conclusion, when completed.
        failing: names of failing tests.
        failing_unnamed: how many more tests failed according to the job's totals, without a name.
        flaky: names of tests that failed and passed within this attempt.
        passed_elsewhere: names that passed in another attempt of this job on the same commit.
        failed_elsewhere: names that failed in another attempt and do not fail in this one.
        on_cpu: names of failing tests that fail on the CPU too, without the backend.
        results: whether per-test results arrived.
    """

    state: JobState = "completed"
    conclusion: str | None = None
    failing: Collection[K] = ()
    failing_unnamed: int = 0
    flaky: Collection[K] = ()
    passed_elsewhere: Collection[K] = ()
    failed_elsewhere: Collection[K] = ()
    on_cpu: Collection[K] = ()
    results: bool = True


@dataclass(frozen=True)
class Base(Generic[K]):
    """The same job on the commit that the head is compared with.

    Attributes:
        conclusion: GitHub's conclusion.
        outcomes: outcome on the base of each test that fails on the head; a name that is not here did not exist there.
        results: whether per-test results arrived for the base.
    """

    conclusion: str | None = None
    outcomes: Mapping[K, Outcome] = field(default_factory=dict)
    results: bool = True


@dataclass(frozen=True)
class Judgement(Generic[K]):
    """A verdict and what it rests on.

    Attributes:
        verdict: the word.
        why: one sentence.
        new_failures: failing here, passing (or not there) on the base.
        added: those of ``new_failures`` that the base does not have: a new or renamed test.
        already_failing: failing on the base too.
        uncertain: failing here, and the base cannot tell.
        flaky: failed and passed on this same commit.
        on_cpu: those that fail here, in whichever list, and fail on the CPU too. It tells whose they are not, the
            backend's; whether they are this commit's is what the base tells, and so the verdict does not depend on it.
        inconsistent: the job says success although tests failed.
    """

    verdict: Verdict
    why: str
    new_failures: tuple[K, ...] = ()
    added: tuple[K, ...] = ()
    already_failing: tuple[K, ...] = ()
    uncertain: tuple[K, ...] = ()
    flaky: tuple[K, ...] = ()
    on_cpu: tuple[K, ...] = ()
    inconsistent: bool = False


def judge(head: Head[K], base: Base[K] | None) -> Judgement[K]:
    """Say what the commit does to one job.

    Args:
        head: the job on the commit under test.
        base: the job on the base, ``None`` where no result of the base or of an earlier commit exists.
    """
    if head.state == "not reported":
        return Judgement("not reported", "no report has arrived")
    if head.state == "running":
        return Judgement("running", "the job has not finished")
    if head.state == "stuck":
        return Judgement("infra", "the job started and never finished")

    new: list[K] = []
    added: list[K] = []
    known: list[K] = []
    uncertain: list[K] = []
    flaky: set[K] = set(head.flaky) | set(head.failed_elsewhere)
    for name in sorted(head.failing):
        if name in head.passed_elsewhere:
            flaky.add(name)
            continue
        before = base.outcomes.get(name) if base is not None else None
        if base is None or not base.results:
            uncertain.append(name)
        elif before is None:
            new.append(name)
            added.append(name)
        elif before in FAILING:
            known.append(name)
        elif before == "flaky":
            uncertain.append(name)
        else:
            new.append(name)

    failed = len(head.failing) + head.failing_unnamed
    on_cpu = set(head.on_cpu) & {*new, *known, *uncertain}
    verdict, why = _decide(head, base, new, added, known, uncertain, flaky)
    deciding = {"broken by this PR": new, "unclear": uncertain, "not this PR's fault": known}.get(verdict, [])
    return Judgement(
        verdict,
        why + too_on_cpu(len(on_cpu.intersection(deciding)), len(deciding)),
        tuple(new),
        tuple(added),
        tuple(known),
        tuple(uncertain),
        tuple(sorted(flaky)),
        tuple(sorted(on_cpu)),
        inconsistent=head.conclusion == "success" and failed > 0,
    )


def _decide(
    head: Head[K],
    base: Base[K] | None,
    new: Collection[K],
    added: Collection[K],
    known: Collection[K],
    uncertain: Collection[K],
    flaky: Collection[K],
) -> tuple[Verdict, str]:
    if new:
        return "broken by this PR", f"{counted(len(new), 'new failing test')}{_of_which_new(added)}"
    if uncertain:
        reason = "no result of the base to compare with" if base is None or not base.results else "flaky on the base"
        return "unclear", f"{counted(len(uncertain), 'failing test')}, {reason}"
    if head.failing_unnamed:
        return _by_job(base, f"{counted(head.failing_unnamed, 'failing test')} without a name")
    if known:
        return "not this PR's fault", f"{counted(len(known), 'test')} failing on the base too"
    if head.conclusion in _INFRA:
        return "infra", f"the job was concluded {head.conclusion}"
    if head.conclusion in _BAD and not flaky:
        return _by_job(base, "the job failed without a failing test")
    if flaky:
        return "flaky", f"{counted(len(flaky), 'test')} failed and passed on this commit"
    return "passed", "no failing test"


def _by_job(base: Base[K] | None, what: str) -> tuple[Verdict, str]:
    """Where no test can be named, the job's own conclusion on the base decides."""
    if base is None or base.conclusion is None or base.conclusion in _INFRA:
        return "unclear", f"{what}, no result of the base to compare with"
    if base.conclusion in _BAD:
        return "not this PR's fault", f"{what}, and the job fails on the base too"
    return "broken by this PR", f"{what}, and the job passes on the base"


def _of_which_new(added: Collection[K]) -> str:
    return f", {len(added)} of them not on the base" if added else ""


def too_on_cpu(number: int, of: int) -> str:
    """``, 1 of which fails on the CPU too``: how many of the failing tests just named do; nothing where none does."""
    if not number:
        return ""
    if number == of:
        return ", which fails on the CPU too" if of == 1 else ", all of which fail on the CPU too"
    return f", {number:,} of which {'fails' if number == 1 else 'fail'} on the CPU too"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict that stands for several; of none, ``not reported``."""
    return min(verdicts, key=VERDICTS.index, default="not reported")


def counted(number: int, noun: str) -> str:
    """``1 test``, ``2 tests``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
