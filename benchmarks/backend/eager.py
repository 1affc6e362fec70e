"""Eager operators on the simulated device against the CPU: median ratios, both sides measured in turns in one run.

Usage: python benchmarks/backend/eager.py [--json FILE] [--rounds N]. One thread, so that the host side is compared.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from machine import machine

SMALL, MILLION, MATRIX = (8, 8), (1_000_000,), (1024, 1024)


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
    """Mean time of one call, over one sample."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    torch.accelerator.synchronize()
    return (time.perf_counter() - start) / calls


def copies(rounds):
    """Bandwidth of H2D and D2H of 64 MB from pinned memory against one memcpy of the same size."""
    size = 16 << 20
    host, target = torch.ones(size).pin_memory(), torch.ones(size).pin_memory()
    device = host.to("spyre")
    samples = {"memcpy": [], "H2D 64 MB": [], "D2H 64 MB": []}
    for _ in range(rounds):
        samples["memcpy"].append(seconds_per_call(lambda: target.copy_(host), 2))
        samples["H2D 64 MB"].append(seconds_per_call(lambda: device.copy_(host, non_blocking=True), 2))
        samples["D2H 64 MB"].append(seconds_per_call(lambda: target.copy_(device, non_blocking=True), 2))
    medians = {name: statistics.median(values) for name, values in samples.items()}
    return {name: {"bandwidth of memcpy": medians["memcpy"] / medians[name]} for name in ("H2D 64 MB", "D2H 64 MB")}


def allocations():
    """Microseconds to allocate and to free one of 10,000 live tensors."""
    torch.empty(SMALL, device="spyre")
    start = time.perf_counter()
    live = [torch.empty(SMALL, device="spyre") for _ in range(10_000)]
    middle = time.perf_counter()
    live.clear()
    end = time.perf_counter()
    return {"allocate us": (middle - start) / 10_000 * 1e6, "free us": (end - middle) / 10_000 * 1e6}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cpu, spyre = cases("cpu"), cases("spyre")
    report = {"machine": machine(), "torch": torch.__version__, "operators": {}}
    for name in cpu:
        samples = {"cpu": [], "spyre": []}
        for _ in range(arguments.rounds):
            samples["cpu"].append(seconds_per_call(*cpu[name]))
            samples["spyre"].append(seconds_per_call(*spyre[name]))
        medians = {device: statistics.median(values) for device, values in samples.items()}
        ratio = statistics.median(b / a for a, b in zip(samples["cpu"], samples["spyre"], strict=True))
        report["operators"][name] = {
            "cpu us": medians["cpu"] * 1e6,
            "spyre us": medians["spyre"] * 1e6,
            "ratio": ratio,
        }
        print(
            f"{name:12} cpu {medians['cpu'] * 1e6:10.2f} us   spyre {medians['spyre'] * 1e6:10.2f} us   {ratio:5.2f}x"
        )
    report["copies"] = copies(arguments.rounds)
    report["memory"] = allocations()
    for name, value in {**report["copies"], "10,000 tensors": report["memory"]}.items():
        print(name, {key: round(number, 2) for key, number in value.items()})
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
