"""Which files a run takes, and how they are dealt to shards and worker processes."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.ids import normalise, parse
from conformance.inventory.model import FileRow, MethodRow
from conformance.runner.spec import Root, Target, Unit, bucket
from conformance.times import Times

WORTH_SPLITTING = 30.0
"""Expected seconds from which a second process repays importing the file twice."""

START = 4.5
"""Seconds that a worker needs for importing torch, its test library and a file (spec §4), where it is no copy."""

SECONDS = 0.05
"""Of a test without a record."""

_WEIGHTS = {"ops": 250.0, "modules": 120.0, "optims": 40.0, "dtypes": 8.0, "dtypesIfCPU": 8.0, "parametrize": 6.0}


def _method_weight(method: MethodRow) -> float:
    weight = 1.0
    for decorator in method.decorators:
        weight = max(weight, _WEIGHTS.get(decorator.rpartition(".")[2], 1.0))
    return weight


def expected_seconds(target: Target, row: FileRow | None, times: Times) -> float:
    """How long a target takes on one worker: as recorded, else by the variants that its decorators promise.

    Args:
        target: a file, or tests of it.
        row: of the file; ``None`` where it is not known.
        times: of an earlier run.
    """
    if recorded := times.seconds(target.path, target.names):
        return START + recorded
    methods = [method for cls in row.classes for method in cls.tests] + row.functions if row is not None else []
    return START + SECONDS * sum(map(_method_weight, methods))


def parse_shard(text: str) -> tuple[int, int]:
    """``2/5`` → (2, 5).

    Raises:
        ConformanceError: anything else.
    """
    # "²" and "３" are digits to str.isdigit; more parts than four figures say is a slip of the keyboard.
    match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if match and 1 <= int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    raise ConformanceError(f"--shard {text}: expected i/n with 1 <= i <= n <= 9999, for example 1/4")


def resolve_targets(
    arguments: Iterable[str], files: dict[str, FileRow], checkout: Path | None, cwd: Path
) -> list[Target]:
    """``FILE[::CLASS[::TEST]]`` as people write it → targets.

    A file is found from the checkout's root, from its ``test/`` folder, by an absolute or relative path into the
    checkout, or in the wheel suite (``wheel/op_forward.py``). Without a file, a class is looked up in all of them.

    Raises:
        ConformanceError: nothing has that name; the nearest names are given.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for argument in arguments:
        text = normalise(argument)
        file, _, rest = text.partition("::")
        cls, _, test = rest.partition("::")
        if any(char in test for char in "[@"):
            # A stable id: pytest's own parameter brackets are not part of a written name.
            try:
                parse(text)
                path = _find(file, files, checkout, cwd)
                test = f"{path}::{rest}" if path else test
            except ValueError as error:
                raise ConformanceError(str(error)) from error
        paths = [_find(file, files, checkout, cwd)] if file else _defining(cls, files)
        if not paths or paths[0] is None:
            raise ConformanceError(f"{argument}: {_suggest(file or cls, files, bool(file))}")
        for path in paths:
            assert path is not None
            found.setdefault(path, [])
            if rest:
                found[path].append((cls, test) if cls[:1].isupper() or test else ("", cls))
            else:
                found[path].append(("", ""))
    return [Target(path, () if ("", "") in names else tuple(names)) for path, names in found.items()]


def _find(file: str, files: dict[str, FileRow], checkout: Path | None, cwd: Path) -> str | None:
    for candidate in (file, f"test/{file}", f"wheel/{file}"):
        if candidate in files:
            return candidate
    if checkout is not None:
        path = (cwd / file).resolve()
        if path.is_relative_to(checkout.resolve()):
            inner = path.relative_to(checkout.resolve()).as_posix()
            return inner if inner in files else None
    return None


def _defining(cls: str, files: dict[str, FileRow]) -> list[str | None]:
    """Files that define a class; a device variant's name (``TestFooSPYRE``) begins with the written one."""
    exact: list[str | None] = [path for path, row in files.items() if any(c.name == cls for c in row.classes)]
    return exact or [
        path
        for path, row in files.items()
        if any(cls.startswith(c.name) and cls.removeprefix(c.name).isupper() for c in row.classes)
    ]


def _suggest(name: str, files: dict[str, FileRow], is_file: bool) -> str:
    import difflib

    names = {path.rsplit("/", 1)[-1]: path for path in files} if is_file else {
        cls.name: f"{path}::{cls.name}" for path, row in files.items() for cls in row.classes
    }  # fmt: skip
    near = [names[match] for match in difflib.get_close_matches(name.rsplit("/", 1)[-1], names, 3)]
    what = "no such test file" if is_file else "no file defines this class"
    return what + (f"; near names: {', '.join(near)}" if near else "")


def shard(targets: Sequence[tuple[Target, float]], index: int, count: int, times: Times) -> list[tuple[Target, float]]:
    """One of ``count`` disjoint parts that together hold every target.

    Depends on files and recorded times only, so a change of rules moves no test to another shard (C25).

    Args:
        targets: with their expected seconds.
        index: from 1.
        times: the same for every shard.
    """
    total = sum(seconds for _, seconds in targets)
    pieces: list[tuple[Target, float]] = []
    for target, seconds in targets:
        pieces += divide(target, seconds, _parts(seconds, total, count), times)
    pieces.sort(key=lambda item: (-item[1], item[0].path, item[0].low))
    loads = [0.0] * count
    chosen = []
    for target, seconds in pieces:
        lightest = min(range(count), key=lambda number: (loads[number], number))
        loads[lightest] += seconds
        if lightest == index - 1:
            chosen.append((target, seconds))
    return chosen


def _parts(seconds: float, total: float, count: int) -> int:
    return min(count, math.ceil(seconds * count / total)) if seconds >= WORTH_SPLITTING else 1


def divide(target: Target, seconds: float, parts: int, times: Times) -> list[tuple[Target, float]]:
    """Cuts a target into ranges of buckets that take about equally long, each with its expected seconds.

    A range may hold one test that is longer than its share; there are then fewer parts.
    """
    if parts == 1:
        return [(target, seconds)]
    slow: dict[int, float] = defaultdict(float)
    for name, own in times.slow.items():
        if name.startswith(f"{target.path}::") and target.low <= bucket(name) < target.high:
            slow[bucket(name)] += own
    rest = max(0.0, seconds - sum(slow.values())) / (target.high - target.low)
    ends = list(itertools.accumulate(rest + slow[number] for number in range(target.low, target.high)))
    edges = [target.low]
    for part in range(1, parts):
        share = ends[-1] * part / parts
        edges.append(target.low + sum(end <= share for end in ends))
    pairs = itertools.pairwise([*edges, target.high])
    return [
        (replace(target, low=low, high=high), sum(rest + slow[number] for number in range(low, high)))
        for low, high in pairs
        if high > low
    ]


def make_units(
    targets: Sequence[tuple[Target, float]],
    roots: dict[str, Root],
    *,
    jobs: int,
    files_per_process: int,
    times: Times,
) -> list[Unit]:
    """Targets → units of about equal work, big files divided so that no worker is left alone with one at the end.

    Args:
        targets: with their expected seconds.
        roots: file → where it lies.
        jobs: workers.
        files_per_process: of files that are not divided.
        times: of an earlier run.
    """
    total = sum(seconds for _, seconds in targets)
    units: list[Unit] = []
    batch: list[tuple[Target, float]] = []

    def flush() -> None:
        if batch:
            units.append(Unit(0, roots[batch[0][0].path], tuple(t for t, _ in batch), sum(s for _, s in batch)))
            batch.clear()

    for target, seconds in sorted(targets, key=lambda item: (roots[item[0].path].prefix, -item[1], item[0].path)):
        pieces = divide(target, seconds, _parts(seconds, total, jobs), times)
        if len(pieces) > 1:
            units += (Unit(0, roots[target.path], (piece,), share) for piece, share in pieces)
            continue
        if batch and (roots[batch[0][0].path] != roots[target.path] or len(batch) >= files_per_process):
            flush()
        batch.append((target, seconds))
    flush()
    return [replace(unit, number=number) for number, unit in enumerate(units, 1)]
