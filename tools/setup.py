#!/usr/bin/env python3
"""Make a checkout ready: virtual environment, torch, the project, its C++ extension, what the tests need besides.

Run by every ``make`` target that needs it, with the standard library alone; a step whose inputs have not changed since
it last succeeded is not run again.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# What the largest wheel set of a torch release unpacks to, and room for pip to unpack it (GB).
DISK_GB = {"cpu": 3, "cuda": 9}
CPU_ONLY = ("2.13.0",)


class SetupError(Exception):
    """Something that the person has to change; the text is one sentence that says what."""


def check_machine(venv: Path, torch: str) -> None:
    """Refuse early what would otherwise fail late and obscurely."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise SetupError(
            f"No C++ compiler `{compiler}`: install g++ 11 or newer (Debian: apt-get install g++) or set CXX."
        )
    if not (venv / "bin" / "python").exists():
        needed = DISK_GB["cpu" if torch in CPU_ONLY else "cuda"]
        free = shutil.disk_usage(str(ROOT)).free / 1e9
        if free < needed:
            raise SetupError(
                f"Not enough disk space for torch {torch}: {free:.1f} GB free in {ROOT.name}, {needed} GB needed."
            )


def digest(*parts: str | Path) -> str:
    """Hash of strings and of the files below paths, for 'has this step's input changed?'."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            for path in sorted(part.rglob("*")) if part.is_dir() else [part]:
                if path.is_file():
                    total.update(str(path.relative_to(ROOT)).encode())
                    total.update(path.read_bytes())
        else:
            total.update(str(part).encode())
        total.update(b"\0")
    return total.hexdigest()


def run(command: Sequence[str], what: str, **kwargs: Any) -> None:
    """Run one command of a step; its output is shown only when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kwargs)
    if done.returncode != 0:
        sys.stderr.write(done.stdout.decode(errors="replace")[-8000:])
        raise SetupError(f"{what} failed (exit {done.returncode}); the reason stands above.")


class Setup:
    """The steps, in the order in which they depend on each other."""

    def __init__(self, venv: Path, torch: str, python: str) -> None:
        self.venv = venv
        self.torch = torch
        self.python = python
        self.bin = venv / "bin"

    def step(self, name: str, key: str, action: Callable[[], None], where: Path | None = None) -> None:
        """Run ``action`` unless it already succeeded with the same key."""
        stamp = (where or self.venv) / f".setup-{name}"
        if stamp.exists() and stamp.read_text() == key:
            return
        print(f"setup: {name} …", flush=True)
        started = time.monotonic()
        action()
        stamp.write_text(key)
        print(f"setup: {name} done in {time.monotonic() - started:.0f} s", flush=True)

    def pip(self, *arguments: str) -> None:
        """Install into the virtual environment."""
        run([str(self.bin / "python"), "-m", "pip", "install", "--quiet", *arguments], "pip install")

    def environment(self) -> None:
        """The interpreter, torch and everything from the package index."""
        self.step("python", digest(sys.version), lambda: run([self.python, "-m", "venv", str(self.venv)], "venv"))
        constraints = ROOT / "constraints.txt"
        self.step(
            "torch",
            digest(self.torch),
            lambda: self.pip("setuptools>=77", "ninja>=1.11", f"torch=={self.torch}", "numpy>=1.26"),
        )
        self.step(
            "project",
            digest(ROOT / "pyproject.toml", constraints, ROOT / "setup.py", self.torch),
            lambda: self.pip("-c", str(constraints), "--no-build-isolation", "-e", f"{ROOT}[dev]"),
        )

    def extension(self) -> None:
        """The C++ extension, with ninja: only what changed is compiled again."""
        self.step(
            "extension",
            digest(ROOT / "spyre_backend" / "csrc", ROOT / "spyre_backend" / "build.py", self.torch),
            lambda: run(
                [str(self.bin / "python"), "-m", "spyre_backend.build"], "Compiling the extension", cwd=str(ROOT)
            ),
        )

    def node(self) -> None:
        """Recorded webhooks, their schemas and axe-core for the tests."""
        folder = ROOT / "tests" / "node"
        if shutil.which("npm") is None:
            raise SetupError("No npm: the tests need Node.js 20 or newer (Debian: apt-get install nodejs npm).")
        self.step(
            "node",
            digest(folder / "package-lock.json"),
            lambda: run(["npm", "ci", "--silent"], "npm ci", cwd=str(folder)),
            # npm ci empties the folder first, so the stamp lives and dies with what it speaks of.
            where=folder / "node_modules",
        )


def postgres_installed() -> bool:
    """Whether a PostgreSQL server can be started, wherever the distribution put it."""
    return shutil.which("initdb") is not None or any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


def system() -> None:
    """PostgreSQL and Chromium, from the distribution: servers and browsers are not on the package index."""
    missing = []
    if not postgres_installed():
        missing.append("postgresql")
    if shutil.which("chromium") is None and shutil.which("google-chrome") is None:
        missing.append("chromium")
    if shutil.which("git") is None:
        missing.append("git")
    if not missing:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise SetupError("The tests need {}: install them with your system's packages.".format(" and ".join(missing)))
    print("setup: installing {} …".format(", ".join(missing)), flush=True)
    quiet = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    run(["apt-get", "update", "-q"], "apt-get update", env=quiet)
    run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing], "apt-get install", env=quiet)


def main() -> int:
    """Command line of ``make setup`` and its relatives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="virtual environment to make and use")
    parser.add_argument("--torch", default="2.14.1", help="torch release to install (default: %(default)s)")
    parser.add_argument("--tests", action="store_true", help="also npm packages, PostgreSQL, Chromium")
    parser.add_argument("--system-only", action="store_true", help="only PostgreSQL and Chromium")
    options = parser.parse_args()
    try:
        if options.system_only:
            system()
            return 0
        venv = options.venv if options.venv.is_absolute() else ROOT / options.venv
        check_machine(venv, options.torch)
        venv.mkdir(parents=True, exist_ok=True)
        with (venv / ".setup-lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                print("setup: another set-up of this environment is running, waiting for it …", flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            setup = Setup(venv, options.torch, sys.executable)
            setup.environment()
            setup.extension()
            if options.tests:
                setup.node()
                system()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print("setup: {}: {}".format(error.filename or "cannot go on", error.strerror or error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("setup: interrupted; the next call goes on where this one stopped.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
