"""The outcomes of a test, their letters, and the rules for sums and rates (spec/hud.md 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

Outcome = Literal[
    "passed",
    "failed",
    "error",
    "skipped",
    "xfailed",
    "xpassed",
    "not_applicable",
    "deselected",
    "crashed",
    "timed_out",
    "flaky",
]
"""The disjoint outcomes of ``conformance run`` (spec/conformance.md 6)."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""Stored snapshots number outcomes by their place here: append only."""

CODE: Mapping[Outcome, int] = {outcome: code for code, outcome in enumerate(OUTCOMES)}

FAILING: frozenset[Outcome] = frozenset({"failed", "error", "crashed", "timed_out"})
"""A red test: not what its author and its registry expect. An unexpected pass is shown, but breaks nothing."""

PASSING: frozenset[Outcome] = frozenset({"passed", "flaky", "xpassed"})
"""A test that ran to its end and passed at last, for the matrix of operators by dtypes."""

NOT_RUN: frozenset[Outcome] = frozenset({"skipped", "not_applicable", "deselected"})

LETTER: Mapping[Outcome, str] = {
    "passed": "O",
    "failed": "X",
    "error": "X",
    "skipped": "S",
    "xfailed": "N",
    "xpassed": "?",
    "not_applicable": "–",
    "deselected": "–",
    "crashed": "C",
    "timed_out": "T",
    "flaky": "~",
}
"""Letters as PyTorch's own HUD uses them; always shown beside the word."""

Totals = dict[Outcome, int]


NOT_THERE = "not_there"
"""What the CPU made of a test that it does not have (docs/conformance.md, "How tests are run")."""


def fails_on_cpu_too(outcome: str, there: str) -> bool:
    """Whether a failure is not the backend's own: the same tree and torch have it without the backend.

    A crash or a hang is the backend's unless the CPU crashes or hangs as well.

    Args:
        outcome: on the backend.
        there: on the CPU; empty where the test was not repeated there.
    """
    both = outcome in FAILING and there in FAILING
    return both and (outcome == there or outcome not in ("crashed", "timed_out"))


def denominator(totals: Mapping[Outcome, int]) -> int:
    """Tests that count for the pass rate: those that passed or failed. The rest is neither."""
    return totals.get("passed", 0) + sum(totals.get(outcome, 0) for outcome in FAILING)


def failing(totals: Mapping[Outcome, int]) -> int:
    """How many tests failed in any way."""
    return sum(totals.get(outcome, 0) for outcome in FAILING)


def pass_rate(totals: Mapping[Outcome, int]) -> float | None:
    """Passed ÷ (passed + failed + error + timed out + crashed), or ``None`` where nothing counts."""
    whole = denominator(totals)
    return totals.get("passed", 0) / whole if whole else None


def combine(attempts: Iterable[Outcome]) -> Outcome:
    """The outcome of one test within one run from its attempts in order: passing and failing both is flaky."""
    listed = list(attempts)
    last = listed[-1]
    failed = any(outcome in FAILING for outcome in listed)
    if failed and ("passed" in listed or "flaky" in listed):
        return "flaky"
    return last
