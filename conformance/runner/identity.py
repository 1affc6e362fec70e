"""Stable ids for collected tests, from what upstream's instantiation left on classes and functions (C1).

``instantiate_device_type_tests`` makes ``type(name, (device base, generic class), {})`` and gives every variant a
function whose default argument ``param_kwargs`` holds the parameters and whose ``__name__`` is the written method's.
Names are not split; only parts that are known exactly are cut off.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from conformance.ids import TestId
from conformance.inventory.model import FileRow

_INFO_KEYS = ("op", "module_info", "optim_info")


def _device_base() -> type | None:
    module = sys.modules.get("torch.testing._internal.common_device_type")
    return getattr(module, "DeviceTypeTestBase", None)


def generic_class(cls: type) -> tuple[type, bool]:
    """The class as written and whether ``cls`` is a device variant of it."""
    base = _device_base()
    if base is not None and len(cls.__bases__) == 2 and issubclass(cls.__bases__[0], base):
        return cls.__bases__[1], True
    return cls, False


def dtype_names(value: Any) -> tuple[str, ...]:
    """``float32`` for ``torch.float32``; one name per element of a sequence."""
    if value is None:
        return ()
    values = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(str(item).rpartition(".")[2] for item in values)


def _parameters(function: Any) -> dict[str, Any] | None:
    """``param_kwargs`` of an instantiated test, wherever it sits among wrappers; ``None`` for any other function."""
    while function is not None:
        names = getattr(getattr(function, "__code__", None), "co_varnames", ())
        defaults = getattr(function, "__defaults__", None)
        if defaults and "param_kwargs" in names[:2] and isinstance(defaults[-1], dict):
            return defaults[-1]
        function = getattr(function, "__wrapped__", None)
    return None


def _written_name(attribute: str, function: Any, row: FileRow | None, cls: str) -> str:
    """The method's name in the file: what ``functools.wraps`` kept, else the longest written name that fits."""
    name = getattr(function, "__name__", attribute)
    if attribute == name or attribute.startswith(f"{name}_"):
        return str(name)
    written = [
        method.name
        for candidate in (row.classes if row else ())
        if candidate.name == cls
        for method in candidate.tests
        if attribute == method.name or attribute.startswith(f"{method.name}_")
    ]
    return max(written, key=len, default=attribute)


def identify(
    file: str, cls: type | None, attribute: str, device: str, row: FileRow | None, callspec: str = ""
) -> TestId:
    """Names one collected test.

    Args:
        file: as in ids.
        cls: the collected class, ``None`` for a function.
        attribute: name of the collected function.
        device: device type under test.
        row: the file's static row.
        callspec: pytest's own parameter id, ``""`` without one.
    """
    if cls is None:
        return TestId(file, "", attribute, other=callspec)
    written, instantiated = generic_class(cls)
    class_name = written.__qualname__
    function = inspect.getattr_static(cls, attribute, None)
    parameters = _parameters(function)
    # Without parameters upstream did not make this function, and the attribute is the name however it was set.
    name = _written_name(attribute, function, row, class_name) if parameters is not None else attribute
    parameters = parameters or {}
    info = next((parameters[key] for key in _INFO_KEYS if key in parameters), None)
    op = str(getattr(info, "full_name", None) or getattr(info, "name", "") or "") if info is not None else ""
    dtypes = dtype_names(parameters.get("dtypes", parameters.get("dtype")))
    rest = attribute.removeprefix(name)
    own_device = ""
    if instantiated:
        # setUpClass turns "privateuse1" into the backend's name, so the class cannot be asked.
        base_device = str(getattr(cls, "device_type", device))
        own_device = device if base_device in (device, "privateuse1") else base_device
        suffix = "".join(f"_{dtype}" for dtype in dtypes)
        rest = rest.removesuffix(suffix)
        for ending in (f"_{own_device}", f"_{base_device}"):
            if rest.endswith(ending):
                rest = rest.removesuffix(ending)
                break
    if info is not None:
        formatted = str(getattr(info, "formatted_name", op.replace(".", "_")))
        padded = f"{rest}_"
        at = padded.find(f"_{formatted}_")
        if at >= 0:
            rest = (padded[:at] + padded[at + len(formatted) + 1 :]).removesuffix("_")
    other = rest.removeprefix("_")
    return TestId(
        file, class_name, name, op, ",".join(dtypes), "-".join(part for part in (other, callspec) if part), own_device
    )
