"""What every format is read into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from conformance.ids import TestId
from conformance.inventory.written import Written
from conformance.registry.match import is_glob, literal, matcher

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

    @property
    def place(self) -> str:
        """The written test that is meant, as ``FILE::CLASS::TEST`` without what is empty."""
        return "::".join(part for part in (self.file, self.cls, self.test) if part)


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
            words = map(literal, (item.file, item.cls, item.test, item.op, item.dtype, item.other))
            self.entries.append(Entry(treatment, *words))
        if not found:
            entry = Entry(treatment, literal(file), literal(cls), literal(test))
            self.unresolved.append(entry.place)
            self.entries.append(entry)

    def look_up(self, written: Written) -> None:
        """Adds to what is unresolved the entries, patterns too, that name no file, class or test of a tree."""
        known = set(self.unresolved)
        for entry in self.entries:
            if entry.place and entry.place not in known:
                known.add(entry.place)
                if not _names_something(entry, written):
                    self.unresolved.append(entry.place)


def _names_something(entry: Entry, written: Written) -> bool:
    files, classes, tests = (
        matcher(part, (word,)) if word else (lambda _: True)
        for part, word in (("file", entry.file), ("cls", entry.cls), ("test", entry.test))
    )
    if not entry.test:
        return any(
            files(path) and (not entry.cls or any(classes(cls.name) for cls in row.classes))
            for path, row in written.files.items()
        )
    names = written.places if is_glob(entry.test) else (entry.test,)
    return any(
        files(path) and classes(cls)
        for name in names if tests(name)
        for path, cls in written.places.get(name, ())
    )  # fmt: skip
