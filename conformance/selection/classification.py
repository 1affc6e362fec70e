"""The rules that labels of test classes obey (C32), as upstream's linter ``HW_CLASSIFICATION`` checks them.

Existing offenders stand in an allowlist that may only shrink: an entry that no longer offends is itself a fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from conformance.inventory.model import UNCLASSIFIED, ClassRow, FileRow, Inventory
from conformance.selection.infer import all_tests, infer
from conformance.selection.labels import canonical

DEVICE_LABELS = {"CPU": "cpu", "CUDA": "cuda", "MPS": "mps", "XPU": "xpu"}
"""Labels of one device → the device type that such a class is instantiated for."""


@dataclass(frozen=True, slots=True)
class Offence:
    """A class that breaks a rule.

    Attributes:
        name: ``FILE::CLASS``.
        code: stable name of the rule.
    """

    name: str
    line: int
    code: str
    message: str

    @property
    def entry(self) -> str:
        """As it stands in an allowlist."""
        return f"{self.name} {self.code}"

    def __str__(self) -> str:
        file, _, cls = self.name.partition("::")
        return f"{file}:{self.line}: {cls}: {self.message} [{self.code}]"

    def row(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


def offences(inventory: Inventory, paths: Iterable[str] | None = None) -> list[Offence]:
    """Every offence of the classes that have tests.

    Args:
        inventory: the tree.
        paths: look at these files only.
    """
    chosen = inventory.files.keys() if paths is None else paths
    found = []
    for path in chosen:
        row = inventory.files.get(path)
        if row is None or not row.is_test_file:
            continue
        for cls in row.classes:
            if cls.tests and ".<locals>." not in cls.name:
                found += [
                    Offence(f"{path}::{cls.name}", cls.line, code, message)
                    for code, message in _faults(row, cls, inventory)
                ]
    return found


def _faults(row: FileRow, cls: ClassRow, inventory: Inventory) -> list[tuple[str, str]]:
    if cls.label_error:
        return [("wrong-type", cls.label_error)]
    if cls.label == UNCLASSIFIED:
        guess = infer(row, cls, inventory)
        return [
            ("unclassified", f"declares no hw_classification; by its source it is {guess.label} ({guess.evidence[0]})")
        ]
    label = canonical(cls.label)
    calls = [call for call in row.instantiations if call.cls == cls.name]
    tests = all_tests(row, cls, inventory)
    if label == "GENERIC":
        return _generic(tests, calls)
    if label == "ACCELERATOR":
        return _accelerator(tests, calls)
    return _device(label, calls)


def _generic(tests: list[Any], calls: list[Any]) -> list[tuple[str, str]]:
    faults = []
    if calls:
        faults.append(("generic-instantiated", f"is GENERIC, but line {calls[0].line} makes device variants of it"))
    if takes := [method.name for method in tests if method.takes_device]:
        faults.append(("generic-device", f"is GENERIC, but {_names(takes)} a device"))
    return faults


def _accelerator(tests: list[Any], calls: list[Any]) -> list[tuple[str, str]]:
    if not calls:
        return [("accelerator-alone", "is ACCELERATOR, but instantiate_device_type_tests is not called for it")]
    faults = []
    if without := [method.name for method in tests if not method.takes_device]:
        faults.append(("accelerator-no-device", f"is ACCELERATOR, but {_names(without)} no device"))
    for call in calls:
        if call.only_for is not None:
            faults.append(("accelerator-only-for", f"is ACCELERATOR, but line {call.line} says only_for"))
    for method in tests:
        only = [name for item in method.decorators if (name := item.rpartition(".")[2]).startswith("only")]
        if limits := [name for name in only if name != "onlyAccelerator"]:
            faults.append(("accelerator-only", f"is ACCELERATOR, but {method.name} has @{limits[0]}"))
    return faults


def _device(label: str, calls: list[Any]) -> list[tuple[str, str]]:
    device = DEVICE_LABELS.get(label, label.lower())
    if not calls:
        return [("device-alone", f"is {label}, but instantiate_device_type_tests is not called for it")]
    return [
        ("device-only-for", f"is {label}, but line {call.line} does not say only_for={device!r}")
        for call in calls
        if call.only_for != [device]
    ]


def _names(names: list[str]) -> str:
    verb = "takes" if len(names) == 1 else "take"
    rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"{', '.join(names[:2])}{rest} {verb}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Offences compared with an allowlist.

    Attributes:
        new: not allowed.
        allowed: how many are.
        stale: entries that no longer offend, so they must go.
    """

    new: tuple[Offence, ...]
    allowed: int
    stale: tuple[str, ...]


def compare(found: Iterable[Offence], allowlist: Iterable[str]) -> Verdict:
    """Splits offences by an allowlist of ``FILE::CLASS code`` lines."""
    allowed = set(allowlist)
    offending = {offence.entry: offence for offence in found}
    return Verdict(
        tuple(offence for entry, offence in offending.items() if entry not in allowed),
        len(allowed & offending.keys()),
        tuple(sorted(allowed - offending.keys())),
    )
