"""The per-user cache of trees: a tree is there whole or not at all, and one process at a time brings it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.inventory.tree import cache_root

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
    return cache_root() / "upstream" / re.sub(r"[^A-Za-z0-9._+-]", "_", key)


def stored(folder: Path) -> Tree | None:
    """A tree that an earlier fetch completed; the mark is written last, inside the folder, before it gets its name."""
    try:
        tree = Tree(**json.loads((folder / MARK).read_text()))
    except (OSError, TypeError, json.JSONDecodeError):
        return None
    return tree if (folder / "tree" / "test").is_dir() else None


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
                tree = Tree(str(folder / "tree"), version, source)
                (part / MARK).write_text(json.dumps(asdict(tree)))
                part.chmod(0o755)
                part.replace(folder)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
            return tree
    except OSError as error:
        raise ConformanceError(
            f"{folder.parent}: {error.strerror or error}; a tree needs about 400 MB there "
            "(CONFORMANCE_CACHE_DIR moves the cache)"
        ) from error
