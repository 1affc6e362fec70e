"""Rules that match a test, most specific first (C14)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from conformance.ids import TestId
from conformance.registry.model import Action, Capabilities, FeatureSelector, Rule

WEIGHTS = {"file": 1, "cls": 4, "test": 16, "op": 32, "dtype": 8, "other": 8}
"""A rule's weight is the sum over its selectors, a glob counts half: operator × test beats operator, beats test,
beats class, beats file; a dtype refines any of them."""

_WRITTEN = ("file", "cls", "test")
"""Parts that all variants of a written test share; what they exclude is excluded once."""

Predicate = Callable[[str], bool]


_GLOB = re.compile(r"[*?\[]").search


def is_glob(pattern: str) -> bool:
    """Whether a selector's word is a pattern of ``fnmatch`` and not a name."""
    return _GLOB(pattern) is not None


@lru_cache(maxsize=4096)
def _pattern(glob: str) -> Callable[[str], object]:
    return re.compile(translate(glob)).match


def matcher(part: str, patterns: tuple[str, ...]) -> Predicate:
    """Whether a part of a test's id is one of some names or fits one of some globs.

    Args:
        part: ``file``, ``cls``, ``test``, ``op``, ``dtype`` or ``other``.
        patterns: as in a rule. People name upstream's files from ``test/`` or from the checkout's root. Of several
            dtypes one is enough: a test over ``float32,complex64`` needs complex64.
    """
    names = [pattern for pattern in patterns if _GLOB(pattern) is None]
    globs = [_pattern(pattern) for pattern in patterns if _GLOB(pattern)] if len(names) < len(patterns) else []
    if part == "file":
        names += [f"test/{name}" for name in names]
        globs += [_pattern(f"test/{pattern}") for pattern in patterns if _GLOB(pattern)]
    exact = frozenset(names)
    if not globs and part != "dtype":
        return exact.__contains__

    def one(value: str) -> bool:
        return value in exact or any(match(value) is not None for match in globs)

    if part != "dtype":
        return one
    return lambda value: one(value) or ("," in value and any(one(item) for item in value.split(",")))


@dataclass(frozen=True, slots=True)
class _Compiled:
    """Selectors of a rule or feature, divided into what all variants of a written test share and the rest."""

    weight: float
    written: tuple[tuple[str, Predicate], ...]
    variant: tuple[tuple[str, Predicate], ...]
    ops: tuple[str, ...] | None

    def matches_written(self, test: TestId) -> bool:
        return all(matches(getattr(test, part)) for part, matches in self.written)

    def matches_variant(self, test: TestId) -> bool:
        return all(matches(getattr(test, part)) for part, matches in self.variant)


def _compile(rule: Rule | FeatureSelector) -> _Compiled:
    weight = 0.0
    written, variant = [], []
    ops = None
    for part, points in WEIGHTS.items():
        patterns: tuple[str, ...] | None = getattr(rule, part, None)
        if patterns is None:
            continue
        globs = any(map(_GLOB, patterns))
        weight += points * (0.5 if globs else 1.0)
        if part in _WRITTEN:
            written.append((part, matcher(part, patterns)))
        elif part == "op" and not globs:
            ops = patterns
        else:
            variant.append((part, matcher(part, patterns)))
    return _Compiled(weight, tuple(written), tuple(variant), ops)


@dataclass(slots=True)
class _Group:
    """Rules that can match variants of one written test.

    Attributes:
        by_op: those that name operators.
        rest: all others.
        fixed: the answer for every variant, where no rule looks at more than the written test.
    """

    by_op: dict[str, list[int]]
    rest: list[int]
    fixed: tuple[Rule, ...] | None


class Registry:
    """Rules that count in this run, ready to be asked per test.

    Attributes:
        rules: in the order of the files.
        capabilities: what the backend declares.
    """

    def __init__(self, rules: Iterable[Rule] = (), capabilities: Capabilities | None = None) -> None:
        """Compiles the rules.

        Args:
            rules: those whose conditions hold.
            capabilities: where features are defined. An unsupported feature needs a rule to have an effect, because
                only a rule says what is expected of its tests.
        """
        self.rules = tuple(rules)
        self._own = [_compile(rule) for rule in self.rules]
        self.capabilities = capabilities or Capabilities(version=1)
        features = self.capabilities.features
        self._features = [
            [_compile(selector) for selector in features[rule.feature].tests]
            if rule.feature is not None and rule.feature in features
            else None
            for rule in self.rules
        ]
        self._by_test: dict[str, list[int]] = defaultdict(list)
        self._by_class: dict[str, list[int]] = defaultdict(list)
        self._rest: list[int] = []
        for number, rule in enumerate(self.rules):
            for index, patterns in ((self._by_test, rule.test), (self._by_class, rule.cls)):
                if patterns is not None and not any(map(is_glob, patterns)):
                    for pattern in patterns:
                        index[pattern].append(number)
                    break
            else:
                self._rest.append(number)
        self._groups: dict[tuple[str, str, str], _Group] = {}

    def _group(self, test: TestId) -> _Group:
        key = (test.file, test.cls, test.test)
        if key in self._groups:
            return self._groups[key]
        candidates = (*self._by_test.get(test.test, ()), *self._by_class.get(test.cls, ()), *self._rest)
        numbers = [number for number in dict.fromkeys(candidates) if self._own[number].matches_written(test)]
        group = _Group(defaultdict(list), [], None)
        varies = False
        for number in numbers:
            own = self._own[number]
            varies = varies or bool(own.variant) or self.rules[number].feature is not None
            if own.ops is None:
                group.rest.append(number)
            else:
                for op in own.ops:
                    group.by_op[op].append(number)
        if not varies and not group.by_op:
            group.fixed = self._sorted(group.rest)
        self._groups[key] = group
        return group

    def _sorted(self, numbers: list[int]) -> tuple[Rule, ...]:
        return tuple(self.rules[n] for n in sorted(numbers, key=lambda n: (-self._own[n].weight, n)))

    def _matches(self, number: int, test: TestId) -> bool:
        if self.rules[number].feature is not None and not any(
            item.matches_written(test) and item.matches_variant(test) and (item.ops is None or test.op in item.ops)
            for item in self._features[number] or ()
        ):
            return False
        return self._own[number].matches_variant(test)

    def matching(self, test: TestId) -> tuple[Rule, ...]:
        """Every rule that matches, most specific first; equal ones in the order of the files."""
        group = self._group(test)
        if group.fixed is not None:
            return group.fixed
        numbers = group.rest + group.by_op[test.op] if test.op in group.by_op else group.rest
        return self._sorted([number for number in numbers if self._matches(number, test)])

    def weight(self, rule: Rule) -> float:
        """Specificity; the higher one wins."""
        return _compile(rule).weight

    @staticmethod
    def deadline_factor(rules: Iterable[Rule]) -> float:
        """Product-free merge of ``slow`` rules: the most specific one counts."""
        return next((rule.factor for rule in rules if rule.action is Action.SLOW), 1.0)

    def tolerance(self, test: TestId, rules: Iterable[Rule]) -> tuple[float, float] | None:
        """``(atol, rtol)`` of the most specific ``tolerance`` rule, else of the capabilities."""
        for rule in rules:
            if rule.action is Action.TOLERANCE and rule.tolerance is not None:
                return rule.tolerance.atol, rule.tolerance.rtol
        return self.capabilities.tolerance(test.op, test.dtype)
