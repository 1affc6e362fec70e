"""What every format is read into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from conformance.ids import TestId

Resolve = Callable[[str, str, str], list[TestId]]
"""``(class, test, file)`` as a list spells them, empty for any → written tests that they mean."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """What is said of a test, beside its name: tests with one treatment can share a rule.

    Attributes:
        action, reason, note, issue: as in a rule.
        exception, message, phase: of an xfail's signature.
        platform: of ``when``.
    """

    action: str = "skip"
    reason: str = "untriaged"
    note: str = ""
    issue: str = ""
    exception: str = ""
    message: str = ""
    phase: str = ""
    platform: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """Tests of one line of a list; an empty part means all.

    Attributes:
        file, cls, test, op, dtype, other: words of a rule's selectors, names or globs.
    """

    treatment: Treatment
    file: str = ""
    cls: str = ""
    test: str = ""
    op: str = ""
    dtype: str = ""
    other: str = ""


@dataclass
class Imported:
    """A whole list.

    Attributes:
        entries: in the order of the list.
        lines: how many things the list said.
        unresolved: spellings that no test of the tree has; a rule names them as they are.
        left_out: how many were left out, by reason.
        dtypes, operators: what the list declares as supported.
    """

    entries: list[Entry] = field(default_factory=list)
    lines: int = 0
    unresolved: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    operators: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Counts something that has no meaning here."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def name(self, treatment: Treatment, resolve: Resolve, cls: str, test: str, file: str = "") -> None:
        """Adds a test by its generated or written name."""
        found = resolve(cls, test, file)
        for item in found:
            self.entries.append(Entry(treatment, item.file, item.cls, item.test, item.op, item.dtype, item.other))
        if not found:
            self.unresolved.append("::".join(part for part in (file, cls, test) if part))
            self.entries.append(Entry(treatment, file, cls, test))
