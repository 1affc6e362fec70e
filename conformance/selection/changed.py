"""Which test files an upstream change can affect (C9)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from conformance.inventory.model import Inventory
from conformance.inventory.tree import module_index, resolve_module

_NO_EFFECT_SUFFIXES = (".md", ".rst")
_NO_EFFECT_FOLDERS = ("docs/",)


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
    those that import it, directly or through others. Documentation selects nothing. Anything else (``torch/``,
    ``c10/``, build files, data) can affect every test; so does a helper that nothing imports, because it may be
    loaded by name.

    Args:
        inventory: of the checkout *with* the change.
        changed: paths from the checkout's root.
    """
    graph = importers(inventory)
    files: dict[str, str] = {}
    notes: list[str] = []
    unmapped: list[str] = []
    for path in dict.fromkeys(name.removeprefix("./") for name in changed):
        if path.endswith(_NO_EFFECT_SUFFIXES) or path.startswith(_NO_EFFECT_FOLDERS):
            notes.append(f"{path}: documentation, affects no test")
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
