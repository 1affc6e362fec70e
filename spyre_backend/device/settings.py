"""What the environment decides about the simulated cards, as one object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spyre_backend import _C

__all__ = ["Settings", "settings"]


@dataclass(frozen=True)
class Settings:
    """Every setting of the backend. Each is an environment variable, read once, when the first one is needed.

    Attributes:
        mode: ``SPYRE_MODE``. ``"PF"``: one tenant owns the card; ``"VF"``: tenants share it, and each has ``handles``
            region handles. Both hand out the same offsets.
        devices: ``SPYRE_DEVICES``, 1 to 64.
        memory_bytes: ``SPYRE_MEMORY_GB`` (0.001 to 1024) of each device, in bytes.
        handles: ``SPYRE_HANDLES``, 1 to 1024: the region handles of a device in VF mode; a region has at least
            ``memory_bytes / handles`` bytes in both modes.
        domains: ``SPYRE_DOMAINS``, 1 to 64: equal parts of a device's memory; see :mod:`torch.spyre.memory`.
        clock: ``SPYRE_CLOCK``. ``"wall"``: real threads and real time; ``"virtual"``: discrete events, timed by the
            cost model, the same every time.
        host_workers: ``SPYRE_HOST_WORKERS``, 1 to 256: host callbacks that run at a time.
        split_streams: ``SPYRE_SPLIT_STREAMS``, on or off: launches of programs are prepared on a stream of their own,
            so that preparation overlaps the computation before; off, everything is one stream. Results are the same.
        staging_buffers: ``SPYRE_STAGING_BUFFERS``, 1 to 1024: launches of one program that may be on their way to
            the card at a time; with all in use the next one waits.
        correction_regions: ``SPYRE_CORRECTION_REGIONS``, 1 to 64: launches of one program that may be patched before
            the first of them has run.
        eager_programs: ``SPYRE_EAGER_PROGRAMS``, 0 to 1048576: eager operators that are kept as programs, one per
            operator, dtypes, layouts and sizes; the half that was used longest ago goes when there are more. 0: every
            eager operator runs as one step without a program.
        fallback: ``SPYRE_FALLBACK``, for eager calls that no program can run (random numbers, sizes that depend
            on data, …): ``"allow"`` runs them as one step on the device, ``"warn"`` also warns once per operator,
            ``"error"`` raises a RuntimeError. ``torch.spyre.fallback_stats()`` counts them.
        launch: ``SPYRE_LAUNCH``. ``"patch"``: as docs/programs.md says; ``"windows"`` and ``"graph"`` are older
            schemes, for comparison.
    """

    mode: Literal["PF", "VF"]
    devices: int
    memory_bytes: int
    handles: int
    domains: int
    clock: Literal["wall", "virtual"]
    host_workers: int
    split_streams: bool
    staging_buffers: int
    correction_regions: int
    eager_programs: int
    fallback: Literal["allow", "warn", "error"]
    launch: Literal["patch", "windows", "graph"]


def settings() -> Settings:
    """The settings in force.

    Raises:
        ValueError: a variable has an invalid value; the message names both and says what is expected.
    """
    return Settings(**_C.settings())
