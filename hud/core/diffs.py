"""What changed between two runs: newly failing, fixed, newly missing, newly skipped."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from hud.core.history import changes
from hud.core.outcomes import FAILING, NOT_RUN
from hud.core.snapshot import Results

WHOLE_SHARE = 0.9
"""A run that covers this share of the base's tests was not narrowed to changed files."""

Families = Callable[[Sequence[int]], Sequence[Hashable]]
"""Of tests by number, the family of each: the variants of one test, which a selection takes or leaves together."""


@dataclass(frozen=True)
class Diff:
    """Test numbers by what happened to them, each ascending.

    Attributes:
        newly_failing: fails on the head, ran without failing on the base or was not there.
        still_failing: fails on both.
        fixed: failed on the base, passed on the head.
        missing: on the base, not on the head, although the head's plan should have contained it.
        newly_skipped: ran on the base, was not run on the head.
        appeared: on the head only.
        narrowed: whether the head ran a selection; ``missing`` is then limited to families of which it ran a part.
    """

    newly_failing: tuple[int, ...]
    still_failing: tuple[int, ...]
    fixed: tuple[int, ...]
    missing: tuple[int, ...]
    newly_skipped: tuple[int, ...]
    appeared: tuple[int, ...]
    narrowed: bool


def diff(base: Results, head: Results, families: Families) -> Diff:
    """Compare two runs of one backend.

    Args:
        base: the run before.
        head: the run after.
        families: looks up the family of tests; asked only where the head is narrowed and something is absent.
    """
    changed = changes(base, head)
    absent = [change.test_id for change in changed if change.after is None and change.before != "deselected"]
    covered = len(base) - len(absent)
    narrowed = covered < WHOLE_SHARE * len(base)
    changed_ids = {change.test_id for change in changed}
    return Diff(
        newly_failing=_ids(c.test_id for c in changed if c.after in FAILING and c.before not in FAILING),
        still_failing=_ids(
            test_id
            for test_id in head.failing_ids()
            if test_id not in changed_ids or base.outcome_of(test_id) in FAILING
        ),
        fixed=_ids(c.test_id for c in changed if c.before in FAILING and c.after == "passed"),
        missing=_ids(_within(absent, head, families) if narrowed else absent),
        newly_skipped=_ids(
            c.test_id for c in changed if c.after in NOT_RUN and c.before is not None and c.before not in NOT_RUN
        ),
        appeared=_ids(c.test_id for c in changed if c.before is None),
        narrowed=narrowed,
    )


def _within(absent: Sequence[int], head: Results, families: Families) -> Iterable[int]:
    if not absent or not len(head):
        return []
    present = set(families(head.ids))
    return [test_id for test_id, family in zip(absent, families(absent), strict=True) if family in present]


def _ids(found: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(found))
