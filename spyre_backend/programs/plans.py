"""A prepared program: what it tells, and how it comes from an artifact."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from spyre_backend import _C
from spyre_backend.programs.errors import ArtifactError
from spyre_backend.programs.expressions import Steps
from spyre_backend.programs.manifest import (
    CONSTANTS,
    FILE,
    KERNELS,
    PROGRAM,
    Argument,
    IntegerArgument,
    Manifest,
    ScalarArgument,
    Symbol,
    TensorArgument,
    from_json,
)
from spyre_backend.programs.version import compiler_version, torch_version

Plan = TypeVar("Plan", bound="JobPlan")


@dataclass(frozen=True)
class PlanStep:
    """One step of a launch, as it is submitted.

    Attributes:
        do: ``compute_on_host``, ``transfer``, ``compute_on_device`` or ``synchronize``.
        stream: ``preparation`` or ``device``.
        bytes: what it moves or computes on the host.
        fetch_barrier: of a Compute: its operands are read when it starts.
    """

    do: str
    stream: str
    bytes: int = 0
    fetch_barrier: bool = False


class JobPlan:
    """A program that is ready to be launched on one device. Immutable; threads may launch it at once.

    Attributes:
        manifest: what the artifact says.
        directory: the artifact it was prepared from; no launch reads it again.
    """

    def __init__(self, manifest: Manifest, directory: Path, plan: _C.JobPlan) -> None:
        self.manifest = manifest
        self.directory = directory
        self._plan = plan

    @property
    def name(self) -> str:
        """The program's name."""
        return self.manifest.name

    @property
    def device(self) -> torch.device:
        """The device that holds the program."""
        return torch.device("spyre", self._plan.device)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What a launch takes, in order."""
        return self.manifest.arguments

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The dimensions that a launch sets, with their bounds."""
        return self.manifest.symbols

    @property
    def program_bytes(self) -> int:
        """Device memory of the program: its text, its constants and its correction regions."""
        return int(self._plan.image_bytes + self._plan.regions * self._plan.region_bytes)

    @property
    def regions(self) -> int:
        """Correction regions: so many launches can be patched before the first of them has run."""
        return int(self._plan.regions)

    @property
    def instructions(self) -> int:
        """Instructions of the program."""
        return int(self._plan.instructions)

    @property
    def steps(self) -> tuple[PlanStep, ...]:
        """What one launch submits, in order."""
        patch = 8 * len(self.manifest.slots)
        kinds = {
            "compute_on_host": PlanStep("compute_on_host", "preparation", patch),
            "transfer": PlanStep("transfer", "preparation", int(self._plan.region_bytes)),
            "compute_on_device": PlanStep("compute_on_device", "device", fetch_barrier=self.manifest.fetch_barrier),
            "synchronize": PlanStep("synchronize", "device"),
        }
        return tuple(kinds[step.do] for step in self.manifest.execution)

    def launch(self, arguments: Sequence[torch.Tensor | int | float]) -> None:
        """Queues one execution on the current stream of the device.

        Raises:
            ValueError, TypeError: an argument is not what the program takes; nothing was queued.
        """
        self._plan.launch(arguments)
        if self.manifest.synchronizes:
            torch.accelerator.current_stream(self.device).synchronize()

    def __repr__(self) -> str:
        return (
            f"JobPlan({self.name!r}, {self.device}, {len(self.arguments)} arguments, {self.instructions} instructions, "
            f"{self.program_bytes} bytes)"
        )


def load_plan(directory: Path, device: torch.device | str | int | None, kind: type[Plan]) -> Plan:
    """Reads, checks and parses an artifact, allocates its program memory and uploads it.

    Args:
        directory: the artifact.
        device: a spyre device; the current one by default.
        kind: the class of the plan: how it is launched.

    Raises:
        ArtifactError: the artifact is damaged, or was made for another PyTorch or by another compiler.
        torch.OutOfMemoryError: the program memory is full.
    """
    directory = directory.absolute()
    manifest = read_manifest(directory)
    files = {name: _read_binary(directory, manifest, name) for name in manifest.binaries}
    try:
        plan = prepared(manifest, files, _index(device))
    except _C.InvalidArgument as error:
        raise ArtifactError(directory, f"{PROGRAM}: {error}") from None
    return kind(manifest, directory, plan)


def prepared(manifest: Manifest, files: Mapping[str, bytes], device: int) -> _C.JobPlan:
    """The extension's plan of a program whose parts are in memory; uploads it.

    Args:
        manifest: its description.
        files: its binaries, by name.
        device: index of the device.

    Raises:
        torch.spyre.InvalidArgument: the card refuses the program's text.
        torch.OutOfMemoryError: the program memory is full.
    """
    kernels = files.get(KERNELS, b"")
    digest = manifest.binaries[KERNELS].sha256 if kernels else ""
    return _C.JobPlan(_description(manifest), files[PROGRAM], files.get(CONSTANTS, b""), kernels, digest, device)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of an artifact that this PyTorch and this compiler can run.

    Raises:
        ArtifactError: it is not one.
    """
    try:
        text = (directory / FILE).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(directory, f"{FILE} can't be read: {error}") from None
    manifest = from_json(text, directory)
    for field, made_for, here in (
        ("target.torch", manifest.target.torch, torch_version()),
        ("target.compiler", manifest.target.compiler, compiler_version()),
    ):
        if made_for != here:
            raise ArtifactError(directory, f"was made for {made_for}, this is {here}", field)
    return manifest


def _read_binary(directory: Path, manifest: Manifest, name: str) -> bytes:
    expected = manifest.binaries[name]
    try:
        data = (directory / name).read_bytes()
    except OSError as error:
        raise ArtifactError(directory, f"{name} can't be read: {error}") from None
    if len(data) != expected.bytes:
        raise ArtifactError(directory, f"{name} has {len(data)} bytes, not {expected.bytes}", f"binaries.{name}.bytes")
    if hashlib.sha256(data).hexdigest() != expected.sha256:
        raise ArtifactError(directory, f"{name} has another content", f"binaries.{name}.sha256")
    return data


def _index(device: torch.device | str | int | None) -> int:
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "spyre":
        raise ValueError(f"a program runs on a spyre device, not on {device}")
    return _C.current_device() if device.index is None else device.index


def _description(manifest: Manifest) -> dict[str, object]:
    """The manifest as the extension takes it (``csrc/programs/bindings.cpp``)."""
    return {
        "name": manifest.name,
        "symbols": [(one.name, one.minimum, one.maximum, one.multiple) for one in manifest.symbols],
        "arguments": [_argument(argument, manifest) for argument in manifest.arguments],
        "slots": [(int(slot.kind), slot.argument, manifest.steps(slot.value)) for slot in manifest.slots],
        "scratch": manifest.steps(manifest.scratch),
        "bytes": manifest.steps(manifest.cost.bytes),
        "operations": manifest.steps(manifest.cost.operations),
        "fetch_barrier": manifest.fetch_barrier,
    }


def _argument(argument: Argument, manifest: Manifest) -> tuple[object, ...]:
    if isinstance(argument, IntegerArgument):
        return ("integer", argument.name, manifest.names.index(argument.symbol))
    if isinstance(argument, ScalarArgument):
        return ("scalar", argument.name, argument.type == "int")
    assert isinstance(argument, TensorArgument)
    shape: list[Steps] = [manifest.steps(size) for size in argument.shape]
    strides: list[Steps] = [manifest.steps(size) for size in argument.strides]
    role = argument.role
    return ("tensor", argument.name, argument.dtype, shape, strides, role in ("in", "inout"), role in ("out", "inout"))
