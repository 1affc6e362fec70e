"""Eager operators on the simulated device against the CPU: median ratios, both sides measured in turns in one run.

Usage: python benchmarks/backend/eager.py [--rounds N]. One thread, so that the host side is compared. Prints one JSON
object; its progress goes to stderr. All is measured in processor time of the process, its workers' included: other work
of the machine does not lengthen it.
"""

import argparse
import functools
import json
import statistics
import sys
import time

import torch

SMALL, MILLION, MATRIX = (8, 8), (1_000_000,), (1024, 1024)
GOALS = {
    "add 8x8": "<= 2",
    "add out 1M": "<= 1.05",
    "mm 1024": "<= 1.05",
    "H2D 64 MB, bandwidth of memcpy": ">= 0.8",
    "D2H 64 MB, bandwidth of memcpy": ">= 0.8",
}
LIVE = 10_000


def cases(device):
    """What is measured, on one device: name -> (call, calls per sample)."""
    small, other = torch.ones(SMALL, device=device), torch.ones(SMALL, device=device)
    million, out = torch.ones(MILLION, device=device), torch.empty(MILLION, device=device)
    matrix, product = torch.ones(MATRIX, device=device), torch.empty(MATRIX, device=device)
    return {
        "add 8x8": (lambda: torch.add(small, other), 2000),
        "add_ 8x8": (lambda: small.add_(0), 2000),
        "mm 8x8": (lambda: torch.mm(small, other), 2000),
        "view 8x8": (lambda: small.view(64), 2000),
        "empty 8x8": (lambda: torch.empty(SMALL, device=device), 2000),
        "add 1M": (lambda: torch.add(million, million), 20),
        "add out 1M": (lambda: torch.add(million, million, out=out), 20),
        "mm 1024": (lambda: torch.mm(matrix, matrix, out=product), 2),
    }


def seconds_per_call(call, calls):
    """Mean processor time of one call, over one sample."""
    start = time.process_time()
    for _ in range(calls):
        call()
    torch.accelerator.synchronize()
    return (time.process_time() - start) / calls


def copies(rounds):
    """Bandwidth of H2D and D2H of 64 MB from pinned memory against one memcpy of the same size."""
    size = 16 << 20
    host, target = torch.ones(size).pin_memory(), torch.ones(size).pin_memory()
    device = host.to("spyre")
    samples = {"memcpy": [], "H2D 64 MB": [], "D2H 64 MB": []}
    for _ in range(rounds):
        for name, copy in (
            ("memcpy", lambda: target.copy_(host)),
            ("H2D 64 MB", lambda: device.copy_(host, non_blocking=True)),
            ("D2H 64 MB", lambda: target.copy_(device, non_blocking=True)),
        ):
            samples[name].append(seconds_per_call(copy, 2))
    medians = {name: statistics.median(values) for name, values in samples.items()}
    return {f"{name}, bandwidth of memcpy": medians["memcpy"] / medians[name] for name in ("H2D 64 MB", "D2H 64 MB")}


def allocations(rounds):
    """Microseconds to allocate and to free one of 10,000 live tensors, by device.

    ``meta`` tensors have no memory: what they take is PyTorch's and Python's part.
    """
    samples = {device: ([], []) for device in ("cpu", "spyre", "meta")}
    for _ in range(rounds):
        for device, (allocating, freeing) in samples.items():
            where = torch.device(device)
            start = time.process_time()
            live = [torch.empty(SMALL, device=where) for _ in range(LIVE)]
            middle = time.process_time()
            live.clear()
            freeing.append((time.process_time() - middle) / LIVE * 1e6)
            allocating.append((middle - start) / LIVE * 1e6)
    return {
        device: {"allocate us": statistics.median(allocating), "free us": statistics.median(freeing)}
        for device, (allocating, freeing) in samples.items()
    }


def first_uses():
    """Milliseconds of the first use of a small operator, which compiles it, and of the second, by operator."""
    tensors = [torch.ones(size, 4, device="spyre") for size in range(1, 102)]
    found = {}
    for name, call in (("add", lambda x: x + x), ("mm", lambda x: x.t() @ x)):
        uses = [[seconds_per_call(functools.partial(call, x), 1) * 1e3 for _ in range(2)] for x in tensors]
        found[name] = {"first ms": statistics.median(use[0] for use in uses[1:])}
        found[name]["second ms"] = statistics.median(use[1] for use in uses[1:])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cpu, spyre = cases("cpu"), cases("spyre")
    report = {"torch": torch.__version__, "ratios": {}, "us": {}}
    for name in cpu:
        samples = {"cpu": [], "spyre": []}
        for _ in range(arguments.rounds):
            samples["cpu"].append(seconds_per_call(*cpu[name]))
            samples["spyre"].append(seconds_per_call(*spyre[name]))
        report["us"][name] = {device: statistics.median(values) * 1e6 for device, values in samples.items()}
        report["ratios"][name] = statistics.median(b / a for a, b in zip(samples["cpu"], samples["spyre"], strict=True))
    report["ratios"] |= copies(arguments.rounds)
    report["us"][f"{LIVE} live tensors"] = live = allocations(arguments.rounds)
    report["first use"] = first_uses()
    for what in ("allocate us", "free us"):
        report["ratios"][f"{LIVE} live tensors, {what[:-3]}"] = live["spyre"][what] / live["cpu"][what]
    report["ratios"] = {
        name: {"ratio": ratio} | ({"goal": GOALS[name]} if name in GOALS else {})
        for name, ratio in report["ratios"].items()
    }
    for name, found in report["ratios"].items():
        print(f"{name:40} {found['ratio']:6.2f} {found.get('goal', '')}", file=sys.stderr)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
