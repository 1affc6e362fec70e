"""Tensors on the device: memory, views, operators, autograd, copies."""

import copy
import io

import pytest
import torch

DEVICE = "spyre"


def on(value):
    return value.to(DEVICE)


def test_R1_6_results_are_born_on_the_device():
    """No operator copies: one addition takes exactly its result from the device, and nothing from the host."""
    a = torch.ones(1000, device=DEVICE)
    before = torch.spyre.memory_allocated()
    b = a + a
    assert torch.spyre.memory_allocated() - before == 4096
    assert b.device == a.device
    assert b.untyped_storage().nbytes() == 4000


def test_R2_5_the_last_reference_frees_once():
    torch.spyre.synchronize()
    before = torch.spyre.memory_stats()
    a = torch.ones(1000, device=DEVICE)
    view = a[10:20].view(2, 5)
    del a
    assert torch.spyre.memory_allocated() - before.get("allocated_bytes.all.current", 0) == 4096
    del view
    after = torch.spyre.memory_stats()
    assert after["allocated_bytes.all.current"] == before.get("allocated_bytes.all.current", 0)
    assert after["allocation.all.current"] == before.get("allocation.all.current", 0)


def test_R2_7_empty_tensors_take_no_memory():
    before = torch.spyre.memory_allocated()
    empty = torch.empty(0, 3, device=DEVICE)
    assert empty.data_ptr() == 0
    assert torch.spyre.memory_allocated() == before
    assert (empty + 1).shape == (0, 3)


def test_R2_8_the_host_cannot_read_a_tensor(run_python):
    process = run_python(
        "import torch, ctypes\n"
        "t = torch.ones(4, device='spyre')\n"
        "assert t[1:].data_ptr() == t.data_ptr() + 4\n"
        "ctypes.string_at(t.data_ptr(), 4)\n",
        check=False,
    )
    assert process.returncode < 0, "reading a device address from the host must fault"


def test_R2_14_out_of_memory_is_torchs_error_and_changes_nothing():
    before = torch.spyre.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError, match=r"4000000000000 bytes.*largest free block.*region handles"):
        torch.empty(10**12, device=DEVICE)
    assert torch.spyre.memory_allocated() == before
    assert torch.spyre.memory_stats()["num_ooms"] >= 1


def test_views_share_storage_and_in_place_writes_show():
    base = torch.arange(12.0, device=DEVICE)
    views = [base.view(3, 4), base[2:], base.view(3, 4).t(), base.as_strided((2, 2), (6, 1)), base.unfold(0, 4, 4)]
    for view in views:
        assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    base.view(3, 4).t()[1].mul_(10)
    assert base.tolist() == [0, 10, 2, 3, 4, 50, 6, 7, 8, 90, 10, 11]
    assert base.view(2, 6)._base is base


def test_in_place_and_out_return_the_tensor_they_were_given():
    a = torch.ones(3, device=DEVICE)
    assert a.add_(1) is a
    out = torch.empty(0, device=DEVICE)
    pointer = out.untyped_storage()._cdata
    assert torch.add(a, a, out=out) is out
    assert out.shape == (3,)
    assert out.untyped_storage()._cdata == pointer
    assert out.tolist() == [4, 4, 4]


def test_out_is_resized_through_aliases_and_after_errors():
    out = torch.empty(0, device=DEVICE)
    alias = torch.empty(0, device=DEVICE).set_(out)
    torch.cat([torch.ones(2, device=DEVICE)] * 3, out=out)
    assert out.tolist() == [1] * 6
    assert alias.untyped_storage().nbytes() == 24
    with pytest.raises(RuntimeError):
        torch.mm(torch.ones(2, 3, device=DEVICE), torch.ones(2, 3, device=DEVICE), out=out)
    assert (out + 1).tolist() == [2] * 6


def test_composites_that_pytorch_refuses_on_unknown_devices_work():
    x = torch.tensor([3.0, 1.0, 3.0], device=DEVICE)
    values, indices = torch.empty(0, device=DEVICE), torch.empty(0, dtype=torch.int64, device=DEVICE)
    torch.mode(x, out=(values, indices))
    assert (values.item(), indices.item()) == (3, 2)


@pytest.mark.parametrize("overlap", [True, False])
def test_overlapping_memory_is_seen_as_on_the_cpu(overlap):
    x = torch.arange(10.0, device=DEVICE)
    if overlap:
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.add(x[:-1], 1, out=x[1:])
    else:
        torch.add(x[:5], 1, out=x[5:])
        assert x[5:].tolist() == [1, 2, 3, 4, 5]


def test_resize_set_and_storage_resize():
    x = torch.arange(6.0, device=DEVICE)
    x.resize_(10)
    assert x[:6].tolist() == list(range(6))
    x.untyped_storage().resize_(8)
    assert x.untyped_storage().nbytes() == 8
    y = torch.empty(0, device=DEVICE).set_(torch.arange(4.0, device=DEVICE).untyped_storage(), 1, (2,), (2,))
    assert y.tolist() == [1, 3]
    assert y.is_set_to(y.view(2))
    with pytest.raises(RuntimeError, match="device"):
        y.set_(torch.ones(2).untyped_storage())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: torch.ones(2) + d, "at least two devices, spyre:0 and cpu"),
        (lambda d: d + torch.ones(2, device="spyre:1"), "at least two devices, spyre:0 and spyre:1"),
        (lambda d: torch.mm(d.view(1, 2), torch.ones(2, 1)), "at least two devices"),
        (lambda d: torch.add(d, d, out=torch.empty(2)), "at least two devices"),
        (lambda d: torch.ones(3)[d.long()], "indices should be either on cpu|two devices"),
        (lambda d: d.normal_(generator=torch.Generator()), "Expected a 'spyre' device type for generator"),
    ],
)
def test_tensors_of_several_devices_are_an_error(call, message):
    with pytest.raises(RuntimeError, match=message):
        call(torch.ones(2, device="spyre:0"))


def test_cpu_scalars_and_cpu_indices_are_allowed():
    d = torch.arange(4.0, device=DEVICE)
    assert (d + torch.tensor(1.0)).tolist() == [1, 2, 3, 4]
    assert d[torch.tensor([3, 0])].tolist() == [3, 0]
    d[torch.tensor([True, False, False, True])] = torch.tensor(9.0)
    assert d.tolist() == [9, 1, 2, 9]
    assert torch.where(d > 5, torch.tensor(0.0), d).tolist() == [0, 1, 2, 0]


def test_copies_between_everything():
    host = torch.randn(4, 6)
    for make in (lambda t: t, lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[0].expand(3, 6)):
        source = make(host)
        there = source.to("spyre:0")
        across = there.to("spyre:1")
        assert across.device.index == 1
        assert torch.equal(make(host.to("spyre:1")).to("spyre:0").cpu(), source)
        assert torch.equal(across.cpu(), source)
    target = torch.zeros(6, 4, dtype=torch.int32, device=DEVICE).t()
    target.copy_(host * 10)
    assert torch.equal(target.cpu(), (host * 10).to(torch.int32))
    back = torch.zeros(4, 6, dtype=torch.float64)
    back.copy_(on(host))
    assert torch.equal(back, host.double())
    row = torch.zeros(4, 6, device=DEVICE)
    row.copy_(host[0])
    assert torch.equal(row.cpu(), host[0].expand(4, 6))


def test_lazy_conjugation_and_negation_survive_copies():
    host = torch.randn(3, 3, dtype=torch.complex64)
    there = on(host)
    assert torch.equal(there.conj().cpu(), host.conj().resolve_conj())
    assert torch.equal(there.conj().imag.cpu(), host.conj().imag.resolve_neg())
    assert torch.equal(on(host.conj()).cpu(), host.conj().resolve_conj())
    assert torch.allclose((there.conj() @ there).cpu(), host.conj() @ host)


def test_backward_convolution_and_recurrent_cells_match_the_cpu():
    torch.manual_seed(0)
    for module, shape in (
        (torch.nn.Conv2d(2, 3, 3, padding=1), (2, 2, 5, 5)),
        (torch.nn.ConvTranspose1d(2, 3, 3), (2, 2, 5)),
        (torch.nn.Linear(5, 3), (2, 5)),
        (torch.nn.LSTM(4, 3, num_layers=2, bidirectional=True), (5, 2, 4)),
        (torch.nn.LSTM(4, 3, bias=False), (5, 2, 4)),
        (torch.nn.GRU(4, 3), (5, 2, 4)),
        (torch.nn.GRU(4, 3, bias=False), (5, 2, 4)),
        (torch.nn.BatchNorm1d(4), (6, 4)),
        (torch.nn.LayerNorm(4), (6, 4)),
    ):
        twin = copy.deepcopy(module).to(DEVICE)
        x = torch.randn(shape, requires_grad=True)
        y = x.detach().to(DEVICE).requires_grad_()

        def loss(result):
            return sum((leaf * leaf).sum() for leaf in torch.utils._pytree.tree_leaves(result))

        loss(module(x)).backward()
        loss(twin(y)).backward()
        torch.testing.assert_close(y.grad.cpu(), x.grad)
        for mine, theirs in zip(twin.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


def test_gradcheck_on_the_device():
    x = torch.randn(3, 3, dtype=torch.float64, device=DEVICE, requires_grad=True)
    eye = torch.eye(3, dtype=torch.float64, device=DEVICE)
    assert torch.autograd.gradcheck(lambda t: torch.linalg.solve(t @ t.mT + 3 * eye, t), x)


def test_zeros_without_memory_are_read_as_zeros():
    for device in ("spyre:0", "spyre:1"):
        zeros = torch._efficientzerotensor((2, 3), device=device, dtype=torch.float64)
        assert zeros._is_zerotensor() and str(zeros.device) == device
        assert zeros.cpu().tolist() == zeros.clone().tolist() == [[0.0] * 3] * 2
        assert (zeros + torch.ones(3, device=device)).tolist() == [[1.0] * 3] * 2
    # The gradient of a sign is such a tensor.
    values = torch.tensor([-0.3, 0.7, 2.0], device="spyre", dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(torch.nn.functional.softsign, values)


def test_moving_a_module_keeps_its_parameters():
    module = torch.nn.Linear(3, 2)
    values = torch.randn(4, 3)
    expected = module(values)
    kept = [(parameter, parameter._cdata) for parameter in module.parameters()]
    for device in ("spyre:0", "spyre:1", "cpu", "spyre:1"):
        module.to(device)
        assert [(p, p._cdata) for p in module.parameters()] == kept
        assert {str(parameter.device) for parameter in module.parameters()} == {device}
        torch.testing.assert_close(module(values.to(device)).cpu(), expected)
        module.zero_grad()
        module(values.to(device)).sum().backward()
        assert str(module.weight.grad.device) == device
    # A sparse tensor is no other kind of dense one.
    assert not torch._has_compatible_shallow_copy_type(module.weight, torch.ones(2, 3).to_sparse())


def test_autocast_casts_and_passes():
    x = torch.randn(4, 4, device=DEVICE)
    with torch.autocast("spyre", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert torch.softmax(x @ x, 0).dtype == torch.float32
        assert (x + x).dtype == torch.float32
        assert x.to_dense() is x
    with torch.autocast("spyre"), torch.autocast("cpu"):
        assert (x @ x).device.type == "spyre"


def test_serialisation_and_map_location():
    a = torch.randn(3, device="spyre:1")
    buffer = io.BytesIO()
    torch.save({"a": a, "view": a[1:]}, buffer)
    for location, device in ((None, "spyre:1"), ("cpu", "cpu"), ("spyre:0", "spyre:0"), ("spyre", "spyre:0")):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=location)
        assert str(loaded["a"].device) == device
        assert torch.equal(loaded["a"].cpu(), a.cpu())
        assert loaded["view"].untyped_storage().data_ptr() == loaded["a"].untyped_storage().data_ptr()
    buffer = io.BytesIO()
    torch.save(torch.ones(1, device=DEVICE), buffer)
    buffer.seek(0)
    with pytest.raises(RuntimeError, match="device_count"):
        torch.load(buffer, map_location="spyre:7")


def test_deepcopy_module_storage_and_packed_sequence_methods():
    assert copy.deepcopy(torch.ones(2, device="spyre:1")).device.index == 1
    assert next(torch.nn.Linear(2, 2).spyre(1).parameters()).is_spyre
    storage = torch.ones(2).untyped_storage().spyre()
    assert storage.is_spyre
    assert storage.cpu().tolist() == torch.ones(2).untyped_storage().tolist()
    assert torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1)]).spyre().is_spyre
    assert torch.ones(2).spyre(1).get_device() == 1


def test_dlpack_capsules_keep_the_memory_alive():
    a = torch.arange(4.0, device=DEVICE)
    b = torch.from_dlpack(torch.utils.dlpack.to_dlpack(a))
    b.mul_(2)
    assert a.tolist() == [0, 2, 4, 6]
    del a
    assert (b + 1).tolist() == [1, 3, 5, 7]
    b.resize_(2)
    assert torch.add(b, 1).tolist() == [1, 3]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_strided_unquantised_tensors_only_is_a_clear_error():
    eye = torch.eye(2, device=DEVICE)
    with pytest.raises(NotImplementedError, match="strided, unquantized"):
        torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8)


def test_fake_tensors_vmap_and_func():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3, 3, device=DEVICE) @ torch.empty(3, 3, device=DEVICE)
    assert fake.device.type == "spyre"
    x = torch.randn(3, 3, device=DEVICE)
    torch.testing.assert_close(torch.vmap(torch.sum)(x), x.sum(1))
    torch.testing.assert_close(torch.func.grad(lambda t: (t**2).sum())(x), 2 * x)


def test_torchscript_lists_of_optional_tensors():
    def fill(x):
        x[x < 2] = 7.0
        return x

    with pytest.warns((FutureWarning, DeprecationWarning), match="deprecated"):
        scripted = torch.jit.script(fill)
    assert scripted(torch.arange(4.0, device=DEVICE)).tolist() == [7, 7, 2, 3]
