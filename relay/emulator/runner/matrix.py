"""Expansion of ``strategy.matrix`` into combinations ("Running variations of jobs in a workflow")."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

MAX_JOBS = 256


class MatrixError(Exception):
    """The matrix is malformed or too large."""


def expand(matrix: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Combinations in GitHub's order.

    ``exclude`` removes every combination that has all of its pairs. An ``include`` entry is added to each original
    combination whose original values it does not overwrite; if there is none, it becomes a combination of its own.

    Raises:
        MatrixError: a value is not a list, nothing is left, or there are more than 256 jobs.
    """
    axes = {name: values for name, values in matrix.items() if name not in ("include", "exclude")}
    for name, values in matrix.items():
        if not isinstance(values, list):
            raise MatrixError(f"matrix.{name} is not a list")
        if name in ("include", "exclude") and not all(isinstance(item, Mapping) for item in values):
            raise MatrixError(f"matrix.{name} must be a list of mappings")
    combinations: list[dict[str, Any]] = []
    if axes:
        combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    for excluded in matrix.get("exclude", []):
        combinations = [
            item for item in combinations if not all(item.get(name) == value for name, value in excluded.items())
        ]
    originals = [dict(item) for item in combinations]
    extra: list[dict[str, Any]] = []
    for included in matrix.get("include", []):
        matched = False
        for original, item in zip(originals, combinations, strict=True):
            if all(original[name] == value for name, value in included.items() if name in original):
                item.update(included)
                matched = True
        if not matched:
            extra.append(dict(included))
    combinations += extra
    if not combinations:
        raise MatrixError("the matrix has no combination")
    if len(combinations) > MAX_JOBS:
        raise MatrixError(f"the matrix has {len(combinations)} jobs; GitHub allows {MAX_JOBS}")
    return combinations


def suffix(combination: Mapping[str, Any]) -> str:
    """The part in brackets of a matrix job's default name: its values, nested ones flattened."""

    def flat(value: Any) -> list[str]:
        if isinstance(value, Mapping):
            return [text for item in value.values() for text in flat(item)]
        if isinstance(value, list):
            return [text for item in value for text in flat(item)]
        return ["true" if value is True else "false" if value is False else "" if value is None else str(value)]

    return ", ".join(flat(combination))
