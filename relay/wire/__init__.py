"""The messages that cross a process border: a downstream job's callback, the relay's report to HUD, the upload ticket.

These models are the only part of ``relay`` that other packages import, so they need pydantic and nothing else of
the service (``relay.wire.ticket`` also needs PyJWT). No decision and no I/O belongs here.
"""

from relay.wire.answer import CallbackAnswer, ErrorAnswer
from relay.wire.callback import (
    Callback,
    Conclusion,
    EventType,
    FailedTest,
    ResultsUpload,
    TestCounts,
    TriageVerdict,
    Workflow,
)
from relay.wire.report import CiMetrics, HudReport, Level, Trusted, Untrusted, run_key

__all__ = [
    "Callback",
    "CallbackAnswer",
    "CiMetrics",
    "Conclusion",
    "ErrorAnswer",
    "EventType",
    "FailedTest",
    "HudReport",
    "Level",
    "ResultsUpload",
    "TestCounts",
    "TriageVerdict",
    "Trusted",
    "Untrusted",
    "Workflow",
    "run_key",
]
