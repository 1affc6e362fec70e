"""Random numbers of spyre devices. The same seed gives the same numbers as on the CPU."""

from __future__ import annotations

import torch

from spyre_backend import _C
from spyre_backend.device._utils import DeviceLike, _get_device_index

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _generator(device: DeviceLike = None) -> torch.Generator:
    return _C.default_generator(_get_device_index(device, optional=True))


def get_rng_state(device: DeviceLike = "spyre") -> torch.Tensor:
    """State of a device's generator, as a CPU tensor of bytes."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all devices' generators."""
    return [get_rng_state(index) for index in range(_C.device_count())]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "spyre") -> None:
    """Restores what :func:`get_rng_state` returned.

    Args:
        new_state: CPU tensor of bytes.
        device: the device it is for.
    """
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Restores what :func:`get_rng_state_all` returned."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices; ``torch.manual_seed`` calls it."""
    for index in range(_C.device_count()):
        _C.default_generator(index).manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device's generator from the operating system's entropy."""
    _generator().seed()


def seed_all() -> None:
    """Seeds all devices' generators with one random number."""
    manual_seed_all(torch.seed() if _C.device_count() == 0 else _C.default_generator(0).seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator().initial_seed()
