"""Which test files an upstream change can affect (C9)."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from conformance.inventory.model import Inventory
from conformance.inventory.tree import module_index, resolve_module

_NO_EFFECT = (
    ("documentation", re.compile(r"(^docs/|\.(md|rst)$|^(LICENSE|NOTICE|CITATION\.cff)$)")),
    ("upstream's own CI and housekeeping", re.compile(
        r"^(\.github|\.ci|\.circleci|\.devcontainer|\.vscode|benchmarks|android|ios|scripts)/|"
        r"^(CODEOWNERS|\.gitignore|\.lintrunner\.toml|\.flake8|\.clang-(format|tidy)|\.git-blame-ignore-revs)$")),
    ("code of another device, which no other device's build contains", re.compile(
        r"\.(cu|cuh|hip|metal|mm)$|(^|/)(cuda|cudnn|hip|miopen|mps|xpu|vulkan)/.*\.(cpp|cc|c|h|hpp)$")),
    ("expectations of Dynamo runs, which nothing else reads", re.compile(
        r"^test/(dynamo_expected_failures|dynamo_skips|inductor_expected_failures|inductor_skips)/")),
    ("C++ tests", re.compile(r"^test/(cpp|mobile|edge)/.*\.(cpp|cc|h|cmake|txt)$")),
)  # fmt: skip
"""Why a path affects no Python test of this device, and how it is known."""

_EXPECTED = re.compile(r"^test/(?:.+/)?expect/(?P<cls>\w+)[-.](?P<test>\w+)")
"""Files that ``assertExpected`` reads; they are named after the test."""

_FULL_PAGES = (30, 100, 3000)
"""Rows of a page of ``GET …/pulls/N/files`` as GitHub makes it unasked, of its largest page, and of its longest list:
where that many came, more may be left."""


@dataclass(frozen=True, slots=True)
class ChangedSelection:
    """Outcome of :func:`select_changed`.

    Attributes:
        files: test file → why it was taken; ``None`` means "everything", because a change could not be mapped.
        notes: one sentence per changed path that decided something.
    """

    files: dict[str, str] | None
    notes: tuple[str, ...]


def importers(inventory: Inventory) -> dict[str, set[str]]:
    """Path → paths that import it directly."""
    index = module_index(inventory.files)
    graph: dict[str, set[str]] = defaultdict(set)
    for path, row in inventory.files.items():
        for name in row.imports:
            target = resolve_module(name, path, index)
            if target and target != path:
                graph[target].add(path)
    return graph


def select_changed(inventory: Inventory, changed: Iterable[str]) -> ChangedSelection:
    """Maps changed paths to test files through the static import graph.

    A changed test file selects itself and the test files that import it, a changed helper below ``test/`` selects
    those that import it, directly or through others, an expected output the files that define its class.
    Documentation, upstream's CI and code that only another device's build contains select nothing. Anything else
    (``torch/``, ``c10/``, build files, data) can affect every test; so does a helper that nothing imports, because it
    may be loaded by name.

    Args:
        inventory: of the checkout *with* the change.
        changed: paths from the checkout's root.
    """
    graph = importers(inventory)
    files: dict[str, str] = {}
    notes: list[str] = []
    unmapped: list[str] = []
    for path in dict.fromkeys(name.removeprefix("./") for name in changed):
        why = next((text for text, pattern in _NO_EFFECT if pattern.search(path)), "")
        if why:
            notes.append(f"{path}: {why}, affects no test")
            continue
        if (expected := _EXPECTED.match(path)) and (users := _defining(inventory, expected["cls"])):
            notes.append(f"{path}: expected output of {expected['cls']}.{expected['test']}")
            for name in users:
                files.setdefault(name, f"{expected['cls']} reads {path}")
            continue
        row = inventory.files.get(path)
        if row is None:
            unmapped.append(path)
            notes.append(f"{path}: not a Python file of the checkout's test folder, can affect every test")
            continue
        reached: dict[str, str] = {path: "changed"} if row.is_test_file else {}
        queue = deque([path])
        seen = {path}
        while queue:
            current = queue.popleft()
            for user in sorted(graph.get(current, ())):
                if user not in seen:
                    seen.add(user)
                    queue.append(user)
                    if inventory.files[user].is_test_file:
                        reached[user] = f"imports {path}" + ("" if current == path else f" through {current}")
        if not reached:
            unmapped.append(path)
            notes.append(f"{path}: no test file imports it, can affect every test")
            continue
        notes.append(f"{path}: affects {len(reached)} test file{'s' if len(reached) > 1 else ''}")
        for name, why in reached.items():
            files.setdefault(name, why)
    if unmapped:
        return ChangedSelection(None, (*notes, f"everything is taken, because of {', '.join(unmapped)}"))
    if not files:
        return ChangedSelection(None, (*notes, "everything is taken, because no changed file maps to a test"))
    return ChangedSelection(files, tuple(notes))


def _defining(inventory: Inventory, cls: str) -> list[str]:
    return [row.path for row in inventory.test_files if any(item.name == cls for item in row.classes)]


def changed_in_payload(payload: Any) -> tuple[list[str] | None, str]:
    """Paths that an event of GitHub says were changed.

    Args:
        payload: decoded JSON: the list of a pull request's files (``GET …/pulls/N/files``, also several pages in one
            list), an object with such a list under ``files``, a ``push`` event, or a ``pull_request`` event, which
            only counts its files. Without that count a list as long as a full page is not taken as complete.

    Returns:
        Paths, a renamed file's old one too, and ``""``; or ``None`` and why they cannot be told.
    """
    wanted = None
    if isinstance(payload, dict):
        payload = payload.get("client_payload", payload)
        payload = payload.get("payload", payload) if isinstance(payload, dict) else payload
    if isinstance(payload, dict):
        pull = payload.get("pull_request")
        wanted = pull.get("changed_files") if isinstance(pull, dict) else None
        commits = payload.get("commits")
        if isinstance(commits, list) and "files" not in payload:
            # GitHub leaves commits of a large push out and does not say how many.
            if payload.get("forced") or len(commits) >= 20:
                return None, "a forced push, or one of 20 commits and more, does not list all that it changed"
            return _pushed(commits)
        payload = payload.get("files")
        if payload is None:
            return None, "the event holds no list of files (GET …/pulls/N/files gives one)"
    if not isinstance(payload, list):
        return None, "the file is no event of GitHub and no list of files"
    rows = [row for item in payload for row in (item if isinstance(item, list) else [item])]
    names: list[str] = []
    for row in rows:
        found: list[Any] = [row] if isinstance(row, str) else [row.get("filename")] if isinstance(row, dict) else [None]
        if isinstance(row, dict) and row.get("previous_filename") is not None:
            found.append(row["previous_filename"])
        if not all(isinstance(name, str) for name in found):
            return None, f"{str(row)[:80]!r} is no file of a pull request"
        names += found
    if type(wanted) is int:
        if len(rows) < wanted:
            return None, f"the pull request changes {wanted} files, and only {len(rows)} are listed"
        return list(dict.fromkeys(names)), ""
    pages = [len(item) for item in payload if isinstance(item, list)]
    for count in (len(rows), *pages[-1:]):
        if count in _FULL_PAGES:
            return None, f"it cannot be told whether {count} files are all: a page of GitHub's list has as many"
    return list(dict.fromkeys(names)), ""


def _pushed(commits: list[Any]) -> tuple[list[str] | None, str]:
    """Paths of a push's commits, or why they cannot be told."""
    names: dict[str, None] = {}
    for commit in commits:
        if not isinstance(commit, dict):
            return None, f"{str(commit)[:80]!r} is no commit of a push"
        for key in ("added", "removed", "modified"):
            paths = commit.get(key)
            if paths is None:
                continue
            if not isinstance(paths, list) or not all(isinstance(name, str) for name in paths):
                return None, f"{key!r} of a commit is {str(paths)[:80]!r} and no list of files"
            names |= dict.fromkeys(paths)
    return list(names), ""
