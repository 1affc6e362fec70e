"""What changed from one run to the next of the same job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hud.core.outcomes import OUTCOMES, Outcome
from hud.core.snapshot import FALLBACK, Snapshot

_ALL = bytes(range(256))
_PLAIN = bytes(value & ~FALLBACK for value in _ALL)


class Change(NamedTuple):
    """A test whose outcome differs; ``None`` where a run does not have the test."""

    test_id: int
    before: Outcome | None
    after: Outcome | None


def changes(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    """The tests whose outcome differs between two runs, ascending by test number.

    Two runs of the same tests, the usual case, are compared without building anything per test.
    """
    old, new = before.outcomes.translate(_PLAIN), after.outcomes.translate(_PLAIN)
    if before.ids == after.ids:
        if old != new:
            for place, (was, now) in enumerate(zip(old, new, strict=True)):
                if was != now:
                    yield Change(after.ids[place], OUTCOMES[was], OUTCOMES[now])
        return
    was_of = dict(zip(before.ids, old, strict=True))
    gone = was_of.keys() - set(after.ids)
    found = [
        Change(test_id, _outcome(was_of.get(test_id)), OUTCOMES[now])
        for test_id, now in zip(after.ids, new, strict=True)
        if was_of.get(test_id) != now
    ]
    found += [Change(test_id, OUTCOMES[was_of[test_id]], None) for test_id in gone]
    yield from sorted(found)


def _outcome(code: int | None) -> Outcome | None:
    return None if code is None else OUTCOMES[code]
