"""Whether a backend's runs meet the criteria of a level (RFC-0054 leaves the figures to the operator)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pydantic import BaseModel, Field


class Criteria(BaseModel):
    """Published criteria; ``HUD_READINESS__PASS_RATE=0.98`` changes one.

    Attributes:
        runs: how many of the latest runs on the base branch count.
        pass_rate: smallest share of passed tests over these runs.
        timeout_share: largest share of runs that timed out, were cancelled or got stuck.
        end_to_end_seconds: largest median of queue plus execution time.
        overrun_share: largest share of runs that took more than twice the median.
    """

    runs: int = Field(default=30, ge=1)
    pass_rate: float = Field(default=0.99, ge=0, le=1)
    timeout_share: float = Field(default=0.05, ge=0, le=1)
    end_to_end_seconds: float = Field(default=3 * 3600, gt=0, allow_inf_nan=False)
    overrun_share: float = Field(default=0.1, ge=0, le=1)


@dataclass(frozen=True)
class RunFacts:
    """What counts of one run.

    Attributes:
        passed, counted: tests of the pass rate.
        infra: it timed out, was cancelled, or got stuck.
        seconds: queue plus execution time.
    """

    passed: int
    counted: int
    infra: bool
    seconds: float | None


@dataclass(frozen=True)
class Standing:
    """One criterion: its limit, the value, and whether it is met (``None`` without data)."""

    name: str
    limit: float
    value: float | None
    seconds: bool
    met: bool | None


def assess(runs: Sequence[RunFacts], criteria: Criteria) -> list[Standing]:
    """How the latest runs stand against each criterion."""
    counted = sum(run.counted for run in runs)
    rate = sum(run.passed for run in runs) / counted if counted else None
    infra = sum(run.infra for run in runs) / len(runs) if runs else None
    times = [run.seconds for run in runs if run.seconds is not None]
    middle = median(times) if times else None
    overrun = sum(time > 2 * middle for time in times) / len(times) if middle is not None else None
    return [
        Standing("pass rate", criteria.pass_rate, rate, False, None if rate is None else rate >= criteria.pass_rate),
        _at_most("timed out, cancelled or stuck", criteria.timeout_share, infra),
        _at_most("end-to-end time, median", criteria.end_to_end_seconds, middle, seconds=True),
        _at_most("took over twice the median", criteria.overrun_share, overrun),
    ]


def _at_most(name: str, limit: float, value: float | None, seconds: bool = False) -> Standing:
    return Standing(name, limit, value, seconds, None if value is None else value <= limit)
