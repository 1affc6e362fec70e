"""What has been compiled in this process: ``torch.spyre.compile_stats()``."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["CompileStats", "compile_stats", "count_graph"]


@dataclass
class CompileStats:
    """Graphs of ``torch.compile`` that were loaded, generated here or taken from a cache.

    Attributes:
        graphs: number of graphs; a training step has two.
        programs: their programs: the launches of a call of each graph.
        kernels: their fused kernels.
        outside: what stayed Python between programs, by name, and how often.
    """

    graphs: int = 0
    programs: int = 0
    kernels: int = 0
    outside: Counter[str] = field(default_factory=Counter)


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
    with _lock:
        return CompileStats(_total.graphs, _total.programs, _total.kernels, _total.outside.copy())
