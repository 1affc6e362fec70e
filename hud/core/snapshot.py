"""All results of one run in a few columns: one byte or two per test and property, in the order of a shared roster.

Which tests a run has is its roster; nearly every run of a job has the roster of the run before, so rosters are stored
once and referred to. What is left of a run of 100,000 tests is a column of outcomes that compresses to some ten
kilobytes, because most tests pass, and beside it durations and notes, which only a list of tests needs. Each column is
whole, not a difference from an earlier run: a run can be read, pruned or put in place of another by itself.
"""

from __future__ import annotations

import json
import math
import re
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from hud.core.outcomes import CODE, FAILING, OUTCOMES, Outcome, Totals

FALLBACK = 0x80
"""Bit beside the outcome: the test passed, but an operator of it ran on the CPU."""

_OUTCOME_BITS = 0x7F
_MAX_NOTES = 0xFFFF
_STEPS_PER_OCTAVE = 12
_BOUNDARIES = [2 ** ((code - 0.5) / _STEPS_PER_OCTAVE) / 1000 for code in range(1, 255)]
"""Between the durations of code 1 and 2, of 2 and 3, and so on."""
_PLAIN = bytes(value & _OUTCOME_BITS for value in range(256))


class Note(NamedTuple):
    """Why a test did not simply run: the registry's rule, its reason, the issue that tracks it, and when it expires.

    New fields go to the end: stored notes are lists in this order.
    """

    rule: str = ""
    reason: str = ""
    issue: str = ""
    expires: str = ""


class Entry(NamedTuple):
    """One test of a run."""

    outcome: Outcome
    note: Note | None
    seconds: float | None
    fallback: bool


class Roster:
    """The tests that a run has. Two rosters are compared by identity, which is quick; share them where they are equal.

    Attributes:
        ids: test numbers of the store, strictly ascending.
    """

    __slots__ = ("__weakref__", "ids")

    def __init__(self, ids: array[int] | None = None) -> None:
        self.ids: array[int] = array("I") if ids is None else ids

    def __len__(self) -> int:
        return len(self.ids)

    def place(self, test_id: int) -> int | None:
        """Where a test stands, ``None`` where it is not on the roster."""
        place = bisect_left(self.ids, test_id)
        return place if place < len(self.ids) and self.ids[place] == test_id else None

    def pack(self) -> bytes:
        """Bytes to store, equal for equal rosters; :meth:`unpack` is the inverse."""
        gaps = array("I", map(int.__sub__, self.ids, (0, *self.ids[:-1])))
        return zlib.compress(_portable(gaps), 6)

    @classmethod
    def unpack(cls, packed: bytes) -> Roster:
        """Read what :meth:`pack` wrote."""
        return cls(array("I", accumulate(_native("I", zlib.decompress(packed)))))


@dataclass(frozen=True, eq=False)
class Results:
    """How every test of a run ended.

    Attributes:
        roster: which tests these are.
        outcomes: per test, an index into ``OUTCOMES`` plus the bit ``FALLBACK``.
    """

    roster: Roster = field(default_factory=Roster)
    outcomes: bytes = b""

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def ids(self) -> array[int]:
        """Test numbers of the store, strictly ascending."""
        return self.roster.ids

    def plain(self) -> bytes:
        """Per test, the index into ``OUTCOMES`` alone."""
        return self.outcomes.translate(_PLAIN)

    def outcome_at(self, place: int) -> Outcome:
        """Outcome of the test at ``place`` in ``ids``."""
        return OUTCOMES[self.outcomes[place] & _OUTCOME_BITS]

    def outcome_of(self, test_id: int) -> Outcome | None:
        """Outcome of a test, ``None`` where the run has no such test."""
        place = self.roster.place(test_id)
        return None if place is None else self.outcome_at(place)

    def where(self, wanted: Iterable[Outcome]) -> Iterator[int]:
        """Places of the tests with one of these outcomes, ascending."""
        codes = [CODE[outcome] | bit for outcome in wanted for bit in (0, FALLBACK)]
        return places(self.outcomes, codes)

    def fell_back(self) -> Iterator[int]:
        """Places of the tests of which an operator ran on the CPU, ascending."""
        return places(self.outcomes, range(FALLBACK, 256))

    def failing_ids(self) -> list[int]:
        """Numbers of the tests that failed in any way."""
        ids = self.ids
        return [ids[place] for place in self.where(FAILING)]

    def totals(self) -> Totals:
        """How many tests have each outcome; every outcome is a key, so that the parts always add up to the whole."""
        plain = self.plain()
        return {outcome: plain.count(code) for code, outcome in enumerate(OUTCOMES)}


@dataclass(frozen=True, eq=False)
class Snapshot(Results):
    """Everything known of the tests of a run.

    Attributes:
        notes: per test, 0 or 1 + an index into ``palette``.
        durations: per test, 0 for unknown or the code of :func:`duration_code`.
        palette: the distinct notes of this run.
    """

    notes: array[int] = field(default_factory=lambda: array("H"))
    durations: bytes = b""
    palette: tuple[Note, ...] = ()

    def entry_at(self, place: int) -> Entry:
        """Everything known of the test at ``place``."""
        note = self.notes[place]
        return Entry(
            self.outcome_at(place),
            self.palette[note - 1] if note else None,
            duration_of(self.durations[place]),
            bool(self.outcomes[place] & FALLBACK),
        )

    @classmethod
    def build(cls, entries: Mapping[int, Entry]) -> tuple[Snapshot, bool]:
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
        return cls(Roster(ids), bytes(outcomes), notes, bytes(durations), tuple(palette)), cut

    def merged(self, later: Snapshot) -> Snapshot:
        """This snapshot with the entries of ``later`` added or put in place of its own."""
        entries = {test_id: self.entry_at(place) for place, test_id in enumerate(self.ids)}
        entries.update((test_id, later.entry_at(place)) for place, test_id in enumerate(later.ids))
        return Snapshot.build(entries)[0]

    def pack(self) -> dict[str, bytes]:
        """The columns to store, by name; the roster is stored by itself."""
        head = json.dumps(self.palette, ensure_ascii=True).encode()
        return {
            "outcomes": zlib.compress(self.outcomes, 6),
            "durations": zlib.compress(self.durations, 6),
            "notes": zlib.compress(len(head).to_bytes(4, "little") + head + _portable(self.notes), 6),
        }

    @classmethod
    def unpack(cls, roster: Roster, outcomes: bytes, durations: bytes, notes: bytes) -> Snapshot:
        """Read the columns that :meth:`pack` wrote."""
        said = zlib.decompress(notes)
        end = 4 + int.from_bytes(said[:4], "little")
        palette = tuple(Note(*note) for note in json.loads(said[4:end]))
        return cls(roster, zlib.decompress(outcomes), _native("H", said[end:]), zlib.decompress(durations), palette)


def unpack_outcomes(roster: Roster, outcomes: bytes) -> Results:
    """The one column that comparing runs needs."""
    return Results(roster, zlib.decompress(outcomes))


def places(column: bytes, codes: Iterable[int]) -> Iterator[int]:
    """Where a column has one of some values, ascending; the search runs at the speed of a regular expression."""
    wanted = b"".join(re.escape(bytes((code,))) for code in codes)
    return (found.start() for found in re.finditer(b"[" + wanted + b"]", column, re.DOTALL)) if wanted else iter(())


def duration_code(seconds: float | None) -> int:
    """A duration in one byte: twelve steps per doubling from 1 ms to 40 minutes, 0 for unknown.

    Six per cent is finer than a repeated run reproduces; the exact figure of a failed test is kept beside its message.
    """
    if seconds is None or not 0 <= seconds < math.inf:
        return 0
    return 1 + bisect_left(_BOUNDARIES, seconds)


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
