"""The books of a run: every planned test and every attempt (C27)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from conformance.ids import parse

OUTCOMES = (
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
)
BROKEN = frozenset({"failed", "error", "crashed", "timed_out"})
"""Outcomes that nobody expects: they are tried again and make a run fail."""


NOT_THERE = "not_there"
"""Outcome on the CPU of a test that the CPU does not have."""


@dataclass(frozen=True, slots=True)
class OnCpu:
    """What became of a test that failed on the device when it was repeated on the CPU (C34)."""

    outcome: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """A test (or a file as a whole) that the run has to account for."""

    id: str
    label: str = ""
    source: str = ""
    action: str = "run"
    reason: str = ""
    rule: str = ""
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One result of one attempt; fields as in spec §6."""

    id: str
    outcome: str
    attempt: int = 1
    duration: float = 0.0
    phase: str = ""
    message: str = ""
    trace: str = ""
    reason: str = ""
    fallback: bool | None = None


@dataclass
class Accounts:
    """Planned tests and their attempts.

    Attributes:
        issues: rule name → issue link, for the result lines.
        expiries: rule name → the last day that the rule counts, ISO 8601, for the result lines.
        profile: what ``--profile`` takes to find the run's profile again, for the result lines.
        on_cpu: id → what became of it on the CPU, of those that were repeated there.
    """

    planned: dict[str, Planned] = field(default_factory=dict)
    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    issues: dict[str, str] = field(default_factory=dict)
    expiries: dict[str, str] = field(default_factory=dict)
    profile: str = ""
    on_cpu: dict[str, OnCpu] = field(default_factory=dict)

    def plan(self, row: Planned) -> None:
        """Enters a test; a second entry of the same id changes nothing."""
        self.planned.setdefault(row.id, row)

    def record(self, row: Attempt) -> None:
        """Enters a result; the first result of an attempt stands.

        Raises:
            ValueError: an outcome that does not exist.
        """
        if row.outcome not in OUTCOMES:
            raise ValueError(f"{row.id}: outcome {row.outcome!r} is none of {', '.join(OUTCOMES)}")
        rows = self.attempts.setdefault(row.id, [])
        if all(row.attempt != other.attempt for other in rows):
            rows.append(row)
            rows.sort(key=lambda item: item.attempt)

    def outcome(self, name: str) -> str | None:
        """Final outcome: the last attempt's, or flaky when an earlier one broke and the last did not."""
        rows = self.attempts.get(name)
        if not rows:
            return None
        last = rows[-1].outcome
        if last not in BROKEN and any(row.outcome in BROKEN for row in rows[:-1]):
            return "flaky"
        return last

    def done(self) -> set[str]:
        """Ids that have a result."""
        return {name for name, rows in self.attempts.items() if rows}

    def suspects(self, limit: int) -> list[str]:
        """Tests whose last attempt broke and that may be tried again.

        Args:
            limit: attempts after the first.
        """
        return [
            name
            for name, rows in self.attempts.items()
            if rows and rows[-1].outcome in BROKEN and rows[-1].attempt <= limit and parse(name).test
        ]

    def outcomes(self) -> Counter[str]:
        """How many tests ended how."""
        return Counter(final for name in self.attempts if (final := self.outcome(name)) is not None)

    def named(self, outcome: str) -> list[str]:
        """Ids with a final outcome, sorted."""
        return sorted(name for name in self.attempts if self.outcome(name) == outcome)

    def missing(self) -> list[str]:
        """Planned tests without a result."""
        return sorted(name for name in self.planned if not self.attempts.get(name))

    def unplanned(self) -> list[str]:
        """Results that nobody planned."""
        return sorted(name for name in self.attempts if name not in self.planned)

    def balanced(self) -> bool:
        """C27: planned = sum of the outcomes, test by test."""
        return not self.missing() and not self.unplanned() and sum(self.outcomes().values()) == len(self.planned)

    def unexpected(self, strict: bool) -> list[str]:
        """Ids that make the run fail: broken ones unless they break on the CPU too, in strict mode also unexpected
        passes."""
        wrong = BROKEN | {"xpassed"} if strict else BROKEN
        return sorted(
            name for name in self.attempts if self.outcome(name) in wrong and not self.breaks_on_cpu_too(name)
        )

    def breaks_on_cpu_too(self, name: str) -> bool:
        """Whether a failure is upstream's or the version skew's: the same tree and torch have it without the backend.

        A crash or a hang is the backend's unless the CPU crashes or hangs as well.
        """
        there, outcome = self.on_cpu.get(name), self.outcome(name)
        if there is None or there.outcome not in BROKEN or outcome not in BROKEN:
            return False
        return outcome == there.outcome or outcome not in ("crashed", "timed_out")

    def lines(self) -> Iterator[dict[str, Any]]:
        """Lines of ``results.jsonl``: every attempt in order; the last line of an id carries its final outcome."""
        for name in sorted(self.attempts):
            plan = self.planned.get(name, Planned(name))
            test = parse(name)
            rows = self.attempts[name]
            for row in rows:
                final = row is rows[-1]
                there = self.on_cpu.get(name, OnCpu("")) if final else OnCpu("")
                yield {
                    "id": name,
                    "file": test.file,
                    "class": test.cls,
                    "test": test.test,
                    "op": test.op,
                    "dtype": test.dtype,
                    "device": test.device,
                    "label": plan.label,
                    "outcome": self.outcome(name) if final else row.outcome,
                    "attempt": row.attempt,
                    "duration": round(row.duration, 6),
                    "phase": row.phase,
                    "message": row.message,
                    "trace": row.trace,
                    "rule": plan.rule,
                    "reason": row.reason or plan.reason,
                    "issue": self.issues.get(plan.rule, ""),
                    "expires": self.expiries.get(plan.rule, ""),
                    "profile": self.profile,
                    "fallback": row.fallback,
                    "cpu_outcome": there.outcome,
                    "cpu_message": there.message,
                }
