"""Progress of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from conformance.reports.accounts import BROKEN, Attempt
from conformance.runner.supervisor import Supervisor

PLAIN_INTERVAL = 10.0
"""Seconds between two lines where lines stay."""

MOMENT = 8.0
"""Seconds over which the rate is measured."""


class Progress:
    """Counts tests by what they have come to, and shows them.

    Files are imported while others run, so the number of tests is known only little by little; time left is shown
    once every file has been collected.
    """

    def __init__(self, stream: TextIO, units: int, *, collect_only: bool = False) -> None:
        """Shows nothing yet.

        Args:
            units: of the first attempts.
            collect_only: tests are found and not run.
        """
        self._console = Console(file=stream, highlight=False)
        self._tty = self._console.is_terminal
        self._live = Live(console=self._console, refresh_per_second=5, transient=True) if self._tty else None
        self._units = units
        self._started = self._shown = time.monotonic()
        self._collect_only = collect_only
        self._finals: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._samples: list[tuple[float, int]] = []

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def result(self, attempt: Attempt, final: str) -> None:
        """Counts a test once, however often it is tried; says at once what broke.

        Args:
            final: what the test has come to with this attempt.
        """
        if earlier := self._finals.get(attempt.id):
            self._counts[earlier] -= 1
        self._finals[attempt.id] = final
        self._counts[final] += 1
        if attempt.outcome in BROKEN:
            again = f" (attempt {attempt.attempt})" if attempt.attempt > 1 else ""
            text = " ".join((attempt.message or attempt.reason).split())[:200]
            self._console.print(Text(f"{attempt.outcome}{again}: {attempt.id}: {text}"), soft_wrap=True)

    def update(self, supervisor: Supervisor) -> None:
        """Shows where the run stands."""
        now = time.monotonic()
        if not self._live and now - self._shown < PLAIN_INTERVAL:
            return
        if self._live and now - self._shown < 0.2:
            return
        self._shown = now
        done = len(supervisor.accounts.attempts)
        self._samples = [(t, n) for t, n in self._samples if now - t <= MOMENT] + [(now, done)]
        first = self._samples[0]
        rate = (done - first[1]) / (now - first[0]) if now > first[0] else done / max(now - self._started, 1e-6)
        text = self._line(supervisor, done, rate, now - self._started)
        if self._live:
            self._live.update(Text(text))
        else:
            self._console.print(Text(text), soft_wrap=True)

    def _line(self, supervisor: Supervisor, done: int, rate: float, elapsed: float) -> str:
        counts = " · ".join(f"{name} {count}" for name, count in sorted(self._counts.items()) if count)
        finished = min(len(supervisor.finished_units), self._units)
        if self._collect_only:
            # An entry without "::" is a file that could not be imported.
            text = f"{elapsed:.0f} s · {sum('::' in name for name in supervisor.accounts.planned)} tests found"
        else:
            text = f"{elapsed:.0f} s · {done} of {len(supervisor.accounts.planned)} known tests · {rate:.0f}/s"
            counts = counts or "no result yet"
        text += f" · units {finished}/{self._units}"
        if (
            not self._collect_only
            and finished + len(supervisor.running) >= self._units
            and all(w.collected for w in supervisor.running)
            and rate > 0
        ):
            left = max(0, len(supervisor.accounts.planned) - done)
            text += f" · about {left / rate:.0f} s left"
        now = [w.current or (f"importing {w.collecting}" if w.collecting else "starting") for w in supervisor.running]
        text += f" · {counts}" if counts else ""
        return text + (f"\n  {' | '.join(n[:90] for n in now)}" if self._live else "")
