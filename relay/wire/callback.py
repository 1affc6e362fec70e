"""The body of ``POST /github/callback``: what a downstream job says about itself.

Everything here is the caller's word. The relay replaces what it can verify (repository, level, commit, times) before it
believes any of it; see ``relay.core``. Unknown fields are kept, so that a newer client loses nothing on its way to HUD.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

Conclusion = Literal[
    "success", "failure", "neutral", "cancelled", "skipped", "timed_out", "action_required", "stale", "startup_failure"
]
"""GitHub's conclusions of a check run (REST API, "Create a check run") and of a workflow run (``startup_failure``)."""

EventType = Literal["pull_request", "push", "nightly", "periodic"]
"""Dispatched events, and the two kinds of run that a backend starts by itself and reports once."""

MAX_FAILED_TESTS = 50
MAX_FAILED_MESSAGE = 500
MAX_VERDICT_BYTES = 16 * 1024


def _text(value: object) -> object:
    """Accept a number where clients send text: GitHub's own contexts give ``run_id`` as either."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _optional_text(value: object) -> object:
    """As :func:`_text`; an empty string means absent, which is what an unset workflow expression turns into."""
    return None if value == "" else _text(value)


Text = Annotated[str, BeforeValidator(_text), Field(max_length=1024)]
OptionalText = Annotated[Annotated[str, Field(max_length=2048)] | None, BeforeValidator(_optional_text)]
OptionalTime = Annotated[datetime | None, BeforeValidator(lambda value: None if value == "" else value)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class TestCounts(_Message):
    """Totals of one job. The names beyond these three are kept as they come."""

    __test__ = False  # not a pytest class

    passed: int = Field(ge=0)
    failed: int = Field(default=0, ge=0)
    skipped: int = Field(default=0, ge=0)


class FailedTest(_Message):
    """One failed test, short enough for a callback; the full results go to the upload address."""

    name: str = Field(min_length=1, max_length=10_240)
    classname: OptionalText = None
    message: str | None = None
    duration: float | None = Field(default=None, ge=0, description="seconds")

    @field_validator("message")
    @classmethod
    def _cut(cls, message: str | None) -> str | None:
        return message if message is None else message[:MAX_FAILED_MESSAGE]


class TriageVerdict(_Message):
    """A backend's advisory opinion about the cause of its failure. It never changes a result."""

    category: Literal["upstream", "backend", "infra", "flake", "unknown"]
    confidence: Literal["high", "medium", "low"]
    summary: str = Field(max_length=1024)
    suspected_upstream: dict[str, Any] | None = None
    evidence: list[dict[str, Any]] = Field(default_factory=list, max_length=10)

    @model_validator(mode="after")
    def _bounded(self) -> TriageVerdict:
        if len(self.model_dump_json()) > MAX_VERDICT_BYTES:
            raise ValueError(f"larger than {MAX_VERDICT_BYTES} bytes")
        if self.suspected_upstream is not None and self.category != "upstream":
            raise ValueError("suspected_upstream goes with category 'upstream'")
        return self


def _verdict_or_none(value: object) -> object:
    """A malformed verdict is dropped, never an error: it is advice about the report, not the report."""
    try:
        return TriageVerdict.model_validate(value)
    except ValueError:
        return None


class Workflow(_Message):
    """State of one job of one run. ``run_id``, ``run_attempt`` and ``job_name`` together name the job."""

    schema_version: int = Field(default=1, ge=1)
    status: Literal["in_progress", "completed"]
    conclusion: Conclusion | None = None
    name: Text = Field(min_length=1)
    url: OptionalText = None
    run_id: Text = ""
    run_attempt: int = Field(default=1, ge=1)
    job_name: Text = ""
    check_run_id: OptionalText = None
    started_at: OptionalTime = None
    completed_at: OptionalTime = None
    test_results: TestCounts | None = None
    artifact_url: OptionalText = None
    failed_tests_detail: list[FailedTest] | None = None
    triage_verdict: Annotated[TriageVerdict | None, BeforeValidator(_verdict_or_none)] = None

    @field_validator("conclusion", mode="before")
    @classmethod
    def _empty_is_absent(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("failed_tests_detail")
    @classmethod
    def _first_fifty(cls, tests: list[FailedTest] | None) -> list[FailedTest] | None:
        return tests if tests is None else tests[:MAX_FAILED_TESTS]

    @model_validator(mode="after")
    def _conclusion_goes_with_completed(self) -> Workflow:
        if self.status == "completed" and self.conclusion is None:
            raise ValueError("conclusion is required when status is 'completed'")
        return self


class Callback(_Message):
    """One report of one downstream job: the dispatched ``client_payload`` sent back, with ``workflow`` added."""

    event_type: EventType
    delivery_id: Text = Field(min_length=1)
    payload: dict[str, Any]
    workflow: Workflow
    callback_token: str | None = Field(default=None, max_length=8192)


class ResultsUpload(_Message):
    """In the relay's answer to an accepted callback: where per-test results go, and the ticket that admits them."""

    url: str
    token: str
    expires: datetime
