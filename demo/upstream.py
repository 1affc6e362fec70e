"""The two repositories of the demo: upstream from a real PyTorch tree, downstream from this checkout as it stands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demo.pulls import BUNDLED_TREE, Pull
from demo.services import DemoError, die_with_parent

_IDENTITY = {
    "GIT_AUTHOR_NAME": "demo",
    "GIT_AUTHOR_EMAIL": "demo@localhost",
    "GIT_COMMITTER_NAME": "demo",
    "GIT_COMMITTER_EMAIL": "demo@localhost",
    # Neither the person's configuration (hooks, signing, line endings) nor the clock changes what is made here.
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
_EPOCH = 1_700_000_000


@dataclass(frozen=True)
class Tree:
    """An upstream source tree on this machine.

    Attributes:
        path: its root.
        version: the release it is, as it says itself.
        source: where it came from, in words; ``bundled`` for a small tree of our own.
        note: why it is not a real one; empty if it is.
    """

    path: Path
    version: str
    source: str
    note: str = ""


def find_tree() -> Tree:
    """A real tree from ``conformance fetch``; the bundled one, with the reason, where none can be had."""
    command = [sys.executable, "-m", "conformance", "fetch", "--json"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        found = json.loads(done.stdout)
        return Tree(Path(found["path"]), found["version"], found["source"])
    reason = (done.stderr.strip().splitlines() or [f"conformance fetch ended with exit {done.returncode}"])[-1]
    return Tree(BUNDLED_TREE, "bundled", "bundled", note=reason)


class Repository:
    """A bare repository that is written from folders, without a checkout."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def git(self, *arguments: str, env: dict[str, str] | None = None, text: str | None = None) -> str:
        """Run one git command in the repository and give back what it printed, without white space around it."""
        return self.read(*arguments, env=env, text=text).strip()

    def read(self, *arguments: str, env: dict[str, str] | None = None, text: str | None = None) -> str:
        """As :meth:`git`, to the letter: for the content of files."""
        done = subprocess.run(
            ["git", *arguments],
            env={**os.environ, **_IDENTITY, "GIT_DIR": str(self.path), **(env or {})},
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            # Else a git that outlives a killed demo writes into what the next one makes.
            preexec_fn=die_with_parent,
        )
        if done.returncode != 0:
            raise DemoError(f"git {arguments[0]} failed in {self.path}: {done.stderr.strip()}")
        return done.stdout

    def complete(self) -> bool:
        """Whether ``main`` and all that it holds are here."""
        try:
            self.git("rev-list", "--objects", "--quiet", "refs/heads/main")
        except DemoError:
            return False
        return True

    def create(self) -> None:
        """Make it, empty, with branch ``main``."""
        self.git("init", "--quiet", "--bare", "--initial-branch=main", str(self.path))
        # What GitHub allows, and what fetching a pull request's exact commit needs.
        self.git("config", "uploadpack.allowAnySHA1InWant", "true")
        self.git("config", "uploadpack.allowFilter", "true")

    def commit_folder(self, folder: Path, message: str, branch: str, *, ignored: bool = False) -> str:
        """Commit a folder as it stands to a branch; gives the commit's SHA.

        Args:
            folder: what to commit.
            message: the commit message.
            branch: the branch that will point to it.
            ignored: also what the folder's ``.gitignore`` files leave out.
        """
        with self._index(folder) as env:
            self.git("add", "--all", *(["--force"] if ignored else []), ".", env=env)
            return self._commit(self.git("write-tree", env=env), message, branch, parent=None, when=_EPOCH)

    def commit_edit(self, base: str, pull: Pull, hours: int) -> str:
        """Commit a pull request's edits to its branch, ``hours`` after ``base``; gives the commit's SHA."""
        with tempfile.TemporaryDirectory() as scratch, self._index(Path(scratch)) as env:
            self.git("read-tree", base, env=env)
            for edit in pull.edits:
                before = self.read("cat-file", "blob", f":{edit.path}", env=env)
                blob = self.git("hash-object", "-w", "--stdin", text=edit.apply(before))
                self.git("update-index", "--cacheinfo", f"100644,{blob},{edit.path}", env=env)
            return self._commit(
                self.git("write-tree", env=env), pull.message, pull.branch, parent=base, when=_EPOCH + 3600 * hours
            )

    @contextmanager
    def _index(self, folder: Path) -> Iterator[dict[str, str]]:
        with tempfile.TemporaryDirectory() as scratch:
            yield {"GIT_INDEX_FILE": str(Path(scratch) / "index"), "GIT_WORK_TREE": str(folder)}

    def _commit(self, tree: str, message: str, branch: str, parent: str | None, when: int) -> str:
        date = {"GIT_AUTHOR_DATE": f"{when} +0000", "GIT_COMMITTER_DATE": f"{when} +0000"}
        parents = [] if parent is None else ["-p", parent]
        sha = self.git("commit-tree", tree, *parents, "-m", message, env=date)
        self.git("update-ref", f"refs/heads/{branch}", sha)
        return sha


def make_upstream(tree: Tree, cache: Path) -> tuple[Repository, str]:
    """The upstream repository with the tree as the one commit of ``main``.

    Committing a whole PyTorch takes a while, so the repository is kept in ``cache``. It appears there only when it is
    complete: a demo that was killed in the middle leaves a temporary name, which the next one removes. One that was
    damaged since is made again.

    Returns:
        The repository and the SHA of the base commit.
    """
    name = re.sub(r"[^A-Za-z0-9.+]+", "-", f"{tree.source}-{tree.version}")
    final = cache / f"upstream-{name}.git"
    partial = final.with_suffix(".partial")
    if tree.source == "bundled" or not final.exists() or not Repository(final).complete():
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(final, ignore_errors=True)
        repository = Repository(partial)
        cache.mkdir(parents=True, exist_ok=True)
        repository.create()
        repository.commit_folder(tree.path, f"PyTorch {tree.version}", "main", ignored=True)
        # One pack without deltas: made in a moment, and every job's fetch only copies from it.
        repository.git("-c", "pack.window=0", "repack", "-a", "-d", "--quiet")
        partial.rename(final)
    repository = Repository(final)
    return repository, repository.git("rev-parse", "refs/heads/main")


def make_downstream(checkout: Path, target: Path) -> Repository:
    """This project as a repository whose ``main`` is the working tree, uncommitted changes included."""
    repository = Repository(target)
    repository.create()
    repository.commit_folder(checkout, "spyre-conformance as it is in the working tree", "main")
    return repository
