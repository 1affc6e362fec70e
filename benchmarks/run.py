"""Runs benchmarks and keeps what they found in ``benchmarks/results/<part>-<name>.json``, with a table in README.md.

Usage: python benchmarks/run.py ["FILE [OPTION...]"...]. A benchmark prints one JSON object; its ``ratios`` (name ->
``ratio``, and a ``goal`` such as ``<= 2`` where there is one) go into the table. Without files only the table is made
anew.
"""

import datetime
import json
import operator
import shlex
import subprocess
import sys
from pathlib import Path

from backend.machine import machine

RESULTS = Path(__file__).resolve().parent / "results"
COMPARE = {"<=": operator.le, ">=": operator.ge}


def measure(file, *options):
    """Runs one benchmark and writes its result.

    Args:
        file: its path.
        options: of its command line.

    Raises:
        SystemExit: it failed, or printed something else than a JSON object.
    """
    before = machine()
    process = subprocess.run([sys.executable, file, *options], stdout=subprocess.PIPE, text=True)
    try:
        found = json.loads(process.stdout)
    except ValueError:
        raise SystemExit(f"{file} exited with {process.returncode} and printed no JSON object") from None
    result = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), **found, "machine": before}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{file.parent.name}-{file.stem}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    if process.returncode != 0:
        raise SystemExit(f"{file} exited with {process.returncode}; what it found is in {path}")


def rows(path):
    """The table's rows of one result."""
    result = json.loads(path.read_text())
    where = "{processor}, {processors} processors, load {load}".format(**result["machine"])
    for name, found in result.get("ratios", {}).items() or [("see the file", {})]:
        ratio, goal = found.get("ratio"), found.get("goal", "")
        verdict = ""
        if goal:
            comparison, _, bound = goal.partition(" ")
            verdict = "yes" if COMPARE[comparison](ratio, float(bound)) else "no"
        value = "" if ratio is None else f"{ratio:.2f}"
        yield f"| [{path.stem}]({path.name}) | {name} | {value} | {goal} | {verdict} | {result['date']} | {where} |"


def main():
    for name in sys.argv[1:]:
        print(f"bench: {name}", file=sys.stderr, flush=True)
        file, *options = shlex.split(name)
        measure(Path(file), *options)
    lines = [
        "# Results of the benchmarks",
        "",
        "Made by `make bench`. Each figure is a ratio of two things measured in turns in one run, so that the speed",
        "of the machine matters little; its load does matter, and is the one before the run.",
        "",
        "| Benchmark | What | Ratio | Goal | Reached | Date | Machine |",
        "|---|---|---|---|---|---|---|",
        *(row for path in sorted(RESULTS.glob("*.json")) for row in rows(path)),
    ]
    (RESULTS / "README.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
