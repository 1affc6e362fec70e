"""A whole checkout → inventory: parallel scan, cache, classes resolved across files."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import platformdirs

from conformance.errors import ConformanceError
from conformance.inventory.model import UNCLASSIFIED, ClassRow, FileRow, Inventory
from conformance.inventory.scan import scan_file

FORMAT = 1
"""Raised whenever a row's meaning changes; older cache files are then ignored."""

CHUNK = 24


def cache_root() -> Path:
    """Where everything that can be made again is kept (``CONFORMANCE_CACHE_DIR`` moves it)."""
    return Path(os.environ.get("CONFORMANCE_CACHE_DIR") or platformdirs.user_cache_dir("spyre-conformance"))


def _entries(root: Path) -> Iterator[tuple[str, int, int]]:
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


def _scan_chunk(root: Path, entries: list[tuple[str, int, int]]) -> list[FileRow]:
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
        use_cache: reuse rows of files whose path, size and modification time are those of the last scan.

    Raises:
        ConformanceError: ``root`` has no ``test`` folder.
    """
    root = root.resolve()
    if not (root / "test").is_dir():
        raise ConformanceError(
            f"{root} is not a PyTorch checkout: it has no folder 'test'. `conformance fetch` brings one."
        )
    entries = sorted(_entries(root))
    identity = hashlib.sha256(repr((FORMAT, sys.version_info[:2], entries)).encode()).hexdigest()[:32]
    path = cache_root() / "inventory" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:24]}.pickle"
    known = _read_cache(path) if use_cache else {}
    todo = [e for e in entries if not ((row := known.get(e[0])) and (row.size, row.mtime_ns) == e[1:])]
    rows = {entry[0]: known[entry[0]] for entry in entries if entry[0] in known}
    if todo:
        rows |= {row.path: row for row in _scan(root, todo, jobs or len(os.sched_getaffinity(0)))}
    inventory = Inventory(str(root), identity, tree_version(root), dict(sorted(rows.items())), cached=not todo)
    if todo or len(known) != len(rows):
        _resolve(inventory)
        if use_cache:
            _write_cache(path, inventory.files)
    return inventory


def _scan(root: Path, entries: list[tuple[str, int, int]], jobs: int) -> list[FileRow]:
    # Largest first, dealt round-robin, so that the last chunk to finish is a small one.
    ordered = sorted(entries, key=lambda entry: -entry[1])
    chunks = [ordered[i :: max(1, len(ordered) // CHUNK)] for i in range(max(1, len(ordered) // CHUNK))]
    if jobs < 2 or len(chunks) < 2:
        return [row for chunk in chunks for row in _scan_chunk(root, chunk)]
    # Ctrl-C reaches every process of the terminal; the parent alone speaks of it.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(jobs, get_context("forkserver"), initializer=signal.signal, initargs=ignore) as pool:
        futures = [pool.submit(_scan_chunk, root, chunk) for chunk in chunks]
        try:
            return [row for future in futures for row in future.result()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _read_cache(path: Path) -> dict[str, FileRow]:
    """The cache lies in the user's own cache folder, written by this module only; anything unreadable is no cache."""
    try:
        with path.open("rb") as stream:
            header, rows = pickle.load(stream)
    except Exception:
        return {}
    return rows if header == (FORMAT, sys.version_info[:2]) else {}


def _write_cache(path: Path, rows: dict[str, FileRow]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as stream:
            pickle.dump(((FORMAT, sys.version_info[:2]), rows), stream, protocol=5)
        Path(stream.name).replace(path)
    except OSError:
        return  # A full or read-only cache folder costs time, not truth.


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


def _resolve(inventory: Inventory) -> None:
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
