"""The per-user cache of trees: a tree is there whole or not at all, and one process at a time brings it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.paths import cache_root

MARK = "fetched.json"


@dataclass(frozen=True, slots=True)
class Tree:
    """A fetched tree.

    Attributes:
        path: absolute.
        version: of ``version.txt``, or the commit.
        source: how it came (``git <repository> <commit>``, ``Debian source package pytorch <version>``).
    """

    path: str
    version: str
    source: str


def tree_folder(key: str) -> Path:
    """Folder of a tree in the cache."""
    return cache_root().absolute() / "upstream" / re.sub(r"[^A-Za-z0-9._+-]", "_", key)


def stored(folder: Path) -> Tree | None:
    """A tree that an earlier fetch completed; the mark is written last, inside the folder, before it gets its name.

    A mark that cannot be used counts as no tree. It says nothing about where the tree lies: a cache can be moved.
    """
    try:
        record = json.loads((folder / MARK).read_text(encoding="utf-8"))
        version, source = record["version"], record["source"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    tree = folder / "tree"
    if not isinstance(version, str) or not isinstance(source, str) or not (tree / "test").is_dir():
        return None
    return Tree(str(tree), version, source)


@contextlib.contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """A lock that dies with its process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another fetch is at work; waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def keep(key: str, bring: Callable[[Path], tuple[str, str]], say: Callable[[str], None]) -> Tree:
    """Returns the cached tree, or brings it.

    Args:
        key: names the tree in the cache.
        bring: fills the folder it is given with a tree and returns version and source.
        say: shows a line of progress.

    Raises:
        ConformanceError: the cache cannot be written, the disk is full, or what came is no PyTorch tree.
    """
    folder = tree_folder(key)
    try:
        with _locked(folder.parent / f".{folder.name}.lock", say):
            if found := stored(folder):
                return found
            for rest in folder.parent.glob(f".{folder.name}.part-*"):
                shutil.rmtree(rest, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.part-", dir=folder.parent))
            try:
                (part / "tree").mkdir()
                version, source = bring(part / "tree")
                if not (part / "tree" / "test").is_dir():
                    raise ConformanceError(f"{source}: this is no PyTorch tree, it has no folder 'test'")
                (part / MARK).write_text(json.dumps({"version": version, "source": source}), encoding="utf-8")
                part.chmod(0o755)
                part.replace(folder)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
            return Tree(str(folder / "tree"), version, source)
    except OSError as error:
        raise ConformanceError(
            f"{folder.parent}: {error.strerror or error}; a tree needs about 400 MB there "
            "(CONFORMANCE_CACHE_DIR moves the cache)"
        ) from error
