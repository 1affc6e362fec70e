"""What has been compiled in this process, and what was not: ``torch.spyre.compile_stats()``, ``fallback_stats()``."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from spyre_backend import _C

__all__ = ["CompileStats", "Fallback", "compile_stats", "count_graph", "fallback_stats"]


@dataclass
class CompileStats:
    """What became programs: graphs of ``torch.compile``, loaded, generated here or taken from a cache, and operators.

    Attributes:
        graphs: number of graphs; a training step has two.
        programs: their programs: the launches of a call of each graph.
        kernels: their fused kernels.
        outside: what stayed Python between programs, by name, and how often.
        operators: programs of eager operators, by operator: one for each set of dtypes, layouts and sizes.
        launches: calls of eager operators that ran as one of them, by operator.
    """

    graphs: int = 0
    programs: int = 0
    kernels: int = 0
    outside: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    launches: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Fallback:
    """Eager calls of one operator that no program can run; they ran as one step on the device.

    Attributes:
        calls: how many.
        reason: why, the last time.
    """

    calls: int
    reason: str


_lock = threading.Lock()
_total = CompileStats()


def count_graph(*, programs: int, kernels: int, outside: Sequence[str]) -> None:
    """Adds a graph."""
    with _lock:
        _total.graphs += 1
        _total.programs += programs
        _total.kernels += kernels
        _total.outside.update(outside)


def compile_stats() -> CompileStats:
    """A copy of the counts since the process began."""
    counts = _C.eager_counts()
    with _lock:
        return CompileStats(
            _total.graphs,
            _total.programs,
            _total.kernels,
            _total.outside.copy(),
            Counter({name: compiled for name, compiled, *_ in counts if compiled}),
            Counter({name: launches for name, _, launches, *_ in counts if launches}),
        )


def fallback_stats() -> dict[str, Fallback]:
    """Eager calls that did not run as a program, by operator, since the process began.

    The first call with dtypes, layouts and sizes that are new is not among them: it is what the program is made from.
    """
    return {name: Fallback(outside, reason) for name, _, _, outside, reason in _C.eager_counts() if outside}
