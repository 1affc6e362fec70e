"""A tree from a git repository, by tag or commit, without history."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.inventory.tree import tree_version

REACH = 60
"""Seconds in which a repository must answer what a ref is."""


class UnreachableError(ConformanceError):
    """The source cannot be reached from this machine; another one may."""


def _git(*arguments: str, cwd: Path | None = None, timeout: float | None = None) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            # Never wait for a password that nobody types.
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise UnreachableError("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"git {arguments[0]}: no answer within {timeout:g} s") from None
    if done.returncode:
        # git explains at length after the line that says what happened.
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        cause = next((line for line in lines if line.startswith(("fatal:", "error:", "remote:"))), lines[-1])
        raise UnreachableError(f"git {arguments[0]}: {cause}")
    return done.stdout


def is_commit(ref: str) -> bool:
    """Whether a ref is a full commit id."""
    return re.fullmatch(r"[0-9a-f]{40}", ref) is not None


def resolve(repository: str, ref: str) -> str:
    """Commit that a tag or branch names now.

    Raises:
        UnreachableError: the repository does not answer.
        ConformanceError: it answers, but has no such ref.
    """
    if is_commit(ref):
        return ref
    if ref.startswith("-") or repository.startswith("-"):
        raise ConformanceError(f"{ref if ref.startswith('-') else repository}: not a ref or repository")
    lines = _git(
        "ls-remote", "--", repository, ref, f"refs/tags/{ref}", f"refs/tags/{ref}^{{}}", timeout=REACH
    ).splitlines()
    refs = {name: commit for commit, name in (line.split("\t", 1) for line in lines)}
    for name in (f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}", ref):
        if name in refs:
            return refs[name]
    raise ConformanceError(f"{repository} has no tag or branch {ref!r}")


def bring(repository: str, commit: str, folder: Path, say: Callable[[str], None]) -> tuple[str, str]:
    """Checks a commit out into an empty folder.

    Returns:
        Version and source.

    Raises:
        UnreachableError: with git's last words.
    """
    say(f"git: fetching {commit[:12]} of {repository}")
    _git("init", "--quiet", cwd=folder)
    _git("fetch", "--quiet", "--depth=1", "--no-tags", "--", repository, commit, cwd=folder)
    _git("-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD", cwd=folder)
    return tree_version(folder) or commit, f"git {repository} {commit}"
