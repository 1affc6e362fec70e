"""Token bucket: a burst, then a steady rate; a refused call costs nothing, so a steady caller is never starved."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """A limit.

    Attributes:
        burst: calls that may come at once, at least 1.
        per_minute: calls that may come steadily.
    """

    burst: float
    per_minute: float

    @property
    def per_second(self) -> float:
        """Tokens that come back."""
        return self.per_minute / 60


def refill(tokens: float, since: float, rate: Rate, now: float) -> float:
    """How many tokens a bucket holds that held ``tokens`` at ``since``. A clock that was set back gives none."""
    return min(rate.burst, tokens + max(0.0, now - since) * rate.per_second)


class TokenBuckets:
    """One bucket per name, in this process.

    Attributes:
        capacity: names remembered; beyond it the longest unused bucket, by then full again, is forgotten.
    """

    def __init__(self, capacity: int = 10_000):
        self.capacity = capacity
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, now: float, rate: Rate) -> float:
        """Take one token.

        Args:
            now: seconds of a monotonic clock.
            rate: limit of this name.

        Returns:
            0 if the call may go on, else the seconds until the next token.
        """
        tokens, since = self._buckets.pop(name, (rate.burst, now))
        tokens = refill(tokens, since, rate, now)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / rate.per_second
        self._buckets[name] = (tokens - 1 if wait == 0 else tokens, now)
        if len(self._buckets) > self.capacity:
            self._buckets.popitem(last=False)
        return wait
