"""Moving a tensor's bytes to a secondary tier and back. The tensor, its views and its identity stay."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import torch

from spyre_backend.device.memory import describe, placement

__all__ = ["Offloaded", "offload"]


class _Tier(Protocol):
    """Where bytes can wait. Reads what it wrote, any number of times, until it is dropped."""

    def write(self, storage: torch.UntypedStorage) -> None: ...
    def read(self, storage: torch.UntypedStorage) -> None: ...
    def drop(self) -> None: ...


class _HostTier:
    """Pinned host memory."""

    def write(self, storage: torch.UntypedStorage) -> None:
        self._bytes = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=storage.nbytes() != 0)
        self._bytes.copy_(_bytes_of(storage))

    def read(self, storage: torch.UntypedStorage) -> None:
        _bytes_of(storage).copy_(self._bytes)

    def drop(self) -> None:
        del self._bytes


class _FileTier:
    """A file in the directory for temporary files (``TMPDIR``)."""

    def write(self, storage: torch.UntypedStorage) -> None:
        with tempfile.NamedTemporaryFile(prefix="spyre-offload-", delete=False) as file:
            self._path = Path(file.name)
            try:
                file.write(_bytes_of(storage).cpu().numpy().data)
                file.flush()
            except BaseException:
                self.drop()
                raise

    def read(self, storage: torch.UntypedStorage) -> None:
        content = bytearray(self._path.read_bytes())
        if len(content) != storage.nbytes():
            raise RuntimeError(
                f"the offloaded content in {self._path} has {len(content)} bytes instead of {storage.nbytes()}: "
                "the file was changed or cut off"
            )
        if content:
            _bytes_of(storage).copy_(torch.frombuffer(content, dtype=torch.uint8))

    def drop(self) -> None:
        self._path.unlink(missing_ok=True)


_TIERS: dict[str, Callable[[], _Tier]] = {"host": _HostTier, "file": _FileTier}


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """A tensor of the storage's bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class Offloaded:
    """A storage whose content waits in another tier. Dropping it without :meth:`restore` loses the content."""

    def __init__(self, storage: torch.UntypedStorage, tier: str) -> None:
        self._storage = storage
        self._nbytes = storage.nbytes()
        self._policy = describe(_bytes_of(storage)).policy
        self._tier: _Tier | None = _TIERS[tier]()
        try:
            self._tier.write(storage)
        except BaseException:
            self._tier = None
            raise
        storage.resize_(0)

    @property
    def nbytes(self) -> int:
        """Bytes that wait."""
        return self._nbytes

    def restore(self) -> None:
        """Brings the content back: the tensor and its views have it again, in general at another address, placed as
        before.

        Does nothing the second time. When there is no room on the device, the content stays where it is.

        Raises:
            torch.OutOfMemoryError: there is no room on the device.
            RuntimeError, OSError: the tier lost the content.
        """
        if self._tier is None:
            return
        with placement(self._policy):
            self._storage.resize_(self._nbytes)
        try:
            self._tier.read(self._storage)
        except BaseException:
            self._storage.resize_(0)
            raise
        self._tier.drop()
        self._tier = None

    def __del__(self) -> None:
        if getattr(self, "_tier", None) is not None:
            self._tier.drop()


def offload(tensor: torch.Tensor, tier: Literal["host", "file"] = "host") -> Offloaded:
    """Moves the whole storage of a device tensor to another tier and frees its device memory.

    Waits for what was submitted to the current stream. Until :meth:`Offloaded.restore`, using the tensor or one of
    its views is an error.

    Args:
        tensor: a tensor on a spyre device.
        tier: ``"host"``, pinned host memory, or ``"file"``, a temporary file.

    Returns:
        What brings it back.

    Raises:
        TypeError: not a tensor.
        ValueError: another tier, a tensor on another device, or one whose storage can't be resized.
        RuntimeError: the storage has no memory: it is offloaded already.
        OSError: the file can't be written; the tensor is as it was.
    """
    if tier not in _TIERS:
        raise ValueError(f"there is no tier {tier!r}: choose one of {', '.join(map(repr, _TIERS))}")
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, not {tensor!r}")
    if tensor.device.type != "spyre":
        raise ValueError(f"only tensors on a spyre device can be offloaded, not one on {tensor.device}")
    storage = tensor.untyped_storage()
    if tensor.numel() != 0 and storage.nbytes() == 0:
        raise RuntimeError(
            f"the storage of a tensor of {tensor.numel()} elements has no memory: it was offloaded or resized to 0 "
            "bytes, and has to be restored first"
        )
    if not storage.resizable():
        raise ValueError("the storage of this tensor can't be resized, so its memory can't be given back")
    return Offloaded(storage, tier)
