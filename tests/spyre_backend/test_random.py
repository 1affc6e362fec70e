"""Random numbers: the same as on the CPU for the same seed, reproducible, with state."""

import pytest
import torch


@pytest.mark.parametrize(
    "draw",
    [
        lambda device: torch.rand(7, device=device),
        lambda device: torch.randn(33, device=device),
        lambda device: torch.randint(0, 100, (5,), device=device),
        lambda device: torch.randperm(20, device=device),
        lambda device: torch.ones(9, device=device).exponential_(),
        lambda device: torch.multinomial(torch.ones(8, device=device), 4),
        lambda device: torch.nn.functional.dropout(torch.ones(50, device=device), 0.5),
        lambda device: torch.native_dropout(torch.ones(50, device=device), 0.5, True)[0],
        lambda device: torch.bernoulli(torch.full((20,), 0.5, device=device)),
        lambda device: torch.normal(torch.zeros(5, device=device), 1.0),
    ],
)
def test_same_seed_same_numbers_as_the_cpu(draw):
    torch.manual_seed(5)
    expected = [draw("cpu"), draw("cpu")]
    torch.manual_seed(5)
    state = torch.get_rng_state()
    got = [draw("spyre"), draw("spyre")]
    assert all(torch.equal(a.cpu(), b) for a, b in zip(got, expected, strict=True))
    assert torch.equal(torch.get_rng_state(), state), "drawing on the device must not advance the CPU's generator"


def test_state_seed_and_devices():
    torch.spyre.manual_seed_all(3)
    a = torch.rand(4, device="spyre:0")
    assert torch.equal(a.cpu(), torch.rand(4, device="spyre:1").cpu())
    state = torch.spyre.get_rng_state("spyre:1")
    b = torch.rand(4, device="spyre:1")
    torch.spyre.set_rng_state(state, "spyre:1")
    assert torch.equal(torch.rand(4, device="spyre:1"), b)
    assert torch.spyre.initial_seed() == 3
    states = torch.spyre.get_rng_state_all()
    c = torch.rand(4, device="spyre:0")
    torch.spyre.set_rng_state_all(states)
    assert torch.equal(torch.rand(4, device="spyre:0"), c)
    with torch.random.fork_rng(range(2), device_type="spyre"):
        torch.rand(3, device="spyre")
    torch.spyre.set_rng_state_all(states)
    assert torch.equal(torch.rand(4, device="spyre:0"), c)


def test_generators_of_their_own():
    g = torch.Generator(device="spyre").manual_seed(9)
    h = torch.Generator().manual_seed(9)
    assert g.device.type == "spyre"
    assert torch.equal(torch.randn(6, device="spyre", generator=g).cpu(), torch.randn(6, generator=h))
    copy = g.clone_state()
    assert torch.equal(torch.randn(6, device="spyre", generator=g), torch.randn(6, device="spyre", generator=copy))
    assert len(torch.spyre.default_generators) == torch.spyre.device_count()
