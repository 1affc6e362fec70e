"""Rows of the inventory. Plain data, so that they cross processes and the cache unchanged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

UNCLASSIFIED = "unclassified"


@dataclass(slots=True)
class MethodRow:
    """A function named ``test*`` in a class body (or at module level).

    Attributes:
        takes_device: it has a parameter ``device`` or ``devices``.
        decorators: dotted names as written, calls without their arguments (``onlyCUDA``, ``ops``,
            ``common_utils.parametrize``).
        capabilities: string arguments of ``@requires_capabilities``.
        devices: device types written into its body (``cuda`` for ``"cuda:0"`` or ``.cuda()``).
        conditional: it stands under an ``if``/``try``/``with`` of the body; whether it exists is decided at import,
            so the static counts leave it out.
    """

    name: str
    line: int
    takes_device: bool = False
    decorators: list[str] = field(default_factory=list)
    capabilities: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    conditional: bool = False


@dataclass(slots=True)
class ClassRow:
    """A class statement anywhere in a file.

    Attributes:
        name: qualified name (``Outer.Inner``; classes in functions as ``function.<locals>.Inner``).
        bases: dotted names as written.
        own_label: member of ``HardwareClassification`` assigned in the body, upper case; ``""`` without one.
        label_error: why an assigned ``hw_classification`` is none.
        label: own or inherited label after resolution; ``unclassified`` without one.
        label_from: ``own``, ``inherited from FILE::CLASS`` or ``""``.
        mro: ``FILE::CLASS`` of every ancestor that the tree defines, nearest first.
        external: bases that the tree does not define (``TestCase``, ``torch.nn.Module``).
    """

    name: str
    line: int
    bases: list[str] = field(default_factory=list)
    decorators: list[str] = field(default_factory=list)
    own_label: str = ""
    label_error: str = ""
    tests: list[MethodRow] = field(default_factory=list)
    label: str = UNCLASSIFIED
    label_from: str = ""
    mro: list[str] = field(default_factory=list)
    external: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Instantiation:
    """A call of ``instantiate_device_type_tests``.

    Attributes:
        cls: the class argument as written.
        only_for, except_for: device types; ``None`` when absent, ``["?"]`` when the value is computed at import.
    """

    cls: str
    line: int
    only_for: list[str] | None = None
    except_for: list[str] | None = None


@dataclass(slots=True)
class FileRow:
    """One Python file below ``test/``.

    Attributes:
        path: from the checkout's root, with ``/``.
        error: why the file could not be read as Python (``line 3: invalid syntax``, ``not UTF-8 …``); then all else
            is empty.
        imports: absolute dotted module names that the file imports anywhere, with the imported names appended for
            ``from a import b`` (``a.b``), because ``b`` may be a module.
        generates: it has calls that can add tests or classes at import, which no static scan sees.
        names: local name → dotted origin for imports at module level; classes are resolved through it.
    """

    path: str
    size: int
    mtime_ns: int
    error: str = ""
    imports: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    classes: list[ClassRow] = field(default_factory=list)
    functions: list[MethodRow] = field(default_factory=list)
    instantiations: list[Instantiation] = field(default_factory=list)
    generates: bool = False

    @property
    def is_test_file(self) -> bool:
        """Whether upstream's runner and pytest see it as a file of tests."""
        name = self.path.rsplit("/", 1)[-1]
        return name.startswith("test_") and name.endswith(".py")

    def instantiation_of(self, cls: str) -> Instantiation | None:
        """The call that makes device variants of ``cls``, ``None`` without one."""
        return next((call for call in self.instantiations if call.cls == cls), None)


@dataclass(slots=True)
class Inventory:
    """A whole tree.

    Attributes:
        root: absolute path of the checkout.
        identity: hash over every file's path, size and time; two scans with one identity saw the same tree.
        version: the checkout's ``version.txt`` (and commit where ``.git`` tells it), ``""`` unknown.
        files: by path.
        scanned: how many files no cache had.
    """

    root: str
    identity: str
    version: str
    files: dict[str, FileRow]
    scanned: int = 0

    @property
    def cached(self) -> bool:
        """Whether no file had to be scanned."""
        return self.scanned == 0

    @property
    def test_files(self) -> list[FileRow]:
        """Rows of the ``test_*.py`` files."""
        return [row for row in self.files.values() if row.is_test_file]

    def summary(self) -> dict[str, Any]:
        """The fixed output of ``conformance inventory --json`` (spec §6)."""
        labels: Counter[str] = Counter()
        classes = tests = 0
        errors: list[dict[str, str]] = []
        for row in self.test_files:
            if row.error:
                errors.append({"file": row.path, "error": row.error})
            for cls in row.classes:
                if cls.label_error:
                    errors.append({"file": row.path, "error": f"line {cls.line}: class {cls.name}: {cls.label_error}"})
                if written := sum(not method.conditional for method in cls.tests):
                    classes += 1
                    tests += written
                    labels[cls.label] += 1
        return {
            "files": len(self.test_files),
            "classes": classes,
            "tests": tests,
            "labels": dict(sorted(labels.items())) if labels else {UNCLASSIFIED: 0},
            "errors": errors,
        }
