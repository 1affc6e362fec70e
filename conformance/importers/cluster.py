"""Many entries → few rules that name the same tests, no more and no fewer.

A rule with several words in several selectors means every combination of them. So entries may share a rule exactly
where all combinations are entries: words of one part are joined where everything else is the same, part after part.
With a list of all tests more can be said: where every variant of a written test is named, the variants go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from conformance.ids import TestId
from conformance.importers.entry import Entry, Treatment

PARTS = ("file", "cls", "test", "op", "dtype", "other")

_ORDER = ("dtype", "op", "other", "test", "cls")
"""Parts in the order in which their words are joined. Files stay apart, so that a rule is found where people look."""

LONGEST = 40
"""Words that one selector takes at most; longer lists are several rules, which a person can still read."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A rule to be: for every part the words, sorted; an empty tuple means all."""

    treatment: Treatment
    words: tuple[tuple[str, ...], ...]

    def rule(self) -> dict[str, Any]:
        """As it stands in a registry file."""
        rule: dict[str, Any] = {}
        for part, words in zip(PARTS, self.words, strict=True):
            if words:
                key = "class" if part == "cls" else part
                rule[key] = (
                    words[0].removeprefix("test/") if len(words) == 1 else [w.removeprefix("test/") for w in words]
                )
        treatment = self.treatment
        rule |= {"action": treatment.action, "reason": treatment.reason}
        rule |= {key: value for key in ("note", "issue") if (value := getattr(treatment, key))}
        if signature := {key: value for key in ("exception", "message", "phase") if (value := getattr(treatment, key))}:
            rule["signature"] = signature
        if treatment.platform:
            rule["when"] = {"platform": treatment.platform}
        return rule


def widen(entries: Iterable[Entry], tests: Iterable[TestId]) -> list[Entry]:
    """Drops variants where every one of a written test, or of an operator in it, has an entry with one treatment.

    Args:
        entries: exact names.
        tests: every test there is.
    """
    everything: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for test in tests:
        everything[test.file, test.cls, test.test].add((test.op, test.dtype, test.other))
        everything[test.file, test.cls, test.test, test.op].add((test.op, test.dtype, test.other))
    named: dict[Treatment, dict[tuple[str, ...], set[tuple[str, ...]]]] = defaultdict(lambda: defaultdict(set))
    kept = list(entries)
    for entry in kept:
        variant = (entry.op, entry.dtype, entry.other)
        named[entry.treatment][entry.file, entry.cls, entry.test].add(variant)
        named[entry.treatment][entry.file, entry.cls, entry.test, entry.op].add(variant)
    found: dict[Entry, None] = {}
    for entry in kept:
        written = (entry.file, entry.cls, entry.test)
        of_op = (*written, entry.op)
        groups = named[entry.treatment]
        if everything.get(written) and everything[written] <= groups[written]:
            entry = replace(entry, op="", dtype="", other="")
        elif entry.op and everything.get(of_op) and everything[of_op] <= groups[of_op]:
            entry = replace(entry, dtype="", other="")
        found[entry] = None
    return list(found)


def cluster(entries: Iterable[Entry]) -> list[Cluster]:
    """Joins entries into rules without changing what they name.

    Args:
        entries: in any order; equal ones count once.
    """
    clusters = dict.fromkeys(
        Cluster(entry.treatment, tuple((word,) if (word := getattr(entry, part)) else () for part in PARTS))
        for entry in entries
    )
    before = -1
    while before != len(clusters):
        before = len(clusters)
        for part in _ORDER:
            clusters = dict.fromkeys(_join(clusters, PARTS.index(part)))
    return [piece for item in clusters for piece in _pieces(item)]


def _join(clusters: Iterable[Cluster], at: int) -> list[Cluster]:
    groups: dict[tuple[Treatment, tuple[tuple[str, ...], ...]], dict[str, None] | None] = {}
    for item in clusters:
        key = (item.treatment, (*item.words[:at], *item.words[at + 1 :]))
        if not item.words[at]:
            groups[key] = None  # It means all words already, those that others of the group name too.
        elif key not in groups:
            groups[key] = dict.fromkeys(item.words[at])
        elif (words := groups[key]) is not None:
            words |= dict.fromkeys(item.words[at])
    return [
        Cluster(treatment, (*rest[:at], tuple(sorted(words)) if words is not None else (), *rest[at:]))
        for (treatment, rest), words in groups.items()
    ]


def _pieces(item: Cluster) -> list[Cluster]:
    """Splits the longest list of words where it is longer than :data:`LONGEST`."""
    at = max(range(len(PARTS)), key=lambda number: len(item.words[number]))
    words = item.words[at]
    if len(words) <= LONGEST:
        return [item]
    parts = [words[start : start + LONGEST] for start in range(0, len(words), LONGEST)]
    return [
        piece for part in parts
        for piece in _pieces(replace(item, words=(*item.words[:at], part, *item.words[at + 1 :])))
    ]  # fmt: skip
