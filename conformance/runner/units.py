"""Which files a run takes, and how they are dealt to shards and worker processes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.ids import normalise, parse
from conformance.inventory.model import FileRow, MethodRow
from conformance.runner.spec import Root, Target, Unit
from conformance.runner.supervisor import split

WORTH_SPLITTING = 600.0
"""Weight from which a second process repays importing the file twice."""

_WEIGHTS = {"ops": 250.0, "modules": 120.0, "optims": 40.0, "dtypes": 8.0, "dtypesIfCPU": 8.0, "parametrize": 6.0}


def _method_weight(method: MethodRow) -> float:
    weight = 1.0
    for decorator in method.decorators:
        weight = max(weight, _WEIGHTS.get(decorator.rpartition(".")[2], 1.0))
    return weight


def file_weight(row: FileRow | None) -> float:
    """Expected number of test variants, from decorators; the import counts as a few tests."""
    if row is None:
        return 20.0
    methods = [method for cls in row.classes for method in cls.tests] + row.functions
    return 20.0 + sum(_method_weight(method) for method in methods)


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


def shard(targets: Sequence[tuple[Target, float]], index: int, count: int) -> list[tuple[Target, float]]:
    """One of ``count`` disjoint parts that together hold every target.

    Depends on files and weights only, so a change of rules moves no test to another shard (C25).

    Args:
        targets: with their weights.
        index: from 1.
    """
    total = sum(weight for _, weight in targets)
    pieces: list[tuple[Target, float]] = []
    for target, weight in targets:
        parts = min(count, math.ceil(weight * count / total)) if weight >= WORTH_SPLITTING else 1
        pieces += _pieces(target, weight, parts)
    pieces.sort(key=lambda item: (-item[1], item[0].path, item[0].low))
    loads = [0.0] * count
    chosen = []
    for target, weight in pieces:
        lightest = min(range(count), key=lambda number: (loads[number], number))
        loads[lightest] += weight
        if lightest == index - 1:
            chosen.append((target, weight))
    return chosen


def _pieces(target: Target, weight: float, parts: int) -> list[tuple[Target, float]]:
    edges = [target.low + (target.high - target.low) * i // parts for i in range(parts + 1)]
    return [
        (replace(target, low=low, high=high), weight / parts) for low, high in itertools.pairwise(edges) if high > low
    ]


def make_units(
    targets: Sequence[tuple[Target, float]], roots: dict[str, Root], *, jobs: int, files_per_process: int
) -> list[Unit]:
    """Targets → units of about equal work, big files divided so that no worker is left alone with one at the end."""
    total = sum(weight for _, weight in targets)
    units: list[Unit] = []
    batch: list[tuple[Target, float]] = []

    def flush() -> None:
        if batch:
            units.append(Unit(0, roots[batch[0][0].path], tuple(t for t, _ in batch), sum(w for _, w in batch)))
            batch.clear()

    for target, weight in sorted(targets, key=lambda item: (roots[item[0].path].prefix, -item[1], item[0].path)):
        parts = min(jobs, math.ceil(weight * jobs / total)) if weight >= WORTH_SPLITTING else 1
        if parts > 1:
            units += split(Unit(0, roots[target.path], (target,), weight), parts)
            continue
        if batch and (roots[batch[0][0].path] != roots[target.path] or len(batch) >= files_per_process):
            flush()
        batch.append((target, weight))
    flush()
    return [replace(unit, number=number) for number, unit in enumerate(units, 1)]
