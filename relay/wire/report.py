"""What the relay tells HUD: ``{"trusted": …, "untrusted": {"callback_payload": …}}``.

HUD believes ``trusted`` and shows ``untrusted`` as the backend's words.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from relay.wire.callback import Callback

Level = Literal["L1", "L2", "L3", "L4"]


def _non_negative(value: object) -> object:
    """A negative duration is the mark of a clock step between two hosts; unknown is the honest answer."""
    return None if isinstance(value, (int, float)) and value < 0 else value


Seconds = Annotated[float | None, BeforeValidator(_non_negative)]


class CiMetrics(BaseModel):
    """Durations in seconds by the relay's clock; ``None`` where one side is unknown or the run is a re-run."""

    model_config = ConfigDict(frozen=True)

    queue_time: Seconds = None
    execution_time: Seconds = None


class Trusted(BaseModel):
    """What the relay verified itself. A field that HUD does not know is ignored there."""

    model_config = ConfigDict(frozen=True)

    ci_metrics: CiMetrics = CiMetrics()
    verified_repo: str = Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$", max_length=201)
    downstream_repo_level: Level


class Untrusted(BaseModel):
    """The callback's body as it came."""

    model_config = ConfigDict(frozen=True)

    callback_payload: Callback


class HudReport(BaseModel):
    """Body of ``POST /api/crcr/results``."""

    model_config = ConfigDict(frozen=True)

    trusted: Trusted
    untrusted: Untrusted


def run_key(repo: str, delivery_id: str, run_id: str, run_attempt: int, job_name: str) -> str:
    """Name of one attempt of one job, the same on the relay and on HUD without asking each other.

    Args:
        repo: ``owner/name`` of the downstream repository, in any case (GitHub compares names without it).
        delivery_id: the upstream delivery, or the tested commit for nightly and periodic runs.
        run_id, run_attempt, job_name: as in :class:`~relay.wire.callback.Workflow`.

    Returns:
        32 lower-case hexadecimal digits.
    """
    parts = json.dumps([repo.lower(), delivery_id, run_id, run_attempt, job_name], ensure_ascii=True)
    return hashlib.sha256(parts.encode()).hexdigest()[:32]
