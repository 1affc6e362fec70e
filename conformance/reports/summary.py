"""``summary.json`` (spec §6): one run in figures, with what a reader needs to judge it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from conformance.reports.accounts import Accounts


def summarise(
    accounts: Accounts,
    *,
    unexpected: Sequence[str],
    seconds: float,
    torch: str,
    upstream: str,
    profile: str,
    expectations: str,
    devices: int,
    shard: str = "",
    interrupted: str = "",
    narrowed: Sequence[str] = (),
    unlocked: bool = False,
    notes: Sequence[str] = (),
    links: Sequence[str] = (),
) -> dict[str, Any]:
    """The content of ``summary.json``.

    Args:
        accounts: of the run.
        unexpected: ids that make it fail.
        seconds: how long it took.
        torch, upstream: versions; ``upstream`` is ``""`` without a checkout.
        profile: name of the backend's profile.
        expectations: hash over the profile, its registry and its capabilities.
        devices: how many the backend has.
        shard: ``i/n``, ``""`` for a whole run.
        interrupted: signal name, ``""`` when it ran to the end.
        narrowed: options by which the run took less than the profile's whole set, but for ``--shard``.
        unlocked: whether tests ran that upstream keeps to other devices (``--unlock``).
        notes: sentences for the reader.
        links: pages where the run can be looked at.
    """
    on_cpu: dict[str, Counter[str]] = defaultdict(Counter)
    for name, there in accounts.on_cpu.items():
        on_cpu[accounts.outcome(name) or ""][there.outcome] += 1
    return {
        "planned": len(accounts.planned),
        "outcomes": dict(sorted(accounts.outcomes().items())),
        "balanced": accounts.balanced(),
        "crashed": accounts.named("crashed"),
        "timed_out": accounts.named("timed_out"),
        "flaky": accounts.named("flaky"),
        "unexpected": list(unexpected),
        "on_cpu": {outcome: dict(sorted(counts.items())) for outcome, counts in sorted(on_cpu.items())},
        "breaks_on_cpu_too": sorted(name for name in accounts.on_cpu if accounts.breaks_on_cpu_too(name)),
        "not_run": len(accounts.missing()),
        "seconds": round(seconds, 3),
        "torch": torch,
        "upstream": upstream,
        "profile": profile,
        "expectations": expectations,
        "devices": devices,
        "shard": shard,
        "interrupted": interrupted,
        "narrowed": list(narrowed),
        "unlocked": unlocked,
        "notes": list(notes),
        "links": list(links),
    }
