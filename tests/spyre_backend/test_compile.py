"""torch.compile with Inductor: a graph is one program, with the CPU's results, for many sizes, from safe caches."""

import uuid
from contextlib import contextmanager

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch._inductor.exc import InductorError
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import CeilDiv, FloorDiv, Max, Min, Mod, ModularIndexing

from spyre_backend.compiler.inductor.expressions import NoExpression, size_text


@pytest.fixture(autouse=True)
def fresh(artifact_cache):
    """Every test traces anew; what was compiled before comes from Inductor's caches."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@contextmanager
def graphs(number, programs, outside=()):
    """What the block compiles is so many graphs, with so many programs, and these lines outside of them."""
    before = torch.spyre.compile_stats()
    yield
    after = torch.spyre.compile_stats()
    assert (after.graphs - before.graphs, after.programs - before.programs) == (number, programs)
    assert sorted((after.outside - before.outside).elements()) == sorted(outside)


def on(device, args):
    """Copies of arguments on a device, leaves that want gradients again."""
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().clone().to(device).requires_grad_(t.requires_grad), args
    )


def assert_same(actual, expected):
    actual, expected = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    for one, other in zip(actual, expected, strict=True):
        if isinstance(other, torch.Tensor):
            assert one.device.type == "spyre"
            torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-4, atol=1e-5)
        else:
            assert one == other


def check(function, *args, compiled=None, device="spyre", gradients=False):
    """Calls a function on the CPU and its compiled form on the device; compares results, arguments and gradients."""
    compiled = compiled or torch.compile(function)
    here, there = on("cpu", args), on(device, args)
    torch.manual_seed(0)
    expected = function(*here)
    torch.manual_seed(0)
    actual = compiled(*there)
    assert_same(actual, expected)
    if gradients:
        sum(t.sin().sum() for t in pytree.tree_leaves(expected)).backward()
        sum(t.sin().sum() for t in pytree.tree_leaves(actual)).backward()
        assert_same([t.grad for t in there if t.requires_grad], [t.grad for t in here if t.requires_grad])
    assert_same(there, here)


def many_kinds(x, y, index, values, z):
    """Fused kernels, matrix products, operators with several results, views, mutation, complex numbers and Python's."""
    y.add_(1)
    x[2:4].mul_(values[:2])
    product = x @ y.t()
    top, where = product.topk(2)
    put = y.clone()
    put[index] = values
    return (
        product.softmax(-1),
        torch.cat([top, x.sort(-1).values], 1),
        where,
        put.t(),
        put[1:3],
        x.view(torch.int32) + 1,
        torch.zeros_like(x).scatter_(0, index[:, None].expand(4, 9), values),
        product.argmax(1).float() / x.std(),
        (x.bfloat16() @ y.bfloat16().t()).sum(0),
        (1 - z * 2.0 / 3 + 1j).abs(),
        x.shape[0],
    )


def test_a_graph_of_every_kind_of_operator_is_one_program_with_the_cpus_results():
    z = torch.randn(3, dtype=torch.complex64)
    with graphs(1, programs=1):
        check(many_kinds, torch.randn(7, 9), torch.randn(7, 9), torch.tensor([0, 2, 1, 5]), torch.randn(4, 9), z)


def block(image, weight, bias, projection):
    """Convolution, normalisations, projection."""
    hidden = F.batch_norm(F.conv2d(image, weight, bias, padding=1), None, None, training=True).relu()
    hidden = F.max_pool2d(hidden, 2).flatten(2)
    return F.layer_norm(F.gelu(hidden @ projection), (6,)).log_softmax(-1)


def test_forward_and_backward_are_a_program_each():
    with graphs(2, programs=2):
        check(
            block,
            torch.randn(2, 3, 8, 8, requires_grad=True),
            torch.randn(4, 3, 3, 3, requires_grad=True),
            torch.randn(4, requires_grad=True),
            torch.randn(16, 6, requires_grad=True),
            gradients=True,
        )


def test_attention_stays_in_the_program_of_its_graph():
    """Of 16-bit floats, forward and backward, of any length: of the CPU's kernel, not of its parts."""

    def function(query, key, value, mask):
        return F.scaled_dot_product_attention(query * 2, key, value, attn_mask=mask, enable_gqa=True).tanh()

    compiled = torch.compile(function, dynamic=True)
    for length in (5, 37):
        queries, keys = (torch.randn(2, heads, length, 16, requires_grad=True) for heads in (4, 2))
        given = (queries.bfloat16(), keys, keys.exp(), torch.rand(length, length) > 0.3)
        half = tuple(x.detach().bfloat16().requires_grad_() for x in given[:3])
        with graphs(*((2, 2) if length == 5 else (0, 0))):
            check(function, *half, given[3], compiled=compiled, gradients=True)


def test_one_compilation_serves_all_sizes():
    def function(x, y):
        return (x @ y).relu().sum(-1) + x.shape[0]

    compiled = torch.compile(function, dynamic=True)
    with graphs(1, programs=1):
        for rows, inner, columns in ((5, 4, 6), (8, 3, 7), (130, 40, 11)):
            check(function, torch.randn(rows, inner), torch.randn(inner, columns), compiled=compiled)


def test_what_no_program_can_hold_stays_outside_and_draws_from_the_devices_generator():
    def function(x, weight, index):
        noise = F.dropout(F.bilinear(x, x, weight).sin(), 0.5) + torch.rand_like(x[:, :2]) * 2
        return noise, F.embedding_bag(index, x, mode="sum") * 3

    outside = (
        "aten._embedding_bag_forward_only.default",
        "aten._trilinear.default",
        "aten.native_dropout.default",
        "aten.rand_like.default",
    )
    with torch._inductor.config.patch(fallback_random=True), graphs(1, programs=3, outside=outside):
        check(function, torch.randn(7, 3), torch.randn(2, 3, 3), torch.randint(0, 7, (4, 3)))


def test_functions_of_torch_spyre_may_be_called_in_a_compiled_function():
    def function(x):
        state = torch.spyre.get_rng_state()
        noise = torch.rand_like(x)
        torch.spyre.set_rng_state(state)
        with torch.spyre.stream(torch.spyre.Stream()) as stream:
            again = torch.rand_like(x)
            stream.synchronize()
        return noise, again, torch.spyre.current_device()

    with torch._inductor.config.patch(fallback_random=True):
        noise, again, device = torch.compile(function)(torch.ones(5, device="spyre"))
    assert noise.tolist() == again.tolist()
    assert device == 0


def test_branches_and_sizes_that_depend_on_data():
    def function(x):
        chosen = torch.cond(x.sum() > 0, torch.sin, lambda x: x.cos() * 2, (x,))
        return chosen + x.nonzero().size(0), x.cpu().exp().to(x.device)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function)
        check(function, torch.ones(3, 4), compiled=compiled)
        check(function, -torch.ones(3, 4), compiled=compiled)


def test_graphs_run_on_the_device_of_their_arguments():
    def function(x, scalar):
        return (x @ x.t()) * scalar + 1

    x, scalar = torch.randn(4, 4), torch.tensor(3.0)
    result = torch.compile(function)(x.to("spyre:1"), scalar)
    assert result.device == torch.device("spyre:1")
    torch.testing.assert_close(result.cpu(), function(x, scalar))


def test_sizes_become_expressions_with_the_same_values():
    a, b = sympy.symbols("a b", integer=True, positive=True)
    sizes = [
        a * b + 2 * a - 3,
        a**2 * 4,
        FloorDiv(a + 7, 8) * b,
        ModularIndexing(a, 2, b),
        Mod(a * b, 5),
        CeilDiv(a, 4),
        Max(a, b, 3) - Min(a, 9),
    ]
    for size in sizes:
        for values in ({a: 5, b: 3}, {a: 1, b: 1}, {a: 64, b: 7}):
            names = {str(symbol): value for symbol, value in values.items()}
            assert eval(size_text(size), {"min": min, "max": max}, names) == int(size.subs(values)), size
    with pytest.raises(NoExpression, match="log"):
        size_text(sympy.log(a))


def test_what_a_kernel_raises_reaches_the_caller():
    compiled = torch.compile(lambda x, y: torch.div(x, y, rounding_mode="floor"))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(torch.tensor([4, 6], device="spyre"), torch.tensor([2, 0], device="spyre"))
        torch.spyre.synchronize()


def test_caches_are_keyed_by_the_compilers_version(monkeypatch):
    from spyre_backend.compiler.inductor import backend

    assert backend.compiler_version() in backend.cache_key()

    def run(version):
        torch._dynamo.reset()
        counters.clear()
        monkeypatch.setattr(backend, "compiler_version", lambda: version)
        torch.compile(lambda x: x * 3 + 1)(torch.ones(5, device="spyre"))
        return counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]

    run("first")
    assert run("first") > 0
    assert run(f"nobody has compiled with {uuid.uuid4()}") == 0


def test_code_from_a_cache_makes_its_program_again(tmp_path, monkeypatch):
    def function(x):
        return x.cos() * 3

    check(function, torch.randn(5))
    torch._dynamo.reset()
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    check(function, torch.randn(5))
    assert len(list(tmp_path.rglob("manifest.json"))) == 1


def test_a_cpp_wrapper_is_refused_with_the_setting_to_change():
    with torch._inductor.config.patch(cpp_wrapper=True), pytest.raises(InductorError, match="cpp_wrapper = False"):
        torch.compile(lambda x: x + 1)(torch.ones(2, device="spyre"))


def test_importing_torch_imports_neither_dynamo_nor_inductor(run_python):
    run_python(
        "import sys, torch\n"
        "assert torch.spyre.is_available()\n"
        "assert not {'torch._dynamo', 'torch._inductor'} & sys.modules.keys()\n"
        "import torch._dynamo.device_interface as interface\n"
        "assert interface.get_interface_for_device('spyre').device_count() == torch.spyre.device_count()\n"
        "assert not torch.spyre.is_initialized()\n"
    )
