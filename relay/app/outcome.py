"""How an attempt at a task ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from relay.adapters.hud import Rejected

Then = Callable[[Connection], object]


@dataclass(frozen=True)
class Done:
    """The effect is there. ``then`` is recorded in the same transaction."""

    then: Then | None = None


@dataclass(frozen=True)
class Again:
    """It failed for now.

    ``after`` is the least wait in seconds; ``everybody`` pauses the whole lane; ``given_up`` is recorded if this was
    the last attempt.
    """

    error: str
    after: float | None = None
    everybody: bool = False
    given_up: Then | None = None


@dataclass(frozen=True)
class Dead:
    """It failed for good. ``rejected`` is HUD's refusal, where it was one."""

    error: str
    then: Then | None = None
    rejected: Rejected | None = None


Outcome = Done | Again | Dead
