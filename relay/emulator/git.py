"""The repositories' git side: mirrors of the authors' clones, and the reads that the API needs.

Only fixed ``git`` commands with separate arguments; a revision never starts with ``-`` because it is checked first.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

_SHA = re.compile(r"[0-9a-f]{40}")
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+@-]*")


class GitError(Exception):
    """A git command failed; the text is what git said."""


@dataclass(frozen=True)
class Commit:
    """One commit, as webhooks describe it."""

    sha: str
    tree: str
    parents: tuple[str, ...]
    message: str
    timestamp: str
    author_name: str
    author_email: str
    committer_name: str
    committer_email: str


@dataclass(frozen=True)
class ChangedFile:
    """One file of a comparison; ``status`` in GitHub's words (added, removed, modified, renamed)."""

    filename: str
    status: str
    additions: int
    deletions: int
    sha: str
    patch: str | None
    previous_filename: str | None = None


def environment() -> dict[str, str]:
    """Environment of every git process: no configuration of the user or the machine, any owner of the files."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_CONFIG_COUNT": "3",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        # As on GitHub, a client may ask for any commit by its SHA.
        "GIT_CONFIG_KEY_1": "uploadpack.allowAnySHA1InWant",
        "GIT_CONFIG_VALUE_1": "true",
        "GIT_CONFIG_KEY_2": "uploadpack.allowFilter",
        "GIT_CONFIG_VALUE_2": "true",
    }


async def git(directory: Path, *arguments: str) -> bytes:
    """Run one git command on a bare repository.

    Raises:
        GitError: it ended with a status other than 0.
    """
    process = await asyncio.create_subprocess_exec(
        "git",
        "--git-dir",
        str(directory),
        *arguments,
        env=environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise GitError(f"git {arguments[0]}: {errors.decode(errors='replace').strip() or process.returncode}")
    return output


async def mirror(source: Path, target: Path, default_branch: str) -> None:
    """Copy branches and tags of ``source`` into a new bare repository ``target``; an old one is replaced.

    Raises:
        GitError: ``source`` is not a git repository.
    """
    temporary = target.with_name(f".{target.name}.new")
    for leftover in (temporary, target):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.parent.mkdir(parents=True, exist_ok=True)
    await git(temporary, "init", "--quiet", "--bare", f"--initial-branch={default_branch}")
    await git(
        temporary, "fetch", "--quiet", str(source.resolve()), "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"
    )
    temporary.rename(target)


async def receive(source: Path, target: Path, ref: str) -> None:
    """Take ``ref`` (a full name) from the author's clone.

    Raises:
        GitError: the clone has no such ref.
    """
    await git(target, "fetch", "--quiet", "--force", str(source.resolve()), f"+{ref}:{ref}")


def full_ref(ref: str) -> str:
    """``main`` → ``refs/heads/main``; a full name stays.

    Raises:
        GitError: not a ref name.
    """
    if not _REF.fullmatch(ref) or ".." in ref:
        raise GitError(f"{ref!r} is not a ref name")
    return ref if ref.startswith("refs/") else f"refs/heads/{ref}"


async def resolve(directory: Path, revision: str) -> str | None:
    """The commit that a branch, tag, full ref or SHA names, or ``None``."""
    if not _REF.fullmatch(revision):
        return None
    try:
        output = await git(directory, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except GitError:
        return None
    return output.decode().strip()


async def commits(directory: Path, revision: str, exclude: str | None = None, limit: int = 20) -> list[Commit]:
    """Commits of ``revision`` that ``exclude`` does not have, newest first."""
    arguments = ["log", f"--max-count={limit}", "-z", "--format=%H%n%T%n%P%n%cI%n%an%n%ae%n%cn%n%ce%n%B", revision]
    if exclude is not None:
        arguments.append(f"^{exclude}")
    found = []
    for record in (await git(directory, *arguments, "--")).decode(errors="replace").split("\0"):
        if record.strip():
            sha, tree, parents, when, an, ae, cn, ce, message = record.split("\n", 8)
            found.append(Commit(sha, tree, tuple(parents.split()), message.strip(), when, an, ae, cn, ce))
    return found


async def merge_base(directory: Path, left: str, right: str) -> str | None:
    """The best common ancestor, or ``None`` for unrelated histories."""
    try:
        return (await git(directory, "merge-base", left, right)).decode().strip() or None
    except GitError:
        return None


async def changed_files(directory: Path, base: str, head: str, patches: bool = True) -> list[ChangedFile]:
    """Files that differ from ``base`` to ``head``, sorted by name."""
    raw = (await git(directory, "diff", "--raw", "--numstat", "-z", "-M", "--no-abbrev", base, head)).decode(
        errors="replace"
    )
    fields = raw.split("\0")
    states: dict[str, tuple[str, str, str | None]] = {}
    counts: dict[str, tuple[int, int]] = {}
    words = {"A": "added", "D": "removed", "M": "modified", "R": "renamed", "T": "changed", "C": "copied"}
    index = 0
    while index < len(fields) and fields[index]:
        item = fields[index]
        if item.startswith(":"):
            _, _, old, new, letter = item[1:].split(" ")
            renamed = letter[0] in "RC"
            name = fields[index + 2] if renamed else fields[index + 1]
            states[name] = (words[letter[0]], old if letter[0] == "D" else new, fields[index + 1] if renamed else None)
            index += 3 if renamed else 2
        else:
            added, deleted, name = item.split("\t")
            if not name:
                name = fields[index + 2]
                index += 2
            counts[name] = (int(added) if added != "-" else 0, int(deleted) if deleted != "-" else 0)
            index += 1
    result = []
    for name, (status, blob, previous) in sorted(states.items()):
        patch = None
        if patches and name in counts and any(counts[name]):
            text = (await git(directory, "diff", "-M", base, head, "--", name)).decode(errors="replace")
            start = text.find("\n@@")
            patch = text[start + 1 :].rstrip("\n") if start >= 0 else None
        added_count, deleted_count = counts.get(name, (0, 0))
        result.append(ChangedFile(name, status, added_count, deleted_count, blob, patch, previous))
    return result


async def read_file(directory: Path, commit: str, path: str) -> bytes | None:
    """Content of a file, or ``None`` where the commit has no file of that path."""
    if not _SHA.fullmatch(commit):
        raise GitError(f"{commit!r} is not a commit SHA")
    try:
        return await git(directory, "cat-file", "blob", f"{commit}:{path}")
    except GitError:
        return None


async def list_folder(directory: Path, commit: str, path: str) -> list[tuple[str, str, str, int]] | None:
    """Entries of a folder as ``(name, type, sha, size)``, or ``None`` where there is no such folder."""
    try:
        output = await git(directory, "ls-tree", "-z", "--long", "--end-of-options", f"{commit}:{path.strip('/')}")
    except GitError:
        return None
    entries = []
    for item in output.decode(errors="replace").split("\0"):
        if item:
            description, name = item.split("\t", 1)
            _, kind, sha, size = description.split()
            entries.append(
                (name, {"blob": "file", "tree": "dir"}.get(kind, "submodule"), sha, int(size) if size != "-" else 0)
            )
    return entries


async def export(directory: Path, commit: str, target: Path) -> None:
    """Put the tree of a commit into the new folder ``target``."""
    temporary = target.with_name(f".{target.name}.new")
    temporary.mkdir(parents=True)
    await git(directory, "archive", "--format=tar", f"--output={temporary}.tar", commit)
    process = await asyncio.create_subprocess_exec("tar", "-xf", f"{temporary}.tar", "-C", str(temporary))
    if await process.wait() != 0:
        raise GitError(f"the tree of {commit} cannot be written to {target}")
    Path(f"{temporary}.tar").unlink()
    temporary.rename(target)


async def create_ref(directory: Path, ref: str, sha: str) -> None:
    """Point ``ref`` at ``sha``."""
    await git(directory, "update-ref", ref, sha)
