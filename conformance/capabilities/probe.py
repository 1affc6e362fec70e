"""A first declaration, by trying every operator of ``op_db`` on the device (C18).

Operators run in a process of their own that says what it is about to try. When it dies or says nothing for too long,
the operator that it had named is at fault, and a new process goes on behind it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.capabilities.trial import events
from conformance.errors import ConformanceError
from conformance.profile import Profile

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]

_SCRIPT = """
import importlib, importlib.util, json, os, sys
sys.path[:] = [p for p in sys.path if p] + [sys.argv[1]]
module, device, start, pattern = sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
out = os.fdopen(os.dup(1), "w"); os.dup2(2, 1)
def say(**what):
    print(json.dumps(what), file=out, flush=True)
import fnmatch, torch
if module:
    importlib.import_module(module)
from torch.testing._internal.common_methods_invocations import op_db
counter = lambda: 0
if sys.argv[6]:
    where, _, name = sys.argv[6].partition(":")
    counter = getattr(importlib.import_module(where), name)
ops = [op for op in op_db if fnmatch.fnmatch(op.full_name, pattern)]
say(e="ready", count=len(ops))
for number, op in enumerate(ops):
    if number < start:
        continue
    say(e="start", number=number, op=op.full_name)
    works, fails, fallback = [], {}, False
    for dtype in sorted(op.dtypes, key=str):
        name = str(dtype).rpartition(".")[2]
        try:
            with torch.no_grad():
                sample = next(iter(op.sample_inputs(device, dtype, requires_grad=False)), None)
                if sample is None:
                    continue
                before = counter()
                result = op(sample.input, *sample.args, **sample.kwargs)
                for value in (result if isinstance(result, (list, tuple)) else [result]):
                    if isinstance(value, torch.Tensor):
                        value.cpu()
                fallback = fallback or counter() > before
            works.append(name)
        except Exception as error:
            fails[name] = f"{type(error).__name__}: {error}".split(chr(10))[0][:160]
    say(e="end", number=number, works=works, fails=fails, fallback=fallback)
say(e="done")
"""


@dataclass
class Tried:
    """What came out for one operator.

    Attributes:
        works: dtypes for which its first sample ran.
        fails: dtype → what went wrong.
        fallback: part of it ran on the CPU.
        lost: how the process ended in it, ``""`` when it did not.
    """

    op: str
    works: tuple[str, ...] = ()
    fails: dict[str, str] = field(default_factory=dict)
    fallback: bool = False
    lost: str = ""


def probe_operators(
    profile: Profile, pattern: str = "*", deadline: float = 60.0, progress: Callable[[int, int], None] | None = None
) -> list[Tried]:
    """Tries operators.

    Args:
        profile: whose backend is tried.
        pattern: glob over ``OpInfo.full_name``.
        deadline: seconds that one operator may take.
        progress: told how many are done, of how many.

    Raises:
        ConformanceError: the backend cannot be imported, or no operator has such a name.
    """
    found: list[Tried] = []
    start, total = 0, 0
    while True:
        current: Tried | None = None
        for event in _events(profile, start, pattern, deadline):
            kind = event["e"]
            if kind == "ready":
                total = event["count"]
                if not total:
                    raise ConformanceError(f"no operator of the installed torch is named like {pattern!r}")
            elif kind == "start":
                current, start = Tried(event["op"]), event["number"] + 1
            elif kind == "end" and current is not None:
                current.works, current.fails = tuple(event["works"]), event["fails"]
                current.fallback = event["fallback"]
                found.append(current)
                current = None
                if progress is not None:
                    progress(start, total)
            elif kind == "done":
                return found
            elif kind == "lost":
                if current is None:
                    raise ConformanceError(
                        f"profile {profile.name}: the backend cannot be tried ({event['how']}): {event['said']}"
                    )
                current.lost = event["how"]
                found.append(current)


def _events(profile: Profile, start: int, pattern: str, deadline: float) -> Iterator[dict[str, Any]]:
    """What one process says; the last event is ``done`` or ``lost``."""
    command = [
        sys.executable, "-c", _SCRIPT, str(_PACKAGE_ROOT), profile.module, profile.device, str(start), pattern,
        profile.fallbacks,
    ]  # fmt: skip
    # Importing the backend takes as long as the profile allows; after that every operator has its own time.
    return events(command, profile.environment, profile.policy.import_timeout, deadline)


def declaration(tried: list[Tried]) -> dict[str, Any]:
    """A ``capabilities.yaml`` as plain values: what ran is supported, the rest says how it failed."""
    dtypes = sorted({dtype for item in tried for dtype in item.works})
    operators: dict[str, Any] = {}
    for item in tried:
        if item.works:
            row: dict[str, Any] = {"dtypes": list(item.works)}
            if item.fallback:
                row["note"] = "runs partly on the CPU"
        else:
            row = {"supported": False, "note": item.lost or next(iter(item.fails.values()), "has no sample input")}
        operators[item.op] = row
    return {"version": 1, "dtypes": dtypes, "operators": operators}
