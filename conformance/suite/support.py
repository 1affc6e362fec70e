"""Shared by the suite's modules: samples on two devices, comparison with the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_map

SAMPLES = 3
"""Samples per operator and dtype; op_db orders them from plain to special."""

LARGEST = 100_000
"""Elements; a sample with a larger tensor says nothing that a smaller one does not."""

# as_strided.partial_views reads its storage outside of the sample's own elements, which a copy to a device leaves
# behind.
OPERATORS: list[OpInfo] = [
    op for op in op_db if not op.name.startswith("jiterator") and op.full_name != "as_strided.partial_views"
]


UNINITIALISED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""Operators whose result may hold anything, by chance also the same twice."""


def label(name: str) -> Any:
    """Member of the installed torch's ``HardwareClassification``, ``None`` where it has none."""
    from torch.testing._internal import common_utils

    return getattr(getattr(common_utils, "HardwareClassification", None), name, None)


def to_device(value: Any, device: str) -> Any:
    """Moves tensors inside a sample; gradients are asked for anew, so that each side has leaves of its own."""

    def move(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return item.detach().to(device, copy=True).requires_grad_(item.requires_grad)
        if isinstance(item, torch.device) or item == "cpu":
            return torch.device(device) if isinstance(item, torch.device) else device
        return item

    return tree_map(move, value)


def _size(sample: SampleInput) -> int:
    tensors = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    return sum(item.numel() for item in tensors if isinstance(item, torch.Tensor))


def samples(op: OpInfo, dtype: torch.dtype, *, requires_grad: bool = False) -> Iterator[SampleInput]:
    """The first samples of an operator, made on the CPU so that both sides see the same numbers."""
    chosen = (
        s
        for s in op.sample_inputs(  # type: ignore[no-untyped-call]
            "cpu", dtype, requires_grad=requires_grad
        )
        if _size(s) <= LARGEST
    )
    yield from itertools.islice(chosen, SAMPLES)


def call(op: Callable[..., Any], sample: SampleInput, device: str, **kwargs: Any) -> tuple[Any, list[torch.Tensor]]:
    """Calls an operator with a sample moved to ``device``.

    Returns:
        Its result, and the moved tensors that want a gradient.
    """
    arguments = to_device((sample.input, tuple(sample.args), dict(sample.kwargs)), device)
    leaves = [item for item in tree_flatten(arguments)[0] if isinstance(item, torch.Tensor) and item.requires_grad]
    torch.manual_seed(0)
    return op(arguments[0], *arguments[1], **arguments[2], **kwargs), leaves


def tensors(value: Any) -> list[torch.Tensor]:
    """Tensors of a result, in order."""
    return [item for item in tree_flatten(value)[0] if isinstance(item, torch.Tensor)]


def is_random(op: OpInfo, sample: SampleInput) -> bool:
    """Whether two calls with two seeds can differ: then only shape, dtype and device can be compared."""
    if op.name in UNINITIALISED:
        return True
    results = []
    for seed in (1, 2):
        arguments = to_device((sample.input, tuple(sample.args), dict(sample.kwargs)), "cpu")
        torch.manual_seed(seed)
        results.append(tensors(op(arguments[0], *arguments[1], **arguments[2])))
    return len(results[0]) != len(results[1]) or any(
        a.shape != b.shape or not torch.equal(_plain(a), _plain(b)) for a, b in zip(*results, strict=True)
    )


def _plain(value: torch.Tensor) -> torch.Tensor:
    """Dense, without NaN, in a type for which comparison exists."""
    value = value.detach()
    value = value.to_dense() if value.layout is not torch.strided else value
    return torch.nan_to_num(value.to(torch.complex128 if value.is_complex() else torch.float64))
