"""The report for people (C29): one HTML file without scripts or requests, made from a finished run."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from conformance.ids import parse
from conformance.reports.accounts import BROKEN, OUTCOMES, Accounts
from conformance.reports.cause import cause

CLUSTER_NAMES = 50
"""Tests that a cluster names; the rest is a number, and all of them are in ``results.jsonl``."""

SLOWEST = 25

_BLOCKED = re.compile(r"blocked upstream(?: by|:) (.*)", re.DOTALL)
"""Reasons of what upstream decides for every device but its own: restrictions, and skips at run time."""

SIGNS = {
    "crashed": "C", "timed_out": "T", "error": "E", "failed": "X", "flaky": "~", "xpassed": "?", "xfailed": "N",
    "skipped": "S", "not_applicable": "–", "deselected": "–", "passed": "O",
}  # fmt: skip
"""A letter for each outcome, so that nothing is told by colour alone; the worst outcome first."""


@dataclass(frozen=True)
class Cluster:
    """Tests that ended for one cause.

    Attributes:
        outcome: of all of them.
        cause: the common form of their messages.
        names: ids, sorted.
        trace: of the first.
    """

    outcome: str
    cause: str
    names: list[str]
    trace: str

    @property
    def shown(self) -> list[str]:
        """The names that the page gives."""
        return self.names[:CLUSTER_NAMES]


@dataclass
class Cell:
    """Variants of one operator with one dtype, by outcome."""

    counts: Counter[str] = field(default_factory=Counter)

    @property
    def worst(self) -> str:
        """The outcome that the cell shows."""
        return next(outcome for outcome in SIGNS if self.counts[outcome])

    @property
    def sign(self) -> str:
        """Its letter."""
        return SIGNS[self.worst]

    @property
    def text(self) -> str:
        """All counts, for a reader who points at the cell."""
        return ", ".join(f"{self.counts[outcome]} {outcome}" for outcome in SIGNS if self.counts[outcome])


@dataclass(frozen=True)
class Matrix:
    """Operators against dtypes.

    Attributes:
        dtypes: columns; the most used first.
        rows: operator → dtype → cell; a pair without a test has no cell.
    """

    dtypes: list[str]
    rows: Mapping[str, Mapping[str, Cell]]


def matrix(accounts: Accounts) -> Matrix:
    """Operators × dtypes of the tests that were instantiated for an operator; deselected ones are left out."""
    rows: dict[str, dict[str, Cell]] = defaultdict(lambda: defaultdict(Cell))
    used: Counter[str] = Counter()
    for name in accounts.attempts:
        test, outcome = parse(name), accounts.outcome(name)
        if test.op and test.dtype and outcome and outcome != "deselected":
            rows[test.op][test.dtype].counts[outcome] += 1
            used[test.dtype] += 1
    return Matrix([dtype for dtype, _ in used.most_common()], {op: dict(rows[op]) for op in sorted(rows)})


def clusters(accounts: Accounts, outcomes: Iterable[str] = BROKEN, *, on_cpu_too: bool = False) -> list[Cluster]:
    """Tests with these outcomes by cause, the largest cluster first.

    Args:
        accounts: of a finished run.
        outcomes: wanted ones.
        on_cpu_too: those that break on the CPU too; else only the others.
    """
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    wanted = set(outcomes)
    for name, rows in sorted(accounts.attempts.items()):
        outcome = accounts.outcome(name)
        if outcome in wanted and accounts.breaks_on_cpu_too(name) is on_cpu_too:
            assert outcome is not None
            found[outcome, cause(rows[-1].message or rows[-1].reason)].append(name)
    listed = [
        Cluster(outcome, text or "no message", names, accounts.attempts[names[0]][-1].trace)
        for (outcome, text), names in found.items()
    ]
    worst = list(SIGNS)
    return sorted(listed, key=lambda cluster: (-len(cluster.names), worst.index(cluster.outcome), cluster.cause))


def blocked(accounts: Accounts) -> list[tuple[str, int]]:
    """What of upstream keeps tests from every device but its own (C10), with the number of tests."""
    found = (
        _BLOCKED.match(rows[-1].reason or accounts.planned[name].reason) for name, rows in accounts.attempts.items()
    )
    return Counter(match[1] for match in found if match is not None).most_common()


def slowest(accounts: Accounts, count: int = SLOWEST) -> list[tuple[str, float]]:
    """Tests with their seconds over all attempts, the slowest first."""
    sums = ((name, sum(row.duration for row in rows)) for name, rows in accounts.attempts.items())
    return sorted(sums, key=lambda pair: (-pair[1], pair[0]))[:count]


def html(accounts: Accounts, summary: Mapping[str, Any]) -> str:
    """The report as one self-contained page.

    Args:
        accounts: of a finished run.
        summary: its ``summary.json``.
    """
    environment = Environment(
        loader=PackageLoader("conformance.reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    counts = accounts.outcomes()
    return environment.get_template("report.html.j2").render(
        summary=summary,
        counts=[(outcome, counts[outcome]) for outcome in OUTCOMES if counts[outcome]],
        signs=SIGNS,
        broken=clusters(accounts),
        upstreams=clusters(accounts, on_cpu_too=True),
        known=clusters(accounts, ("xfailed",)),
        flaky=accounts.named("flaky"),
        blocked=blocked(accounts),
        slowest=slowest(accounts),
        matrix=matrix(accounts),
    )
