"""Faults of rules that reading them one by one does not show (C13, C14, C15).

Two sources say which tests there are: the static tree, which knows files, classes and written tests but no operators
and dtypes of a test; and a list of ids as ``plan --json`` writes it, which knows every variant. With the list it is
also said which rules decide nothing, because a more specific one always wins, and where two rules contradict.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from re import compile as regex
from typing import Any

from conformance.ids import TestId
from conformance.inventory.written import Written
from conformance.near import near
from conformance.registry.document import Document
from conformance.registry.match import Registry, is_glob
from conformance.registry.model import Action, Capabilities, Reason, Rule
from conformance.registry.names import Names

SUGGESTIONS = 200
"""Unknown names that get a suggestion; comparing with 24,000 names takes a moment, and nobody reads more."""

_MODIFIERS = (Action.SLOW, Action.TOLERANCE)


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault.

    Attributes:
        file, line, column: where to edit; columns count from 1.
        severity: ``error`` or ``warning``.
        code: stable name of the kind of fault.
        rule: id of the rule, or where it stands.
    """

    file: str
    line: int
    column: int
    severity: str
    code: str
    message: str
    rule: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.message} [{self.code}]"

    def row(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


class Linter:
    """Checks the rules of one registry file.

    Attributes:
        findings: so far, in the order in which they were made.
    """

    def __init__(
        self,
        path: Path,
        rules: Sequence[Rule],
        capabilities: Capabilities,
        position: Callable[[tuple[int | str, ...]], tuple[int, int]],
    ) -> None:
        """Prepares.

        Args:
            path: of the registry file.
            rules: all of it, in order.
            capabilities: that features are looked up in.
            position: line and column of a place in the file, as ``Document.position``.
        """
        self.findings: list[Finding] = []
        self._path = path
        self._rules = rules
        self._capabilities = capabilities
        self._position = position
        self._suggested = 0
        self._number = {id(rule): number for number, rule in enumerate(rules)}

    def _add(self, rule: Rule, code: str, message: str, key: str = "", severity: str = "error") -> None:
        line, column = self._position(("rules", self._number[id(rule)], *((key,) if key else ())))
        self.findings.append(Finding(str(self._path), line, column, severity, code, message, rule.name))

    def _near(self, name: str, known: Iterable[str]) -> str:
        self._suggested += 1
        return near(name, known) if self._suggested <= SUGGESTIONS else ""

    def rules_alone(self, today: date, require: Iterable[str] = ()) -> None:
        """Expired, duplicate, incomplete and untriaged rules, unknown features.

        Args:
            today: a rule counts until the end of the day on which it expires.
            require: keys that the profile asks of every rule.
        """
        ids: dict[str, Rule] = {}
        same: dict[Any, Rule] = {}
        for rule in self._rules:
            if rule.expires is not None and today > rule.expires:
                self._add(rule, "expired", f"expired on {rule.expires}: look again, then remove it or give a new date",
                          "expires")  # fmt: skip
            if rule.id and (first := ids.setdefault(rule.id, rule)) is not rule:
                self._add(rule, "duplicate-id", f"the id {rule.id!r} is that of {first.where}", "id")
            kind = rule.action if rule.action in _MODIFIERS else None
            key = (*_selectors(rule), rule.feature, rule.when, kind)
            if (first := same.setdefault(key, rule)) is not rule:
                self._add(rule, "duplicate", f"names the same tests as {first.where}")
            for name in require:
                if not getattr(rule, name):
                    self._add(rule, f"no-{name}", f"has no {name}, which the profile's policy requires")
            if rule.reason is Reason.UNTRIAGED:
                self._add(rule, "untriaged", "was imported and not looked at: give it a reason", "reason", "warning")
            if rule.feature is not None and rule.feature not in self._capabilities.features:
                features = self._capabilities.features
                self._add(rule, "unknown-feature",
                          f"the capabilities define no feature {rule.feature!r}{self._near(rule.feature, features)}",
                          "feature")  # fmt: skip

    def vocabulary(self, names: Names) -> None:
        """Operators and dtypes that the installed torch does not have."""
        for rule in self._rules:
            for key, known, what in (("op", names.infos, "operator"), ("dtype", names.dtypes, "dtype")):
                for word in getattr(rule, key) or ():
                    parts = word.split(",") if key == "dtype" else [word]
                    for part in parts:
                        if not _known(part, known):
                            self._add(rule, f"unknown-{key}",
                                      f"the installed torch has no {what} {part!r}{self._near(part, known)}",
                                      key)  # fmt: skip

    def declared(self, names: Names, document: Document) -> None:
        """Operators and dtypes of the capabilities that the installed torch does not have (C18).

        Args:
            names: of the installed torch.
            document: the capabilities file.
        """
        own = self._capabilities
        places: list[tuple[tuple[str | int, ...], Iterable[str], str]] = [
            (("dtypes",), own.dtypes, "dtype"), (("tolerances",), own.tolerances, "dtype"),
            (("operators",), own.operators, "operator"),
        ]  # fmt: skip
        for op, operator in own.operators.items():
            places.append((("operators", op, "dtypes"), operator.dtypes or (), "dtype"))
            places.append((("operators", op, "tolerances"), operator.tolerances, "dtype"))
        for feature, needs in own.features.items():
            for number, selector in enumerate(needs.tests):
                at = ("features", feature, "tests", number)
                places.append(((*at, "op"), selector.op or (), "operator"))
                places.append(((*at, "dtype"), selector.dtype or (), "dtype"))
        for place, words, what in places:
            known = names.infos if what == "operator" else names.dtypes
            for number, word in enumerate(words):
                if _known(word, known):
                    continue
                listed = place[-1] in ("dtypes", "op", "dtype")
                line, column = document.position((*place, number if listed else word))
                said = (
                    f"{'.'.join(map(str, place))}: the installed torch has no {what} {word!r}{self._near(word, known)}"
                )
                code = "unknown-op" if what == "operator" else "unknown-dtype"
                self.findings.append(Finding(str(document.path), line, column, "error", code, said, ""))

    def tree(self, written: Written) -> None:
        """Files, classes and tests that a tree does not have."""
        paths = list(written.files)
        names = {path.removeprefix("test/"): path for path in paths} | {path: path for path in paths}
        for rule in self._rules:
            files: set[str] | None = None
            if rule.file is not None:
                files = set[str]()
                for word in rule.file:
                    if found := _files(word, tuple(paths)):
                        files |= found
                    else:
                        self._add(rule, "unknown-file",
                                  f"the tree has no test file {word!r}{self._near(word, names)}", "file")  # fmt: skip
                if not files:
                    continue
            classes = self._classes(rule, files, written)
            if classes is not None and not classes:
                continue
            for word in rule.test or ():
                self._test(rule, word, files, classes, written)

    def _classes(self, rule: Rule, files: set[str] | None, written: Written) -> set[str] | None:
        if rule.cls is None:
            return None
        found = set()
        for word in rule.cls:
            matching = {word} & written.classes.keys() if not is_glob(word) else _fitting(word, written.classes)
            here = {n for n in matching if files is None or any(c.file in files for c in written.classes[n])}
            found |= here
            if not here:
                near_by = (n for n, v in written.classes.items() if files is None or any(c.file in files for c in v))
                made = files is not None and any(written.files[path].generates for path in files)
                self._add(
                    rule, "unknown-class",
                    f"{_where(files)} no class {word!r}{self._near(word, near_by)}"
                    + ("; it may be made at import, which a list of tests would show" if made else ""),
                    "class", "warning" if made else "error",
                )  # fmt: skip
        return found

    def _test(self, rule: Rule, word: str, files: set[str] | None, classes: set[str] | None, written: Written) -> None:
        def fits(place: tuple[str, str]) -> bool:
            return (files is None or place[0] in files) and (classes is None or place[1] in classes)

        names = _fitting(word, written.places) if is_glob(word) else {word} & written.places.keys()
        if any(fits(place) for name in names for place in written.places[name]):
            return
        known = (name for name, places in written.places.items() if any(map(fits, places)))
        made = any(written.files[path].generates for path in (files or {c.file for n in classes or ()
                                                                         for c in written.classes[n]}))  # fmt: skip
        self._add(
            rule, "unknown-test",
            f"{_where(files, classes)} no test {word!r}{self._near(word, known)}"
            + ("; it may be made at import, which a list of tests would show" if made else ""),
            "test", "warning" if made else "error",
        )  # fmt: skip

    def tests(self, registry: Registry, tests: Iterable[TestId]) -> None:
        """Rules that match none of the tests, decide none, or contradict each other.

        Args:
            registry: of those rules that count now.
            tests: every test there is for them.
        """
        matched: Counter[int] = Counter()
        won: Counter[int] = Counter()
        beaten: dict[int, Counter[int]] = defaultdict(Counter)
        ties: dict[tuple[int, int], TestId] = {}
        verdict = {id(rule) for rule in registry.rules if rule.action not in _MODIFIERS}
        for test in tests:
            found = registry.matching(test)
            if not found:
                continue
            numbers = [id(rule) for rule in found]
            matched.update(numbers)
            verdicts = [number for number in numbers if number in verdict]
            if not verdicts:
                continue
            winner, *others = verdicts
            won[winner] += 1
            for number in others:
                beaten[number][winner] += 1
            if others and (pair := (winner, others[0])) not in ties:
                first, second = (next(rule for rule in found if id(rule) == number) for number in pair)
                if _contradict(registry, first, second):
                    ties[pair] = test
        known = {id(rule): rule for rule in registry.rules}
        for rule in registry.rules:
            if not matched[id(rule)]:
                self._add(rule, "unmatched", "matches no test of the list: correct or remove it")
            elif rule.action not in _MODIFIERS and not won[id(rule)]:
                other, count = beaten[id(rule)].most_common(1)[0]
                self._add(rule, "shadowed",
                          f"decides nothing: for each of its {matched[id(rule)]} tests a more specific rule wins, "
                          f"for {count} of them {known[other].name}", severity="warning")  # fmt: skip
        for (one, two), test in ties.items():
            self._add(known[two], "tie",
                      f"contradicts {known[one].name}, which is as specific, for example for {test}: "
                      "make one of them more specific")  # fmt: skip


def _selectors(rule: Rule) -> tuple[Any, ...]:
    return tuple(
        tuple(sorted(value)) if (value := getattr(rule, key)) is not None else None
        for key in ("file", "cls", "test", "op", "dtype", "other")
    )


def _contradict(registry: Registry, first: Rule, second: Rule) -> bool:
    if registry.weight(first) != registry.weight(second):
        return False
    return (first.action, first.signature) != (second.action, second.signature)


@lru_cache(maxsize=4096)
def _glob(word: str) -> Callable[[str], object]:
    return regex(translate(word)).match


def _fitting(word: str, names: Iterable[str]) -> set[str]:
    match = _glob(word)
    return {name for name in names if match(name)}


def _known(word: str, names: Mapping[str, Any] | Sequence[str]) -> bool:
    return bool(_fitting(word, names)) if is_glob(word) else word in names


@lru_cache(maxsize=4096)
def _files(word: str, paths: tuple[str, ...]) -> frozenset[str]:
    if not is_glob(word):
        return frozenset({word, f"test/{word}"} & set(paths))
    return frozenset(_fitting(word, paths) | _fitting(f"test/{word}", paths))


def _where(files: set[str] | None, classes: set[str] | None = None) -> str:
    """``test/test_x.py has`` for the beginning of a message."""
    for names in (classes, files):
        if names and len(names) == 1:
            return f"{next(iter(names))} has"
    return "the tree has" if files is None else f"{len(files)} files have"
