"""Token bucket: a burst, then a steady rate; a refused call costs nothing, so a steady caller is never starved."""

from __future__ import annotations

from collections import OrderedDict


class TokenBuckets:
    """One bucket per name.

    Attributes:
        burst: calls that may come at once.
        per_second: tokens that come back.
        capacity: names remembered; beyond it the longest unused bucket, by then full again, is forgotten.
    """

    def __init__(self, burst: float, per_minute: float, capacity: int = 10_000):
        self.burst = burst
        self.per_second = per_minute / 60
        self.capacity = capacity
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, now: float) -> float:
        """Take one token.

        Args:
            now: seconds of a monotonic clock.

        Returns:
            0 if the call may go on, else the seconds until the next token.
        """
        tokens, since = self._buckets.pop(name, (self.burst, now))
        tokens = min(self.burst, tokens + max(0.0, now - since) * self.per_second)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self.per_second
        self._buckets[name] = (tokens - 1 if wait == 0 else tokens, now)
        if len(self._buckets) > self.capacity:
            self._buckets.popitem(last=False)
        return wait
