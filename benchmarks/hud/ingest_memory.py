"""How much memory ``hud serve`` takes while a million results come in, and whether it comes to rest.

An upload is collected in memory before it is stored (hud.store.results), so the peak grows with its size; it must not
grow with the number of uploads. Prints one JSON object.

    python benchmarks/hud/ingest_memory.py [--tests 1000000]
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import tempfile
import time
from pathlib import Path

import httpx
from store_at_scale import cpu_seconds, line, serving, upload


def peak(pid: int) -> int:
    """The largest resident size so far, in bytes (``VmHWM`` of proc(5))."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=1_000_000)
    count = parser.parse_args().tests
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder) / "results.jsonl.gz"
        with gzip.open(body, "wt", compresslevel=1) as out:
            out.writelines(f"{json.dumps(line(number, 'dev0'))}\n" for number in range(count))
        peaks, seconds, cost = [], [], []
        with serving(Path(folder, "hud.db")) as (address, process), httpx.Client(base_url=address, timeout=900) as http:
            bare = peak(process.pid)
            for number in range(4):
                start, before = time.perf_counter(), cpu_seconds(process)
                answer = upload(http, "example/backend", f"run-{number}", body.read_bytes())
                assert answer.json()["tests"] == count, answer.text
                seconds.append(round(time.perf_counter() - start, 1))
                cost.append(round(cpu_seconds(process) - before, 1))
                peaks.append(peak(process.pid))
    print(
        json.dumps(
            {
                "ratios": {
                    "peak after four uploads to the peak after two": {
                        "ratio": round(peaks[3] / peaks[1], 3),
                        "goal": "<= 1.1",
                    },
                    "peak above the idle server, of 2 KB for each result": {
                        "ratio": round((peaks[3] - bare) / count / 2048, 3),
                        "goal": "<= 1",
                    },
                },
                "tests": count,
                "idle_bytes": bare,
                "peak_bytes": peaks,
                "seconds": seconds,
                "cpu_seconds": cost,
            }
        )
    )


if __name__ == "__main__":
    main()
