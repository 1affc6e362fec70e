"""A PrivateUse1 backend of fifty lines: every tensor keeps its data on the CPU, every operator runs there.

It is no device that anybody wants; it shows that `conformance` needs a profile for a new one, and no code.
"""

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend


class PocketTensor(torch.Tensor):
    """A tensor of the device, around one of the CPU."""

    @staticmethod
    def __new__(cls, data):
        made = torch._C._acc.create_empty_tensor(data.shape, data.dtype)
        made.__class__ = cls
        made.data_on_cpu = data.contiguous()
        return made

    def __init__(self, data):
        pass


class Module(_DummyBackendModule):
    """What torch.pocket offers."""

    def is_available(self):
        return True

    def device_count(self):
        return 1

    def current_device(self):
        return 0


def down(value):
    return tree_map_only(PocketTensor, lambda tensor: tensor.data_on_cpu, value)


def up(value):
    return tree_map_only(torch.Tensor, PocketTensor, value)


def anywhere(op, *arguments, **keywords):
    """Every operator: on the CPU, and the result back; what was written in place is its argument."""
    written = next((a for a in arguments if isinstance(a, PocketTensor)), None) if op._schema.is_mutable else None
    wanted = keywords.get("device")
    if wanted is not None:
        keywords["device"] = torch.device("cpu")
    result = op(*down(arguments), **down(keywords))
    if written is not None:
        return written
    return result if wanted is not None and wanted.type == "cpu" else up(result)


def copied(source, target, non_blocking=False):
    if isinstance(target, PocketTensor):
        target.data_on_cpu.copy_(down(source))
    else:
        target.copy_(down(source))
    return target


def empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return PocketTensor(torch.empty(size, dtype=dtype or torch.get_default_dtype()))


def empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return PocketTensor(torch.empty_strided(size, stride, dtype=dtype or torch.get_default_dtype()))


_setup_privateuseone_for_python_backend("pocket", backend_module=Module())
LIBRARY = torch.library.Library("_", "IMPL")
LIBRARY.fallback(anywhere, "PrivateUse1")
ATEN = torch.library.Library("aten", "IMPL")
ATEN.impl("empty.memory_format", empty, "PrivateUse1")
ATEN.impl("empty_strided", empty_strided, "PrivateUse1")
ATEN.impl("_copy_from", copied, "PrivateUse1")
