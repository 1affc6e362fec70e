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


def literal(name: str) -> str:
    """A selector's word that means this one name, whatever characters it has."""
    return re.sub(r"[*?\[]", r"[\g<0>]", name)


@lru_cache(maxsize=4096)
def _pattern(glob: str) -> Callable[[str], object]:
    return re.compile(translate(glob)).match


class _Memo(dict[str, bool]):
    """A predicate over few different values, each judged once."""

    def __init__(self, judge: Predicate) -> None:
        super().__init__()
        self._judge = judge

    def __missing__(self, value: str) -> bool:
        answer = self[value] = self._judge(value)
        return answer


@lru_cache(maxsize=100_000)
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
    return _Memo(lambda value: one(value) or ("," in value and any(map(one, value.split(","))))).__getitem__


@dataclass(frozen=True, slots=True)
class _Compiled:
    """Selectors of a rule or feature, divided into what all variants of a written test share and the rest.

    Attributes:
        ops: operators by name; ``None`` where any is meant or a glob, which is in ``variant``, says which.
        variant: ``None`` where every variant is meant.
        plain: ``variant`` looks at the dtype alone.
    """

    weight: float
    written: tuple[tuple[str, Predicate], ...]
    ops: tuple[str, ...] | None
    variant: Callable[[TestId], bool] | None
    plain: bool

    def matches_written(self, test: TestId) -> bool:
        return all(matches(getattr(test, part)) for part, matches in self.written)

    def matches(self, test: TestId) -> bool:
        return (
            self.matches_written(test)
            and (self.ops is None or test.op in self.ops)
            and (self.variant is None or self.variant(test))
        )


def _variant(parts: list[tuple[str, Predicate]]) -> Callable[[TestId], bool] | None:
    if not parts:
        return None
    if len(parts) == 1 and parts[0][0] == "dtype":
        # By far the most frequent; a quarter of a million of them are asked in a second.
        matches = parts[0][1]
        return lambda test: matches(test.dtype)
    return lambda test: all(matches(getattr(test, part)) for part, matches in parts)


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
    return _Compiled(weight, tuple(written), ops, _variant(variant), all(part == "dtype" for part, _ in variant))


@dataclass(slots=True)
class _Group:
    """Rules that can match variants of one written test, as places in the order of specificity.

    Attributes:
        by_op: those that name operators.
        by_dtype: those of the others that match variants of a dtype; filled as dtypes are asked for.
        plain: the others of which at most the dtype is to be asked.
        rest: what remains.
    """

    by_op: dict[str, list[int]]
    by_dtype: dict[str, list[int]]
    plain: list[int]
    rest: list[int]


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
        self.capabilities = capabilities or Capabilities(version=1)
        compiled = [_compile(rule) for rule in self.rules]
        self._weights = {id(rule): own.weight for rule, own in zip(self.rules, compiled, strict=True)}
        order = sorted(range(len(self.rules)), key=lambda number: -compiled[number].weight)
        self._ordered = [(self.rules[number], compiled[number]) for number in order]
        self._checks = [self._check(rule, own) for rule, own in self._ordered]
        self._by_test: dict[str, list[int]] = defaultdict(list)
        self._by_class: dict[str, list[int]] = defaultdict(list)
        self._rest: list[int] = []
        for place, (rule, _) in enumerate(self._ordered):
            for index, patterns in ((self._by_test, rule.test), (self._by_class, rule.cls)):
                if patterns is not None and not any(map(_GLOB, patterns)):
                    for pattern in patterns:
                        index[pattern].append(place)
                    break
            else:
                self._rest.append(place)
        self._groups: dict[tuple[str, str, str], _Group] = {}

    def _group(self, test: TestId) -> _Group:
        candidates = (*self._by_test.get(test.test, ()), *self._by_class.get(test.cls, ()), *self._rest)
        group = _Group(defaultdict(list), {}, [], [])
        for place in dict.fromkeys(candidates):
            rule, own = self._ordered[place]
            if own.matches_written(test):
                for op in own.ops or ():
                    group.by_op[op].append(place)
                if own.ops is None:
                    (group.plain if own.plain and rule.feature is None else group.rest).append(place)
        return group

    def _check(self, rule: Rule, own: _Compiled) -> Callable[[TestId], bool] | None:
        """What of a rule is still to be asked of a variant, ``None`` for nothing."""
        if rule.feature is None:
            return own.variant
        feature = self.capabilities.features.get(rule.feature)
        selectors = [_compile(selector) for selector in feature.tests] if feature is not None else []
        variant = own.variant
        return lambda test: (variant is None or variant(test)) and any(item.matches(test) for item in selectors)

    def matching(self, test: TestId) -> tuple[Rule, ...]:
        """Every rule that matches, most specific first; equal ones in the order of the files."""
        key = (test.file, test.cls, test.test)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = self._group(test)
        places = group.by_dtype.get(test.dtype)
        if places is None:
            places = group.by_dtype[test.dtype] = self._asked(sorted(group.plain), test)
        further = self._asked(group.by_op.get(test.op, ()), test)
        if group.rest:
            further += self._asked(group.rest, test)
        if further:
            places = sorted({*places, *further})
        return tuple([self._ordered[place][0] for place in places])

    def _asked(self, places: Iterable[int], test: TestId) -> list[int]:
        """The rules of a group that match a variant."""
        checks = self._checks
        return [place for place in places if (check := checks[place]) is None or check(test)]

    def weight(self, rule: Rule) -> float:
        """Specificity of one of the rules; the higher one wins."""
        return self._weights[id(rule)]

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
