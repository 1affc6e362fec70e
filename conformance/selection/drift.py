"""What changed between two checkouts, and what that does to rules (C31).

Classes are matched first: by file and name, else by their tests, because upstream splits and renames classes while it
labels them. A test that is gone from one class and new in another of the same file moved.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from conformance.inventory.model import UNCLASSIFIED, ClassRow, Inventory
from conformance.inventory.written import Written
from conformance.registry.match import is_glob, literal, matcher
from conformance.registry.model import Rule

SAME_CLASS = 0.5
"""Share of a vanished class's tests that a new class must have to be its successor, alone or as one of several."""

SAME_TEST = 0.75
"""Likeness of two names from which a vanished and a new test of one class are called a renaming."""

_DTYPE = re.compile(
    r"(u?int|q(u?int)|float|complex|bfloat|bits)\d+\w*|bool|half|float|double|[cu]?(half|float|double)|byte|char|short|int|long"
)
"""Words of a test's name that say which dtype it is about: tests that differ in one are different tests."""

Key = tuple[str, str]
"""File and class."""

Place = tuple[str, str, str]
"""File, class and test."""


@dataclass
class Drift:
    """Differences from an old to a new checkout.

    Attributes:
        files_added, files_removed: test files.
        classes_added, classes_removed: ``(file, class)`` without a counterpart.
        classes_renamed: old → new place, file or name or both.
        classes_split: old → the several that have its tests now.
        tests_added, tests_removed: ``(file, class, test)``, of classes that stayed, were renamed or split.
        tests_renamed: old → new, where nothing else is like either.
        tests_perhaps_renamed: old → those that are like it, most like first; they are among the removed and added.
        relabelled: new place → old and new label.
        unreadable: files that one of the checkouts cannot read, with the reason; nothing is said of them.
    """

    files_added: list[str] = field(default_factory=list)
    files_removed: list[str] = field(default_factory=list)
    classes_added: list[Key] = field(default_factory=list)
    classes_removed: list[Key] = field(default_factory=list)
    classes_renamed: dict[Key, Key] = field(default_factory=dict)
    classes_split: dict[Key, list[Key]] = field(default_factory=dict)
    tests_added: list[tuple[str, str, str]] = field(default_factory=list)
    tests_removed: list[tuple[str, str, str]] = field(default_factory=list)
    tests_renamed: dict[tuple[str, str, str], tuple[str, str, str]] = field(default_factory=dict)
    tests_perhaps_renamed: dict[Place, list[Place]] = field(default_factory=dict)
    relabelled: dict[Key, tuple[str, str]] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """For ``--json``: places as ``FILE::CLASS[::TEST]``."""

        def name(parts: Iterable[str]) -> str:
            return "::".join(part for part in parts if part)

        return {
            "files_added": self.files_added,
            "files_removed": self.files_removed,
            "classes_added": [name(key) for key in self.classes_added],
            "classes_removed": [name(key) for key in self.classes_removed],
            "classes_renamed": {name(old): name(new) for old, new in self.classes_renamed.items()},
            "classes_split": {name(old): [name(key) for key in new] for old, new in self.classes_split.items()},
            "tests_added": [name(test) for test in self.tests_added],
            "tests_removed": [name(test) for test in self.tests_removed],
            "tests_renamed": {name(old): name(new) for old, new in self.tests_renamed.items()},
            "tests_perhaps_renamed": {
                name(old): [name(new) for new in several] for old, several in self.tests_perhaps_renamed.items()
            },
            "relabelled": {name(key): {"old": old, "new": new} for key, (old, new) in self.relabelled.items()},
            "unreadable": self.unreadable,
        }


def _tests(inventory: Inventory) -> tuple[dict[Key, frozenset[str]], dict[Key, ClassRow]]:
    """Tests that each class's body holds (what it inherits belongs to its ancestor), and the rows."""
    tests, rows = {}, {}
    for row in inventory.test_files:
        for cls in row.classes:
            if cls.tests:
                key = (row.path, cls.name)
                tests[key] = frozenset(method.name for method in cls.tests)
                rows[key] = cls
        if row.functions:
            tests[row.path, ""] = frozenset(method.name for method in row.functions)
    return tests, rows


def compare(old: Inventory, new: Inventory) -> Drift:
    """Compares two checkouts.

    Args:
        old, new: their inventories.
    """
    drift = Drift()
    for inventory, which in ((old, "old"), (new, "new")):
        for row in inventory.test_files:
            if row.error:
                drift.unreadable[row.path] = f"{which} checkout: {row.error}"
    before, after = {row.path for row in old.test_files}, {row.path for row in new.test_files}
    drift.files_added, drift.files_removed = sorted(after - before), sorted(before - after)
    old_tests, old_rows = _tests(old)
    new_tests, new_rows = _tests(new)
    for tests in (old_tests, new_tests):
        for key in [key for key in tests if key[0] in drift.unreadable]:
            del tests[key]
    pairs = {key: [key] for key in old_tests if key in new_tests}
    gone = [key for key in old_tests if key not in new_tests]
    fresh = [key for key in new_tests if key not in old_tests]
    for key in gone:
        found = _successors(key, old_tests[key], fresh, new_tests)
        if not found:
            drift.classes_removed.append(key)
        elif len(found) == 1:
            drift.classes_renamed[key] = found[0]
            pairs[key] = found
        else:
            drift.classes_split[key] = found
            pairs[key] = found
    for key in list(pairs):
        # A class that stays while some of its tests move to a new one was split too.
        if key in new_tests and (moved := _moved(key, old_tests[key] - new_tests[key], fresh, new_tests)):
            drift.classes_split[key] = [key, *moved]
            pairs[key] = [key, *moved]
    taken = {key for found in pairs.values() for key in found}
    drift.classes_added = sorted(key for key in fresh if key not in taken)
    drift.classes_removed.sort()
    for key, found in pairs.items():
        _compare_tests(drift, key, found, old_tests[key], new_tests)
        label = old_rows[key].label if key in old_rows else UNCLASSIFIED
        for place in found:
            now = new_rows[place].label if place in new_rows else UNCLASSIFIED
            if now != label:
                drift.relabelled[place] = (label, now)
    drift.tests_added.sort()
    drift.tests_removed.sort()
    return drift


def _successors(key: Key, tests: frozenset[str], fresh: list[Key], new: Mapping[Key, frozenset[str]]) -> list[Key]:
    """New classes that have a vanished one's tests: of the same file, else of the same name elsewhere."""
    same_file = [other for other in fresh if other[0] == key[0]]
    same_name = [other for other in fresh if other[1] == key[1] and other[1]]
    for candidates in (same_file, same_name):
        shares = {other: len(tests & new[other]) for other in candidates if tests & new[other]}
        for other, share in sorted(shares.items(), key=lambda item: (-item[1], item[0])):
            if share >= SAME_CLASS * len(tests) and share == len(tests & {name for one in shares for name in new[one]}):
                return [other]
        if sum(shares.values()) >= SAME_CLASS * len(tests):
            return sorted(shares, key=lambda other: (-shares[other], other))
    return []


def _moved(key: Key, tests: frozenset[str], fresh: list[Key], new: Mapping[Key, frozenset[str]]) -> list[Key]:
    """New classes of the same file that hold tests which a class lost."""
    return sorted(other for other in fresh if other[0] == key[0] and tests & new[other])


def _compare_tests(
    drift: Drift, key: Key, found: list[Key], before: frozenset[str], new: Mapping[Key, frozenset[str]]
) -> None:
    after = {name: place for place in reversed(found) for name in new[place]}
    lost = sorted(before - after.keys())
    gained = sorted(after.keys() - before)
    like: dict[str, list[tuple[float, str]]] = defaultdict(list)
    back: dict[str, int] = defaultdict(int)
    for one in lost:
        for two in gained:
            if abs(len(one) - len(two)) < 30:
                ratio = SequenceMatcher(None, one.removeprefix("test_"), two.removeprefix("test_")).ratio()
                if ratio >= SAME_TEST:
                    like[one].append((-ratio, two))
                    back[two] += 1
    used: set[str] = set()
    for one, several in like.items():
        names = [two for _, two in sorted(several)]
        old = (*key, one)
        if len(names) == 1 and back[names[0]] == 1 and not _other_dtype(one, names[0]):
            drift.tests_renamed[old] = (*after[names[0]], names[0])
            used |= {one, names[0]}
        else:
            drift.tests_perhaps_renamed[old] = [(*after[two], two) for two in names]
    drift.tests_removed += [(*key, name) for name in lost if name not in used]
    drift.tests_added += [(*after[name], name) for name in gained if name not in used]


def _other_dtype(one: str, two: str) -> bool:
    """Whether the names differ in a word that is a dtype."""
    return any(_DTYPE.fullmatch(word) for word in {*one.split("_")} ^ {*two.split("_")})


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule that named tests of the old checkout and does not name them in the new one.

    Attributes:
        lost: words that name nothing in the new checkout, as ``key: word``, and tests that went out of its reach.
        rewrite: keys of the rule with new values that say the same; empty where nothing can be proposed.
        guesses: names of new tests that are like lost ones, which a person has to compare.
    """

    rule: Rule
    lost: tuple[str, ...]
    rewrite: dict[str, list[str]]
    guesses: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "rule": self.rule.name, "where": self.rule.where, "lost": list(self.lost), "rewrite": self.rewrite,
            "guesses": list(self.guesses),
        }  # fmt: skip


def broken_rules(rules: Iterable[Rule], drift: Drift, old: Inventory, new: Inventory) -> list[BrokenRule]:
    """Rules that lose tests, with a proposed rewrite.

    Args:
        rules: of the registry.
        drift: from :func:`compare`.
        old, new: the inventories that were compared.
    """
    before, after = Written(old.files), Written(new.files)
    found = []
    for rule in rules:
        lost, rewrite = _broken(rule, drift, before, after)
        had = _covered({key: known_words(rule, key) for key in _KEYS}, before)
        lost += _out_of_reach(rule, had, rewrite, drift, after, bool(lost))
        if lost:
            guesses = dict.fromkeys(new[2] for old in sorted(had) for new in drift.tests_perhaps_renamed.get(old, ()))
            found.append(BrokenRule(rule, tuple(lost), rewrite, tuple(guesses)))
    return found


_KEYS = {"file": "file", "class": "cls", "test": "test"}
"""Key of a rule that says where tests are written → part of a test's id."""


def _anything(_: str) -> bool:
    return True


def _covered(words: Mapping[str, Iterable[str]], written: Written) -> set[Place]:
    """Written tests that a rule's words for file, class and test name; none where it has no such words."""
    asked = {key: matcher(_KEYS[key], tuple(items)) for key, items in words.items() if items}
    if not asked:
        return set()
    files, classes, tests = (asked.get(key, _anything) for key in _KEYS)
    named = tuple(words.get("test") or ())
    names: Iterable[str] = written.places if not named or any(map(is_glob, named)) else named
    return {
        (file, cls, name)
        for name in names if tests(name)
        for file, cls in written.places.get(name, ())
        if files(file) and classes(cls)
    }  # fmt: skip


def _out_of_reach(
    rule: Rule, had: set[Place], rewrite: dict[str, list[str]], drift: Drift, after: Written, broken: bool
) -> list[str]:
    """Tests that the rule named and that went where it, rewritten so far, does not reach; the rewrite follows them."""
    words = {key: list(rewrite.get(key) or known_words(rule, key)) for key in _KEYS}
    has = _covered(words, after)
    went: dict[Key, dict[Key, list[Place]]] = defaultdict(lambda: defaultdict(list))
    for place in sorted(had):
        file, cls, name = place
        if (file, cls) in after.places.get(name, ()) or file in drift.unreadable:
            continue
        renamed = drift.tests_renamed.get(place)
        places = drift.classes_split.get((file, cls)) or [drift.classes_renamed.get((file, cls), (file, cls))]
        now = [renamed] if renamed else [(*key, name) for key in places if key in after.places.get(name, ())]
        if now and not has & {*now}:
            went[file, cls][now[0][:2]] += now[:1]
    lost = []
    for (_, cls), targets in went.items():
        for (file, other), moved in targets.items():
            what = moved[0][2] if len(moved) == 1 else f"{len(moved)} tests"
            lost.append(f"{what} of {cls}, now in {other if other != cls else file}")
            for where in moved:
                for (key, part), value in zip(_KEYS.items(), where, strict=True):
                    if words[key] and not matcher(part, tuple(words[key]))(value):
                        words[key].append(literal(value.removeprefix("test/") if key == "file" else value))
                        rewrite[key] = words[key]
    if had and not has and not lost and not broken:
        globs = [f"{key}: {word}" for key in _KEYS for word in known_words(rule, key) if is_glob(word)]
        if not any(file in drift.unreadable for file, _, _ in had):
            lost = globs or ["all of its tests"]
    return lost


def _broken(rule: Rule, drift: Drift, before: Written, after: Written) -> tuple[list[str], dict[str, list[str]]]:
    lost: list[str] = []
    rewrite: dict[str, list[str]] = {}
    known: dict[str, tuple[Iterable[str], Iterable[str]]] = {
        "file": (before.files, after.files),
        "class": (before.classes, after.classes),
        "test": (before.places, after.places),
    }
    for key, (had, has) in known.items():
        for word in known_words(rule, key):
            if is_glob(word):
                continue
            names = {word, f"test/{word}"} if key == "file" else {word}
            if not names & set(had):
                continue  # It matched nothing before; `lint` says so.
            kept = names & set(has) and (key == "file" or _still(rule, key, word, before, after))
            if kept:
                continue
            lost.append(f"{key}: {word}")
            changed, successors = _rewritten(key, word, rule, drift, after)
            if successors:
                current = rewrite.get(changed, list(known_words(rule, changed)))
                gone = word if changed == key else None
                kept_words = [item for item in current if item != gone]
                rewrite[changed] = [*kept_words, *successors]
    said = {key: list(dict.fromkeys(words)) for key, words in rewrite.items()}
    return lost, {key: words for key, words in said.items() if tuple(words) != known_words(rule, key)}


def _still(rule: Rule, key: str, word: str, before: Written, after: Written) -> bool:
    """Whether a class or test that the rule's files have had is in one of them still."""

    def places(written: Written) -> set[tuple[str, str]]:
        found = written.places.get(word, set()) if key == "test" else {(c.file, word) for c in written.classes[word]}
        files = None if rule.file is None or any(map(is_glob, rule.file)) else {
            name for item in rule.file for name in (item, f"test/{item}")
        }  # fmt: skip
        classes = rule.cls if rule.cls is not None and not any(map(is_glob, rule.cls)) else None
        return {
            place for place in found
            if (files is None or place[0] in files) and (key == "class" or classes is None or place[1] in classes)
        }  # fmt: skip

    return not places(before) or bool(places(after))


def known_words(rule: Rule, key: str) -> tuple[str, ...]:
    """Words of a rule's selector, by the key as it is written in the file."""
    words: tuple[str, ...] | None = getattr(rule, "cls" if key == "class" else key)
    return words or ()


def _rewritten(key: str, word: str, rule: Rule, drift: Drift, after: Written) -> tuple[str, list[str]]:
    """Which key says it now, and with which words.

    A renamed test is another word for ``test``; one that moved when its class was split is another word for ``class``.
    """
    changes: dict[Key, list[Key]] = defaultdict(list)
    for one, two in drift.classes_renamed.items():
        changes[one].append(two)
    for one, several in drift.classes_split.items():
        changes[one] += several
    found: dict[str, None] = {}
    if key == "test":
        for old_test, new_test in drift.tests_renamed.items():
            if old_test[2] == word and (rule.cls is None or old_test[1] in rule.cls):
                found[new_test[2]] = None
        if found:
            return "test", list(found)
        for (_, cls), places in changes.items():
            if cls in (rule.cls or ()):
                found |= {new: None for path, new in places if (path, new) in after.places.get(word, ()) and new != cls}
        return "class", list(found)
    wanted = {place for test in rule.test or () for place in after.places.get(test, ())}
    for (file, cls), places in changes.items():
        if (file if key == "file" else cls) in (word, f"test/{word}"):
            fitting = [place for place in places if place in wanted] or places
            for place in fitting:
                found[place[1] if key == "class" else _as_written(place[0], word)] = None
    return key, list(found)


def _as_written(path: str, word: str) -> str:
    return path if word.startswith("test/") else path.removeprefix("test/")
