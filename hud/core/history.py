"""What changed from one run to the next of the same job, and what such changes say about one test."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from hud.core.outcomes import OUTCOMES, Outcome
from hud.core.snapshot import Results, Roster, places

_DIFFERENT = range(1, 256)

BLOCK_BITS = 12
"""Tests of one block of an opening: 4,096, so that one test is found by unpacking a few kilobytes."""

_ABSENT = 0xFF


class Change(NamedTuple):
    """A test whose outcome differs; ``None`` where a run does not have the test."""

    test_id: int
    before: Outcome | None
    after: Outcome | None


def changes(before: Results, after: Results) -> list[Change]:
    """The tests whose outcome differs between two runs, ascending by test number.

    Nothing is built per test: columns of the same tests are compared as two long numbers.
    """
    ids, gone, fresh = _aligned(before.roster, after.roster)
    old, new = _without(before.plain(), gone), _without(after.plain(), fresh)
    found = [Change(ids[place], OUTCOMES[old[place]], OUTCOMES[new[place]]) for place in _differing(old, new)]
    if gone or fresh:
        found += [Change(before.ids[place], before.outcome_at(place), None) for place in gone]
        found += [Change(after.ids[place], None, after.outcome_at(place)) for place in fresh]
        found.sort(key=lambda change: change.test_id)
    return found


def _differing(old: bytes, new: bytes) -> Iterator[int]:
    if old == new:
        return iter(())
    mixed = int.from_bytes(old, "little") ^ int.from_bytes(new, "little")
    return places(mixed.to_bytes(len(old), "little"), _DIFFERENT)


@lru_cache(maxsize=32)
def _aligned(before: Roster, after: Roster) -> tuple[Sequence[int], list[int], list[int]]:
    """The tests that both have, the places of those that only the first has, and of those that only the second has.

    A change adds or removes the same tests on every backend, and backends share rosters: so the answer is kept.
    """
    if before is after or before.ids == after.ids:
        return before.ids, [], []
    was, now = set(before.ids), set(after.ids)
    gone = [place for place, test_id in enumerate(before.ids) if test_id not in now] if was - now else []
    fresh = [place for place, test_id in enumerate(after.ids) if test_id not in was] if now - was else []
    left = set(gone)
    return [test_id for place, test_id in enumerate(before.ids) if place not in left], gone, fresh


def _without(column: bytes, left_out: Sequence[int]) -> bytes:
    if not left_out:
        return column
    ends = [*left_out, len(column)]
    starts = [0, *(place + 1 for place in left_out)]
    return b"".join(column[start:end] for start, end in zip(starts, ends, strict=True))


def opening(results: Results) -> Iterator[tuple[int, bytes]]:
    """A run's outcomes by block of tests, each of which can be looked up without the others."""
    blocks: dict[int, bytearray] = {}
    block, column = -1, bytearray()
    for test_id, outcome in zip(results.ids, results.plain(), strict=True):
        if test_id >> BLOCK_BITS != block:
            block = test_id >> BLOCK_BITS
            column = blocks.setdefault(block, bytearray([_ABSENT]) * (1 << BLOCK_BITS))
        column[test_id & ((1 << BLOCK_BITS) - 1)] = outcome
    return ((number, zlib.compress(bytes(column), 6)) for number, column in blocks.items())


def opened_with(data: bytes, test_id: int) -> Outcome | None:
    """The outcome of a test in a block that :func:`opening` made."""
    code = zlib.decompress(data)[test_id & ((1 << BLOCK_BITS) - 1)]
    return None if code == _ABSENT else OUTCOMES[code]
