"""What is known of one test before it is decided about: one function for the static tree and for what was imported."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.ids import TestId
from conformance.inventory.model import UNCLASSIFIED, ClassRow, FileRow, Inventory
from conformance.selection.decide import Candidate, excluded_by, restrictions_for
from conformance.selection.infer import Inference, all_tests, infer
from conformance.selection.labels import canonical


@dataclass(frozen=True, slots=True)
class Imported:
    """What importing a file has shown of a class, which its source may not tell.

    Attributes:
        label: member of ``HardwareClassification``, ``""`` without one.
        wrong_label: ``hw_classification`` is something else.
        instantiated: it is a variant that upstream made for the device.
        unrestricted: its base runs tests that upstream's decorators limit to other devices.
    """

    label: str = ""
    wrong_label: bool = False
    instantiated: bool = False
    unrestricted: bool = False


def candidate_of(
    test: TestId,
    file: FileRow | None,
    inventory: Inventory,
    *,
    device: str,
    custom: bool,
    imported: Imported | None = None,
) -> Candidate:
    """What the selection is asked about a test.

    Args:
        test: as in ids.
        file: row of its file; ``None`` where the scan does not have it.
        inventory: the tree, to see what a class inherits from other files.
        device, custom: of the profile.
        imported: of the test's class; ``None`` where the source alone has to tell.
    """
    cls = next((row for row in file.classes if row.name == test.cls), None) if file is not None else None
    if not test.cls:
        guess = Inference("GENERIC", 0.6, ("a function without a class",))
        return Candidate(test, "", guess.label, guess.evidence, guess.confidence)
    guess = _guess(file, cls, inventory, device, imported)
    if imported is not None:
        label, wrong = imported.label, imported.wrong_label
    else:
        label = canonical(cls.label) if cls is not None and cls.label != UNCLASSIFIED else ""
        wrong = not label and cls is not None and _wrong_label(cls, inventory)
    return Candidate(
        test,
        label,
        guess.label,
        guess.evidence,
        guess.confidence,
        _restrictions(test, file, cls, inventory, device, custom, imported),
        f"{test.cls}: hw_classification must be a HardwareClassification" if wrong else "",
    )


def _guess(
    file: FileRow | None, cls: ClassRow | None, inventory: Inventory, device: str, imported: Imported | None
) -> Inference:
    found = infer(file, cls, inventory) if file is not None and cls is not None else None
    if imported is not None and imported.instantiated and (found is None or found.label == "GENERIC"):
        # Made per device by a loop or a helper that the static scan does not follow.
        return Inference("ACCELERATOR", 0.9, (f"instantiated for {device} at import",))
    return found or Inference("GENERIC", 0.5, ("generated at import, no class statement found",))


def _wrong_label(cls: ClassRow, inventory: Inventory) -> bool:
    """Whether the nearest class that assigns ``hw_classification`` assigns no label."""
    rows = [cls]
    for where in cls.mro:
        path, _, name = where.partition("::")
        rows += [row for row in inventory.files[path].classes if row.name == name] if path in inventory.files else []
    return next((bool(row.label_error) for row in rows if row.own_label or row.label_error), False)


def _restrictions(
    test: TestId,
    file: FileRow | None,
    cls: ClassRow | None,
    inventory: Inventory,
    device: str,
    custom: bool,
    imported: Imported | None,
) -> tuple[str, ...]:
    """Upstream's limits that exclude the device: decorators, inherited ones too, and a class that is left out."""
    if file is None or cls is None or not test.device or (imported is not None and imported.unrestricted):
        return ()
    method = next((row for row in all_tests(file, cls, inventory) if row.name == test.test), None)
    limits = restrictions_for(method.decorators, device) if method is not None else ()
    call = file.instantiation_of(cls.name)
    if imported is None and call is not None and (left_out := excluded_by(call, device, custom)):
        return (*limits, left_out)
    return limits
