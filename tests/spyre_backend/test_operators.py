"""Operator coverage: the first sample of every OpInfo, on the device and on the CPU, gives the same."""

import warnings

import pytest
import torch
from torch.utils import _pytree as pytree

# What can't give the CPU's values, by OpInfo name, with the reason.
NOT_COMPARED = {
    "empty": "uninitialised memory",
    "empty_like": "uninitialised memory",
    "empty_permuted": "uninitialised memory",
    "empty_strided": "uninitialised memory",
    "new_empty": "uninitialised memory",
    "new_empty_strided": "uninitialised memory",
    "nn.functional.rrelu": "the CPU's sample draws from the CPU's generator between device draws",
}
# What does not work on the device, with the reason. An entry that starts to work fails the test.
NOT_WORKING = {
    "sparse.mm.reduce": "sparse layouts are not supported",
    "sparse.sampled_addmm": "sparse layouts are not supported",
    "tensor_split": "PyTorch wants the tensor of indices on the CPU, whatever the device",
    "to_sparse": "sparse layouts are not supported",
}


def moved(value):
    """The same arguments with every tensor on the device; dtypes and values unchanged."""

    def move(leaf):
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to("spyre").requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.device):
            return torch.device("spyre")
        return "spyre" if leaf == "cpu" and isinstance(leaf, str) else leaf

    return pytree.tree_map(move, value)


def outcome(call, sample, args, kwargs):
    torch.manual_seed(0)
    return call(sample, *args, **kwargs)


def compare(op, dtype):
    """None when the device does what the CPU does, else a line that says what is different."""
    try:
        sample = next(iter(op.sample_inputs("cpu", dtype)))
    except StopIteration:
        return None
    except Exception:
        # The sample can't be made on the CPU either.
        return None
    there = moved((sample.input, sample.args, sample.kwargs))
    here = (sample.input, sample.args, sample.kwargs)
    try:
        expected = outcome(op.op, *here)
    except Exception as error:
        expected = error
    try:
        actual = outcome(op.op, *there)
    except Exception as error:
        if isinstance(expected, Exception):
            return None
        return f"raised {type(error).__name__}: {str(error).splitlines()[0][:160]}"
    if isinstance(expected, Exception):
        return f"did not raise {type(expected).__name__}"
    for mine, theirs in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
        if not isinstance(mine, torch.Tensor):
            if mine != theirs and mine == mine and op.name not in NOT_COMPARED:
                return f"gave {mine!r} instead of {theirs!r}"
            continue
        if mine.device.type != "spyre":
            return f"gave a tensor on {mine.device}"
        if (mine.shape, mine.dtype, mine.stride()) != (theirs.shape, theirs.dtype, theirs.stride()):
            return f"gave {mine.shape} {mine.dtype} {mine.stride()} for {theirs.shape} {theirs.dtype} {theirs.stride()}"
        if op.name in NOT_COMPARED:
            continue
        try:
            torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), equal_nan=True, rtol=0, atol=0)
        except AssertionError:
            return "gave other values"
    return None


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_every_operator_does_what_the_cpu_does(dtype):
    from torch.testing._internal.common_methods_invocations import op_db

    failures, names = {}, set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            names.add(op.full_name)
            if line := compare(op, dtype):
                failures[op.full_name] = line
    working = [name for name in NOT_WORKING if name in names and failures.pop(name, None) is None]
    assert working == [], "these work now: remove them from NOT_WORKING"
    assert failures == {}, f"{len(failures)} of {len(names)}"
    assert len(names) > 300
