"""Rules that match a test, most specific first (C14)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import translate

from conformance.ids import TestId
from conformance.registry.model import Action, Capabilities, FeatureSelector, Rule

_PARTS = ("file", "cls", "test", "op", "dtype", "other")
_WEIGHTS = {"file": 1, "cls": 4, "test": 16, "op": 32, "dtype": 8, "other": 8}
"""A rule's weight is the sum over its selectors, a glob counts half: operator × test beats operator, beats test,
beats class, beats file; a dtype refines any of them."""


def _is_glob(pattern: str) -> bool:
    return any(char in pattern for char in "*?[")


def _matcher(part: str, patterns: tuple[str, ...]) -> Callable[[str], bool]:
    exact = frozenset(pattern for pattern in patterns if not _is_glob(pattern))
    if part == "file":
        # People name upstream's files from test/ or from the checkout's root.
        exact |= frozenset(f"test/{name}" for name in exact)
        patterns += tuple(f"test/{pattern}" for pattern in patterns if _is_glob(pattern))
    globs = [re.compile(translate(pattern)).match for pattern in patterns if _is_glob(pattern)]
    return lambda value: value in exact or any(match(value) is not None for match in globs)


def _dtype_matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """One of several dtypes is enough: a test over ``float32,complex64`` needs complex64."""
    matches = _matcher("dtype", patterns)
    return lambda value: matches(value) or any(matches(part) for part in value.split(",") if part)


@dataclass(frozen=True, slots=True)
class _Compiled:
    weight: float
    tests: tuple[tuple[str, Callable[[str], bool]], ...]

    def matches(self, test: TestId) -> bool:
        return all(matches(getattr(test, part)) for part, matches in self.tests)


def _compile(rule: Rule | FeatureSelector) -> _Compiled:
    weight = 0.0
    tests = []
    for part in _PARTS:
        patterns: tuple[str, ...] | None = getattr(rule, part, None)
        if patterns is None:
            continue
        weight += _WEIGHTS[part] * (0.5 if any(_is_glob(pattern) for pattern in patterns) else 1.0)
        tests.append((part, _dtype_matcher(patterns) if part == "dtype" else _matcher(part, patterns)))
    return _Compiled(weight, tuple(tests))


class Registry:
    """Rules that count in this run, ready to be asked per test.

    Attributes:
        rules: in the order of the files.
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
        features = capabilities.features if capabilities else {}
        self._features = [
            [_compile(selector) for selector in features[rule.feature].tests]
            if rule.feature is not None and rule.feature in features
            else None
            for rule in self.rules
        ]
        self._by_test: dict[str, list[int]] = defaultdict(list)
        self._by_op: dict[str, list[int]] = defaultdict(list)
        self._by_class: dict[str, list[int]] = defaultdict(list)
        self._rest: list[int] = []
        for number, rule in enumerate(self.rules):
            for index, patterns in ((self._by_test, rule.test), (self._by_op, rule.op), (self._by_class, rule.cls)):
                if patterns is not None and not any(_is_glob(pattern) for pattern in patterns):
                    for pattern in patterns:
                        index[pattern].append(number)
                    break
            else:
                self._rest.append(number)

    def _matches(self, number: int, test: TestId) -> bool:
        features = self._features[number]
        if self.rules[number].feature is not None and not any(item.matches(test) for item in features or ()):
            return False
        return self._own[number].matches(test)

    def weight(self, rule: Rule) -> float:
        """Specificity; the higher one wins."""
        return self._own[self.rules.index(rule)].weight

    def matching(self, test: TestId) -> tuple[Rule, ...]:
        """Every rule that matches, most specific first; equal ones in the order of the files."""
        candidates = (
            *self._by_test.get(test.test, ()),
            *self._by_op.get(test.op, ()),
            *self._by_class.get(test.cls, ()),
            *self._rest,
        )
        found = [number for number in dict.fromkeys(candidates) if self._matches(number, test)]
        found.sort(key=lambda number: (-self._own[number].weight, number))
        return tuple(self.rules[number] for number in found)

    @staticmethod
    def deadline_factor(rules: Iterable[Rule]) -> float:
        """Product-free merge of ``slow`` rules: the most specific one counts."""
        return next((rule.factor for rule in rules if rule.action is Action.SLOW), 1.0)

    @staticmethod
    def tolerance(rules: Iterable[Rule]) -> tuple[float, float] | None:
        """``(atol, rtol)`` of the most specific ``tolerance`` rule."""
        for rule in rules:
            if rule.action is Action.TOLERANCE and rule.tolerance is not None:
                return rule.tolerance.atol, rule.tolerance.rtol
        return None
