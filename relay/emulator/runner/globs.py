"""Glob patterns of the actions toolkit (``@actions/glob``): ``*``, ``?``, ``[…]``, ``**``; ``!`` takes files out."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_MAGIC = re.compile(r"[*?\[]")


@dataclass
class Found:
    """Files that matched, in order of their paths, and the fixed folder or file in front of each pattern."""

    files: list[Path] = field(default_factory=list)
    roots: list[Path] = field(default_factory=list)


def _regex(pattern: str) -> re.Pattern[str]:
    parts: list[str] = []
    index = 0
    while index < len(pattern):
        if pattern.startswith("**/", index):
            parts.append("(?:.*/)?")
            index += 3
        elif pattern.startswith("**", index):
            parts.append(".*")
            index += 2
        elif pattern[index] == "*":
            parts.append("[^/]*")
            index += 1
        elif pattern[index] == "?":
            parts.append("[^/]")
            index += 1
        elif pattern[index] == "[" and (end := pattern.find("]", index + 2)) > 0:
            inner = pattern[index + 1 : end].replace("\\", "\\\\")
            parts.append(f"[{'^' + inner[1:] if inner[0] == '!' else inner}]")
            index = end + 1
        else:
            parts.append(re.escape(pattern[index]))
            index += 1
    # A pattern that matches a folder stands for everything below it.
    return re.compile("".join(parts).rstrip("/") + "(?:/.*)?", re.DOTALL)


def _walk(root: Path, hidden: bool) -> Iterable[Path]:
    if root.is_file():
        yield root
        return
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if hidden or not name.startswith("."))
        for name in files:
            if hidden or not name.startswith("."):
                yield Path(folder) / name


def find_files(patterns: Iterable[str], base: Path, hidden: bool = False) -> Found:
    """Files below the patterns' fixed folders that match.

    Args:
        patterns: relative to ``base`` or absolute; later ones add to, or with ``!`` take from, the earlier ones.
        base: usually the workspace.
        hidden: whether names that start with a dot are found by a walk (a fixed name always is).
    """
    found = Found()
    chosen: set[Path] = set()
    for raw in patterns:
        text = raw.strip()
        if not text or text.startswith("#"):
            continue
        excluded, text = text.startswith("!"), text.removeprefix("!").strip()
        absolute = os.path.normpath(base / Path(text).expanduser())
        regex = _regex(absolute)
        if excluded:
            chosen = {file for file in chosen if not regex.fullmatch(str(file))}
            continue
        magic = _MAGIC.search(absolute)
        root = Path(absolute[: magic.start()].rpartition("/")[0] or "/") if magic else Path(absolute)
        found.roots.append(root)
        chosen.update(file for file in _walk(root, hidden) if regex.fullmatch(str(file)))
    found.files = sorted(chosen)
    return found


def hash_files(patterns: list[str], workspace: Path) -> str:
    """``hashFiles``: SHA-256 over the files' SHA-256 in the order of their paths; empty where none matches."""
    files = [file for file in find_files(patterns, workspace, hidden=True).files if file.is_relative_to(workspace)]
    if not files:
        return ""
    total = hashlib.sha256()
    for file in files:
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()
