"""Eager operators are programs: the first call of a kind compiles, later calls look it up and launch."""

import threading

import pytest
import torch
import torch.nn.functional as F

from spyre_backend.programs import ArtifactCache, ProgramBuilder
from spyre_backend.programs.plans import read_manifest

DEVICE = "spyre"


def counts(operator):
    stats, outside = torch.spyre.compile_stats(), torch.spyre.fallback_stats()
    return stats.operators[operator], stats.launches[operator], outside[operator].calls if operator in outside else 0


class Counted:
    """What a block added to the counts of an operator: programs, launches, calls outside of programs."""

    def __init__(self, operator):
        self.operator = operator

    def __enter__(self):
        self.before = counts(self.operator)
        return self

    def __exit__(self, *exc):
        self.programs, self.launches, self.outside = (
            after - before for before, after in zip(self.before, counts(self.operator), strict=True)
        )


def again(call, times=3):
    """The last of several results: one that a launch made."""
    for _ in range(times - 1):
        call()
    return call()


def test_R1_7_the_first_call_compiles_and_later_calls_launch():
    x, y = torch.randn(3, 17, device=DEVICE), torch.randn(3, 17, device=DEVICE)
    with Counted("aten::add.Tensor") as counted:
        results = [x + y for _ in range(5)]
    assert (counted.programs, counted.launches, counted.outside) == (1, 4, 0)
    for result in results:
        assert torch.equal(result.cpu(), x.cpu() + y.cpu())
    assert len({result.data_ptr() for result in results}) == 5


@pytest.mark.parametrize("change", ["sizes", "strides", "dtype", "default dtype", "device"])
def test_what_a_program_is_made_for_makes_another_program(change):
    x = torch.full((4, 19), 3, device=DEVICE)
    again(lambda: x / 2)
    other = {
        "sizes": lambda: torch.full((4, 18), 3, device=DEVICE),
        "strides": lambda: torch.full((19, 4), 3, device=DEVICE).t(),
        "dtype": lambda: torch.full((4, 19), 3, dtype=torch.int32, device=DEVICE),
        "default dtype": lambda: x,
        "device": lambda: torch.full((4, 19), 3, device="spyre:1"),
    }[change]()
    try:
        if change == "default dtype":
            torch.set_default_dtype(torch.float64)
        expected = other.cpu() / 2
        with Counted("aten::div.Tensor") as counted:
            result = again(lambda: other / 2)
    finally:
        torch.set_default_dtype(torch.float32)
    assert counted.programs == 1
    assert result.device == other.device and result.dtype == expected.dtype and result.stride() == expected.stride()
    assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize("first", [2, 2.5])
def test_numbers_are_arguments_of_a_launch(first):
    """One program serves every value; whole numbers keep all their bits."""
    x = torch.arange(7, device=DEVICE)
    x * first
    with Counted("aten::mul.Tensor") as counted:
        for factor in (first + 1, first + 2, -first, first * 1_000_003, 0 * first):
            assert torch.equal((x * factor).cpu(), torch.arange(7) * factor), factor
    assert (counted.programs, counted.launches) == (0, 5)
    large = 2**60 + 1
    y = torch.ones(5, dtype=torch.int64, device=DEVICE)
    assert again(lambda: y * large).tolist() == [large] * 5
    assert again(lambda: torch.add(y, y, alpha=large)).tolist() == [large + 1] * 5


def test_in_place_and_out_forms_write_where_they_are_told():
    x, y = torch.ones(6, device=DEVICE), torch.full((6,), 2.0, device=DEVICE)
    same = x
    with Counted("aten::add_.Tensor") as counted:
        for _ in range(4):
            assert x.add_(y) is x
    assert (counted.programs, counted.launches) == (1, 3)
    assert same.tolist() == [9.0] * 6 and x._version == 4
    out = torch.empty(6, device=DEVICE)
    for factor in (1.0, 2.0, 3.0):
        assert torch.mul(y, factor, out=out) is out
        assert out.tolist() == [2 * factor] * 6
    with Counted("aten::mul.out") as counted:
        grown = torch.empty(0, device=DEVICE)
        torch.mul(y, y, out=grown)
        torch.mul(y, y, out=torch.empty(0, device=DEVICE))
    assert grown.tolist() == [4.0] * 6 and counted.programs == 0, "a tensor that grows is no operand"


@pytest.mark.parametrize("case", ["the same tensor", "an overlapping view", "its own transpose"])
def test_shared_storage_behaves_as_on_the_cpu(case):
    def run(device):
        x = torch.arange(16.0, device=device).reshape(4, 4)
        for _ in range(3):
            if case == "the same tensor":
                x.add_(x)
            elif case == "its own transpose":
                x.add_(x.t().clone())
            else:
                try:
                    x[1:].add_(x[:-1])
                except RuntimeError as error:
                    return str(error)
        return x.cpu()

    expected, found = run("cpu"), run(DEVICE)
    assert found == expected if isinstance(expected, str) else torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["plain", "mask", "causal", "unbatched"])
def test_attention_is_one_program_with_the_cpus_results(dtype, case):
    """Of the same kernel as on the CPU, so that 16-bit floats are rounded where they are there."""
    query, key, value = (torch.randn(2, heads, n, 16, dtype=dtype) for heads, n in ((4, 9), (2, 11), (2, 11)))
    options = {
        "plain": {"scale": 0.3},
        "mask": {"attn_mask": torch.rand(9, 11) > 0.3},
        "causal": {"is_causal": True},
        "unbatched": {},
    }[case]
    if case == "unbatched":
        query, key, value = (x[0] for x in (query, key, value))
    there = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    given = [x.to(DEVICE) for x in (query, key, value)]
    with Counted("aten::_scaled_dot_product_flash_attention_for_cpu") as counted:
        result = again(lambda: F.scaled_dot_product_attention(*given, enable_gqa=True, **there))
    assert (counted.programs, counted.launches, counted.outside) == (1, 2, 0)
    expected = F.scaled_dot_product_attention(query, key, value, enable_gqa=True, **options)
    assert result.stride() == expected.stride()
    assert torch.equal(result.cpu(), expected)


def test_attention_with_dropout_is_composed_and_draws_from_the_devices_generator():
    x = torch.randn(1, 2, 5, 16)
    torch.manual_seed(3)
    expected = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    torch.manual_seed(3)
    there = x.to(DEVICE)
    with Counted("aten::_scaled_dot_product_flash_attention_for_cpu") as counted:
        result = F.scaled_dot_product_attention(there, there, there, dropout_p=0.5)
    assert (counted.programs, counted.launches, counted.outside) == (0, 0, 0)
    assert torch.equal(result.cpu(), expected)


def test_an_error_is_raised_by_the_call_that_made_it_and_nothing_else_fails():
    x = torch.arange(6.0, device=DEVICE)
    good, bad = torch.tensor([0, 5], device=DEVICE), torch.tensor([0, 9], device=DEVICE)
    assert again(lambda: x.gather(0, good)).tolist() == [0.0, 5.0]
    with pytest.raises(RuntimeError) as cpu:
        x.cpu().gather(0, bad.cpu())
    with pytest.raises(RuntimeError) as device:
        x.gather(0, bad)
    assert str(device.value) == str(cpu.value)
    with Counted("aten::gather") as counted:
        assert x.gather(0, good).tolist() == [0.0, 5.0]
    assert counted.launches == 1
    torch.spyre.synchronize()


def test_an_earlier_error_of_the_stream_is_raised_before_a_launch():
    x = torch.ones(3, device=DEVICE)
    again(lambda: x + x)

    def fail():
        raise LookupError("an earlier error")

    with torch.spyre.stream(torch.spyre.Stream()):
        torch.spyre.launch_host_callback(fail)
        with pytest.raises(LookupError, match="an earlier error"):
            x + x
        assert (x + x).tolist() == [2.0] * 3


def test_R4_5_a_launch_follows_what_other_streams_do_to_its_memory(run_python):
    """No event orders the streams: footprints do, for a program that an eager launch must wait for."""
    run_python(
        "import torch\n"
        "from spyre_backend.programs import ProgramBuilder, prepare_kernel, launch_jobplan\n"
        "n = 1 << 20\n"
        "b = ProgramBuilder('slow')\n"
        "x = b.tensor('x', torch.float32, [n], [1], 'inout')\n"
        "for _ in range(40): b.call('aten::add_.Tensor', x, 1.0)\n"
        "plan = prepare_kernel(b.write())\n"
        "x, y = torch.zeros(n, device='spyre'), torch.empty(n, device='spyre')\n"
        "torch.add(x, 1.0, out=y)\n"
        "other = torch.spyre.Stream()\n"
        "for turn in range(1, 6):\n"
        "    with torch.spyre.stream(other): launch_jobplan(plan, [x])\n"
        "    torch.add(x, 1.0, out=y)\n"
        "    assert bool((y.cpu() == 40 * turn + 1).all()), (turn, y[:3])\n"
    )


def test_what_no_program_can_hold_runs_on_the_device_and_is_counted():
    x = torch.randn(5, 5, device=DEVICE)
    cases = {
        "aten::nonzero": (lambda: torch.nonzero(x > 0), "depend on data"),
        "aten::normal_": (lambda: x.normal_(), "random"),
        "aten::_histogramdd_bin_edges": (lambda: torch.histogramdd(x[:, :2], [2, 2]), "something else than tensors"),
    }
    for operator, (call, reason) in cases.items():
        with Counted(operator) as counted:
            again(call)
        assert (counted.programs, counted.launches, counted.outside) == (0, 0, 3), operator
        assert reason in torch.spyre.fallback_stats()[operator].reason


def test_sizes_that_only_the_data_tells_are_right():
    """CTC's second result is as long as the longest target."""

    def loss(device, lengths):
        torch.manual_seed(0)
        log_probs = torch.randn(10, 2, 5).log_softmax(2).to(device)
        targets = torch.tensor([[1, 2, 3, 4], [2, 3, 1, 2]], device=device)
        rest = torch.tensor([10, 10], device=device), torch.tensor(lengths, device=device)
        return torch._ctc_loss(log_probs, targets, *rest)

    for lengths in ([2, 2], [2, 2], [4, 3], [1, 4], [2, 2]):
        (expected, alpha), (found, device_alpha) = loss("cpu", lengths), loss(DEVICE, lengths)
        assert torch.equal(found.cpu(), expected) and device_alpha.shape == alpha.shape


@pytest.mark.parametrize(("setting", "expected"), [("warn", "warned"), ("error", "refused")])
def test_fallbacks_warn_once_or_raise(run_python, setting, expected):
    process = run_python(
        "import torch, warnings\n"
        "x = torch.zeros(3, device='spyre')\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    try:\n"
        "        torch.nonzero(x); torch.nonzero(x)\n"
        "        print('warned', [str(w.message).split(' (')[0] for w in caught])\n"
        "    except RuntimeError as error: print('refused', error)\n"
        "assert (x + x).tolist() == (x + x).tolist() == [0.0] * 3\n",
        SPYRE_FALLBACK=setting,
    )
    reason = "the sizes of its results depend on data"
    texts = {
        "warned": f"['aten::nonzero runs outside of a program: {reason}']",
        "refused": f"aten::nonzero can't run as a program: {reason}. SPYRE_FALLBACK=error refuses such calls",
    }
    assert process.stdout.strip() == f"{expected} {texts[expected]}"


def test_the_number_of_programs_is_bounded_and_results_stay_right(run_python):
    run_python(
        "import torch\n"
        "def free(): return torch.spyre.mem_get_info()[0]\n"
        "x = torch.arange(400., device='spyre')\n"
        "def sweep(): return all((x[:n] + 1).sum().item() == n * (n + 1) / 2 for n in range(1, 400))\n"
        "assert sweep()\n"
        "after = free()\n"
        "for _ in range(4): assert sweep()\n"
        "assert abs(after - free()) < 64 * 4096, (after, free())\n",
        SPYRE_EAGER_PROGRAMS="64",
    )


def test_threads_share_programs():
    x = torch.randn(32, 32, device=DEVICE)
    expected = (x.cpu() * 1.5 + x.cpu()).sum()
    wrong = []

    def work():
        stream = torch.spyre.Stream()
        with torch.spyre.stream(stream):
            for _ in range(200):
                if not torch.equal((x * 1.5 + x).sum().cpu(), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_launch_of_an_eager_operator_shows_every_step_on_the_virtual_clock(run_python):
    run_python(
        "import torch\n"
        "x = torch.ones(64, device='spyre')\n"
        "x * 2; torch.spyre.synchronize()\n"
        "with torch.spyre.record_timeline() as timeline:\n"
        "    y = x * 2\n"
        "steps = [(i.pipeline, i.label) for i in timeline.intervals if i.pipeline != 'fetch']\n"
        "name = 'aten::mul.Tensor'\n"
        "assert steps == [('host', f'{name}: compute on host'), ('h2d', f'{name}: patch'), ('compute', name)], steps\n"
        "assert y.tolist() == [2.0] * 64\n",
        SPYRE_CLOCK="virtual",
    )


@pytest.mark.parametrize("clock", ["wall", "virtual"])
def test_autograd_sees_the_same_on_both_clocks(run_python, clock):
    run_python(
        "import torch\n"
        "nn = torch.nn\n"
        "model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 1)).to('spyre')\n"
        "for _ in range(3): model(torch.ones(2, 3, device='spyre')).sum().backward()\n"
        "for _ in range(3):\n"
        "    x = torch.ones(3, device='spyre')\n"
        "    assert x.add_(2).mul_(2)._version == 2 and (x + 1)._version == 0\n",
        SPYRE_CLOCK=clock,
    )


def test_a_compilation_that_fails_leaves_the_operator_done(run_python):
    """The operator ran before it was compiled: what stops the compiler must not stop autograd from knowing."""
    run_python(
        "import signal, torch\n"
        "from spyre_backend.compiler import eager\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # jobs in the background ignore it
        "whole = eager.ProgramBuilder\n"
        "x = torch.ones(5, device='spyre', requires_grad=True)\n"
        "y = x * 1\n"
        "def stopped(*args): raise RecursionError\n"
        "eager.ProgramBuilder = stopped\n"
        "y.mul_(3)\n"
        "assert y.tolist() == [3.0] * 5 and y._version == 1\n"
        "def interrupted(*args): raise KeyboardInterrupt\n"
        "eager.ProgramBuilder = interrupted\n"
        "try:\n"
        "    y.mul_(3)\n"
        "    for _ in range(100): pass\n"
        "except KeyboardInterrupt: caught = True\n"
        "assert caught and y.tolist() == [9.0] * 5 and y._version == 2\n"
        "eager.ProgramBuilder = whole\n"
        "y.mul_(3); y.mul_(3)\n"
        "assert y._version == 4 and torch.spyre.compile_stats().operators['aten::mul_.Tensor'] == 1\n"
    )


def test_tensors_come_before_programs(run_python):
    run_python(
        "import torch\n"
        "x = torch.ones(8, device='spyre')\n"
        "for n in range(1, 8): x[:n] + x[:n]\n"
        "half = torch.empty(torch.spyre.mem_get_info()[1] // 2 - 128, dtype=torch.uint8, device='spyre')\n"
        "rest = []\n"
        "try:\n"
        "    while True: rest.append(torch.empty(1 << 16, dtype=torch.uint8, device='spyre'))\n"
        "except torch.OutOfMemoryError: pass\n"
        "x.asinh_(); x.asinh_()\n"
        "del half, rest\n"
        "assert 'aten::asinh_' not in torch.spyre.fallback_stats()\n",
        SPYRE_MODE="VF",
        SPYRE_HANDLES="2",
        SPYRE_MEMORY_GB="0.01",
    )


def test_the_process_ends_while_threads_compile(run_python):
    run_python(
        "import torch, threading, time\n"
        "def work(k=0):\n"
        "    while True:\n"
        "        k += 1\n"
        "        x = torch.ones(k % 50 + 1, 3, device='spyre', requires_grad=True)\n"
        "        (x * x).sum().backward()\n"
        "for _ in range(4): threading.Thread(target=work, daemon=True).start()\n"
        "time.sleep(0.05)\n"
    )


def test_a_refused_fallback_does_not_hide_the_operators_own_error(run_python):
    run_python(
        "import torch\n"
        "x = torch.ones(3, device='spyre')\n"
        "for i in (1, 2, 7):\n"
        "    index = torch.tensor([i], device='spyre')\n"
        "    try: x.gather(0, index); assert i != 7\n"
        "    except RuntimeError as error: assert i == 7 and 'out of bounds' in str(error), error\n"
        "assert 'aten::gather' not in torch.spyre.fallback_stats()\n",
        SPYRE_FALLBACK="error",
    )


def test_an_artifact_in_memory_is_the_one_that_is_written(tmp_path):
    b = ProgramBuilder("aten::sub.Tensor")
    x, out = (b.tensor(name, torch.float32, [11], [1], role) for name, role in (("arg0", "in"), ("out0", "out")))
    b.call("aten::sub.out", x, 1, out=out)
    assembled = b.assemble()
    directory = b.write(ArtifactCache(tmp_path))
    assert read_manifest(directory) == assembled.manifest
    assert {name: (directory / name).read_bytes() for name in assembled.files} == assembled.files


def test_training_is_the_cpus_bit_for_bit():
    def train(device):
        torch.manual_seed(0)
        nn = torch.nn
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
        data = torch.randn(32, 8)
        model, data = model.to(device), data.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    for expected, found in zip(train("cpu"), train(DEVICE), strict=True):
        assert torch.equal(found, expected)
