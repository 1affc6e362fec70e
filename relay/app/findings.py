"""What an operator's check found, one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        subject: what was looked at.
        verdict: ``warning`` works but is probably not meant; ``skipped`` could not be looked at.
        text: what was found, and what to do about it where it is not ``ok``.
    """

    subject: str
    verdict: Verdict
    text: str

    def __str__(self) -> str:
        return f"{self.verdict:<8} {self.subject}: {self.text}"
