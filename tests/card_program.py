"""Builds the test program of the card without torch, in variants: ``plain``, ``mutants``, ``thread``, ``address``.

Object files stay in ``build/spyre_backend``, so that only what changed is compiled again.
"""

import re
import subprocess
from pathlib import Path

from filelock import FileLock

from spyre_backend import build

HERE = Path(__file__).resolve().parent / "spyre_backend" / "card"
VARIANTS = {
    "plain": "-O0",
    "mutants": "-O0 -DSPYRE_MUTANTS",
    "thread": "-O1 -g -fsanitize=thread",
    "address": "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all",
}
NAMES = [
    name for path in sorted(HERE.glob("*_test.cpp")) for name in re.findall(r"^TEST\((\w+)\)", path.read_text(), re.M)
]


def compile_card_program(variant):
    """The program's path. Compiling it proves that the card needs nothing but the standard library."""
    folder = build.PACKAGE.parent / "build" / "spyre_backend" / f"card-{variant}"
    folder.mkdir(parents=True, exist_ok=True)
    flags = f"-std=c++20 -pthread -Wall -Wextra -Werror {VARIANTS[variant]}"
    lines = [
        "ninja_required_version = 1.5",
        f"cxx = {' '.join(build.find_compiler())} {flags}",
        "rule compile",
        f"  command = $cxx -I{build.escape(str(build.SOURCES))} -I{build.escape(str(HERE))} "
        "-MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        "  command = $cxx $in -o $out",
    ]
    objects = []
    for source in [*sorted((build.SOURCES / "card").glob("*.cpp")), *sorted(HERE.glob("*.cpp"))]:
        objects.append(f"{source.stem}.o")
        lines.append(f"build {objects[-1]}: compile {build.escape(str(source))}")
    lines.append(f"build card_test: link {' '.join(objects)}")
    (folder / "build.ninja").write_text("\n".join(lines) + "\n")
    command = [build.find_ninja(), "-C", folder, "-j", str(build.JOBS)]
    with FileLock(folder / "lock"):  # another worker of the tests may want it too
        process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout
    return folder / "card_test"
