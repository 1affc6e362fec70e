"""Several runs as one: the shards of a run, or parts that were run apart (C27)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.errors import AccountsError, ConformanceError
from conformance.reports.accounts import Accounts
from conformance.reports.read import FinishedRun
from conformance.reports.summary import summarise
from conformance.runner.units import parse_shard

SHOWN = 10
"""Names in an error; the rest is a number."""


def merge(runs: Sequence[FinishedRun]) -> tuple[Accounts, dict[str, Any]]:
    """One run's accounts and summary from those of its parts.

    Args:
        runs: all shards of one run, or runs that share no test.

    Returns:
        The accounts, and the content of ``summary.json``; ``seconds`` is the sum, whatever ran side by side.

    Raises:
        ConformanceError: the runs are of different profiles, torches or checkouts, or a shard is there twice.
        AccountsError: a shard is missing, a part does not balance, or a test is in two parts.
    """
    _check_same(runs)
    _check_shards(runs)
    accounts = Accounts()
    owner: dict[str, FinishedRun] = {}
    twice: list[str] = []
    for run in runs:
        if not run.summary["balanced"] or not run.accounts.balanced():
            raise AccountsError(f"{run.folder}: the accounts of this run do not balance")
        for name, plan in run.accounts.planned.items():
            if name in owner:
                twice.append(f"{name} (in {owner[name].folder} and {run.folder})")
                continue
            owner[name] = run
            accounts.plan(plan)
            accounts.attempts[name] = run.accounts.attempts[name]
        accounts.issues |= run.accounts.issues
        accounts.expiries |= run.accounts.expiries
        accounts.on_cpu |= run.accounts.on_cpu
        accounts.profile = accounts.profile or run.accounts.profile
    if twice:
        more = f" and {len(twice) - SHOWN} more" if len(twice) > SHOWN else ""
        raise AccountsError(f"tests that more than one run has results of: {', '.join(twice[:SHOWN])}{more}")
    first = runs[0].summary
    return accounts, summarise(
        accounts,
        unexpected=sorted(name for run in runs for name in run.summary["unexpected"]),
        seconds=sum(run.summary["seconds"] for run in runs),
        torch=first["torch"],
        upstream=next((run.summary["upstream"] for run in runs if run.summary["upstream"]), ""),
        profile=first["profile"],
        expectations=first["expectations"],
        devices=min(run.summary["devices"] for run in runs),
        narrowed=sorted({option for run in runs for option in run.summary["narrowed"]}),
        unlocked=any(run.summary.get("unlocked", False) for run in runs),
        links=list(dict.fromkeys(link for run in runs for link in run.summary.get("links", ()))),
        notes=list(dict.fromkeys(note for run in runs for note in run.summary["notes"])),
    )


def _check_same(runs: Sequence[FinishedRun]) -> None:
    for name in ("profile", "expectations", "torch", "upstream"):
        # A run of the wheel suite alone has no checkout, and may stand beside one that has.
        found = {run.summary[name]: run.folder for run in runs if run.summary[name]}
        if len(found) > 1:
            said = ", ".join(f"{value} in {folder}" for value, folder in found.items())
            raise ConformanceError(f"not runs with one {name}: {said}")


def _check_shards(runs: Sequence[FinishedRun]) -> None:
    shards = [run.summary["shard"] for run in runs]
    if not any(shards):
        return
    if not all(shards):
        whole = next(run.folder for run in runs if not run.summary["shard"])
        raise ConformanceError(f"{whole} is a whole run, others are shards: merge the shards of one run")
    parts = [parse_shard(text) for text in shards]
    counts = {count for _, count in parts}
    if len(counts) > 1:
        raise ConformanceError(f"shards of different runs: {', '.join(sorted(shards))}")
    numbers = [number for number, _ in parts]
    count = counts.pop()
    if len(set(numbers)) < len(numbers):
        raise ConformanceError(f"a shard is there twice: {', '.join(sorted(shards))}")
    if missing := sorted(set(range(1, count + 1)) - set(numbers)):
        raise AccountsError(f"missing shards: {', '.join(f'{number}/{count}' for number in missing)}")
