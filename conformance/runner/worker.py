"""A worker process: imports the backend, then runs pytest on one unit. Started by ``runner.process``, or a copy of
``runner.preload``, which has imported everything."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import signal
import sys
from pathlib import Path

from conformance.runner.journal import JournalWriter
from conformance.runner.spec import WorkerSpec

NAME = b"test-worker"
"""What process lists show (``ps -o comm``, ``top``); a copy has the command line of the process it was copied from."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with(parent: int) -> None:
    """Asks the kernel to end this process when its parent is gone, however it went.

    Args:
        parent: process id.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # It was gone before the kernel was asked.


def _prctl(option: int, value: int | bytes) -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux has it.
        ctypes.CDLL(None, use_errno=True).prctl(option, value)


def main(spec_path: str) -> int:
    """Runs the unit of a spec file in a process that was started for it."""
    spec = WorkerSpec.read(Path(spec_path))
    die_with(spec.supervisor)
    return run(spec)


def run(spec: WorkerSpec) -> int:
    """Runs a unit.

    Returns:
        0 at the end of the session; the journal, not the status, says what happened.
    """
    _prctl(_PR_SET_NAME, NAME)
    faulthandler.enable(all_threads=True)
    stacks = spec.stacks.open("w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    journal = JournalWriter(spec.journal)
    if spec.setup.module:
        importlib.import_module(spec.setup.module)

    if spec.setup.unlock:
        _unlock()

    import pytest

    from conformance.runner.plugin import WorkerPlugin

    root = spec.unit.root
    folders = dict.fromkeys([root.folder, *((root.folder / _inner(spec, t.path)).parent for t in spec.unit.targets)])
    sys.path[:0] = [str(folder) for folder in folders]
    os.chdir(root.cwd)
    journal.write("ready", pid=os.getpid())
    arguments = [
        "-c", str(spec.journal.parent / "pytest.ini"), "--rootdir", str(root.folder), "--noconftest",
        "--assert=plain", "--capture=no", "--continue-on-collection-errors",
        "-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:warnings", "-p", "no:faulthandler",
        *(["-k", spec.setup.keyword] if spec.setup.keyword else []),
        *(str(root.folder / _inner(spec, target.path)) for target in spec.unit.targets),
    ]  # fmt: skip
    status = int(pytest.main(arguments, plugins=[WorkerPlugin(spec, journal)]))
    journal.write("finished", status=status)
    return 0


def _unlock() -> None:
    """Lets upstream's decorators (``onlyOn`` and relatives) pass on the device, by the switch of its own test base."""
    base = importlib.import_module("torch.testing._internal.common_device_type").PrivateUse1TestBase
    if not hasattr(base, "bypass_device_restrictions"):
        raise ImportError("--unlock: the test base of this torch has no bypass_device_restrictions")
    base.bypass_device_restrictions = True


def _inner(spec: WorkerSpec, path: str) -> str:
    return path.removeprefix(spec.unit.root.prefix)
