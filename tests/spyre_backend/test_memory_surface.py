"""Where tensors are, summaries, and moving them to other tiers."""

import gc
import io
import json
import re

import pytest
import torch

DEVICE = "spyre"


def test_R2_8_describe_tells_chunks_policy_and_layout():
    base = torch.ones(100, device="spyre:1")
    whole, view = torch.spyre.memory.describe(base), torch.spyre.memory.describe(base[10:].view(9, 10).t())
    assert whole.device == torch.device("spyre:1")
    assert whole.chunks == view.chunks
    (chunk,) = whole.chunks
    assert chunk.offset % 128 == 0
    assert chunk.length == 512
    assert whole.policy == torch.spyre.memory.Bind(0)
    assert view.layout == torch.spyre.memory.Layout("strided", (10, 9), (1, 10), 40, 4)
    assert torch.spyre.memory.describe(torch.empty(0, device=DEVICE)).chunks == ()
    capsule = torch.from_dlpack(torch.utils.dlpack.to_dlpack(base))
    assert torch.spyre.memory.describe(capsule).chunks == whole.chunks
    with pytest.raises(ValueError, match="not one on cpu"):
        torch.spyre.memory.describe(torch.ones(1))


def test_memory_summary_shows_totals_and_regions():
    keep = torch.ones(1000, device=DEVICE)
    text = torch.spyre.memory_summary()
    assert "spyre:0, PF mode" in text
    assert f"{torch.spyre.memory_allocated():16}" in text
    assert re.search(r"region \d+ \(tensor, domain 0\)", text)
    del keep


def test_R2_12_placement_is_binding_and_survives_offloading(run_python):
    run_python(
        "import torch\n"
        "memory = torch.spyre.memory\n"
        "Bind, Interleave, describe, placement = memory.Bind, memory.Interleave, memory.describe, memory.placement\n"
        "spread = Interleave((2, 0), 1024)\n"
        "with placement(spread):\n"
        "    x = torch.arange(10_000, device='spyre')\n"
        "    with placement(Bind(3)):\n"
        "        y = x + 1\n"
        "    z = y * 1\n"
        "assert describe(x).policy == describe(z).policy == spread\n"
        "assert [c.length for c in describe(x).chunks] == [1024] * 78 + [128]\n"
        "assert len({c.region for c in describe(x).chunks}) == 2\n"
        "assert describe(y).policy == Bind(3) and len(describe(y).chunks) == 1\n"
        "assert torch.equal((x[5:].view(-1, 5) + 1).cpu(), y.cpu()[5:].view(-1, 5))\n"
        "torch.spyre.offload(x).restore()\n"
        "assert describe(x).policy == spread and torch.equal(x.cpu(), torch.arange(10_000))\n"
        "with placement(Bind(1)):\n"
        "    try: torch.empty(20 << 20, dtype=torch.uint8, device='spyre')\n"
        "    except torch.OutOfMemoryError: pass\n"
        "    else: raise SystemExit('not binding')\n"
        "with placement(Bind(4)):\n"
        "    try: torch.empty(1, device='spyre')\n"
        "    except torch.spyre.InvalidArgument as error: assert 'no memory domain 4' in str(error)\n"
        "    else: raise SystemExit('not refused')\n"
        "assert torch.spyre.memory_allocated() == 80_000 * 3\n",
        SPYRE_DOMAINS="4",
        SPYRE_MEMORY_GB="0.0625",
    )


@pytest.mark.parametrize("tier", ["host", "file"])
def test_R2_17_offloaded_content_comes_back_identical_at_another_address(tier):
    torch.manual_seed(0)
    tensor = torch.randn(300, 7, device=DEVICE)
    view, content = tensor[3:].t(), tensor.cpu()
    before, address = torch.spyre.memory_allocated(), tensor.data_ptr()
    handle = torch.spyre.offload(tensor, tier=tier)
    assert handle.nbytes == 8400
    assert torch.spyre.memory_allocated() == before - 8448
    for use in (lambda: tensor + 1, lambda: view.cpu(), lambda: tensor.sum().item()):
        with pytest.raises(RuntimeError, match="offloaded or resized to 0 bytes"):
            use()
    blocker = torch.ones(2100, device=DEVICE)
    handle.restore()
    handle.restore()
    assert tensor.data_ptr() != address
    assert torch.equal(tensor.cpu(), content)
    assert torch.equal(view.cpu(), content[3:].t())
    del blocker


@pytest.mark.parametrize("how", ["offload", "resize"])
@pytest.mark.parametrize(
    "use",
    [
        "x.cpu()",
        "torch.empty(1000).copy_(x)",
        "tail.cpu()",
        "x.to(torch.float64).cpu()",
        "x.copy_(torch.ones(1000))",
        "x.copy_(torch.ones(1))",
        "x.copy_(torch.ones(1000).pin_memory(), non_blocking=True)",
        "half.copy_(torch.ones(500))",
        "x.to('spyre:1')",
        "torch.ones(1000, device='spyre:1').copy_(x)",
        "x.copy_(torch.ones(1000, device='spyre:1'))",
        "x.clone()",
        "first.item()",
        "torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)) + 1",
        "torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)).cpu()",
        "torch.spyre.offload(x)",
        "torch.save(x, io.BytesIO())",
        "torch.save({'view': tail}, io.BytesIO())",
        "torch.save(torch.nn.Parameter(x), io.BytesIO())",
    ],
)
def test_R2_17_without_memory_every_use_is_an_error(how, use):
    x = torch.ones(1000, device=DEVICE)
    views = {"tail": x[1:], "half": x[::2], "first": x[0]}
    handle = torch.spyre.offload(x) if how == "offload" else x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="offloaded or resized to 0 bytes"):
        eval(use, {"torch": torch, "io": io, "x": x, **views})
    if how == "offload":
        handle.restore()
        assert torch.equal(x.cpu(), torch.ones(1000))


def test_a_host_tensor_without_memory_is_not_copied():
    host = torch.ones(1000)
    host.untyped_storage().resize_(0)
    for use in (lambda: host.to(DEVICE), lambda: host.copy_(torch.ones(1000, device=DEVICE))):
        with pytest.raises(RuntimeError, match="offloaded or resized to 0 bytes"):
            use()


def test_tensors_without_elements_are_saved_and_copied(tmp_path):
    empty = torch.empty(0, 3, device=DEVICE)
    torch.save([empty, torch.ones(2, device=DEVICE).conj()], tmp_path / "x.pt")
    loaded, ones = torch.load(tmp_path / "x.pt")
    assert loaded.shape == empty.cpu().shape == (0, 3)
    assert ones.tolist() == [1, 1]


def test_R2_17_no_file_stays_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tensor = torch.ones(10, device=DEVICE)
    handle = torch.spyre.offload(tensor, tier="file")
    assert len(list(tmp_path.iterdir())) == 1
    handle.restore()
    assert list(tmp_path.iterdir()) == []
    handle = torch.spyre.offload(tensor, tier="file")
    del handle
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_R2_17_a_damaged_file_is_an_error_and_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tensor = torch.ones(10, device=DEVICE)
    handle = torch.spyre.offload(tensor, tier="file")
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(RuntimeError, match="39 bytes instead of 40"):
        handle.restore()
    file.write_bytes(content)
    handle.restore()
    assert tensor.tolist() == [1] * 10


def test_offload_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="no tier 'tape': choose one of 'host', 'file'"):
        torch.spyre.offload(torch.ones(1, device=DEVICE), tier="tape")
    with pytest.raises(ValueError, match="not one on cpu"):
        torch.spyre.offload(torch.ones(1))
    for call in (torch.spyre.offload, torch.spyre.memory.describe):
        with pytest.raises(TypeError, match="expected a tensor, not 5"):
            call(5)


@pytest.mark.parametrize(
    ("policy", "error", "text"),
    [
        (torch.spyre.memory.Interleave((0,), 0), ValueError, "positive multiple of 128 bytes, not 0"),
        (torch.spyre.memory.Interleave((0,), -128), ValueError, "positive multiple of 128 bytes, not -128"),
        (torch.spyre.memory.Interleave((0,), 100), ValueError, "positive multiple of 128 bytes, not 100"),
        (torch.spyre.memory.Interleave((), 128), ValueError, "at least one memory domain"),
        (torch.spyre.memory.Interleave((0, -1), 128), ValueError, "no memory domain -1"),
        (torch.spyre.memory.Bind(-1), ValueError, "no memory domain -1"),
        (torch.spyre.memory.Bind("x"), TypeError, "integer"),
        ("x", TypeError, "a Bind, an Interleave or None, not 'x'"),
    ],
)
def test_placement_refuses_what_no_card_could_keep(policy, error, text):
    with pytest.raises(error, match=re.escape(text)), torch.spyre.memory.placement(policy):
        pass
    assert torch.spyre.memory.describe(torch.ones(1, device=DEVICE)).policy == torch.spyre.memory.Bind(0)


def test_S_6_views_that_start_between_sticks_are_copied_right():
    host = torch.arange(100.0)
    device = torch.zeros(100, device=DEVICE)
    device[3:50].copy_(host[3:50])
    device[50:].copy_(host[50:].pin_memory(), non_blocking=True)
    assert torch.equal(device.cpu()[3:], host[3:])
    assert torch.equal(device[7:60].cpu(), host[7:60])
    target = torch.zeros(60).pin_memory()
    target.copy_(device[5:65], non_blocking=True)
    torch.spyre.synchronize()
    assert torch.equal(target, host[5:65])
    across = torch.zeros(50, device="spyre:1")
    across[1:].copy_(device[11:60])
    assert torch.equal(across[1:].cpu(), host[11:60])


def test_a_timeline_exports_as_a_chrome_trace(tmp_path):
    x = torch.ones(1 << 18).pin_memory()
    x.to(DEVICE) + 1  # compiled and uploaded now
    with torch.spyre.record_timeline() as timeline:
        y = x.to(DEVICE, non_blocking=True) + 1
        torch.spyre.launch_host_callback(lambda: None)
        y.cpu()
        torch.spyre.synchronize()
    assert [i.start for i in timeline.intervals] == sorted(i.start for i in timeline.intervals)
    assert {"h2d", "compute", "d2h", "host"} == {i.pipeline for i in timeline.intervals}
    timeline.export_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "spyre:0"}} in events
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == len(timeline.intervals)
    assert all(event["dur"] >= 0 and event["args"]["stream"] == 0 for event in complete)


def test_recordings_nest():
    x = torch.ones(10, device=DEVICE)
    x + 1  # compiled and uploaded now
    with torch.spyre.record_timeline() as outer:
        x + 1
        with torch.spyre.record_timeline() as inner:
            x + 1
        x.cpu()
    with torch.spyre.record_timeline() as after:
        x + 1
    assert [interval.pipeline for interval in outer.intervals] == ["compute", "compute", "d2h"]
    assert inner.intervals == outer.intervals[1:2]
    assert len(after.intervals) == 1
