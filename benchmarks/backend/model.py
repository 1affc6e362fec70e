"""Prefill and decode of a Granite-3.3-8B-shaped decoder on the virtual clock: patched launches against graph launches.

Usage: python benchmarks/backend/model.py; prints JSON. All figures are the simulator's: a prompt of 1024 tokens, then
one token, one sequence, bfloat16, compiled. Layers have the model's shapes, weights are random. The arithmetic is
really done, so there are 2 of the model's 40 layers and 1024 of its 49159 words; time grows with the layers, and
embedding and head are 5 % of the model's bytes.

What the graph scheme costs more is copies of the arguments into the job's buffers, weights included. What the host does
to rebuild the graph is not on the virtual clock; programs.py measures it.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

SCHEMES = ("patch", "graph")
GOALS = {"prefill": ">= 1.7", "decode": ">= 2.4"}
TOKENS = 1024


def simulate():
    """In a process with the virtual clock: prints the nanoseconds of each step, in all and by what took them."""
    import decoder
    import torch

    config = dataclasses.replace(decoder.GRANITE, layers=2, vocabulary=1024)
    model = decoder.random_decoder(config, "cpu").bfloat16().to("spyre")
    step = torch.compile(model, dynamic=True)
    cache = model.empty_cache(1, TOKENS + 64)

    def arguments(first, count):
        positions = torch.arange(first, first + count, device="spyre")
        return torch.zeros(1, count, dtype=torch.int64, device="spyre"), positions, cache

    prompt, token, short = arguments(0, TOKENS), arguments(TOKENS, 1), arguments(0, 64)
    found = {}
    with torch.inference_mode():
        for name, first, given in (("prefill", short, prompt), ("decode", token, token)):
            step(*first)  # compiles for any number of tokens, or for one
            torch.spyre.synchronize()
            with torch.spyre.record_timeline() as timeline:
                step(*given)
                torch.spyre.synchronize()
            parts = Counter()
            for one in timeline.intervals:
                parts[f"{one.pipeline}: {one.label}"] += one.end - one.start
            start = min(one.start for one in timeline.intervals)
            found[name] = {"total": max(one.end for one in timeline.intervals) - start, "parts": parts}
    print(json.dumps(found))


def main():
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for scheme in SCHEMES:
            done = subprocess.run(
                [sys.executable, __file__, "--simulate"],
                env={
                    **os.environ,
                    "SPYRE_CLOCK": "virtual",
                    "SPYRE_LAUNCH": scheme,
                    "SPYRE_CACHE_DIR": f"{folder}/artifacts",
                    "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
                },
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            found[scheme] = json.loads(done.stdout)
    ratios = {}
    for name, goal in GOALS.items():
        graph, patch = found["graph"][name], found["patch"][name]
        ratios[f"{name}: graph / patch (simulated)"] = {"ratio": graph["total"] / patch["total"], "goal": goal}
        for what, belongs in (("copies", "compute: copy"), ("transfers", "h2d")):
            spent = sum(value for key, value in graph["parts"].items() if key.startswith(belongs))
            ratios[f"{name}: {what}, of the graph scheme's time (simulated)"] = {"ratio": spent / graph["total"]}
    for name, one in ratios.items():
        print(f"{name:60} {one['ratio']:6.3f} {one.get('goal', '')}", file=sys.stderr)
    print(json.dumps({"ratios": ratios, "simulated ns": found}, indent=2))


if __name__ == "__main__":
    simulate() if sys.argv[1:] == ["--simulate"] else main()
