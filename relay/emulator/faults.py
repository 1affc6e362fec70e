"""Faults on request: what the server does wrong, to which calls, how often.

A fault is data that the control API adds; the middleware asks :meth:`Faults.match` for each call and does what it says.
"""

from __future__ import annotations

import random
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Fault(BaseModel):
    """What to do to a matching call.

    ``when`` says whether the call is refused before it has any effect, or carried out and its answer lost: a client
    cannot tell the two apart, and must be right in both.
    """

    model_config = ConfigDict(extra="forbid")

    id: int = 0
    method: str = "*"
    path: str = Field(default="*", description="shell pattern of the path")
    repository: str = Field(default="*", description="shell pattern of owner/name, any case")
    when: Literal["before", "after"] = "before"
    status: int | None = Field(default=None, ge=200, le=599)
    headers: dict[str, str] = Field(default_factory=dict)
    body: dict[str, Any] | None = None
    delay: float = Field(default=0, ge=0, le=3600, description="seconds before anything else happens")
    reset: bool = Field(default=False, description="close the connection with RST instead of an answer")
    slow_body: float = Field(default=0, ge=0, le=3600, description="seconds over which the answer's body trickles")
    share: float = Field(default=1, ge=0, le=1, description="probability for each matching call")
    count: int | None = Field(default=None, ge=1, description="how many calls; without it until removed")
    hits: int = 0


class Faults:
    """The faults in force, tried in the order they were added; the first that applies wins."""

    def __init__(self) -> None:
        self._faults: dict[int, Fault] = {}
        self._next = 1
        self._random = random.Random()

    def add(self, fault: Fault) -> Fault:
        """Put a fault in force; gives it back with its id."""
        added = fault.model_copy(update={"id": self._next, "hits": 0})
        self._faults[added.id] = added
        self._next += 1
        return added

    def seed(self, value: int) -> None:
        """Make ``share`` repeatable."""
        self._random.seed(value)

    def all(self) -> list[Fault]:
        """The faults in force, and those used up."""
        return list(self._faults.values())

    def remove(self, number: int) -> bool:
        """Remove one; ``False`` if there is none of this id."""
        return self._faults.pop(number, None) is not None

    def clear(self) -> None:
        """Remove all."""
        self._faults.clear()

    def match(self, method: str, path: str, repository: str | None) -> Fault | None:
        """The fault that applies to a call; it counts as a hit."""
        for fault in self._faults.values():
            if (
                (fault.count is None or fault.hits < fault.count)
                and fault.method in ("*", method)
                and fnmatchcase(path, fault.path)
                and fnmatchcase((repository or "").lower(), fault.repository.lower())
                and (fault.share >= 1 or self._random.random() < fault.share)
            ):
                fault.hits += 1
                return fault
        return None
