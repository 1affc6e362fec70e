"""The card without torch: queued operations and memory on the wall clock, one stream against two on the virtual one.

Usage: python benchmarks/backend/card.py [--picture FILE]. Compiles ``card_bench.cpp`` first. Prints one JSON object.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from spyre_backend import build

HERE = Path(__file__).resolve().parent
COLOURS = {"host": "#8c6d1f", "h2d": "#1f5f8c", "compute": "#2f7d4f"}
ROW, LEFT, SCALE = 26, 150, 0.0013


def compile_program():
    """The benchmark program, optimised."""
    target = build.PACKAGE.parent / "build" / "spyre_backend" / "card_bench"
    target.parent.mkdir(parents=True, exist_ok=True)
    sources = [str(path) for path in sorted((build.SOURCES / "card").glob("*.cpp"))]
    flags = ["-std=c++20", "-O2", "-pthread", f"-I{build.SOURCES}"]
    subprocess.run(
        [*build.find_compiler(), *flags, *sources, str(HERE / "card_bench.cpp"), "-o", str(target)], check=True
    )
    return target


def timeline(program, streams):
    """Intervals of four launches: (pipeline, stream, label, start ns, end ns)."""
    lines = subprocess.run([program, "streams", str(streams)], capture_output=True, text=True, check=True).stdout
    rows = [line.split("\t") for line in lines.splitlines()]
    return [(row[0], int(row[1]), row[3], int(row[4]), int(row[5])) for row in rows]


def hidden(intervals):
    """Share of the host's preparation, without the first, during which the card computes."""
    runs = [(start, end) for pipeline, _, _, start, end in intervals if pipeline == "compute"]
    preparations = [(start, end) for pipeline, _, _, start, end in intervals if pipeline == "host"][1:]
    covered = sum(
        max(0, min(end, run_end) - max(start, run_start)) for start, end in preparations for run_start, run_end in runs
    )
    return covered / sum(end - start for start, end in preparations)


def picture(timelines):
    """Both timelines as one SVG on one scale."""
    parts, top = [], 10
    width = LEFT + max(end for intervals in timelines.values() for *_, end in intervals) * SCALE + 20
    for title, intervals in timelines.items():
        parts.append(f'<text x="10" y="{top + 14}" font-weight="bold">{title}</text>')
        top += 24
        for pipeline, colour in COLOURS.items():
            parts.append(f'<text x="20" y="{top + 17}">{pipeline}</text>')
            for _, _, label, start, end in (row for row in intervals if row[0] == pipeline):
                x, length = LEFT + start * SCALE, max(2, (end - start) * SCALE)
                parts.append(
                    f'<rect x="{x:.1f}" y="{top + 2}" width="{length:.1f}" height="{ROW - 6}" fill="{colour}">'
                    f"<title>{label}: {start / 1000:.1f} to {end / 1000:.1f} us</title></rect>"
                )
                if length > 40:
                    parts.append(f'<text x="{x + 4:.1f}" y="{top + 16}" fill="#fff">{label}</text>')
            top += ROW
        last = max(end for *_, end in intervals)
        parts.append(f'<text x="{LEFT}" y="{top + 14}">{last / 1000:.0f} us on the virtual clock</text>')
        top += 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{top}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="#fff"/>' + "\n".join(parts) + "</svg>\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, help="write both timelines as an SVG file")
    arguments = parser.parse_args()
    program = compile_program()
    output = subprocess.run([program, "queued"], capture_output=True, text=True, check=True).stdout
    report = {"figures": {}}
    for line in output.splitlines():
        name, value = line.rsplit(": ", 1)
        report["figures"][name] = float(value)
    timelines = {"one stream": timeline(program, 1), "preparation on a second stream": timeline(program, 2)}
    for name, intervals in timelines.items():
        report["figures"][f"{name}, us on the virtual clock"] = max(end for *_, end in intervals) / 1000
    one, two = timelines.values()
    report["ratios"] = {
        "four launches, two streams against one": {"ratio": max(row[-1] for row in two) / max(row[-1] for row in one)},
        "preparation hidden by a second stream": {"ratio": hidden(two), "goal": ">= 0.95"},
    }
    for name, value in report["figures"].items():
        print(f"{name:64} {value:12.2f}", file=sys.stderr)
    print(json.dumps(report, indent=2))
    if arguments.picture:
        arguments.picture.write_text(picture(timelines))


if __name__ == "__main__":
    main()
