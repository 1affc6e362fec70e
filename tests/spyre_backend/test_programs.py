"""Programs: what an artifact says, what preparing and launching promise (mapping 3 of the backend's specification)."""

import gc
import itertools
import json
import multiprocessing
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
import torch

from spyre_backend import _C
from spyre_backend.programs import (
    ArtifactCache,
    ArtifactError,
    BuildError,
    ProgramBuilder,
    launch_jobplan,
    prepare_kernel,
)
from spyre_backend.programs.expressions import ExpressionError, compile_size

N, K, M = 5, 8, 4


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return ArtifactCache(tmp_path_factory.mktemp("artifacts"))


def affine(cache, *, dynamic=True, **options):
    """``y = k * (x @ w)`` for any number of rows."""
    b = ProgramBuilder("affine", **options)
    rows = b.symbol("n", maximum=1 << 20) if dynamic else N
    x = b.tensor("x", torch.float32, [rows, K], [K, 1])
    w = b.tensor("w", torch.float32, [K, M], [M, 1])
    y = b.tensor("y", torch.float32, [rows, M], [M, 1], role="out")
    k = b.scalar("k")
    t = b.scratch(torch.float32, [rows, M], [M, 1])
    b.call("aten::mm.out", x, w, out=t)
    b.call("aten::mul.Scalar_out", t, k, out=y)
    return b.write(cache)


@pytest.fixture(scope="module")
def plan(cache):
    return prepare_kernel(affine(cache))


def tensors(rows=N, device="spyre"):
    return torch.randn(rows, K, device=device), torch.randn(K, M, device=device), torch.empty(rows, M, device=device)


def held(stream=None):
    """Holds a stream until the returned event is set."""
    gate = threading.Event()
    torch.spyre.launch_host_callback(gate.wait, stream or torch.spyre.current_stream())
    return gate


def patches(intervals):
    return [one for one in intervals if one.pipeline == "h2d"]


# ------------------------------------------------------------------------------------------------- launching


@pytest.mark.parametrize("rows", [0, 1, 3, 1000])
def test_R3_10_one_artifact_serves_all_sizes(plan, rows):
    x, w, y = tensors(rows)
    launch_jobplan(plan, [x, w, y, 2.5])
    torch.testing.assert_close(y.cpu(), (x.cpu() @ w.cpu()) * 2.5)


def test_R1_3_launches_need_nothing_of_what_preparation_did(cache):
    directory = affine(ArtifactCache(cache.root / "removed"))
    plan = prepare_kernel(directory)
    shutil.rmtree(directory)
    used = [region for region in _C.regions(0) if region[1] == "program"]
    x, w, y = tensors()
    for _ in range(100):
        launch_jobplan(plan, [x, w, y, 1])
    torch.spyre.synchronize()
    assert [region for region in _C.regions(0) if region[1] == "program"] == used
    assert torch.equal(y.cpu(), x.cpu() @ w.cpu())


def test_R1_4_R1_6_a_launch_is_three_operations_and_moves_no_tensor(plan):
    arguments = [*tensors(), 1]
    with torch.spyre.record_timeline() as timeline:
        for _ in range(3):
            launch_jobplan(plan, arguments)
        torch.spyre.synchronize()
    mine = [one for one in timeline.intervals if one.label.startswith("affine") and one.pipeline != "fetch"]
    assert [one.pipeline for one in sorted(mine, key=lambda one: one.operation)] == ["host", "h2d", "compute"] * 3
    assert len(timeline.intervals) == len(mine) + 3  # and the three reads of the fetch unit
    assert [step.do for step in plan.steps] == ["compute_on_host", "transfer", "compute_on_device"]


def test_R4_19_without_anything_to_patch_there_is_no_preparation(cache):
    b = ProgramBuilder("constant")
    b.call("aten::add.Tensor", b.scratch(torch.float32, [0], [1]), 1.0, results=[b.scratch(torch.float32, [0], [1])])
    with_scratch = prepare_kernel(b.write(cache))
    assert [step.do for step in with_scratch.steps] == ["compute_on_host", "transfer", "compute_on_device"]
    b = ProgramBuilder("nothing")
    b.call("aten::is_vulkan_available", results=[])
    plan = prepare_kernel(b.write(cache))
    with torch.spyre.record_timeline() as timeline:
        launch_jobplan(plan, [])
        torch.spyre.synchronize()
    assert [one.pipeline for one in timeline.intervals] == ["compute"]
    assert [step.do for step in plan.steps] == ["compute_on_device"]


def test_R1_5_threads_on_streams_of_their_own_launch_one_plan(plan):
    """A patch of one must never come between the patch and the Compute of another."""
    failures = []
    x, w, _ = tensors()
    product = (x.cpu() @ w.cpu()).to("spyre")

    def work(number):
        try:
            with torch.spyre.stream(torch.spyre.Stream()):
                for round_ in range(20):
                    factors = [number * 1000.0 + round_ * 50 + at for at in range(50)]
                    results = [torch.zeros(N, M, device="spyre") for _ in factors]
                    for factor, result in zip(factors, results, strict=True):
                        launch_jobplan(plan, [x, w, result, factor])
                    failures.extend(
                        factor
                        for factor, result in zip(factors, results, strict=True)
                        if not torch.equal(result, product * factor)
                    )
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_R1_8_plan_and_arguments_live_until_the_launch_is_done(cache):
    plan = prepare_kernel(affine(cache))
    x, w, y = tensors()
    expected = (x.cpu() @ w.cpu()) * 2
    gate = held()
    launch_jobplan(plan, [x, w, y, 2])
    del plan, x, w
    gc.collect()
    with torch.spyre.stream(torch.spyre.Stream()):  # the default one is held: reuse of freed memory would show
        others = [torch.full((N, K), float("nan"), device="spyre") for _ in range(50)]
    gate.set()
    torch.testing.assert_close(y.cpu(), expected)
    del others


def test_R3_2_forty_tensor_arguments(cache):
    b = ProgramBuilder("sum of forty")
    inputs = [b.tensor(f"x{i}", torch.float32, [3], [1]) for i in range(40)]
    total = b.tensor("total", torch.float32, [3], [1], role="inout")
    for operand in inputs:
        b.call("aten::add_.Tensor", total, operand)
    plan = prepare_kernel(b.write(cache))
    given = [torch.full((3,), float(i), device="spyre") for i in range(40)]
    total = torch.zeros(3, device="spyre")
    launch_jobplan(plan, [*given, total])
    assert total.tolist() == [780.0] * 3


def test_R3_4_a_storage_offset_is_part_of_the_address(plan):
    _, w, y = tensors()
    wide = torch.randn(3 * N, K, device="spyre")
    for first in (0, 1, N, 2 * N):
        launch_jobplan(plan, [wide[first : first + N], w, y, 1])
        torch.testing.assert_close(y.cpu(), wide.cpu()[first : first + N] @ w.cpu())


def test_constants_are_part_of_the_program(cache):
    """Whatever their size, launches do not touch them: they are uploaded with the program."""
    table = torch.arange(1 << 18, dtype=torch.float32).reshape(512, 512)
    b = ProgramBuilder("table")
    x = b.tensor("x", torch.float32, [512], [1])
    y = b.tensor("y", torch.float32, [512], [1], role="out")
    b.call("aten::mv.out", b.constant(table), x, out=y)
    b.call("aten::add_.Tensor", y, b.constant(torch.tensor(2.0)))
    directory = b.write(cache)
    plan = prepare_kernel(directory)
    assert plan.program_bytes > table.nbytes
    x, y = torch.zeros(512, device="spyre"), torch.empty(512, device="spyre")
    x[3] = 1
    with torch.spyre.record_timeline() as timeline:
        launch_jobplan(plan, [x, y])
        torch.spyre.synchronize()
    assert torch.equal(y.cpu(), table[:, 3] + 2)
    assert len(patches(timeline.intervals)) == 1
    with pytest.raises(ArtifactError, match="is not from 0 to"):
        prepare_kernel(changed(directory, lambda document: document["slots"][2].update(value=1 << 30)))


def test_views_of_views_share_memory(cache):
    b = ProgramBuilder("views")
    x = b.tensor("x", torch.float32, [4, 6], [6, 1], role="inout")
    row = b.view(x, [6], [1], offset=6)
    pair = b.view(row, [2], [1], offset=2)
    bits = b.view(pair, [2], [1], dtype=torch.int32)
    b.call("aten::fill_.Scalar", pair, 5.0)
    b.call("aten::add_.Scalar", bits, 1)
    plan = prepare_kernel(b.write(cache))
    x = torch.zeros(4, 6, device="spyre")
    launch_jobplan(plan, [x])
    expected = torch.zeros(4, 6)
    expected[1, 2:4] = torch.nextafter(torch.tensor(5.0), torch.tensor(6.0))
    assert torch.equal(x.cpu(), expected)


@pytest.mark.parametrize("scheme", ["patch", "windows", "graph"])
def test_the_older_schemes_give_the_same_results(cache, artifact_cache, scheme):
    plan = prepare_kernel(affine(cache), scheme=scheme)
    for rows in (3, 50):
        x, w, y = tensors(rows)
        launch_jobplan(plan, [x, w, y, 0.5])
        assert torch.equal(y.cpu(), (x.cpu() @ w.cpu()) * 0.5)


def test_the_older_schemes_have_their_limits(cache, artifact_cache):
    b = ProgramBuilder("many")
    operands = [b.tensor(f"x{i}", torch.float32, [1], [1], role="inout") for i in range(17)]
    for operand in operands:
        b.call("aten::neg_", operand)
    directory = b.write(ArtifactCache(cache.root / "limits"))
    given = [torch.ones(1, device="spyre") for _ in operands]
    with pytest.raises(ValueError, match="17 tensor arguments, but the card has 16 address windows"):
        launch_jobplan(prepare_kernel(directory, scheme="windows"), given)
    graph = prepare_kernel(directory, scheme="graph")
    launch_jobplan(graph, given)
    assert {one.item() for one in given} == {-1.0}
    shutil.rmtree(directory)
    with pytest.raises(ArtifactError, match="can't be read"):
        launch_jobplan(graph, given)


COPIES = """
import torch
from spyre_backend.programs import ProgramBuilder, launch_jobplan, prepare_kernel

b = ProgramBuilder("negative")
b.symbol("n")
b.call("aten::neg.out", b.tensor("x", torch.float32, ["n"], [1]), out=b.tensor("y", torch.float32, ["n"], [1], "out"))
plan = prepare_kernel(b.write(), scheme="graph")
for n in (1 << 16, 2 << 16, 4 << 16):
    x, y = torch.ones(2, n, device="spyre")
    with torch.spyre.record_timeline() as timeline:
        launch_jobplan(plan, [x, y])
        torch.spyre.synchronize()
    spent = {one.label: one.end - one.start for one in timeline.intervals if one.pipeline == "compute"}
    print(spent["copy in"], spent["copy out"], spent["negative"])
"""


def test_programs_and_the_graph_schemes_copies_take_time_for_their_bytes(run_python, tmp_path):
    done = run_python(COPIES, SPYRE_CLOCK="virtual", SPYRE_CACHE_DIR=str(tmp_path))
    one, two, four = ([int(time) for time in line.split()] for line in done.stdout.splitlines())
    for column in range(3):
        assert two[column] > one[column]
        assert four[column] - two[column] == pytest.approx(2 * (two[column] - one[column]), abs=2)
    # Each reads n numbers and writes n, whether an argument is named or not.
    assert one[0] == one[1] == one[2]


# --------------------------------------------------------------------------- order, patches and the fetch unit

STALE = """
import sys, threading, torch
from pathlib import Path
from spyre_backend.programs import ArtifactCache, ProgramBuilder, launch_jobplan, prepare_kernel

def plan(barrier):
    b = ProgramBuilder("fill", fetch_barrier=barrier)
    b.call("aten::fill_.Scalar", b.tensor("x", torch.float32, [4], [1], role="inout"), 1.0)
    return prepare_kernel(b.write(ArtifactCache(Path(sys.argv[1] if len(sys.argv) > 1 else {root!r}))))

def filled(barrier):
    program = plan(barrier)
    targets = [torch.zeros(4, device="spyre") for _ in range(4)]
    gate = threading.Event()
    torch.spyre.launch_host_callback(gate.wait, torch.spyre.current_stream())
    for target in targets:
        launch_jobplan(program, [target])
    gate.set()
    torch.spyre.synchronize()
    return sum(bool(target.cpu().all()) for target in targets)

print(filled(True), filled(False))
"""


def test_R3_6_R3_7_without_the_fetch_barrier_stale_operands_are_observed(run_python, tmp_path):
    """With one correction region, a patch can't land before the launch ahead has run; its operands can be read."""
    done = run_python(STALE.format(root=str(tmp_path)), SPYRE_CORRECTION_REGIONS="1")
    with_barrier, without = map(int, done.stdout.split())
    assert with_barrier == 4
    assert without < 4


SETTINGS = """
import torch
from pathlib import Path
from spyre_backend.programs import ArtifactCache, ProgramBuilder, launch_jobplan, prepare_kernel

torch.manual_seed(0)
b = ProgramBuilder("chain")
b.symbol("n")
x = b.tensor("x", torch.float32, ["n"], [1])
y = b.tensor("y", torch.float32, ["n"], [1], role="out")
k = b.scalar("k")
b.call("aten::mul.Scalar_out", x, k, out=y)
b.call("aten::sin_", y)

def fails():
    raise KeyError("an error of the stream that preparing is not to take")

torch.spyre.launch_host_callback(fails)
plan = prepare_kernel(b.write(ArtifactCache(Path({root!r}))))
try:
    torch.spyre.synchronize()
    raise SystemExit("the stream's error is lost")
except KeyError:
    pass
reference = a = torch.randn(300_000)
a = a.to("spyre")
streams = [torch.spyre.Stream(), torch.spyre.Stream()]
for step in range(12):
    out = torch.empty_like(a)
    if step % 3 == 0:
        streams[step % 2].wait_stream(torch.spyre.current_stream())
        torch.spyre.set_stream(streams[step % 2])
        torch.spyre.current_stream().wait_stream(streams[(step + 1) % 2])
    launch_jobplan(plan, [a, out, 1.5 + step])
    a, reference = out, torch.sin(reference * (1.5 + step))
print(torch.equal(a.cpu(), reference))
"""


@pytest.mark.parametrize(
    "environment",
    [
        {"SPYRE_SPLIT_STREAMS": "off"},
        {"SPYRE_STAGING_BUFFERS": "1", "SPYRE_CORRECTION_REGIONS": "1"},
        {"SPYRE_STAGING_BUFFERS": "16", "SPYRE_CORRECTION_REGIONS": "8"},
        {"SPYRE_CLOCK": "virtual"},
    ],
    ids=lambda environment: "-".join(environment.values()),
)
def test_R4_1_R3_8_results_are_the_cpus_in_every_setting(run_python, tmp_path, environment):
    assert run_python(SETTINGS.format(root=str(tmp_path)), **environment).stdout.strip() == "True"


OVERLAP = """
import torch
from pathlib import Path
from spyre_backend.programs import ArtifactCache, ProgramBuilder, launch_jobplan, prepare_kernel

b = ProgramBuilder("p")
x = b.tensor("x", torch.float32, [1 << 22], [1], role="inout")
b.call("aten::add_.Scalar", x, 1.0)
plan = prepare_kernel(b.write(ArtifactCache(Path({root!r}))))
x = torch.zeros(1 << 22, device="spyre")
with torch.spyre.record_timeline() as timeline:
    for _ in range(6):
        launch_jobplan(plan, [x])
    torch.spyre.synchronize()
of = lambda kind: sorted((i.start, i.end) for i in timeline.intervals if i.pipeline == kind and i.label.startswith("p"))
host, h2d, compute = of("host"), of("h2d"), of("compute")
assert len(host) == len(h2d) == len(compute) == 6
overlaps = lambda a, b: a[0] < b[1] and b[0] < a[1]
print(any(overlaps(host[n + 1], compute[n]) for n in range(5)),
      any(overlaps(h2d[n + 1], compute[n]) for n in range(5)),
      all(h2d[n][1] <= compute[n][0] for n in range(6)),
      all(compute[n][1] <= h2d[n + regions][0] for regions in [{regions}] for n in range(6 - regions)))
"""


@pytest.mark.parametrize("regions", [1, 2])
def test_R4_2_R4_3_R4_4_preparation_overlaps_and_patches_wait_for_their_region(run_python, tmp_path, regions):
    """On the virtual clock: host work of N+1 beside Compute N always, its transfer only with a region of its own."""
    done = run_python(
        OVERLAP.format(root=str(tmp_path), regions=regions),
        SPYRE_CLOCK="virtual",
        SPYRE_CORRECTION_REGIONS=str(regions),
    )
    assert done.stdout.split() == ["True", str(regions == 2), "True", "True"]


# ------------------------------------------------------------------------------------------------------ errors


def test_R3_13_what_the_host_computation_throws_reaches_the_stream(cache):
    b = ProgramBuilder("divides")
    b.symbol("n")
    x = b.tensor("x", torch.float32, ["n"], [1], role="inout")
    b.call("aten::fill_.Scalar", x, b.expr("8 // (n - 3)"))
    plan = prepare_kernel(b.write(cache))
    x = torch.zeros(3, device="spyre")
    launch_jobplan(plan, [x])
    with pytest.raises(torch.spyre.InvalidArgument, match="division by zero"):
        torch.spyre.synchronize()
    assert x.tolist() == [0.0] * 3
    x = torch.zeros(5, device="spyre")
    launch_jobplan(plan, [x])
    assert x.tolist() == [4.0] * 5


def test_a_place_outside_of_the_scratch_memory_is_an_error(artifact):
    plan = prepare_kernel(changed(artifact, lambda document: document["slots"][4].update(value="0 - 2048")))
    launch_jobplan(plan, [*tensors(), 1])
    with pytest.raises(torch.spyre.InvalidArgument, match="a place in scratch memory is -2048"):
        torch.spyre.synchronize()
    plan = prepare_kernel(changed(artifact, lambda document: document["slots"][4].update(value=1 << 20)))
    launch_jobplan(plan, [*tensors(), 1])
    with pytest.raises(torch.spyre.InvalidArgument, match="a place in scratch memory is 1048576 of 128 bytes"):
        torch.spyre.synchronize()


def test_what_an_operator_throws_reaches_the_stream_and_the_plan_stays_usable(cache):
    b = ProgramBuilder("gather")
    x = b.tensor("x", torch.float32, [4], [1])
    index = b.tensor("index", torch.int64, [2], [1])
    y = b.tensor("y", torch.float32, [2], [1], role="out")
    b.call("aten::index_select.out", x, 0, index, out=y)
    plan = prepare_kernel(b.write(cache))
    x, y = torch.arange(4.0, device="spyre"), torch.zeros(2, device="spyre")
    launch_jobplan(plan, [x, torch.tensor([0, 9], device="spyre"), y])
    with pytest.raises(IndexError, match="out of range"):
        torch.spyre.synchronize()
    launch_jobplan(plan, [x, torch.tensor([3, 1], device="spyre"), y])
    assert y.tolist() == [3.0, 1.0]


def bad_arguments():
    x, w, y = tensors()
    good = [x, w, y, 1.0]
    yield [x, w, y], TypeError, "3 arguments, but the program takes 4"
    yield [x.cpu(), *good[1:]], ValueError, r"argument 0 \('x'\) is on cpu"
    yield [x.to("spyre:1"), *good[1:]], ValueError, "is on spyre:1, but the program was prepared for spyre:0"
    yield [x.double(), *good[1:]], ValueError, "has dtype Double, but the program takes Float"
    yield [x[0], *good[1:]], ValueError, "has 1 dimensions, but the program takes 2"
    yield [x, w[:7].contiguous(), y, 1.0], ValueError, "has 7 elements in dimension 0, but the program takes 8"
    yield [x, w, torch.empty(N + 1, M, device="spyre"), 1.0], ValueError, "has 6 elements in dimension 0.* takes 5"
    yield [x.t().contiguous().t(), *good[1:]], ValueError, "has the layout .* takes a stride of 8 in dimension 0"
    yield ["x", *good[1:]], TypeError, "takes tensors and numbers, not str"
    yield [1, *good[1:]], TypeError, "must be a tensor"
    yield [x, w, y, x], TypeError, "must be a number"


@pytest.mark.parametrize("number", range(11))
def test_R3_14_R2_16_arguments_are_checked_before_anything_is_queued(plan, number):
    given, error, text = next(itertools.islice(bad_arguments(), number, None))
    torch.spyre.synchronize()
    with torch.spyre.record_timeline() as timeline, pytest.raises(error, match=text):
        launch_jobplan(plan, given)
    assert timeline.intervals == []


def test_R3_11_sizes_outside_of_the_declared_bounds_are_refused(cache):
    b = ProgramBuilder("bounded")
    b.symbol("n", minimum=4, maximum=64, multiple=4)
    b.call("aten::neg_", b.tensor("x", torch.float32, ["n"], [1], role="inout"))
    plan = prepare_kernel(b.write(cache))
    for size, text in ((2, "from 4 to 64"), (65, "from 4 to 64"), (6, "multiples of 4")):
        with pytest.raises(ValueError, match=rf"dimension 0 of argument 0 \('x'\) is {size}, .*{text}"):
            launch_jobplan(plan, [torch.ones(size, device="spyre")])
    x = torch.ones(8, device="spyre")
    launch_jobplan(plan, [x])
    assert x.tolist() == [-1.0] * 8


def test_an_integer_argument_gives_a_size(cache):
    b = ProgramBuilder("shift")
    b.symbol("by", minimum=-100)
    b.symbol("n")
    b.integer("by")
    x = b.tensor("x", torch.int64, ["n"], [1], role="inout")
    b.call("aten::add_.Scalar", x, b.expr("by * 2 + n % 3"))
    plan = prepare_kernel(b.write(cache))
    x = torch.zeros(4, dtype=torch.int64, device="spyre")
    launch_jobplan(plan, [-7, x])
    assert x.tolist() == [-13] * 4
    with pytest.raises(ValueError, match=r"argument 0 \('by'\) is -101"):
        launch_jobplan(plan, [-101, x])


def test_what_is_written_shares_no_memory_with_another_argument(cache):
    """Operators could not see it: the program would give what no order of its instructions gives."""
    b = ProgramBuilder("sum")
    x, y = (b.tensor(name, torch.float32, [2, 8], [8, 1]) for name in "xy")
    b.call("aten::add.out", x, y, out=b.tensor("z", torch.float32, [2, 8], [8, 1], role="out"))
    plan = prepare_kernel(b.write(cache))
    memory = torch.zeros(8, 8, device="spyre")
    x, shifted, apart = memory[:2], memory[1:3], memory[2:4]
    for out in (x, shifted):
        with pytest.raises(ValueError, match=r"argument 2 \('z'\) is written and shares memory with argument 0"):
            launch_jobplan(plan, [x, x, out])
    launch_jobplan(plan, [x.fill_(1), x, apart])
    assert apart.unique().tolist() == [2.0]


def test_autograd_notices_what_a_launch_writes(cache):
    b = ProgramBuilder("fill")
    b.call("aten::fill_.Scalar", b.tensor("x", torch.float32, [3], [1], role="inout"), 7.0)
    plan = prepare_kernel(b.write(cache))
    leaf, x = torch.ones(3, device="spyre", requires_grad=True), torch.ones(3, device="spyre")
    product = (leaf * x).sum()
    launch_jobplan(plan, [x])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with pytest.raises(ValueError, match="requires grad, which a launch does not record"):
        launch_jobplan(plan, [leaf])
    with torch.no_grad():
        launch_jobplan(plan, [leaf])
    with torch.inference_mode():
        launch_jobplan(plan, [torch.ones(3, device="spyre")])
    assert leaf.tolist() == [7.0] * 3


def test_inputs_and_constants_are_not_written(cache):
    for make in (lambda b: b.tensor("x", torch.float32, [3], [1]), lambda b: b.constant(torch.ones(3))):
        b = ProgramBuilder("writes")
        b.call("aten::neg_", make(b))
        with pytest.raises(ArtifactError, match="operator aten::neg_ writes operand 0, which is an input or a const"):
            prepare_kernel(b.write(cache))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"self": "text"}, "'self' takes Tensor, not str"),
        ({"other": [1, 2]}, "a list stands where the operator takes Tensor"),
        ({"alpha": None}, "'alpha' takes Scalar, not None"),
    ],
)
def test_an_argument_of_another_type_is_refused_when_it_is_prepared(cache, given, text):
    b = ProgramBuilder("types")
    x = b.tensor("x", torch.float32, [3], [1], role="inout")
    b.call("aten::add.out", **{"self": x, "other": x, "out": x, **given})
    with pytest.raises(ArtifactError, match=text):
        prepare_kernel(b.write(cache))


def test_a_number_that_does_not_fit_is_refused(cache):
    b = ProgramBuilder("number")
    b.symbol("n")
    b.integer("n")
    b.call("aten::is_vulkan_available")
    with pytest.raises(ValueError, match="does not fit into 64 bits"):
        launch_jobplan(prepare_kernel(b.write(cache)), [1 << 70])


def test_a_number_may_stand_for_a_tensor(cache):
    b = ProgramBuilder("halves")
    b.symbol("n")
    x = b.tensor("x", torch.bfloat16, ["n"], [1], role="inout")
    z = b.tensor("z", torch.complex64, ["n"], [1], role="inout")
    b.call("aten::mul_.Tensor", x, 0.5)
    b.call("aten::add_.Tensor", x, b.expr("n"))
    b.call("aten::mul_.Tensor", z, 2j)
    plan = prepare_kernel(b.write(cache))
    x, z = torch.ones(3, dtype=torch.bfloat16, device="spyre"), torch.ones(3, dtype=torch.complex64, device="spyre")
    launch_jobplan(plan, [x, z])
    assert x.tolist() == [3.5] * 3
    assert z.tolist() == [2j] * 3


def test_an_operator_that_resizes_its_output_is_refused(cache):
    b = ProgramBuilder("grows")
    x = b.tensor("x", torch.float32, [4], [1])
    y = b.tensor("y", torch.float32, [3], [1], role="out")
    b.call("aten::neg.out", x, out=y)
    plan = prepare_kernel(b.write(cache))
    for _ in range(2):
        launch_jobplan(plan, [torch.ones(4, device="spyre"), torch.zeros(3, device="spyre")])
        with pytest.raises(RuntimeError, match=r"resiz|other sizes"):
            torch.spyre.synchronize()


# -------------------------------------------------------------------------------------- building and expressions


def written(b, shape):
    b.call("aten::neg_", b.tensor("z", torch.float32, shape, [1] * len(shape), role="inout"))
    return b.write()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda b, x: b.call("aten::no_such", x), "there is no operator 'aten::no_such'"),
        (lambda b, x: b.call("aten::neg.out", x), "argument 'out' is missing"),
        (lambda b, x: b.call("aten::neg.out", x, out=x, more=1), "no further argument 'more'"),
        (lambda b, x: b.call("aten::neg", x, results=[x, x]), "returns 1 values, 2 operands"),
        (lambda b, x: b.call("aten::neg", object()), "can't hold a object"),
        (lambda b, x: b.call("aten::bernoulli_.float", x), "random numbers come from the device's generator"),
        (lambda b, x: b.symbol("n"), "'n' is a symbol already"),
        (lambda b, x: b.symbol("a b"), "'a b' is no name for a symbol"),
        (lambda b, x: ProgramBuilder("q").call("aten::neg_", x), "an operand of another program"),
        (lambda b, x: ProgramBuilder("q").kernel("k", [x]), "an operand of another program"),
        (lambda b, x: ProgramBuilder("q").view(x, [1], [1]), "an operand of another program"),
        (lambda b, x: b.view(b.scratch(torch.int8, [4], [1]), [300], [1]), "does not fit into memory of 128 bytes"),
        (lambda b, x: b.view(b.constant(torch.ones(4)), [5], [1]), "view of 20 bytes does not fit into memory of 16"),
        (lambda b, x: b.call("aten::fill_.Scalar", x, 1 << 63), "does not fit into 64 bits"),
        (lambda b, x: b.tensor("z", torch.int8, [1, 2], [1]), "1 strides for 2 dimensions"),
        (lambda b, x: b.write(), "does nothing"),
        (lambda b, x: written(ProgramBuilder("a\ud800"), []), "name: a text without control characters"),
        (lambda b, x: written(b, [-1]), r"arguments\[1\]\.shape\[0\]: -1 is negative"),
        (lambda b, x: written(b, [1 << 63]), "does not fit into 64 bits"),
    ],
)
def test_what_a_program_cannot_express_is_said_when_it_is_built(make, text):
    b = ProgramBuilder("p")
    b.symbol("n")
    x = b.tensor("x", torch.float32, ["n"], [1], role="inout")
    with pytest.raises((BuildError, ExpressionError), match=text):
        make(b, x)


@pytest.mark.parametrize(
    "text",
    ["n / 2", "n ** 2", "f(n)", "m", "n if n else 1", "", "n.x", "min(n)", f"{1 << 70}", "(" * 500 + "n" + ")" * 500],
)
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(ExpressionError):
        compile_size(text, ["n"])


def test_expressions_count_as_python_does(cache):
    texts = ["n // 3", "n % 3", "-n // 2", "(n - 7) % 4", "min(n, 5) * max(n, 2)", "n * 2 + 1", "7 - n"]
    b = ProgramBuilder("expressions")
    b.symbol("n", minimum=-50)
    b.integer("n")
    out = b.tensor("out", torch.int64, [len(texts)], [1], role="out")
    for at, text in enumerate(texts):
        b.call("aten::fill_.Scalar", b.view(out, [1], [1], offset=at), b.expr(text))
    plan = prepare_kernel(b.write(cache))
    out = torch.empty(len(texts), dtype=torch.int64, device="spyre")
    for n in (-50, -7, -1, 0, 1, 4, 11):
        launch_jobplan(plan, [n, out])
        assert out.tolist() == [eval(text, {"n": n, "min": min, "max": max}) for text in texts], n


def test_scratch_memory_is_planned_by_its_use(cache):
    b = ProgramBuilder("long chain")
    x = b.tensor("x", torch.float32, [1024], [1])
    y = b.tensor("y", torch.float32, [1024], [1], role="out")
    last = x
    for _ in range(20):
        step = b.scratch(torch.float32, [1024], [1])
        b.call("aten::add.out", last, last, out=step)
        last = step
    b.call("aten::neg.out", last, out=y)
    directory = b.write(cache)
    assert json.loads((directory / "manifest.json").read_text())["scratch"] == 2 * 4096
    x, y = torch.ones(1024, device="spyre"), torch.empty(1024, device="spyre")
    launch_jobplan(prepare_kernel(directory), [x, y])
    assert y.unique().tolist() == [-float(1 << 20)]


# -------------------------------------------------------------------------------------------- artifacts on disk


def places(document, path=()):
    """Every field of a document, as a path of keys."""
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def at(document, path):
    for key in path:
        document = document[key]
    return document


def named(path):
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")


def changed(directory, edit):
    """The artifact with another manifest."""
    document = json.loads((directory / "manifest.json").read_text())
    edit(document)
    (directory / "manifest.json").write_text(json.dumps(document))
    return directory


@pytest.fixture
def artifact(tmp_path):
    return affine(ArtifactCache(tmp_path))


def test_every_malformed_field_of_a_manifest_is_named(artifact):
    original = (artifact / "manifest.json").read_text()
    checked = 0
    for path in places(json.loads(original)):
        for wrong in (None, [[]], {"x": 1}):
            (artifact / "manifest.json").write_text(original)

            def spoil(document, path=path, wrong=wrong):
                at(document, path[:-1])[path[-1]] = wrong

            with pytest.raises(ArtifactError) as caught:
                prepare_kernel(changed(artifact, spoil))
            assert caught.value.field.startswith(named(path)), (path, wrong, str(caught.value))
            checked += 1
        if isinstance(path[-1], str):
            (artifact / "manifest.json").write_text(original)
            with pytest.raises(ArtifactError) as caught:
                prepare_kernel(changed(artifact, lambda document, path=path: at(document, path[:-1]).pop(path[-1])))
            assert caught.value.field.startswith(named(path)) and "missing" in str(caught.value), path
    assert checked > 150


@pytest.mark.parametrize(
    ("edit", "field", "reason"),
    [
        (lambda d: d.update(extra=1), "extra", "not known here"),
        (lambda d: d["target"].update(extra=1), "target.extra", "not known here"),
        (lambda d: d["cost"].update(extra=1), "cost.extra", "not known here"),
        (lambda d: d["preparation"][0].update(extra=1), "preparation[0].extra", "not known here"),
        (lambda d: d.update(name="a\x07"), "name", "without control characters"),
        (lambda d: d.update(version=2), "version", "version 2 is not known here"),
        (lambda d: d.update(format="x"), "format", "'x' is not 'spyre-code'"),
        (lambda d: d["target"].update(torch="2.1"), "target.torch", "was made for 2.1"),
        (lambda d: d["target"].update(compiler="old"), "target.compiler", "was made for old"),
        (lambda d: d["symbols"].append(dict(d["symbols"][0])), "symbols[1].name", "is a symbol already"),
        (lambda d: d["symbols"].append({"name": "m", "minimum": 0, "maximum": 1, "multiple": 1}), "symbols[1]",
         "gets no value"),
        (lambda d: d["symbols"][0].update(maximum=-1), "symbols[0].maximum", "not from 0"),
        (lambda d: d["symbols"][0].update(multiple=0), "symbols[0].multiple", "not from 1"),
        (lambda d: d["arguments"][0].update(dtype="float33"), "arguments[0].dtype", "'float33' is no dtype"),
        (lambda d: d["arguments"][0].update(role="both"), "arguments[0].role", "none of in, out, inout"),
        (lambda d: d["arguments"][0]["shape"].append(1), "arguments[0].strides", "2 strides for 3 dimensions"),
        (lambda d: d["arguments"][0]["shape"].__setitem__(0, "n + 1"), "arguments[0].shape[0]", "no value yet"),
        (lambda d: d["arguments"][1]["shape"].__setitem__(0, -1), "arguments[1].shape[0]", "negative"),
        (lambda d: d["arguments"][1]["shape"].__setitem__(0, "q"), "arguments[1].shape[0]", "no symbol"),
        (lambda d: d["slots"][0].update(argument=3), "slots[0].argument", "no tensor"),
        (lambda d: d["slots"][3].update(argument=0), "slots[3].argument", "no scalar"),
        (lambda d: d["slots"].pop(), "", "6 slots, the manifest describes 5"),
        (lambda d: d["binaries"]["program.bin"].update(sha256="0" * 64), "binaries.program.bin.sha256", "content"),
        (lambda d: d["binaries"]["program.bin"].update(bytes=1), "binaries.program.bin.bytes", "bytes, not 1"),
        (lambda d: d["execution"].reverse(), "execution", "has the steps compute_on_host, transfer"),
        (lambda d: d["execution"].pop(), "execution", "has the steps"),
        (lambda d: d["preparation"].pop(), "preparation", "allocate, upload"),
    ],
)  # fmt: skip
def test_a_manifest_that_says_something_wrong_is_refused(artifact, edit, field, reason):
    with pytest.raises(ArtifactError, match=reason) as caught:
        prepare_kernel(changed(artifact, edit))
    assert caught.value.field == field


def test_a_damaged_artifact_is_refused(artifact):
    program = artifact / "program.bin"
    data = bytearray(program.read_bytes())
    data[-9] ^= 1
    program.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"program\.bin has another content"):
        prepare_kernel(artifact)
    program.write_bytes(data[:-8])
    with pytest.raises(ArtifactError, match=r"program\.bin has \d+ bytes, not"):
        prepare_kernel(artifact)
    program.unlink()
    with pytest.raises(ArtifactError, match=r"program\.bin can't be read"):
        prepare_kernel(artifact)
    (artifact / "manifest.json").write_text("{")
    with pytest.raises(ArtifactError, match="is not JSON"):
        prepare_kernel(artifact)
    shutil.rmtree(artifact)
    with pytest.raises(ArtifactError, match=r"manifest\.json can't be read"):
        prepare_kernel(artifact)


def test_no_text_of_a_program_can_crash_the_card(artifact):
    """The device checks the bytes too: a text with any word replaced ends in an error or a plan."""
    from spyre_backend.programs.plans import _description, read_manifest

    description = _description(read_manifest(artifact))
    text = (artifact / "program.bin").read_bytes()
    refused = 0
    for word, value in itertools.product(range(len(text) // 8), (-1, 1 << 40, 3)):
        spoiled = text[: word * 8] + value.to_bytes(8, "little", signed=True) + text[word * 8 + 8 :]
        try:
            _C.JobPlan(description, spoiled, b"", b"", "", 0)
        except (torch.spyre.InvalidArgument, RuntimeError):
            refused += 1
    for length in range(0, len(text), 8):
        with pytest.raises(torch.spyre.InvalidArgument, match="program text"):
            _C.JobPlan(description, text[:length], b"", b"", "", 0)
    assert refused > 100


def write_and_run(root, results):
    plan = prepare_kernel(affine(ArtifactCache(root)))
    x, w, y = tensors()
    launch_jobplan(plan, [x, w, y, 1])
    results.put((plan.directory, torch.allclose(y.cpu(), x.cpu() @ w.cpu())))


def test_processes_that_write_the_same_artifact_at_once_share_it(tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=write_and_run, args=(tmp_path, results)) for _ in range(3)]
    for process in processes:
        process.start()
    done = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert {right for _, right in done} == {True}
    assert len({directory for directory, _ in done}) == 1
    folders = [path for path in tmp_path.glob("*/*") if path.is_dir()]
    assert len(folders) == 1
    assert sorted(file.name for file in folders[0].iterdir()) == ["manifest.json", "program.bin"]


@pytest.mark.parametrize("name", ["manifest.json", "program.bin"])
@pytest.mark.parametrize("content", [None, b"", b"\xff" * 2000], ids=["missing", "empty", "other"])
def test_a_damaged_artifact_is_made_again(tmp_path, name, content):
    """As a crash of the machine or a process that was killed leaves it."""
    directory = affine(ArtifactCache(tmp_path))
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_bytes(content)
    partial = directory.parent / f"{directory.name}.x.partial"
    partial.mkdir()
    assert affine(ArtifactCache(tmp_path)) == directory
    prepare_kernel(directory)
    assert not partial.exists()


KERNEL = 'extern "C" void k(void** p, const long* n) {{ static_cast<float*>(p[0])[0] = {value}; }}'


def compiled(folder, source):
    (folder / "k.cpp").write_text(source)
    subprocess.run(["c++", "-shared", "-fPIC", folder / "k.cpp", "-o", folder / "k.so"], check=True)
    return folder / "k.so"


def test_the_kernels_that_were_checked_are_the_ones_that_run(tmp_path):
    """Also when a library takes the place of another one in a process that has loaded that."""
    x = torch.zeros(1, device="spyre")
    for value in (3, 42):
        library = compiled(tmp_path, KERNEL.format(value=value))
        b = ProgramBuilder("kernel")
        b.kernel("k", [b.tensor("x", torch.float32, [1], [1], role="inout")])
        b.library(library)
        shutil.copytree(b.write(ArtifactCache(tmp_path / "cache")), tmp_path / "same place", dirs_exist_ok=True)
        launch_jobplan(prepare_kernel(tmp_path / "same place"), [x])
        assert x.item() == value


def test_a_library_without_the_kernel_or_that_is_none_is_refused(tmp_path):
    library = compiled(tmp_path, "int other;")
    for content, text in ((library.read_bytes(), "no kernel 'k'"), (b"no library", "can't be loaded")):
        library.write_bytes(content)
        b = ProgramBuilder("kernel")
        b.kernel("k", [b.tensor("x", torch.float32, [1], [1], role="inout")])
        b.library(library)
        with pytest.raises(ArtifactError, match=text):
            prepare_kernel(b.write(ArtifactCache(tmp_path)))


def test_a_builder_writes_the_same_artifact_every_time(cache):
    b = ProgramBuilder("twice")
    x = b.tensor("x", torch.float32, [3], [1], role="inout")
    t = b.scratch(torch.float32, [3], [1])
    b.call("aten::neg.out", x, out=t)
    b.call("aten::mul_.Tensor", x, t)
    assert b.write(cache) == b.write(cache)


def test_device_and_scheme_are_checked(cache):
    directory = affine(cache)
    assert prepare_kernel(directory, "spyre:1").device == torch.device("spyre", 1)
    with pytest.raises(ValueError, match="runs on a spyre device, not on cpu"):
        prepare_kernel(directory, "cpu")
    with pytest.raises(ValueError, match="'fast' is no launch scheme: patch, windows, graph are"):
        prepare_kernel(directory, scheme="fast")


def test_a_different_program_has_a_different_place(cache):
    assert affine(cache) == affine(cache)
    assert len({affine(cache), affine(cache, dynamic=False), affine(cache, synchronize=True)}) == 3


def test_a_program_may_end_with_a_synchronisation(cache):
    plan = prepare_kernel(affine(cache, synchronize=True))
    assert plan.steps[-1].do == "synchronize"
    x, w, y = tensors()
    launch_jobplan(plan, [x, w, y, 1])
    assert torch.spyre.current_stream().query()


def test_a_cache_that_cannot_be_written_is_said_with_the_setting(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=r"can't be written .* choose another cache with SPYRE_CACHE_DIR"):
        affine(ArtifactCache(tmp_path / "file"))


def test_the_default_cache_is_a_folder_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("SPYRE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ArtifactCache().root == tmp_path / "spyre_backend"
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "chosen"))
    assert ArtifactCache().root == Path(tmp_path / "chosen")
