"""What the relay answers to a callback."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from relay.wire.callback import ResultsUpload


class CallbackAnswer(BaseModel):
    """Status 200. ``reason`` comes with ``ignored``; ``results_upload`` where a HUD takes per-test results."""

    ok: Literal[True]
    status: Literal["in_progress", "completed", "ignored", "duplicate"]
    reason: str | None = None
    results_upload: ResultsUpload | None = None


class ErrorAnswer(BaseModel):
    """Every other status; ``error`` says what happened and what to do."""

    ok: Literal[False]
    error: str
