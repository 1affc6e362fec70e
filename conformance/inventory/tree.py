"""A whole checkout → inventory: parallel scan, cache, classes resolved across files."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.inventory.cache import RowStore, TreeCache, content_key
from conformance.inventory.model import UNCLASSIFIED, ClassRow, FileRow, Inventory
from conformance.inventory.scan import read_content, scan_file
from conformance.memory import without_cycle_collection
from conformance.paths import cache_root

Entry = tuple[str, int, int]
"""Path from the checkout's root, size, modification time in nanoseconds."""

CHUNK = 24
"""Files that a process is given at a time."""


def _entries(root: Path) -> Iterator[Entry]:
    stack = [root / "test"]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__" and not entry.name.startswith("."):
                        stack.append(Path(entry.path))
                elif entry.name.endswith(".py") and entry.is_file():
                    stat = entry.stat()
                    yield Path(entry.path).relative_to(root).as_posix(), stat.st_size, stat.st_mtime_ns


def _start_process() -> None:
    """Of a scanning process: a parse makes a million objects that live shortly and in no cycle."""
    # Ctrl-C reaches every process of the terminal; the parent alone speaks of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()


def _scan_chunk(root: Path, entries: list[Entry]) -> list[FileRow]:
    return [scan_file(root, *entry) for entry in entries]


def tree_version(root: Path) -> str:
    """``2.6.0a0`` from ``version.txt``, with ``+git<sha>`` where the checkout's HEAD is a readable commit."""
    try:
        version = (root / "version.txt").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        version = ""
    head = root / ".git" / "HEAD"
    try:
        text = head.read_text(encoding="ascii").strip()
        if text.startswith("ref: "):
            text = _commit_of(root / ".git", text[5:])
    except (OSError, ValueError):
        return version
    return f"{version}+git{text[:12]}" if len(text) >= 40 else version


def _commit_of(git: Path, ref: str) -> str:
    """A ref has a file of its own or, after ``git gc``, a line in ``packed-refs``."""
    try:
        return (git / ref).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        lines = (git / "packed-refs").read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.split(" ")[0] for line in lines if line.endswith(f" {ref}")), "")


def load_inventory(root: Path, *, jobs: int | None = None, use_cache: bool = True) -> Inventory:
    """Scans every ``.py`` file below ``root/test``.

    Args:
        root: a PyTorch checkout or unpacked source.
        jobs: processes; by default the number of usable cores.
        use_cache: reuse rows of files whose path, size and modification time are those of the last scan, or whose
            content any scan has seen.

    Raises:
        ConformanceError: ``root`` has no ``test`` folder.
    """
    root = root.resolve()
    if not (root / "test").is_dir():
        raise ConformanceError(
            f"{root} is not a PyTorch checkout: it has no folder 'test'. `conformance fetch` brings one."
        )
    entries = sorted(_entries(root))
    identity = hashlib.sha256(repr(entries).encode()).hexdigest()[:32]
    folder = cache_root() / "inventory"
    picture = TreeCache(folder, root)
    with without_cycle_collection():
        known = picture.read() if use_cache else {}
        rows = {e[0]: row for e in entries if (row := known.get(e[0])) and (row.size, row.mtime_ns) == e[1:]}
        todo = [entry for entry in entries if entry[0] not in rows]
        scanned = 0
        if todo:
            fresh, scanned = _fresh(root, todo, jobs or len(os.sched_getaffinity(0)), RowStore(folder), use_cache)
            rows |= fresh
        inventory = Inventory(str(root), identity, tree_version(root), dict(sorted(rows.items())), scanned)
        if todo or len(known) != len(rows):
            resolve(inventory)
            if use_cache:
                picture.write(inventory.files.values())
    return inventory


def _fresh(
    root: Path, entries: list[Entry], jobs: int, store: RowStore, use_cache: bool
) -> tuple[dict[str, FileRow], int]:
    """Rows of files that are new or touched, from the store where their content has been seen.

    Returns:
        Rows by path, and how many files were scanned.
    """
    if not use_cache:
        return {row.path: row for row in _scan(root, entries, jobs)}, len(entries)
    keys = {}
    for entry in entries:
        content = read_content(FileRow(*entry), root)
        if content is not None:
            keys[entry[0]] = content_key(entry[0], content)
    stored = store.get(keys.values())
    rows = {}
    for path, size, mtime_ns in entries:
        if row := stored.get(keys.get(path, "")):
            row.size, row.mtime_ns = size, mtime_ns
            rows[path] = row
    todo = [entry for entry in entries if entry[0] not in rows]
    if todo:
        scanned = {row.path: row for row in _scan(root, todo, jobs)}
        store.put({keys[path]: row for path, row in scanned.items() if path in keys})
        rows |= scanned
    return rows, len(todo)


def _scan(root: Path, entries: list[Entry], jobs: int) -> list[FileRow]:
    # Largest first, dealt round-robin, so that the last chunk to finish is a small one.
    ordered = sorted(entries, key=lambda entry: -entry[1])
    chunks = [ordered[i :: max(1, len(ordered) // CHUNK)] for i in range(max(1, len(ordered) // CHUNK))]
    if jobs < 2 or len(chunks) < 2:
        return [row for chunk in chunks for row in _scan_chunk(root, chunk)]
    with ProcessPoolExecutor(jobs, get_context("forkserver"), initializer=_start_process) as pool:
        futures = [pool.submit(_scan_chunk, root, chunk) for chunk in chunks]
        try:
            return [row for future in futures for row in future.result()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def module_index(files: dict[str, FileRow]) -> dict[str, str]:
    """Dotted module name → path, for every spelling by which a test can import a neighbour.

    Upstream puts both ``test/`` and the importing file's folder on ``sys.path`` and also imports ``test.x`` from the
    root. Names relative to other folders are looked up by :func:`resolve_module`.
    """
    index: dict[str, str] = {}
    for path in files:
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        index[name] = path
        index.setdefault(name.removeprefix("test."), path)
    return index


def resolve_module(name: str, importer: str, index: dict[str, str]) -> str | None:
    """Path of the file that ``importer`` gets for ``import name``, ``None`` when the tree does not define it."""
    folder = importer.rsplit("/", 1)[0].replace("/", ".")
    return index.get(f"{folder}.{name}") or index.get(name)


def resolve(inventory: Inventory) -> None:
    """Fills label, MRO and external bases of every class; cycles of imports and bases end at the second visit."""
    index = module_index(inventory.files)
    classes = {(path, cls.name): cls for path, row in inventory.files.items() for cls in row.classes}

    def find(name: str, path: str, seen: frozenset[tuple[str, str]]) -> tuple[str, str] | None:
        if (path, name) in seen or path not in inventory.files:
            return None
        seen |= {(path, name)}
        if (path, name) in classes:
            return path, name
        row = inventory.files[path]
        head, _, tail = name.partition(".")
        origins = [f"{row.names[head]}.{tail}" if tail else row.names[head]] if head in row.names else []
        origins += [f"{module}.{name}" for local, module in row.names.items() if local.startswith("*")]
        for origin in origins:
            parts = origin.split(".")
            for cut in range(len(parts) - 1, 0, -1):
                target = resolve_module(".".join(parts[:cut]), path, index)
                if target and (found := find(".".join(parts[cut:]), target, seen)):
                    return found
        return None

    def linearise(key: tuple[str, str], seen: frozenset[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[str]]:
        """Left-to-right depth-first with the last of duplicates kept, which equals C3 for every hierarchy that C3
        accepts and in which labels are asked for."""
        order: list[tuple[str, str]] = []
        external: list[str] = []
        for base in classes[key].bases:
            target = find(base, key[0], frozenset())
            if target is None or target in seen:
                external.append(base)
                continue
            inner, outside = linearise(target, seen | {target})
            order += [target, *inner]
            external += outside
        unique = [item for position, item in enumerate(order) if item not in order[position + 1 :]]
        return unique, list(dict.fromkeys(external))

    for key, cls in classes.items():
        order, cls.external = linearise(key, frozenset({key}))
        cls.mro = [f"{path}::{name}" for path, name in order]
        _label(cls, [(f"{path}::{name}", classes[path, name]) for path, name in order])


def _label(cls: ClassRow, ancestors: list[tuple[str, ClassRow]]) -> None:
    cls.label, cls.label_from = UNCLASSIFIED, ""
    for where, row in (("", cls), *ancestors):
        if row.own_label or row.label_error:
            if row.own_label not in ("", "NONE"):
                cls.label = row.own_label
                cls.label_from = f"inherited from {where}" if where else "own"
            return
