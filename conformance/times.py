"""How long tests took in an earlier run: it gives each its deadline (C22) and balances shards and workers (C25)."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conformance.errors import ConformanceError
from conformance.ids import parse
from conformance.reports.accounts import Accounts
from conformance.reports.files import TIMES

MARGIN = 5.0
"""A test may take this many times as long as it was recorded to take: machines differ, and are shared."""

SLOW = 0.2
"""Seconds from which a test is recorded by itself; of the others only sums are kept, so the file stays small."""

_UNENDED = ("crashed", "timed_out")
"""How long these attempts took says nothing of the test."""

Duration = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _File(BaseModel):
    """A ``times.json``."""

    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=1, le=1)]
    files: dict[str, dict[str, Duration]]
    slow: dict[str, Duration]


@dataclass(frozen=True)
class Times:
    """Recorded times.

    Attributes:
        files: file → ``Class::test`` as written → seconds over all its variants.
        slow: id → seconds, of every test that took at least ``SLOW``.
    """

    files: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    slow: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(accounts: Accounts) -> Times:
        """What a run has recorded; the longest attempt of each test that came to an end."""
        files: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        slow = {}
        for name, rows in sorted(accounts.attempts.items()):
            seconds = max((row.duration for row in rows if row.outcome not in _UNENDED), default=0.0)
            if seconds > 0:
                test = parse(name)
                files[test.file][f"{test.cls}::{test.test}"] += seconds
            if seconds >= SLOW:
                slow[name] = seconds
        return Times(files, slow)

    @staticmethod
    def read(path: Path) -> Times:
        """Reads a ``times.json``, or that of a run's output folder.

        Raises:
            ConformanceError: it cannot be read or holds something else.
        """
        path = path / TIMES if path.is_dir() else path
        try:
            found = _File.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ConformanceError(
                f"--times {path}: {error.strerror or error}; give the {TIMES} that a run or merge left, or its folder"
            ) from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ConformanceError(
                f"--times {path}: {place + ': ' if place else ''}{first['msg']}; give the {TIMES} that a run left"
            ) from error
        return Times(found.files, found.slow)

    def text(self) -> str:
        """The content of ``times.json``: a line per file and per slow test, in order, so that two of them compare."""
        files = ",\n".join(
            f"{json.dumps(path)}: {json.dumps({name: round(seconds, 2) for name, seconds in tests.items()})}"
            for path, tests in self.files.items()
        )
        slow = ",\n".join(f"{json.dumps(name)}: {seconds:.2f}" for name, seconds in self.slow.items())
        return f'{{"version": 1, "files": {{\n{files}\n}}, "slow": {{\n{slow}\n}}}}\n'

    def deadline(self, name: str, floor: float) -> float:
        """Seconds that a test may take.

        Args:
            name: its id.
            floor: seconds; holds for tests without a record too.
        """
        return max(floor, MARGIN * self.slow.get(name, 0.0))

    def seconds(self, path: str, names: tuple[tuple[str, str], ...] = ()) -> float:
        """Recorded time of a file, or of the tests that are named in it; 0 without a record.

        Args:
            names: ``(class, test)`` as written, an empty part for any; none at all for the whole file.
        """
        recorded = self.files.get(path, {})
        if not names:
            return math.fsum(recorded.values())
        keys = {f"{cls}::{test}" for cls, test in names}

        def asked(written: str) -> bool:
            cls, test = written.split("::")
            return not keys.isdisjoint((written, f"{cls}::", f"::{test}"))

        return math.fsum(seconds for written, seconds in recorded.items() if asked(written))
