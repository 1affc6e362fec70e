"""What ``tools/operators.py`` runs in processes of its own: operators of op_db on the device and on the CPU.

Usage: compare_operators.py MODULE GRADIENTS TASKS. MODULE brings the device, GRADIENTS is the number of samples whose
gradients are compared, TASKS a JSON list of [operator, dtype, kind]. Says one JSON object a line on its standard
output: ``ready``, then ``start`` and ``end`` of each task, then ``done``.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_map

from conformance.suite.support import UNINITIALISED

DEVICE = "spyre"
FACTORIES = frozenset({"arange", "linspace", "logspace"})
"""Operators with samples that name no device."""


class Comparison(TestCase):
    """Upstream's ``assertEqual``."""

    def runTest(self) -> None:
        """Never called: ``unittest`` wants it to be there."""


ASSERT = Comparison()  # type: ignore[no-untyped-call]


class Differs(Exception):
    """What the device gave is not what the CPU gave."""


def copied(value: Any, device: str) -> Any:
    """The same arguments on a device.

    Storages are copied as a whole, so overlapping, expanded and shifted tensors stay what they are and two views of one
    storage still share it. Leaves get their own gradient. Tensors that the device's sample holds on the CPU (indices
    that an operator wants there) stay on the CPU.
    """
    storages: dict[int, torch.Tensor] = {}

    def copy(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            if item.layout is not torch.strided:
                return item.detach().to(device).requires_grad_(item.requires_grad)
            target = device if item.device.type == DEVICE else item.device.type
            storage = item.untyped_storage()
            if storage._cdata not in storages:
                whole = torch.empty(0, dtype=torch.uint8, device=item.device).set_(storage)
                storages[storage._cdata] = whole.to(target, copy=True)
            result = torch.empty(0, dtype=item.dtype, device=target)
            result.set_(
                storages[storage._cdata].untyped_storage(), item.storage_offset(), item.size(), item.stride()
            )  # fmt: skip
            torch._C._set_conj(result, item.is_conj())
            torch._C._set_neg(result, item.is_neg())
            return result.requires_grad_(item.requires_grad)
        if isinstance(item, torch.device) or (isinstance(item, str) and item.partition(":")[0] == DEVICE):
            return type(item)(device)
        if isinstance(item, torch.Generator):
            return torch.Generator(device).manual_seed(item.initial_seed())
        return item

    return tree_map(copy, value)


def arguments_of(sample: SampleInput) -> tuple[Any, Any, Any]:
    """Input, positional and keyword arguments."""
    return sample.input, tuple(sample.args), dict(sample.kwargs)


def call(op: OpInfo, arguments: tuple[Any, Any, Any]) -> Any:
    """Calls an operator with the seed that every call has: random operators promise the CPU's numbers for its seed."""
    torch.manual_seed(0)
    return op(arguments[0], *arguments[1], **arguments[2])


def differentiated(op: OpInfo, sample: SampleInput, arguments: tuple[Any, Any, Any]) -> Any:
    """Gradients of the sum of all results, with respect to every input that wants one; ``None`` without any."""
    leaves = [one for one in tree_flatten(arguments)[0] if isinstance(one, torch.Tensor) and one.requires_grad]
    result = sample.output_process_fn_grad(call(op, arguments))
    outputs = [one for one in tree_flatten(result)[0] if isinstance(one, torch.Tensor) and one.requires_grad]
    if not outputs or not leaves:
        return None
    total = sum((one.abs() if one.is_complex() else one).sum() for one in outputs)
    return torch.autograd.grad(total, leaves, allow_unused=True)  # type: ignore[arg-type]


def bits(value: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as bytes, in order of its indices."""
    plain = value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.view(-1).view(torch.uint8)


def tolerance_of(op: OpInfo, dtype: torch.dtype) -> dict[str, float]:
    """``atol`` and ``rtol`` that the OpInfo asks for when results are compared with the CPU's, else nothing.

    Upstream's ``TestCommon.test_compare_cpu`` compares so, and OpInfos name tests by class and name.
    """
    for decorator in op.get_decorators("TestCommon", "test_compare_cpu", DEVICE, dtype, {}):  # type: ignore[no-untyped-call]
        for item in getattr(decorator, "decorators", [decorator]):
            if isinstance(item, toleranceOverride) and dtype in item.d:
                return {"atol": item.d[dtype].atol, "rtol": item.d[dtype].rtol}
    return {}


def compare(actual: Any, expected: Any, *, values: bool, strides: bool, tolerance: dict[str, float]) -> bool:
    """Compares structure, dtypes, shapes, strides and values.

    Args:
        actual: what the device gave.
        expected: what the CPU gave.
        values: false: whatever the tensors hold is right.
        strides: whether they are compared. Those of a gradient are its producer's choice.
        tolerance: ``atol`` and ``rtol``, or nothing for upstream's of each dtype.

    Returns:
        True where all tensors agree bit for bit, false where only within upstream's tolerance.

    Raises:
        Differs: they do not agree.
    """
    (got, shape), (wanted, shape_wanted) = tree_flatten(actual), tree_flatten(expected)
    if shape != shape_wanted:
        raise Differs(f"structure {shape}, not {shape_wanted}")
    exact = True
    for one, other in zip(got, wanted, strict=True):
        if not isinstance(other, torch.Tensor):
            if isinstance(other, torch.device):
                continue
            equal(one, other, tolerance)
            continue
        if one.layout is not other.layout:
            raise Differs(f"layout {one.layout}, not {other.layout}")
        if one.dtype != other.dtype or one.shape != other.shape:
            raise Differs(f"{one.dtype} {tuple(one.shape)}, not {other.dtype} {tuple(other.shape)}")
        if strides and other.layout is torch.strided and one.stride() != other.stride() and other.numel() > 0:
            raise Differs(f"strides {one.stride()}, not {other.stride()}, of shape {tuple(other.shape)}")
        if not values:
            continue
        here = one.detach().cpu()
        if other.layout is torch.strided and torch.equal(bits(here), bits(other.detach())):
            continue
        exact = False
        equal(here, other.detach(), tolerance)
    return exact


def equal(actual: Any, expected: Any, tolerance: dict[str, float]) -> None:
    """Upstream's ``assertEqual``.

    Raises:
        Differs: it fails.
    """
    try:
        ASSERT.assertEqual(actual, expected, exact_device=False, **tolerance)  # type: ignore[arg-type]
    except AssertionError as error:
        raise Differs(" ".join(str(error).split())[:200]) from None


def repeats(op: OpInfo, arguments: tuple[Any, Any, Any], seeds: tuple[int, int]) -> bool:
    """Whether the CPU gives the same with two seeds."""
    results = []
    for seed in seeds:
        torch.manual_seed(seed)
        here = copied(arguments, "cpu")
        results.append(op(here[0], *here[1], **here[2]))
    try:
        return compare(results[1], results[0], values=True, strides=False, tolerance={}) or True
    except Differs:
        return False


def eager_calls() -> tuple[int, int]:
    """Eager calls of this process that ran as programs, and those that no program can run."""
    launches: Counter[str] = torch.spyre.compile_stats().launches  # type: ignore[attr-defined]
    outside = torch.spyre.fallback_stats().values()  # type: ignore[attr-defined]
    return launches.total(), sum(fallback.calls for fallback in outside)


class Counts:
    """What came out for the samples of one task.

    Attributes:
        samples: that the CPU computes.
        exact: of them, equal bit for bit.
        computed: samples for which the card's compute pipeline worked.
        launched: of them, samples of which every eager call ran as a program.
        copies: samples for which a tensor was copied to the host.
        undefined: samples with which the CPU disagrees with itself for one seed, so that only shapes were compared.
        refused: samples that the CPU refuses, and the device too.
        faults: what went wrong → number of samples.
    """

    def __init__(self) -> None:
        self.samples = self.exact = self.computed = self.launched = self.copies = self.undefined = self.refused = 0
        self.faults: dict[str, int] = {}

    def fault(self, text: str) -> None:
        """Counts one sample that went wrong."""
        short = " ".join(text.split())[:200]
        key = short if short in self.faults or len(self.faults) < 5 else "others"
        self.faults[key] = self.faults.get(key, 0) + 1


def run(op: OpInfo, dtype: torch.dtype, kind: str, gradients: int) -> Counts:
    """Compares all samples of an operator and dtype (``forward``), or the gradients of the first (``gradient``)."""
    counts = Counts()
    gradient = kind == "gradient"
    iterator = samples_on_device(op, dtype, requires_grad=gradient, counts=counts)
    for sample in itertools.islice(iterator, gradients if gradient else None):
        one(op, dtype, sample, gradient, counts)
    return counts


def samples_on_device(op: OpInfo, dtype: torch.dtype, *, requires_grad: bool, counts: Counts) -> Iterator[SampleInput]:
    """Samples made on the device; where that fails it is a fault, unless it fails on the CPU too."""
    torch.manual_seed(0)
    try:
        yield from op.sample_inputs(DEVICE, dtype, requires_grad=requires_grad)  # type: ignore[no-untyped-call]
    except Exception as error:
        try:
            for _ in op.sample_inputs("cpu", dtype, requires_grad=requires_grad):  # type: ignore[no-untyped-call]
                pass
        except Exception:
            counts.refused += 1
            return
        counts.samples += 1
        counts.fault(f"making samples: {type(error).__name__}: {error}")


def one(op: OpInfo, dtype: torch.dtype, sample: SampleInput, gradient: bool, counts: Counts) -> None:
    """Compares one sample."""
    given = arguments_of(sample)
    here, first, there = copied(given, "cpu"), copied(given, DEVICE), copied(given, DEVICE)
    try:
        expected = differentiated(op, sample, here) if gradient else call(op, here)
        refusal = None
    except Exception as error:
        refusal = error
    with contextlib.suppress(Exception):
        # Compiles what it calls: the call that is compared launches programs.
        differentiated(op, sample, first) if gradient else call(op, first)
    torch.accelerator.synchronize()
    before = eager_calls()
    with torch.spyre.record_timeline() as timeline:  # type: ignore[attr-defined]
        try:
            actual = differentiated(op, sample, there) if gradient else call(op, there)
            torch.accelerator.synchronize()
            failure = None
        except Exception as error:
            failure = error
    if refusal is not None:
        counts.refused += 1
        if failure is None:
            counts.samples += 1
            counts.fault(f"runs where the CPU raises {type(refusal).__name__}: {refusal}")
        return
    counts.samples += 1
    if failure is not None:
        counts.fault(f"{type(failure).__name__}: {failure}")
        return
    pipelines = {interval.pipeline for interval in timeline.intervals}
    counts.computed += "compute" in pipelines
    counts.copies += "d2h" in pipelines
    launches, outside = (now - then for now, then in zip(eager_calls(), before, strict=True))
    counts.launched += launches > 0 and outside == 0
    try:
        counts.exact += compare(
            actual, expected, values=op.name not in UNINITIALISED, strides=not gradient,
            tolerance=tolerance_of(op, dtype),
        )  # fmt: skip
        # A factory that is not told a device uses the default one, which is the CPU.
        if (
            op.name not in FACTORIES
            and "device" not in sample.kwargs
            and any(isinstance(leaf, torch.Tensor) and leaf.device.type != DEVICE for leaf in tree_flatten(actual)[0])
        ):
            counts.fault("a result is on the CPU")
    except Differs as difference:
        if gradient or repeats(op, given, (0, 0)):
            same = gradient or repeats(op, given, (0, 1))
            counts.fault(("" if same else "random: ") + str(difference))
        else:
            counts.undefined += 1


def main() -> None:
    """Runs the tasks."""
    module, gradients, tasks = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What operators print must not disturb what is said.

    def say(**what: Any) -> None:
        print(json.dumps(what), file=out, flush=True)

    warnings.simplefilter("ignore")
    importlib.import_module(module)
    operators = {op.full_name: op for op in op_db}
    say(e="ready", count=len(tasks))
    for number, (name, dtype, kind) in enumerate(tasks):
        say(e="start", number=number)
        say(e="end", number=number, **vars(run(operators[name], getattr(torch, dtype), kind, gradients)))
    say(e="done")


if __name__ == "__main__":
    main()
