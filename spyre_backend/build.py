"""Compile the C++ extension: ``python -m spyre_backend.build``.

Ninja compiles what changed, at most two files at a time, and the result replaces the old binary in one step, so that a
process that has it loaded is not disturbed. The binary carries the torch minor version and the Python version in its
name: several environments share one checkout. What it needs: a C++20 compiler, ninja, torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE / "csrc"
LAYERS = ("card", "bridge", "programs", "eager")
JOBS = 2


class BuildError(RuntimeError):
    """The extension can't be compiled; the message says what is missing."""


def python_tag() -> str:
    """The running interpreter as in wheel names, for instance ``cp311``."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


def torch_minor(version: str) -> str:
    """``2.14`` for ``2.14.1+cpu``."""
    return ".".join(version.split("+")[0].split(".")[:2])


def binary_for(torch_version: str) -> Path:
    """Where the binary for a torch version and the running interpreter belongs."""
    return PACKAGE / f"_C.torch-{torch_minor(torch_version)}.{python_tag()}.so"


def objects_for(torch_version: str) -> Path:
    """The folder with the object files and the build file for a torch version and the running interpreter."""
    return PACKAGE.parent / "build" / "spyre_backend" / f"torch-{torch_minor(torch_version)}-{python_tag()}"


def in_checkout() -> bool:
    """Whether this package lies in the project's source tree, as an editable install does."""
    return (PACKAGE.parent / "pyproject.toml").is_file()


def find_compiler() -> list[str]:
    """The C++ compiler command: ``CXX`` if set, else c++, g++ or clang++.

    Raises:
        BuildError: there is none.
    """
    if command := os.environ.get("CXX", "").split():
        if shutil.which(command[0]) is None:
            raise BuildError(f"CXX={' '.join(command)}: there is no such program; unset CXX or install that compiler")
        return command
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError("no C++ compiler found: install g++ 11 or newer (Debian: apt-get install g++) or set CXX")


def find_ninja() -> str:
    """The ninja program: on PATH, else next to the interpreter.

    Raises:
        BuildError: there is none.
    """
    beside = Path(sys.executable).with_name("ninja")
    found = shutil.which("ninja") or (str(beside) if beside.exists() else None)
    if found is None:
        raise BuildError(f"ninja not found: run `{sys.executable} -m pip install ninja`")
    return found


def escape(value: str) -> str:
    """A value for a ninja file."""
    return value.replace("$", "$$").replace(":", "$:").replace(" ", "$ ")


def ninja_file(compiler: list[str], target: Path, objects: Path) -> str:
    """The text of the build file.

    Args:
        compiler: command of the C++ compiler.
        target: the shared library to make.
        objects: folder for object files.
    """
    import torch

    root = Path(torch.__file__).parent
    headers = root / "include"
    system = [str(headers), str(headers / "torch" / "csrc" / "api" / "include"), sysconfig.get_paths()["include"]]
    libraries = root / "lib"
    abi = int(torch.compiled_with_cxx11_abi())
    flags = [
        "-std=c++20 -O2 -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Werror",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi} -I{escape(str(SOURCES))}",
    ]
    bridge = " ".join(f"-isystem {escape(path)}" for path in system)
    lines = [
        "ninja_required_version = 1.5",
        f"cxx = {' '.join(compiler)}",
        f"flags = {' '.join(flags)}",
        "rule card",
        "  command = $cxx -MMD -MF $out.d $flags -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = compiling $in",
        "rule bridge",
        f"  command = $cxx -MMD -MF $out.d $flags {bridge} -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = compiling $in",
        "rule link",
        f"  command = $cxx -shared -pthread $in -o $out.new -L{escape(str(libraries))} "
        f"-Wl,-rpath,{escape(str(libraries))} -lc10 -ltorch_cpu -ltorch -ltorch_python && mv -f $out.new $out",
        "  description = linking $out",
    ]
    outputs = []
    for layer in LAYERS:
        for source in sorted((SOURCES / layer).glob("*.cpp")):
            output = escape(str(objects / layer / f"{source.stem}.o"))
            outputs.append(output)
            rule = "card" if layer == "card" else "bridge"
            lines.append(f"build {output}: {rule} {escape(str(source))}")
    lines.append(f"build {escape(str(target))}: link {' '.join(outputs)}")
    return "\n".join(lines) + "\n"


def build(verbose: bool = False) -> Path:
    """Compile for the torch and the interpreter that are running.

    Args:
        verbose: show every compiler command.

    Returns:
        The binary.

    Raises:
        BuildError: torch, a compiler or ninja is missing, or the compiler failed.
    """
    if importlib.util.find_spec("torch") is None:
        raise BuildError(f"torch is not installed for {sys.executable}: install torch 2.13 or newer first")
    # The backend must not load itself while it is being compiled.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch

    compiler, ninja = find_compiler(), find_ninja()
    target = binary_for(torch.__version__)
    folder = objects_for(torch.__version__)
    try:
        for layer in LAYERS:
            (folder / layer).mkdir(parents=True, exist_ok=True)
        file = folder / "build.ninja"
        text = ninja_file(compiler, target, folder)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    except OSError as error:
        raise BuildError(f"can't write the build folder {folder}: {error.strerror}") from error
    command = [ninja, "-C", str(folder), "-f", str(file), "-j", str(JOBS), "-k", "0", *(["-v"] if verbose else [])]
    if subprocess.run(command).returncode != 0:
        raise BuildError("compiling the spyre backend failed: the compiler's message is above")
    return target


def main() -> int:
    """Command line: exit code 0 when the binary is up to date, 1 with one sentence otherwise."""
    parser = argparse.ArgumentParser(prog="python -m spyre_backend.build", description=__doc__)
    parser.add_argument("-v", "--verbose", action="store_true", help="show every compiler command")
    arguments = parser.parse_args()
    try:
        print(f"spyre backend: {build(arguments.verbose)}")
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
