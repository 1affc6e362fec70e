"""Compares every operator of the installed torch's op_db on the simulated card with the CPU.

Usage: python tools/operators.py [--ops GLOB] [--jobs N] [--journal FILE] [--document]

Every forward sample of every dtype that the CPU supports, and the gradients of the first samples in float32. Results
are kept line by line in ``build/operators.jsonl``, so an interrupted run goes on where it was; a crash or a hang costs
one operator and dtype, which is named. ``--document`` writes ``docs/operators.json`` and ``docs/operators.md``.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import sys
import textwrap
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from conformance.capabilities.trial import events
from conformance.profile import load_profile
from conformance.registry.model import Capabilities

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("compare_operators.py")
DATA = ROOT / "docs" / "operators.json"
DOCUMENT = DATA.with_suffix(".md")

Task = tuple[str, str, str]
"""Operator, dtype, ``forward`` or ``gradient``."""

GRADIENT_SAMPLES = 3
"""Samples of an operator whose gradients are compared; op_db orders them from plain to special."""

CHUNK = 20
"""Operators per process: a new one starts without what the old one has allocated."""


def tasks_of(pattern: str) -> dict[str, list[Task]]:
    """All tasks, by operator; none of one that the CPU does not have.

    Args:
        pattern: glob over ``OpInfo.full_name``.
    """
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for op in op_db:
        if fnmatch.fnmatch(op.full_name, pattern):
            supported = op.supported_dtypes("cpu")  # type: ignore[no-untyped-call]
            differentiated = op.supported_backward_dtypes("cpu")  # type: ignore[no-untyped-call]
            dtypes = sorted(str(dtype).removeprefix("torch.") for dtype in supported)
            tasks = [(op.full_name, dtype, "forward") for dtype in dtypes]
            if op.supports_autograd and torch.float32 in supported & differentiated:
                tasks.append((op.full_name, "float32", "gradient"))
            found[op.full_name] = tasks
    return found


class Journal:
    """Results of earlier and of this run, one JSON line each; the first line says what they are of.

    Args:
        path: the file.
        of: results of something else are thrown away.
    """

    def __init__(self, path: Path, of: dict[str, str]) -> None:
        self.rows: dict[Task, dict[str, Any]] = {}
        self._lock = threading.Lock()
        lines = path.read_text().splitlines() if path.exists() else []
        path.parent.mkdir(parents=True, exist_ok=True)
        if lines and json.loads(lines[0]) == of:
            for line in lines[1:]:
                row = json.loads(line)
                self.rows[row["op"], row["dtype"], row["kind"]] = row
        else:
            path.write_text(json.dumps(of) + "\n")
        self._file = path.open("a")

    def add(self, task: Task, row: dict[str, Any]) -> None:
        """Keeps one result."""
        row = {"op": task[0], "dtype": task[1], "kind": task[2], **row}
        with self._lock:
            self.rows[task] = row
            print(json.dumps(row), file=self._file, flush=True)


def run(tasks: list[Task], module: str, deadline: float, journal: Journal) -> None:
    """Runs tasks in one process after the other, a new one when one is lost.

    Args:
        tasks: what to do.
        module: brings the device.
        deadline: seconds per task.
        journal: takes the results.

    Raises:
        RuntimeError: the device cannot be tried.
    """
    while tasks:
        current: Task | None = None
        done = 0
        command = [sys.executable, str(WORKER), module, str(GRADIENT_SAMPLES), json.dumps(tasks)]
        environment = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        for event in events(command, environment, 300.0, deadline):
            if event["e"] == "start":
                current = tasks[event["number"]]
            elif event["e"] == "end" and current is not None:
                journal.add(current, {key: value for key, value in event.items() if key not in ("e", "number")})
                current, done = None, event["number"] + 1
            elif event["e"] == "lost":
                if current is None:
                    raise RuntimeError(f"{module} cannot be tried ({event['how']}): {event['said']}")
                journal.add(current, {"lost": f"{event['how']}: {event['said']}"})
                done += 1
        tasks = tasks[done:]


def compare(groups: Iterable[list[Task]], module: str, jobs: int, deadline: float, journal: Journal) -> None:
    """Runs what has no result yet.

    Args:
        groups: tasks by operator.
        module: brings the device.
        jobs: processes at a time.
        deadline: seconds per task.
        journal: holds and takes results.
    """
    left = [group for group in ([t for t in tasks if t not in journal.rows] for tasks in groups) if group]
    chunks = [[task for group in left[i : i + CHUNK] for task in group] for i in range(0, len(left), CHUNK)]
    with ThreadPoolExecutor(jobs) as pool:
        for number, _ in enumerate(pool.map(lambda chunk: run(chunk, module, deadline, journal), chunks), 1):
            print(f"{number} of {len(chunks)} processes done", file=sys.stderr, flush=True)


SHORT = {
    "bool": "bool", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "int8": "i8", "int16": "i16",
    "int32": "i32", "int64": "i64", "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
    "complex32": "c32", "complex64": "c64", "complex128": "c128", "bcomplex32": "bc32", "float8_e4m3fn": "f8e4",
    "float8_e4m3fnuz": "f8e4z", "float8_e5m2": "f8e5", "float8_e5m2fnuz": "f8e5z",
}  # fmt: skip
"""How a dtype is written in the table, in the order of its columns."""

Table = dict[str, dict[str, Any]]
"""Row by operator. Keys that would be empty are left out.

    dtypes: that the CPU computes, space-separated.
    samples, exact: forward samples of all of them, and how many are equal bit for bit.
    launched: samples of which every eager call ran as a prepared program.
    idle: samples for which nothing was computed, because the result is a view or uninitialised.
    gradients: samples whose gradients are equal.
    copies: dtypes (``gradient``) → samples for which a tensor went to the host.
    faults: dtypes (``gradient``) → samples that failed or differ, and the first of them.
"""


def tabulated(groups: Mapping[str, list[Task]], journal: Mapping[Task, dict[str, Any]]) -> Table:
    """The table of what was measured.

    Args:
        groups: tasks by operator.
        journal: their results.
    """
    order = list(SHORT)
    table: Table = {
        op: {"dtypes": "", "samples": 0, "exact": 0, "launched": 0, "idle": 0, "gradients": 0}
        for op in sorted(groups)
    }  # fmt: skip
    for op, dtype, kind in sorted(
        (task for tasks in groups.values() for task in tasks), key=lambda task: order.index(task[1])
    ):
        line, row = table[op], journal[op, dtype, kind]
        name = SHORT[dtype] if kind == "forward" else "gradient"
        if "lost" in row:
            line.setdefault("faults", {})[name] = [1, row["lost"]]
            row = {"samples": 1, "exact": 0, "launched": 0, "computed": 0, "copies": 0, "faults": {}}
        if row["faults"]:
            line.setdefault("faults", {})[name] = [sum(row["faults"].values()), next(iter(row["faults"]))[:100]]
        if row["copies"]:
            line.setdefault("copies", {})[name] = row["copies"]
        if kind == "gradient":
            line["gradients"] = row["samples"] - sum(row["faults"].values())
        elif row["samples"]:
            line["dtypes"] = f"{line['dtypes']} {name}".strip()
            line["samples"] += row["samples"]
            line["exact"] += row["exact"]
            line["launched"] += row["launched"]
            line["idle"] += row["samples"] - row["computed"] - sum(row["faults"].values())
    return {op: {key: value for key, value in line.items() if value} for op, line in table.items()}


def declared(op: str, dtype: str, capabilities: Capabilities) -> str:
    """Why an operator may differ from the CPU; ``""`` where the capability table says nothing.

    Args:
        op: ``OpInfo.full_name``.
        dtype: of its samples.
        capabilities: unsupported features that select operators, whatever the test.
    """
    for feature in capabilities.features.values():
        for one in feature.tests if not feature.supported else ():
            if (
                one.op is not None
                and any(fnmatch.fnmatchcase(op, glob) for glob in one.op)
                and (one.dtype is None or any(fnmatch.fnmatchcase(dtype, glob) for glob in one.dtype))
                and one.file is one.cls is one.test is None
            ):
                return feature.note
    return ""


def reason(op: str, line: Mapping[str, Any], capabilities: Capabilities) -> str:
    """Why a row has faults or copies, in the words of the capability table.

    Raises:
        Undeclared: one of them is not declared.
    """
    long = {short: dtype for dtype, short in SHORT.items()} | {"gradient": "float32"}
    notes: dict[str, None] = {}
    for name, found in [*line.get("faults", {}).items(), *line.get("copies", {}).items()]:
        note = declared(op, long[name], capabilities)
        if not note:
            raise Undeclared(f"{op}, {name}: {found}")
        notes[note] = None
    return "; ".join(notes)


class Undeclared(Exception):
    """The device does not do what the CPU does, and the capability table does not say so."""


LEGEND = """\
# Operators

Every operator of PyTorch's own database (`op_db` of torch {torch}) on the device against the CPU: every forward sample
of every dtype that the CPU supports, and in float32 the gradients of the first {gradients} samples. Made by
`python tools/operators.py --document`; `operators.json` is the same for programs.

| OpInfos | |
|---|---|
| all | {all} |
| not for the CPU ({absent}) | {absent_count} |
| on the device, without fallback | {device} ({share:.1%}) |
| … of them prepared programs in every sample that computes anything | {programs} |
| … of them views and empty tensors only: nothing to compute | {idle} |
| a tensor goes to the host (fallback) | {copies} |
| computed on the device, other values than the CPU's | {differ} |
| unsupported | {unsupported} |

Of {samples} forward samples {equal} are equal bit for bit, and so are all of {exact} OpInfos. The others agree within
the OpInfo's tolerance, or that of upstream's `assertEqual`, except where the last column says why not.

**On the device** is observed, not assumed: each call is recorded ([timeline](backend.md#operations-and-queues)). Its
kernels are intervals of the card's compute pipeline, and a copy of a tensor to the host would be one of the D2H
pipeline. Reading one number (`.item()`, a size that depends on data) is no copy of a tensor.

Compared are structure, device, dtype, shape, strides (of gradients not) and values; random operators too, because a
device's generator gives the CPU's numbers for the CPU's seed. What uninitialised tensors hold is not compared. What the
CPU refuses the device has to refuse. Each sample is called twice: the first call compiles, the second is compared.

The last column counts samples by dtype and gives the reason of the capability table,
`conformance/profiles/spyre/capabilities.yaml`. A difference without one is an error of the tool.

{dtypes}

*Samples*: forward, over all dtypes; in brackets those not equal bit for bit. *Programs*: samples of which every eager
call launched a prepared program ([eager operators](programs.md#eager-operators)). *Gradients*: samples.

| Operator | Dtypes | Samples | Programs | Gradients | Not as on the CPU |
|---|---|---|---|---|---|
"""


def document(torch_version: str, table: Table, capabilities: Capabilities) -> str:
    """The table for people.

    Args:
        torch_version: that it was measured with.
        table: of all operators.
        capabilities: reasons.

    Raises:
        Undeclared: a row needs a reason that is not there.
    """
    reasons = {op: reason(op, line, capabilities) for op, line in table.items()}
    absent = {op for op, line in table.items() if not line}
    whole = {op for op, line in table.items() if line and not line.get("copies") and not line.get("faults")}
    lost = {op for op, line in table.items() if line.get("faults") and unsupported(line)}
    copies = {op for op, line in table.items() if line.get("copies")} - lost
    used = {short for line in table.values() for short in line.get("dtypes", "").split()}
    names = [f"{short} {dtype}" if short != dtype else dtype for dtype, short in SHORT.items() if short in used]
    head = LEGEND.format(
        torch=torch_version,
        gradients=GRADIENT_SAMPLES,
        all=len(table),
        absent=", ".join(f"`{op}`" for op in sorted(absent)),
        absent_count=len(absent),
        device=len(whole),
        share=len(whole) / len(table),
        exact=sum(table[op].get("exact") == table[op].get("samples") for op in whole),
        programs=sum(
            table[op].get("launched", 0) == table[op]["samples"] - table[op].get("idle", 0) > 0 for op in whole
        ),
        idle=sum(table[op].get("idle") == table[op].get("samples") for op in whole),
        copies=len(copies),
        differ=len(table) - len(absent) - len(whole) - len(lost) - len(copies),
        unsupported=len(lost),
        samples=sum(line.get("samples", 0) for line in table.values()),
        equal=sum(line.get("exact", 0) for line in table.values()),
        dtypes=textwrap.fill(f"Dtypes: {', '.join(names)}.", 120),
    )
    rows = []
    for op, line in table.items():
        samples, other = line.get("samples", 0), line.get("samples", 0) - line.get("exact", 0)
        where = []
        for what, key in (("to the host", "copies"), ("not as on the CPU", "faults")):
            found = line.get(key, {})
            if found:
                counted = ", ".join(f"{n[0] if isinstance(n, list) else n} {name}" for name, n in found.items())
                where.append(f"{what}: {counted}")
        note = f"{'; '.join(where)} — {reasons[op]}" if where else ""
        shown = f"{samples} ({other})" if other else str(samples)
        cells = (line.get("dtypes", ""), shown, line.get("launched", ""), line.get("gradients", ""), note)
        rows.append(f"| `{op}` | {' | '.join(map(str, cells))} |\n")
    return head + "".join(rows)


def unsupported(line: Mapping[str, Any]) -> bool:
    """Whether no sample of a row could be computed."""
    return bool(
        line.get("samples", 0)
        == sum(count for name, (count, _) in line.get("faults", {}).items() if name != "gradient")
    )


def write(table: Table, torch_version: str, capabilities: Capabilities) -> None:
    """Writes ``docs/operators.json``, one line per operator, and ``docs/operators.md``."""
    text = document(torch_version, table, capabilities)
    lines = ",\n".join(f"{json.dumps(op)}: {json.dumps(line)}" for op, line in table.items())
    DATA.write_text(f'{{"torch": {json.dumps(torch_version)}, "operators": {{\n{lines}\n}}}}\n')
    DOCUMENT.write_text(text)


def main() -> None:
    """The command line.

    Raises:
        SystemExit: the device differs from the CPU where the capability table does not say so.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="*", metavar="GLOB", help="only operators named like this")
    parser.add_argument("--jobs", type=int, default=1, choices=(1, 2), help="processes at a time (default: 1)")
    parser.add_argument("--deadline", type=float, default=300.0, metavar="SECONDS", help="per operator and dtype")
    parser.add_argument("--module", default="spyre_backend", help="module that brings the device (%(default)s)")
    parser.add_argument(
        "--journal", type=Path, default=ROOT / "build" / "operators.jsonl", help="where results are kept"
    )
    parser.add_argument("--document", action="store_true", help="write docs/operators.json and docs/operators.md")
    options = parser.parse_args()
    if options.document and options.ops != "*":
        parser.error("--document needs all operators")
    import torch

    version = torch.__version__.partition("+")[0]
    groups = tasks_of(options.ops)
    journal = Journal(options.journal, {"torch": version, "module": options.module, "binary": binary()})
    compare(groups.values(), options.module, options.jobs, options.deadline, journal)
    table = tabulated(groups, journal.rows)
    capabilities = load_profile("spyre").declared()
    undeclared = []
    for op, line in table.items():
        try:
            reason(op, line, capabilities)
        except Undeclared as error:
            undeclared.append(str(error))
    print(f"{len(table)} operators compared", file=sys.stderr)
    if undeclared:
        raise SystemExit("\n".join(["not as on the CPU, and not declared in the capability table:", *undeclared]))
    if options.document:
        write(table, version, capabilities)


def binary() -> str:
    """Hash of the extension that is compared: results of another one are no results of this one."""
    total = hashlib.sha256()
    for path in sorted((ROOT / "spyre_backend").glob("_C.*.so")):
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


if __name__ == "__main__":
    main()
