"""A private copy of a checkout's ``test/``, so that nothing is ever written into the checkout (spec §0)."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


def mirror(checkout: Path, target: Path) -> Path:
    """Copies ``test/`` and links everything beside it.

    Tests write beside themselves and into their working directory; in a copy that hurts nobody, also where the
    checkout is read-only or shared. File modes are not copied except the right to execute.

    Args:
        checkout: source tree.
        target: an empty folder that becomes the root of the copy; where it lies below ``test/``, it is not copied.

    Returns:
        The copied ``test`` folder.
    """
    for entry in os.scandir(checkout):
        if entry.name not in ("test", ".git"):
            (target / entry.name).symlink_to(Path(entry.path).resolve())
    source, target = checkout.resolve() / "test", target.resolve()
    for folder, folders, files in os.walk(source):
        folders[:] = [name for name in folders if name != "__pycache__" and Path(folder, name) != target]
        copied = target / "test" / os.path.relpath(folder, source)
        copied.mkdir(parents=True, exist_ok=True)
        for name in folders:
            if (link := Path(folder, name)).is_symlink():
                (copied / name).symlink_to(link.resolve())
        for name in files:
            path = Path(folder, name)
            if not path.exists():
                continue
            shutil.copyfile(path, copied / name)
            if os.access(path, os.X_OK):
                (copied / name).chmod(0o755)
    return target / "test"


def remove(folder: Path) -> None:
    """Removes a folder that tests have written into, also where they took the right to do so away.

    What another user owns is left.
    """
    for inner, folders, _ in os.walk(folder):
        for name in folders:
            if not (path := Path(inner, name)).is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
