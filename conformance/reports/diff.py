"""What changed between two runs (C30), by the rules of HUD's verdict (spec/hud.md 2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from conformance.ids import parse
from conformance.reports.accounts import BROKEN, Accounts

NOT_RUN = frozenset({"skipped", "not_applicable", "deselected"})

WHOLE_SHARE = 0.9
"""A run that covers this share of the base's tests was not narrowed to changed files."""


@dataclass(frozen=True)
class Diff:
    """Ids by what happened to them, each sorted.

    Attributes:
        newly_failing: fails on the head, ran without failing on the base or was not there.
        still_failing: fails on both.
        fixed: failed on the base, passed on the head.
        missing: on the base, not on the head, although the head's plan should have contained it.
        newly_skipped: ran on the base, was not run on the head.
        appeared: on the head only.
        upstreams: newly failing too, but on the head's CPU as well (``run --attribute``): not the backend's.
        narrowed: whether the head ran a selection; ``missing`` then holds only variants of tests that it ran.
    """

    newly_failing: tuple[str, ...]
    still_failing: tuple[str, ...]
    fixed: tuple[str, ...]
    missing: tuple[str, ...]
    newly_skipped: tuple[str, ...]
    appeared: tuple[str, ...]
    upstreams: tuple[str, ...]
    narrowed: bool

    @property
    def worse(self) -> bool:
        """Whether something fails on the head that did not on the base, or is no longer tested."""
        return bool(self.newly_failing or self.missing)

    def as_json(self) -> dict[str, Any]:
        """For programs: every list, and whether the head was narrowed."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def diff(base: Accounts, head: Accounts, narrowed: bool | None = None) -> Diff:
    """Compare two runs of one backend.

    Args:
        base: the run before.
        head: the run after.
        narrowed: whether the head ran a selection; ``None`` where only the results can tell, by the share of the
            base's tests that they have.
    """
    before = {name: base.outcome(name) for name in base.attempts}
    after = {name: head.outcome(name) for name in head.attempts}
    absent = {name for name, outcome in before.items() if name not in after and outcome != "deselected"}
    if narrowed is None:
        narrowed = len(before) - len(absent) < WHOLE_SHARE * len(before)
    if narrowed:
        run = {_family(name) for name in after}
        absent = {name for name in absent if _family(name) in run}
    failing = {name for name, outcome in after.items() if outcome in BROKEN}
    failed = {name for name, outcome in before.items() if outcome in BROKEN}
    upstreams = {name for name in failing - failed if head.breaks_on_cpu_too(name)}
    ran = {name for name, outcome in before.items() if outcome not in NOT_RUN}
    return Diff(
        newly_failing=_sorted(failing - failed - upstreams),
        still_failing=_sorted(failing & failed),
        fixed=_sorted(name for name in failed if after.get(name) == "passed"),
        missing=_sorted(absent),
        newly_skipped=_sorted(name for name in ran if after.get(name) in NOT_RUN),
        appeared=_sorted(name for name in after if name not in before),
        upstreams=_sorted(upstreams),
        narrowed=narrowed,
    )


def _family(name: str) -> tuple[str, str, str, str]:
    """The variants of one test that a selection takes or leaves together."""
    test = parse(name)
    return test.file, test.cls, test.test, test.op


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names))
