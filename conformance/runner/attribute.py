"""Whose fault a failure is (C34): what failed on the device is repeated on the CPU with the same tree and torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from conformance.ids import parse
from conformance.registry.model import Capabilities
from conformance.reports.accounts import BROKEN, NOT_THERE, Accounts, OnCpu
from conformance.runner.spec import Root, Setup, Target, Unit
from conformance.selection.decide import Selection
from conformance.selection.labels import torch_labels

CPU = "cpu"
_APART = ("crashed", "timed_out")


def to_repeat(accounts: Accounts) -> dict[str, str]:
    """Tests and files that did not do on the device what the test asks for, known failures too.

    Returns:
        Name on the CPU → id.
    """
    found = {}
    for name in accounts.attempts:
        outcome = accounts.outcome(name)
        # A test that upstream itself expects to fail has no rule of ours.
        if outcome in BROKEN or (outcome == "xfailed" and accounts.planned[name].rule):
            test = parse(name)
            found[str(replace(test, device=CPU) if test.device else test)] = name
    return found


def cpu_setup(setup: Setup) -> Setup:
    """The same run on the CPU: without the backend, and without what is known about it."""
    return replace(
        setup,
        device=CPU,
        module="",
        custom=False,
        fallbacks="",
        environment={**setup.environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        selection=Selection(frozenset(torch_labels()), "include"),
        rules=(),
        capabilities=Capabilities(version=1),
        keyword="",
        unlock=False,
    )


def cpu_units(names: Mapping[str, str], accounts: Accounts, roots: Mapping[str, Root]) -> list[Unit]:
    """A unit per file; what crashed or hung on the device, and a file that could not be imported, is one of its own.

    Args:
        names: of :func:`to_repeat`.
        accounts: of the run on the device.
        roots: file → where it lies.
    """
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for there, name in names.items():
        alone = accounts.outcome(name) in _APART or not parse(name).test
        groups[parse(name).file, there if alone else ""].append(there)
    return [
        Unit(number, roots[path], (Target(path),), len(members), frozenset(members))
        for number, ((path, _), members) in enumerate(sorted(groups.items()), start=1)
    ]


def found_on_cpu(names: Mapping[str, str], cpu: Accounts, finished: bool) -> Iterable[tuple[str, OnCpu]]:
    """What became of each test on the CPU.

    Args:
        names: of :func:`to_repeat`.
        cpu: accounts of the repetition.
        finished: it was not interrupted: a test without a result is one that the CPU does not have.
    """
    for there, name in names.items():
        rows = cpu.attempts.get(there)
        if not rows or there not in cpu.planned:
            if not finished:
                continue
            # A file is only named in the accounts where it could not be imported.
            yield name, OnCpu(NOT_THERE if parse(name).test else "passed")
        else:
            yield name, OnCpu(rows[-1].outcome, rows[-1].message or rows[-1].reason)
