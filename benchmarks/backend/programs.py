"""Launching programs: patched at launch against the older schemes; preparation; overlap on the virtual clock.

Usage: python benchmarks/backend/programs.py [--rounds N]; prints JSON. Schemes and sizes are measured in turns in one
run, host time only; figures of the virtual clock are the simulator's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from spyre_backend.programs import ArtifactCache, ProgramBuilder, launch_jobplan, prepare_kernel

SIZES = {"10 KB": 10 << 10, "10 MB": 10 << 20}
SCHEMES = ("patch", "windows", "graph")


def small(name, constant_bytes=0):
    """``out = x + y`` on 8 x 8, with a constant that only its first element is used of."""
    b = ProgramBuilder(name)
    x, y = (b.tensor(one, torch.float32, [8, 8], [8, 1]) for one in "xy")
    out = b.tensor("out", torch.float32, [8, 8], [8, 1], role="out")
    b.call("aten::add.out", x, y, out=out)
    if constant_bytes:
        table = b.constant(torch.ones(constant_bytes // 4))
        b.call("aten::add_.Tensor", out, b.view(table, [1], [1]))
    return b


def host_time(call, calls):
    """Mean seconds of host time per call; waiting for the device is not counted."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = time.perf_counter() - start
    torch.accelerator.synchronize()
    return seconds / calls


def launches(cache, rounds):
    """Host time of one launch by artifact size and scheme."""
    arguments = [torch.ones(8, 8, device="spyre") for _ in range(3)]
    directories = {size: small(f"add, {size}", length).write(cache) for size, length in SIZES.items()}
    plans = {
        (size, scheme): prepare_kernel(directory, scheme=scheme)
        for size, directory in directories.items()
        for scheme in SCHEMES
    }
    samples = {key: [] for key in plans}
    for _ in range(rounds):
        for (size, scheme), plan in plans.items():
            calls = 500 if scheme != "graph" else 3
            samples[size, scheme].append(host_time(lambda plan=plan: launch_jobplan(plan, arguments), calls))
    medians = {key: statistics.median(values) for key, values in samples.items()}
    us = {f"launch, {size}, {scheme}": value * 1e6 for (size, scheme), value in medians.items()}
    ratios = {
        f"launch, {size}: graph / patch": {"ratio": medians[size, "graph"] / medians[size, "patch"], "goal": ">= 20"}
        for size in SIZES
    }
    size = medians["10 MB", "patch"] / medians["10 KB", "patch"]
    return us, {**ratios, "launch, patch: 10 MB / 10 KB": {"ratio": size, "goal": "<= 1.1"}}


def preparation(cache, rounds):
    """First use of a program (build, write, prepare) and preparing it again from disk, against one ``torch.add``."""
    first, again, add = [], [], []
    ones = torch.ones(8, 8)
    for number in range(rounds * 5):
        start = time.perf_counter()
        directory = small(f"first use {number}").write(cache)
        prepare_kernel(directory)
        middle = time.perf_counter()
        prepare_kernel(directory)
        end = time.perf_counter()
        first.append(middle - start)
        again.append(end - middle)
        add.append(host_time(lambda: torch.add(ones, ones), 100))
    us = {"first use": statistics.median(first) * 1e6, "prepare again": statistics.median(again) * 1e6}
    cpu = statistics.median(add) * 1e6
    return us, {f"{name} / add on the CPU": {"ratio": value / cpu} for name, value in us.items()}


def overlap():
    """In a process with the virtual clock: how much of the preparation's time a launch does not see."""
    b = ProgramBuilder("step")
    b.call("aten::add_.Scalar", b.tensor("x", torch.float32, [1 << 20], [1], role="inout"), 1.0)
    with tempfile.TemporaryDirectory() as folder:
        plan = prepare_kernel(b.write(ArtifactCache(Path(folder))))
        x = torch.zeros(1 << 20, device="spyre")
        with torch.spyre.record_timeline() as timeline:
            for _ in range(50):
                launch_jobplan(plan, [x])
            torch.spyre.synchronize()
    mine = [one for one in timeline.intervals if one.label.startswith("step")]
    total = max(one.end for one in mine) - min(one.start for one in mine)
    compute = sum(one.end - one.start for one in mine if one.pipeline == "compute")
    preparation = sum(one.end - one.start for one in mine if one.pipeline in ("host", "h2d"))
    print(json.dumps({"total": total, "compute": compute, "preparation": preparation}))


def hidden():
    """Simulated: the part of the preparation that runs beside computation, with streams split and not."""
    result = {}
    for setting in ("on", "off"):
        done = subprocess.run(
            [sys.executable, __file__, "--overlap"],
            env={**os.environ, "SPYRE_CLOCK": "virtual", "SPYRE_SPLIT_STREAMS": setting},
            capture_output=True,
            text=True,
            check=True,
        )
        times = json.loads(done.stdout)
        result[setting] = 1 - max(0, times["total"] - times["compute"]) / times["preparation"]
    return {
        "preparation hidden, split streams (simulated)": {"ratio": result["on"], "goal": ">= 0.95"},
        "preparation hidden, one stream (simulated)": {"ratio": result["off"]},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--overlap", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.overlap:
        overlap()
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        cache = ArtifactCache(Path(folder))
        launch_us, launch_ratios = launches(cache, arguments.rounds)
        preparation_us, preparation_ratios = preparation(cache, arguments.rounds)
    report = {
        "torch": torch.__version__,
        "ratios": {**launch_ratios, **preparation_ratios, **hidden()},
        "us": {**launch_us, **preparation_us},
    }
    for name, found in report["ratios"].items():
        print(f"{name:50} {found['ratio']:10.3f} {found.get('goal', '')}", file=sys.stderr)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
