"""What an unclassified class would be labelled, with evidence and a confidence between 0 and 1 (C7).

The order follows upstream's own definition of the labels (docstring of ``HardwareClassification``): classes
instantiated per device are ACCELERATOR unless limited to one device; classes that no device variant is made of are
GENERIC unless their tests are tied to one device by decorator or by what is written into their bodies.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from conformance.inventory.model import UNCLASSIFIED, ClassRow, FileRow, Inventory, MethodRow

_ONLY = {"onlyCPU": "CPU", "onlyCUDA": "CUDA", "onlyMPS": "MPS", "onlyXPU": "XPU"}
_DEVICE_LABELS = {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS", "xpu": "XPU"}


@dataclass(frozen=True, slots=True)
class Inference:
    """A label with the facts that speak for it."""

    label: str
    confidence: float
    evidence: tuple[str, ...]


def _short(decorator: str) -> str:
    return decorator.rpartition(".")[2]


def _only(method: MethodRow) -> str | None:
    return next((_ONLY[name] for item in method.decorators if (name := _short(item)) in _ONLY), None)


def all_tests(file: FileRow, cls: ClassRow, inventory: Inventory | None) -> list[MethodRow]:
    """Methods of a class and of the ancestors that the tree defines."""
    methods = {method.name: method for method in cls.tests}
    for where in cls.mro:
        path, _, name = where.partition("::")
        row = inventory.files.get(path) if inventory else (file if path == file.path else None)
        parent = next((c for c in row.classes if c.name == name), None) if row else None
        for method in parent.tests if parent else ():
            methods.setdefault(method.name, method)
    return list(methods.values())


def infer(file: FileRow, cls: ClassRow, inventory: Inventory | None = None) -> Inference:
    """Labels a class from its source.

    Args:
        file, cls: rows of the inventory.
        inventory: the tree, to see methods that the class inherits from other files.
    """
    if cls.label != UNCLASSIFIED:
        return Inference(cls.label, 1.0, (f"hw_classification, {cls.label_from}",))
    tests = all_tests(file, cls, inventory)
    only = Counter(_only(method) for method in tests)
    call = file.instantiation_of(cls.name)
    if call is not None:
        where = f"line {call.line}: instantiate_device_type_tests"
        if call.only_for is not None and len(call.only_for) == 1 and call.only_for != ["?"]:
            device = call.only_for[0]
            label = _DEVICE_LABELS.get(device, device.upper())
            return Inference(label, 0.95, (f"{where}, only_for={device!r}",))
        for label in set(_ONLY.values()):
            if tests and only[label] == len(tests):
                return Inference(label, 0.9, (where, f"each of {len(tests)} tests is limited to {label}"))
        notes = [where]
        if call.only_for:
            notes.append(f"only_for={call.only_for}: several devices")
        if call.except_for:
            notes.append(f"except_for={call.except_for}")
        takes = sum(method.takes_device for method in tests)
        notes.append(f"{takes} of {len(tests)} tests take a device")
        return Inference("ACCELERATOR", 0.95 if takes else 0.7, tuple(notes))
    gates = [_short(item) for item in cls.decorators]
    for gate in gates:
        for word, label in (("cuda", "CUDA"), ("mps", "MPS"), ("xpu", "XPU")):
            if word in gate.lower():
                return Inference(label, 0.8, (f"class decorator @{gate}",))
    if not tests:
        return Inference("GENERIC", 0.5, ("not instantiated per device", "no test in its body or known bases"))
    devices = Counter(device for method in tests for device in method.devices if device in _DEVICE_LABELS)
    for device in ("cuda", "xpu", "mps"):
        gated = only[_DEVICE_LABELS[device]]
        if max(devices[device], gated) >= 0.6 * len(tests):
            return Inference(
                _DEVICE_LABELS[device], 0.75,
                ("not instantiated per device", f"{max(devices[device], gated)} of {len(tests)} tests name {device}"),
            )  # fmt: skip
    return Inference(
        "GENERIC",
        0.85 if not any(devices[d] for d in ("cuda", "xpu", "mps")) else 0.65,
        ("not instantiated per device", f"{sum(m.takes_device for m in tests)} of {len(tests)} tests take a device"),
    )
