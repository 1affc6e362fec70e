"""A declaration against what a run showed (C19), and upstream's settings made of it (C18)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from conformance.registry.model import Capabilities
from conformance.registry.names import Names

RAN = ("passed", "failed", "error", "crashed", "timed_out", "xfailed", "xpassed", "flaky")
"""Outcomes of tests that were executed."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Differences; every entry is ``operator[dtype]``.

    Attributes:
        untested: declared, and no test of it ran.
        undeclared: a test passed, and it is not declared.
        fallback: declared, and a passing test ran partly on the CPU.
        failing: declared, and no test of it passed.
    """

    untested: tuple[str, ...]
    undeclared: tuple[str, ...]
    fallback: tuple[str, ...]
    failing: tuple[str, ...]

    def row(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)

    @property
    def clean(self) -> bool:
        """Nothing differs but what was not tested."""
        return not (self.undeclared or self.fallback or self.failing)


def audit(capabilities: Capabilities, results: Iterable[Mapping[str, Any]], names: Names) -> Audit:
    """Compares.

    Args:
        capabilities: the declaration.
        results: lines of a ``results.jsonl``; the last line of a test counts.
        names: of the installed torch; what is no operator (modules, optimizers) is not declared here.
    """
    last = {line["id"]: line for line in results}
    ran: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for line in last.values():
        if line.get("op") in names.cpu_dtypes and line["outcome"] in RAN and line.get("device"):
            for dtype in (line.get("dtype") or "").split(","):
                ran[line["op"], dtype].append(line)
    passed = {key: [line for line in lines if line["outcome"] in ("passed", "xpassed")] for key, lines in ran.items()}
    declared = {
        (op, dtype)
        for op, row in capabilities.operators.items()
        if row.supported
        for dtype in (capabilities.dtypes if row.dtypes is None else row.dtypes)
        if dtype in names.cpu_dtypes.get(op, (dtype,)) or row.dtypes is not None
    }

    def spelled(keys: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        return tuple(sorted(f"{op}[{dtype}]" if dtype else op for op, dtype in keys))

    return Audit(
        untested=spelled(declared - ran.keys()),
        undeclared=spelled(key for key, lines in passed.items() if lines and not capabilities.declares(*key)),
        fallback=spelled(
            key for key, lines in passed.items()
            if capabilities.declares(*key) and any(line.get("fallback") for line in lines)
        ),
        failing=spelled(key for key, lines in passed.items() if not lines and key in declared),
    )  # fmt: skip


def settings(capabilities: Capabilities, names: Names) -> dict[str, Any]:
    """Arguments for ``DeviceTypeTestBase.set_test_configs`` and what its test base needs, as plain values.

    Returns:
        ``op_allowlist`` (``None`` without a declaration of operators; only names that ``op_db`` has, because a name
        that it does not have is an error at import), ``op_overrides`` (operator → dtypes to skip and tolerances, to be
        made ``DecorateInfo``), ``dtypes`` and ``tolerances``.
    """
    supported = sorted(op for op, row in capabilities.operators.items() if row.supported and op in names.cpu_dtypes)
    overrides: dict[str, Any] = {}
    for op in supported:
        row = capabilities.operators[op]
        allowed = capabilities.dtypes if row.dtypes is None else row.dtypes
        skipped = [dtype for dtype in names.cpu_dtypes[op] if allowed and dtype not in allowed]
        tolerances = {dtype: floor.model_dump() for dtype, floor in row.tolerances.items()}
        if skipped or tolerances:
            overrides[op] = {"skip_dtypes": skipped, "tolerances": tolerances}
    return {
        "op_allowlist": supported if capabilities.operators else None,
        "op_overrides": overrides,
        "dtypes": list(capabilities.dtypes),
        "tolerances": {dtype: floor.model_dump() for dtype, floor in capabilities.tolerances.items()},
    }
