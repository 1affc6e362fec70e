"""torch.compile of a 4-layer decoder: the simulated device against Inductor on the CPU, and against its own eager.

Usage: python benchmarks/backend/compiled.py [--rounds N]. All sides in turns in one run, ratios are medians; one thread
per operator. Prints one JSON object. All is measured in processor time of the process and of its compilers: other work
of the machine does not lengthen it. Compiling is measured once, with empty caches, headers apart.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path

# Programs compute on threads of the device and compilers run beside, so this is set before anything starts.
# With one compile thread PyTorch 2.14 waits ten minutes for a lock that it holds itself (CppCodeCache.load_async).
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="2")

import torch
from torch._inductor.utils import fresh_cache

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import decoder

CONFIG = decoder.Config(hidden=512, layers=4, heads=8, kv_heads=2, head_dim=64, mlp=1600, attention_multiplier=1 / 64)
PROMPT, LENGTH = 64, 128


def calls(model, step):
    """What is measured: name -> call."""
    device = model.head.weight.device
    cache = model.empty_cache(1, LENGTH)
    prompt = torch.zeros(1, PROMPT, dtype=torch.int64, device=device)
    positions, last = torch.arange(PROMPT, device=device), torch.tensor([PROMPT], device=device)
    token = prompt[:, :1].clone()
    return {"prefill": lambda: step(prompt, positions, cache), "decode": lambda: step(token, last, cache)}


def seconds(call, times=1):
    """Mean time of one call, until its result is there."""
    start = time.process_time()
    for _ in range(times):
        call()
    torch.accelerator.synchronize()
    return (time.process_time() - start) / times


def seconds_to_compile(first_calls):
    """Time of the first calls, compilers included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    before = used.ru_utime + used.ru_stime
    own = sum(seconds(call) for call in first_calls)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own + used.ru_utime + used.ru_stime - before


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    models = {device: decoder.random_decoder(CONFIG, device) for device in ("cpu", "spyre")}
    sides = {device: calls(model, torch.compile(model)) for device, model in models.items()}
    sides["spyre, eager"] = calls(models["spyre"], models["spyre"])
    report = {"torch": torch.__version__, "ratios": {}, "ms": {}}
    with torch.inference_mode(), fresh_cache():
        for device in models:
            torch.compile(lambda x: x + 1)(torch.ones(2, device=device))
        compiling = {device: seconds_to_compile(sides[device].values()) for device in models}
        report["ms"]["compile"] = {device: value * 1e3 for device, value in compiling.items()}
        report["ratios"]["compile, Inductor on the CPU"] = {
            "ratio": compiling["spyre"] / compiling["cpu"],
            "goal": "<= 1.1",
        }
        for name in ("prefill", "decode"):
            samples = {side: [] for side in sides}
            for _ in range(arguments.rounds):
                for side, measured in sides.items():
                    samples[side].append(seconds(measured[name], times=5))
            report["ms"][name] = {side: statistics.median(values) * 1e3 for side, values in samples.items()}
            for against, goal in (("cpu", {"goal": "<= 1.1"}), ("spyre, eager", {})):
                ratio = statistics.median(b / a for a, b in zip(samples[against], samples["spyre"], strict=True))
                label = "Inductor on the CPU" if against == "cpu" else "eager"
                report["ratios"][f"{name}, {label}"] = {"ratio": ratio, **goal}
    for name, found in report["ratios"].items():
        print(f"{name:40} {found['ratio']:6.2f} {found.get('goal', '')}", file=sys.stderr)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
