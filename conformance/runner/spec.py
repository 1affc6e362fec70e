"""What a worker process is told, as plain data written to a file: ids never travel on a command line."""

from __future__ import annotations

import pickle
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.inventory.model import FileRow
from conformance.registry.model import Capabilities, Rule
from conformance.selection.decide import Selection

BUCKETS = 4096
"""Tests of a file fall into this many buckets by the hash of their name; shards and units are ranges of buckets."""


def bucket(name: str) -> int:
    """Bucket of a test: the same on every machine, for every rule set, hash seed and collection order."""
    return zlib.crc32(name.encode()) % BUCKETS


@dataclass(frozen=True, slots=True)
class Target:
    """A file, or part of one.

    Attributes:
        path: as in test ids (``test/test_ops.py``, ``wheel/op_forward.py``).
        names: ``(class, test)`` pairs asked for; empty means all. An empty part of a pair matches everything; a test
            matches by its written name or by the name of one variant.
        low, high: range of buckets taken, ``low <= bucket < high``.
    """

    path: str
    names: tuple[tuple[str, str], ...] = ()
    low: int = 0
    high: int = BUCKETS


@dataclass(frozen=True, slots=True)
class Root:
    """A folder of tests.

    Attributes:
        prefix: first part of the ids of its files (``test/`` or ``wheel/``).
        folder: where the files lie that are imported; ids are relative to it after the prefix.
        cwd: working directory of the worker.
    """

    prefix: str
    folder: Path
    cwd: Path


@dataclass(frozen=True, slots=True)
class Setup:
    """The same for every worker of a run.

    Attributes:
        device, module, custom, fallbacks: of the profile.
        environment: added to the worker's environment.
        rules: those whose conditions hold now.
        keyword: pytest's ``-k`` expression.
        collect_only: report the tests and their decisions, run none.
        unlock: run tests that upstream's decorators limit to other devices.
        profile: what ``--profile`` takes to find the profile again.
    """

    device: str
    module: str
    custom: bool
    fallbacks: str
    environment: dict[str, str]
    selection: Selection
    rules: tuple[Rule, ...]
    capabilities: Capabilities
    keyword: str = ""
    collect_only: bool = False
    unlock: bool = False
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    """What one worker process takes: some targets of one root.

    Attributes:
        number: names its files in the output folder.
        weight: expected seconds, for ordering.
        only: ids to run; ``None`` means all of the targets'.
        attempt: 1, or more for a repetition of suspects.
    """

    number: int
    root: Root
    targets: tuple[Target, ...]
    weight: float = 0.0
    only: frozenset[str] | None = None
    attempt: int = 1

    @property
    def content(self) -> str:
        """What it takes, the same whatever number the unit has: a resumed run may be divided for other workers."""
        return repr((self.attempt, self.targets, None if self.only is None else sorted(self.only)))

    def without(self, paths: frozenset[str]) -> Unit:
        """The unit without some files."""
        return replace(self, targets=tuple(target for target in self.targets if target.path not in paths))


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Content of a worker's spec file.

    Attributes:
        inventory: static rows of the unit's files and of files that their classes inherit from.
        supervisor: process id; a worker does not outlive it.
        done: ids that have a result already.
    """

    setup: Setup
    unit: Unit
    inventory: dict[str, FileRow]
    journal: Path
    stacks: Path
    supervisor: int
    done: frozenset[str] = field(default_factory=frozenset)

    def write(self, path: Path) -> None:
        """Stores it for :func:`read`."""
        path.write_bytes(pickle.dumps(self, protocol=5))

    @staticmethod
    def read(path: Path) -> WorkerSpec:
        """Reads what the supervisor of this run wrote."""
        spec = pickle.loads(path.read_bytes())
        if not isinstance(spec, WorkerSpec):
            raise TypeError(f"{path} holds no worker spec")
        return spec
