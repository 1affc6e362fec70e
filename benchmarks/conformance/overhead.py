"""What supervision costs: the same tests under ``conformance run`` and under bare ``pytest -n``, and with some that
crash and hang.

- overhead: ``--tests`` tests, in turns; processor time of all processes, and seconds;
- hostile: ``--crashing`` and ``--hanging`` of ``--hostile-tests`` tests against a run in which none does. Each of them
  is repeated alone, so a hanging one takes its deadline twice.

A test computes for about as long as one of upstream's does in the middle (``--milliseconds``); every process imports
torch and its test library.

    python benchmarks/conformance/overhead.py
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

JOBS = 2
DEADLINE = 20.0

TREE = """
import os, time
from torch.testing._internal.common_utils import TestCase

class Test{name}(TestCase):
    pass

def add(number):
    def test(self):
        if "HOSTILE" in os.environ and number in {crashing}:
            os.abort()
        if "HOSTILE" in os.environ and number in {hanging}:
            time.sleep(1e6)
        end = time.thread_time() + {seconds}
        while time.thread_time() < end:
            sum(range(1000))
    setattr(Test{name}, f"test_{{number:05}}", test)

for number in range({count}):
    add(number)
"""
PROFILE = """
name: cpu
device: cpu
environment: {TORCH_DEVICE_BACKEND_AUTOLOAD: "0"}
policy: {labels: [GENERIC], import_timeout: 600}
"""


def write_tree(root: Path, tests: int, seconds: float, crashing: int = 0, hanging: int = 0) -> list[str]:
    """A checkout of one file per worker.

    Returns:
        Names of the files.
    """
    (root / "test").mkdir(parents=True)
    (root / "version.txt").write_text("2.14.0\n")
    names = []
    for place in range(JOBS):
        count = tests // JOBS
        hurt = [count * step // (crashing + hanging + 1) for step in range(1, crashing + hanging + 1)][place::JOBS]
        dying = hurt[: crashing // JOBS + (place < crashing % JOBS)]
        names.append(f"test_part{place}.py")
        (root / "test" / names[-1]).write_text(
            TREE.format(
                name=f"Part{place}", count=count, seconds=seconds, crashing=set(dying) or (),
                hanging=set(hurt[len(dying) :]) or (),
            )
        )  # fmt: skip
    return names


def measured(command: list[str], cwd: Path, **environment: str) -> tuple[float, float]:
    """Seconds and processor seconds of a command and its children.

    Raises:
        SystemExit: it ended as it should not.
    """
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != (1 if "HOSTILE" in environment else 0):
        raise SystemExit(
            f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(work: Path, tree: Path, output: str, **environment: str) -> tuple[float, float]:
    """``conformance run``; its accounts must balance."""
    command = [sys.executable, "-m", "conformance", "run", "--profile", str(work), "--upstream", str(tree), "--jobs",
               str(JOBS), "--timeout", str(DEADLINE), "--output", str(work / output)]  # fmt: skip
    found = measured(command, work, **environment)
    if not json.loads((work / output / "summary.json").read_text())["balanced"]:
        raise SystemExit(f"the accounts of {output} do not balance")
    return found


def bare(tree: Path, files: list[str]) -> tuple[float, float]:
    """``pytest -n``."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(JOBS), "-p", "no:cacheprovider", "--noconftest", "-c",
               os.devnull, *files]  # fmt: skip
    return measured(command, tree / "test", TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONDONTWRITEBYTECODE="1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hostile-tests", type=int, default=20_000)
    parser.add_argument("--crashing", type=int, default=20)
    parser.add_argument("--hanging", type=int, default=5)
    parser.add_argument("--milliseconds", type=float, default=10.0)
    arguments = parser.parse_args()
    answer: dict[str, Any] = {"arguments": vars(arguments)}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "profile.yaml").write_text(PROFILE)
        seconds = arguments.milliseconds / 1000
        files = write_tree(work / "calm", arguments.tests, seconds)
        rounds: dict[str, list[tuple[float, float]]] = {"pytest": [], "conformance": []}
        for number in range(arguments.rounds):
            rounds["pytest"].append(bare(work / "calm", files))
            rounds["conformance"].append(ours(work, work / "calm", f"calm-{number}"))
        write_tree(work / "hostile", arguments.hostile_tests, seconds, arguments.crashing, arguments.hanging)
        clean, hurt = ours(work, work / "hostile", "clean"), ours(work, work / "hostile", "hurt", HOSTILE="1")
        outcomes = json.loads((work / "hurt" / "summary.json").read_text())
        answer["named"] = {"crashed": len(outcomes["crashed"]), "timed_out": len(outcomes["timed_out"])}
    middle = {
        name: [statistics.median(row[place] for row in rows) for place in (0, 1)] for name, rows in rounds.items()
    }
    deadlines = 2 * arguments.hanging * DEADLINE / JOBS
    answer["seconds"] = {name: round(row[0], 1) for name, row in middle.items()} | {
        "clean": round(clean[0], 1), "hostile": round(hurt[0], 1), "deadlines": deadlines
    }  # fmt: skip
    answer["processor seconds"] = {name: round(row[1], 1) for name, row in middle.items()} | {
        "clean": round(clean[1], 1), "hostile": round(hurt[1], 1)
    }  # fmt: skip
    answer["ratios"] = {
        "conformance run against pytest -n 2, processor time": {
            "ratio": middle["conformance"][1] / middle["pytest"][1], "goal": "<= 1.05"
        },
        "conformance run against pytest -n 2, seconds": {"ratio": middle["conformance"][0] / middle["pytest"][0]},
        "with crashing and hanging tests against none, processor time": {"ratio": hurt[1] / clean[1], "goal": "<= 1.2"},
        "with crashing and hanging tests against none, seconds less the deadlines": {
            "ratio": (hurt[0] - deadlines) / clean[0], "goal": "<= 1.2"
        },
    }  # fmt: skip
    print(json.dumps(answer, indent=2))


if __name__ == "__main__":
    main()
