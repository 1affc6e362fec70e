"""Folders of commands that leave nothing behind: what a killed one could not remove, the next one does."""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

from conformance.runner.mirror import remove

_LOCK = ".lock"


def _take(parent: Path, stack: contextlib.ExitStack) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / _LOCK).open("a") as gate:
        # A folder is never seen between its making and its locking.
        fcntl.flock(gate, fcntl.LOCK_EX)
        for old in parent.iterdir():
            if old.is_dir():
                with (old / _LOCK).open("a") as lock, contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(old)
        folder = Path(tempfile.mkdtemp(dir=parent))
        stack.callback(remove, folder)
        fcntl.flock(stack.enter_context((folder / _LOCK).open("a")), fcntl.LOCK_EX)
    return folder


@contextlib.contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A new folder below ``parent`` that is removed at the end.

    Folders there whose process has ended are removed first; a process holds a lock on its own, which ends with it.
    Where nothing can be written below ``parent``, the system's folder for temporary files has to do.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = _take(parent, stack)
        except OSError:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-")))
        yield folder
