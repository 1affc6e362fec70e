"""``prepare_kernel`` and ``launch_jobplan``, and three ways to launch: ``SPYRE_LAUNCH=patch|windows|graph``.

``patch`` is how programs are launched. The other two are what came before it, kept so that the gain is measured:

``windows``: the card has a small table of address windows, and a program reaches its tensors through them. The table
is the card's, so it is only changed while nothing runs: every launch waits for the one before. A program with more
than :data:`WINDOWS` tensor arguments can't be launched.

``graph``: the runtime graph is rebuilt from disk at every launch, in program memory of its own, and works on buffers
that belong to the job: arguments are copied in, results are copied out. A launch costs time in proportion to the
artifact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from spyre_backend.device.settings import settings
from spyre_backend.programs.builder import ProgramBuilder
from spyre_backend.programs.manifest import TensorArgument
from spyre_backend.programs.plans import JobPlan, load_plan

Scheme: TypeAlias = Literal["patch", "windows", "graph"]

WINDOWS = 16


class WindowPlan(JobPlan):
    """A program whose tensors are reached through the card's table of address windows."""

    def launch(self, arguments: Sequence[torch.Tensor | int | float]) -> None:
        """As :meth:`JobPlan.launch`; waits for the stream first.

        Raises:
            ValueError: the program has more tensors than the table has windows.
        """
        tensors = sum(isinstance(one, TensorArgument) for one in self.arguments)
        if tensors > WINDOWS:
            raise ValueError(
                f"launch of {self.name!r}: {tensors} tensor arguments, but the card has {WINDOWS} address windows: "
                "use SPYRE_LAUNCH=patch"
            )
        torch.accelerator.current_stream(self.device).synchronize()
        super().launch(arguments)


class GraphPlan(JobPlan):
    """A program that is rebuilt from disk at every launch and works on buffers of its own."""

    def launch(self, arguments: Sequence[torch.Tensor | int | float]) -> None:
        """As :meth:`JobPlan.launch`, after reading the artifact again and copying the arguments.

        Raises:
            ArtifactError: the artifact is no longer what it was.
        """
        owned = [
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
            if isinstance(one, torch.Tensor)
            else one
            for one in arguments
        ]
        copies = [
            (role, mine, given)
            for spec, mine, given in zip(self.arguments, owned, arguments, strict=False)
            if isinstance(spec, TensorArgument) and isinstance(mine, torch.Tensor) and isinstance(given, torch.Tensor)
            for role in (spec.role,)
        ]
        for role, mine, given in copies:
            if role != "out":
                _copy("copy in", given, mine)
        load_plan(self.directory, self.device, JobPlan).launch(owned)
        for role, mine, given in copies:
            if role != "in":
                _copy("copy out", mine, given)


def _copy(name: str, source: torch.Tensor, target: torch.Tensor) -> None:
    """Copies a tensor to another of the same layout as a program, which the virtual clock charges for its bytes.

    An eager copy would cost the same whatever its size.
    """
    if source.numel() != 0:
        _copy_plan(name, source.dtype, source.shape, source.stride(), source.device).launch([source, target])


@lru_cache(maxsize=1024)
def _copy_plan(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], device: torch.device
) -> JobPlan:
    builder = ProgramBuilder(name)
    source = builder.tensor("source", dtype, shape, strides)
    target = builder.tensor("target", dtype, shape, strides, role="out")
    builder.call("aten::copy_", target, source)
    return load_plan(builder.write(), device, JobPlan)


PLANS: dict[Scheme, type[JobPlan]] = {"patch": JobPlan, "windows": WindowPlan, "graph": GraphPlan}


def prepare_kernel(
    directory: Path | str, device: torch.device | str | int | None = None, scheme: Scheme | None = None
) -> JobPlan:
    """Makes an artifact ready for launches: reads, checks and parses it, allocates program memory and uploads, once.

    Args:
        directory: the artifact.
        device: a spyre device; the current one by default.
        scheme: how it will be launched; ``SPYRE_LAUNCH`` by default.

    Raises:
        ArtifactError: the artifact is damaged, or was made for another PyTorch or by another compiler.
        torch.OutOfMemoryError: the program memory is full.
        ValueError: the device is no spyre device, or the scheme is none.
    """
    scheme = scheme or settings().launch
    if scheme not in PLANS:
        raise ValueError(f"{scheme!r} is no launch scheme: {', '.join(PLANS)} are")
    return load_plan(Path(directory), device, PLANS[scheme])


def launch_jobplan(plan: JobPlan, arguments: Sequence[torch.Tensor | int | float]) -> None:
    """Queues one execution on the current stream and returns; results are there when the stream gets to them.

    Args:
        plan: from :func:`prepare_kernel`.
        arguments: in the order of ``plan.arguments``; outputs too, which the caller has allocated.

    Raises:
        ValueError, TypeError: an argument is not what the program takes; nothing was queued. What fails later is raised
            by the next synchronisation of the stream.
    """
    plan.launch(arguments)
