"""All results of one run in a few kilobytes: sorted test numbers and, beside them, one byte or two per property.

A run of 100,000 tests is four short columns that compress to some ten kilobytes, because neighbours look alike: test
numbers are given in the order of first sight, and most tests pass. Whole runs can be compared without a row per pass.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hud.core.outcomes import CODE, FAILING, OUTCOMES, Outcome, Totals, totals_of

FALLBACK = 0x80
"""Bit beside the outcome: the test passed, but an operator of it ran on the CPU."""

_OUTCOME_BITS = 0x7F
_MAX_NOTES = 0xFFFF
_STEPS_PER_OCTAVE = 12
_FAILING_CODES = bytes(CODE[outcome] | bit for outcome in sorted(FAILING) for bit in (0, FALLBACK))


class Note(NamedTuple):
    """Why a test did not simply run: the registry's rule, its reason, and the issue that tracks it."""

    rule: str = ""
    reason: str = ""
    issue: str = ""


class Entry(NamedTuple):
    """One test of a run."""

    outcome: Outcome
    note: Note | None
    seconds: float | None
    fallback: bool


@dataclass(frozen=True)
class Snapshot:
    """Results of one run, ordered by test number.

    Attributes:
        ids: test numbers of the store, strictly ascending.
        outcomes: per test, an index into ``OUTCOMES`` plus the bit ``FALLBACK``.
        notes: per test, 0 or 1 + an index into ``palette``.
        durations: per test, 0 for unknown or the code of :func:`duration_code`.
        palette: the distinct notes of this run.
    """

    ids: array[int] = field(default_factory=lambda: array("I"))
    outcomes: bytes = b""
    notes: array[int] = field(default_factory=lambda: array("H"))
    durations: bytes = b""
    palette: tuple[Note, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def outcome_at(self, place: int) -> Outcome:
        """Outcome of the test at ``place`` in ``ids``."""
        return OUTCOMES[self.outcomes[place] & _OUTCOME_BITS]

    def outcome_of(self, test_id: int) -> Outcome | None:
        """Outcome of a test, ``None`` where the run has no such test."""
        place = bisect_left(self.ids, test_id)
        return self.outcome_at(place) if place < len(self.ids) and self.ids[place] == test_id else None

    def entry_at(self, place: int) -> Entry:
        """Everything known of the test at ``place``."""
        note = self.notes[place]
        return Entry(
            self.outcome_at(place),
            self.palette[note - 1] if note else None,
            duration_of(self.durations[place]),
            bool(self.outcomes[place] & FALLBACK),
        )

    def where(self, wanted: Iterable[Outcome]) -> Iterator[int]:
        """Places of the tests with one of these outcomes, ascending."""
        codes = {CODE[outcome] for outcome in wanted}
        return (place for place, value in enumerate(self.outcomes) if value & _OUTCOME_BITS in codes)

    def failing_ids(self) -> list[int]:
        """Numbers of the tests that failed in any way."""
        if not any(code in self.outcomes for code in _FAILING_CODES):
            return []
        return [self.ids[place] for place in self.where(FAILING)]

    def totals(self) -> Totals:
        """How many tests have each outcome."""
        return totals_of(value & _OUTCOME_BITS for value in self.outcomes)

    @classmethod
    def build(cls, entries: dict[int, Entry]) -> tuple[Snapshot, bool]:
        """Pack entries by test number.

        Returns:
            The snapshot, and whether notes were left out because a run cannot hold more than 65,535 distinct ones.
        """
        ids = array("I", sorted(entries))
        palette: dict[Note, int] = {}
        outcomes, durations, notes, cut = bytearray(), bytearray(), array("H"), False
        for test_id in ids:
            outcome, note, seconds, fallback = entries[test_id]
            outcomes.append(CODE[outcome] | (FALLBACK if fallback else 0))
            durations.append(duration_code(seconds))
            number = 0
            if note is not None and any(note):
                number = palette.get(note, 0)
                if not number and len(palette) < _MAX_NOTES:
                    number = palette[note] = len(palette) + 1
                cut = cut or not number
            notes.append(number)
        return cls(ids, bytes(outcomes), notes, bytes(durations), tuple(palette)), cut

    def merged(self, later: Snapshot) -> Snapshot:
        """This snapshot with the entries of ``later`` added or put in place of its own."""
        entries = {test_id: self.entry_at(place) for place, test_id in enumerate(self.ids)}
        entries.update((test_id, later.entry_at(place)) for place, test_id in enumerate(later.ids))
        return Snapshot.build(entries)[0]

    def pack(self) -> bytes:
        """Bytes to store; :meth:`unpack` is the inverse."""
        gaps = array("I", self.ids)
        for place in range(len(gaps) - 1, 0, -1):
            gaps[place] -= gaps[place - 1]
        head = json.dumps({"n": len(self.ids), "notes": self.palette}, ensure_ascii=True).encode()
        columns = [_portable(gaps), self.outcomes, _portable(self.notes), self.durations]
        return b"".join(_block(zlib.compress(part, 6)) for part in [head, *columns])

    @classmethod
    def unpack(cls, packed: bytes) -> Snapshot:
        """Read what :meth:`pack` wrote."""
        head, gaps, outcomes, notes, durations = (zlib.decompress(part) for part in _blocks(packed))
        ids = _native("I", gaps)
        total = 0
        for place, gap in enumerate(ids):
            total += gap
            ids[place] = total
        palette = tuple(Note(*note) for note in json.loads(head)["notes"])
        return cls(ids, outcomes, _native("H", notes), durations, palette)


def duration_code(seconds: float | None) -> int:
    """A duration in one byte: twelve steps per doubling from 1 ms to 40 minutes, 0 for unknown.

    Six per cent is finer than a repeated run reproduces; the exact figure of a failed test is kept beside its message.
    """
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return 0
    return min(255, 1 + max(0, round(_STEPS_PER_OCTAVE * math.log2(max(seconds, 0.001) * 1000))))


def duration_of(code: int) -> float | None:
    """Seconds that a code stands for, ``None`` for unknown."""
    return 2 ** ((code - 1) / _STEPS_PER_OCTAVE) / 1000 if code else None


def _portable(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()


def _native(typecode: str, data: bytes) -> array[int]:
    numbers: array[int] = array(typecode)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _block(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def _blocks(packed: bytes) -> Sequence[bytes]:
    parts, place = [], 0
    while place < len(packed):
        size = int.from_bytes(packed[place : place + 4], "little")
        parts.append(packed[place + 4 : place + 4 + size])
        place += 4 + size
    return parts
