"""Progress of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
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
    """Counts results and shows them.

    Files are imported while others run, so the number of tests is known only little by little; time left is shown
    once every file has been collected.
    """

    def __init__(self, stream: TextIO, units: int) -> None:
        self._console = Console(file=stream, highlight=False)
        self._tty = self._console.is_terminal
        self._live = Live(console=self._console, refresh_per_second=5, transient=True) if self._tty else None
        self._units = units
        self._started = self._shown = time.monotonic()
        self._counts: dict[str, int] = {}
        self._samples: list[tuple[float, int]] = []

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def result(self, attempt: Attempt) -> None:
        """Counts one; says at once what broke."""
        self._counts[attempt.outcome] = self._counts.get(attempt.outcome, 0) + 1
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
        counts = " · ".join(f"{name} {count}" for name, count in sorted(self._counts.items()))
        finished = min(len(supervisor.finished_units), self._units)
        text = f"{elapsed:.0f} s · {done} of {len(supervisor.accounts.planned)} known tests · {rate:.0f}/s"
        text += f" · units {finished}/{self._units}"
        if (
            finished + len(supervisor.running) >= self._units
            and all(w.collected for w in supervisor.running)
            and rate > 0
        ):
            left = max(0, len(supervisor.accounts.planned) - done)
            text += f" · about {left / rate:.0f} s left"
        now = [w.current or (f"importing {w.collecting}" if w.collecting else "starting") for w in supervisor.running]
        return f"{text} · {counts or 'no result yet'}" + (
            f"\n  {' | '.join(n[:90] for n in now)}" if self._live else ""
        )
