"""What to do after an answer of GitHub or HUD: done, again later, or never.

GitHub Docs, "Rate limits for the REST API" and "Best practices": honour ``Retry-After``; else, with no remaining quota,
wait for ``x-ratelimit-reset``; else after a secondary limit at least a minute, growing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

MAX_WAIT_SECONDS = 3600.0
_SECONDARY_WAIT = 60.0


@dataclass(frozen=True)
class Again:
    """Transient. ``after`` is the wait the server asked for in seconds, ``None`` if it named none.

    ``everybody`` says that the limit concerns all requests, not only this one.
    """

    after: float | None = None
    everybody: bool = False


@dataclass(frozen=True)
class Never:
    """Asking again cannot help."""


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds of a ``Retry-After`` header (RFC 9110, section 10.2.3), bounded; ``None`` if absent or unreadable."""
    if not value:
        return None
    try:
        seconds = float(value) if value.strip().isdigit() else parsedate_to_datetime(value).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_WAIT_SECONDS)


def github(status: int, headers: Mapping[str, str], text: str, now: float) -> Again | Never:
    """Classify a GitHub answer that is not a success.

    Args:
        status: HTTP status.
        headers: with lower-case or case-insensitive names.
        text: the body.
        now: seconds since the epoch.
    """
    wait = retry_after(headers.get("retry-after"), now)
    if status == 429 or (status == 403 and (wait is not None or "rate limit" in text.lower())):
        if wait is None and headers.get("x-ratelimit-remaining") == "0":
            reset = headers.get("x-ratelimit-reset", "")
            wait = min(max(float(reset) - now, 1.0), MAX_WAIT_SECONDS) if reset.isdigit() else None
        return Again(_SECONDARY_WAIT if wait is None else wait, everybody=True)
    if status in {401, 408, 425} or status >= 500:
        return Again(wait)
    return Never()


def hud(status: int, headers: Mapping[str, str], now: float) -> Again | Never:
    """Classify a HUD answer that is not a success: what the operator must repair is retried, the author's is not."""
    if status in {401, 403, 404, 405, 408, 425, 429} or status >= 500:
        return Again(retry_after(headers.get("retry-after"), now))
    return Never()


def backoff(attempt: int, *, base: float = 1.0, cap: float = 300.0) -> float:
    """Seconds to wait after the ``attempt``-th failure (from 1): exponential with equal jitter."""
    ceiling = min(cap, base * float(2 ** min(attempt - 1, 20)))
    return ceiling / 2 + random.uniform(0, ceiling / 2)
