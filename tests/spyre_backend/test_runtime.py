"""Devices, streams, events, pinned memory, statistics, processes."""

import threading

import pytest
import torch


def test_devices_and_accelerator():
    assert torch.accelerator.current_accelerator().type == "spyre"
    assert torch.accelerator.device_count() == torch.spyre.device_count() == 2
    assert torch.float32 in torch.accelerator.get_device_capability()["supported_dtypes"]
    with torch.spyre.device(1):
        assert torch.ones(1, device="spyre").device.index == 1
        with torch.spyre.device(None):
            assert torch.spyre.current_device() == 1
    with torch.accelerator.device_index(1), torch.spyre.device_of(torch.ones(1, device="spyre:0")):
        assert torch.spyre.current_device() == 0
    assert torch.spyre.current_device() == 0
    with pytest.raises(RuntimeError, match="out of range: there are 2 devices"):
        torch.ones(1, device="spyre:7")
    with pytest.raises(RuntimeError, match="out of range"):
        torch.spyre.set_device(9)
    with pytest.raises(ValueError, match="Expected a spyre device"):
        torch.spyre.set_device("cpu")
    assert torch.spyre.get_device_properties(1).core_count == 32


def test_current_device_and_stream_belong_to_the_thread():
    seen = []
    stream = torch.spyre.Stream()
    with torch.spyre.device(1), torch.spyre.stream(stream):
        thread = threading.Thread(
            target=lambda: seen.append((torch.spyre.current_device(), torch.spyre.current_stream(0).stream_id))
        )
        thread.start()
        thread.join()
    assert seen == [(0, 0)]


def test_R4_17_events_and_streams():
    stream = torch.spyre.Stream()
    assert isinstance(stream, torch.spyre.Stream)
    assert isinstance(stream, torch.Stream)
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    assert isinstance(start, torch.spyre.Event)
    assert start.query()
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    with torch.spyre.stream(stream) as inside:
        assert inside == stream == torch.spyre.current_stream()
        start.record()
        torch.ones(100, 100, device="spyre") @ torch.ones(100, 100, device="spyre")
        end.record()
    assert torch.spyre.current_stream() == torch.spyre.default_stream()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    first = start.elapsed_time(end)
    end.record(stream)
    end.synchronize()
    assert start.elapsed_time(end) > first
    stream.wait_event(end)
    stream.wait_stream(torch.spyre.default_stream())
    torch.spyre.default_stream().wait_event(stream.record_event())
    stream.synchronize()
    assert stream.query()
    with pytest.raises(ValueError, match="interprocess"):
        torch.spyre.Event(interprocess=True)


def test_events_across_devices_and_many_streams():
    x = torch.zeros(1, device="spyre:0")
    done = torch.spyre.Event()
    for index in range(40):
        stream = torch.spyre.Stream(device=index % 2)
        stream.wait_event(done)
        with torch.spyre.stream(stream):
            if index % 2 == 0:
                x.add_(1)
            done = stream.record_event()
    done.synchronize()
    assert x.item() == 20
    assert len({torch.spyre.Stream().stream_id for _ in range(5)}) == 5


def test_asynchronous_copies_are_ordered():
    pinned = torch.arange(1_000_000.0).pin_memory()
    assert pinned.is_pinned()
    assert not torch.ones(2).is_pinned()
    back = torch.empty(1_000_000, pin_memory=True)
    for round in range(5):
        there = pinned.to("spyre", non_blocking=True)
        there.add_(round)
        back.copy_(there, non_blocking=True)
        del there
        torch.spyre.synchronize()
        assert torch.equal(back, pinned + round)


def test_copies_between_devices_wait_for_both_streams():
    for _ in range(5):
        a = torch.ones(300_000).pin_memory().to("spyre:0", non_blocking=True)
        b = a.to("spyre:1", non_blocking=True)
        a.zero_()
        assert b.sum().item() == 300_000
        assert b.device.index == 1


def test_R2_11_record_stream_keeps_memory_until_the_stream_is_done():
    stream = torch.spyre.Stream()
    a = torch.ones(1000, device="spyre")
    a.record_stream(stream)
    before = torch.spyre.memory_allocated()
    del a
    torch.spyre.synchronize()
    assert torch.spyre.memory_allocated() == before - 4096


def test_R2_9_memory_statistics():
    torch.spyre.reset_peak_memory_stats()
    before = torch.spyre.memory_allocated()
    a = torch.ones(1000, device="spyre")
    b = torch.ones(1000, device="spyre")
    del b
    assert torch.spyre.memory_allocated() - before == 4096
    assert torch.spyre.max_memory_allocated() - before == 8192
    free, _ = torch.spyre.mem_get_info()
    c = torch.empty(500, device="spyre")
    assert free - torch.spyre.mem_get_info()[0] == c.nbytes + 48, "rounded up to sticks"
    assert torch.spyre.memory_allocated(1) == torch.accelerator.memory_allocated(1)
    torch.spyre.empty_cache()
    torch.spyre.reset_accumulated_memory_stats()
    assert torch.spyre.memory_stats()["allocation.all.allocated"] == 0
    del a


def test_R2_10_empty_cache_returns_regions(run_python):
    run_python(
        "import torch\n"
        "a = torch.ones(1000, device='spyre')\n"
        "assert torch.spyre.memory_reserved() > 0\n"
        "del a\n"
        "torch.spyre.empty_cache()\n"
        "assert torch.spyre.memory_reserved() == 0\n"
        "torch.accelerator.memory.empty_host_cache()\n",
        SPYRE_EAGER_PROGRAMS="0",  # programs stay in a region of their own
    )


def test_threads_compute_at_once():
    errors = []

    def work(device):
        try:
            x = torch.eye(16, device=device)
            with torch.spyre.stream(torch.spyre.Stream(device=device)):
                for _ in range(50):
                    x = x @ torch.eye(16, device=device)
            assert torch.equal(x.cpu(), torch.eye(16))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"spyre:{i % 2}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_pinned_batches_of_a_data_loader():
    loader = torch.utils.data.DataLoader(torch.arange(40.0).split(10), num_workers=1, pin_memory=True)
    assert all(batch.is_pinned() and batch.to("spyre").is_spyre for batch in loader)


def test_autoload_is_idempotent_silent_and_lazy(run_python):
    process = run_python(
        "import torch, spyre_backend\n"
        "spyre_backend.load(); spyre_backend.load()\n"
        "assert torch.spyre.is_available() and not torch.spyre.is_initialized()\n"
        "torch.manual_seed(1)\n"
        "assert not torch.spyre.is_initialized()\n"
        "torch.ones(1, device='spyre')\n"
        "assert torch.spyre.is_initialized()\n"
    )
    assert process.stdout == ""
    assert process.stderr == ""


def test_a_forked_child_gets_a_clear_error_and_ends_cleanly(run_python):
    run_python(
        "import os, torch\n"
        "a = torch.ones(4, device='spyre')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert torch.spyre._is_in_bad_fork()\n"
        "    torch.manual_seed(1)\n"
        "    torch.ones(3) + 1\n"
        "    try:\n"
        "        torch.ones(1, device='spyre')\n"
        "    except RuntimeError as error:\n"
        "        del a\n"
        "        os._exit(0 if 'spawn' in str(error) else 3)\n"
        "    os._exit(4)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "assert a.sum().item() == 4\n"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPYRE_DEVICES", "many"),
        ("SPYRE_DEVICES", "0"),
        ("SPYRE_MEMORY_GB", "-1"),
        ("SPYRE_HANDLES", "2.5"),
        ("SPYRE_DOMAINS", "0"),
        ("SPYRE_MODE", "vf"),
        ("SPYRE_CLOCK", "sundial"),
        ("SPYRE_HOST_WORKERS", "0"),
    ],
)
def test_invalid_settings_name_variable_and_value(run_python, name, value):
    process = run_python("import torch; torch.ones(1, device='spyre')", check=False, **{name: value})
    assert process.returncode == 1
    assert f"{name}={value} is not valid" in process.stderr


def test_settings_change_what_they_say(run_python):
    run_python(
        "import torch\n"
        "assert torch.spyre.settings() == torch.spyre.Settings(\n"
        "    'VF', 3, 1 << 29, 8, 4, 'virtual', 2, False, 3, 5, 7, 'error', 'graph')\n"
        "assert not torch.spyre.is_initialized()\n"
        "assert torch.spyre.device_count() == 3\nassert torch.spyre.mem_get_info(2)[1] == 1 << 29\n"
        "assert '0 of 8 region handles' in torch.spyre.memory_summary()\n",
        SPYRE_MODE="VF",
        SPYRE_DEVICES="3",
        SPYRE_MEMORY_GB="0.5",
        SPYRE_HANDLES="8",
        SPYRE_DOMAINS="4",
        SPYRE_CLOCK="virtual",
        SPYRE_HOST_WORKERS="2",
        SPYRE_SPLIT_STREAMS="off",
        SPYRE_STAGING_BUFFERS="3",
        SPYRE_CORRECTION_REGIONS="5",
        SPYRE_EAGER_PROGRAMS="7",
        SPYRE_FALLBACK="error",
        SPYRE_LAUNCH="graph",
    )


def test_R2_2_modes_hand_out_the_same_offsets(run_python):
    script = (
        "import torch\n"
        "tensors = [torch.empty(n * 1000 + 1, device='spyre') for n in range(300)]\n"
        "del tensors[::3]\n"
        "tensors += [torch.empty(n * 700 + 1, device='spyre') for n in range(300)]\n"
        "print([torch.spyre.memory.describe(t).chunks for t in tensors])\n"
    )
    pf, vf = (run_python(script, SPYRE_MODE=mode, SPYRE_MEMORY_GB="2").stdout for mode in ("PF", "VF"))
    assert pf == vf
    assert pf.count("Chunk(") == 500


def test_devices_work_on_the_virtual_clock(run_python):
    run_python(
        "import torch\n"
        "start, end = torch.Event('spyre', enable_timing=True), torch.Event('spyre', enable_timing=True)\n"
        "def play():\n"
        "    with torch.spyre.record_timeline() as timeline:\n"
        "        start.record()\n"
        "        x = torch.ones(1 << 20).pin_memory().to('spyre', non_blocking=True)\n"
        "        y = (x + x).to('spyre:1')\n"
        "        end.record()\n"
        "        end.synchronize()\n"
        "        assert y.cpu().sum() == 2 << 20\n"
        "        torch.accelerator.synchronize()\n"
        "    return start.elapsed_time(end), [(i.pipeline, i.label, i.end - i.start) for i in timeline.intervals]\n"
        "play()  # compiles\n"
        "first = play()\n"
        "assert first == play()\n"
        "assert {'h2d', 'compute', 'peer', 'd2h'} <= {pipeline for pipeline, _, _ in first[1]}\n"
        "assert 0.05 < first[0] < 0.5, first[0]\n",
        SPYRE_CLOCK="virtual",
    )


EXITS = {
    "after backward": "x = torch.ones(3, device='spyre', requires_grad=True); (x * x).sum().backward()",
    "with live tensors": "keep = [torch.ones(100, 100, device=f'spyre:{i % 2}') for i in range(20)]",
    "with pending work": (
        "x = torch.ones(300_000).pin_memory(); keep = [x.to('spyre', non_blocking=True) for _ in range(8)]\n"
        "    torch.spyre.launch_host_callback(lambda: keep.clear())"
    ),
    "after an error": (
        "torch.spyre.launch_host_callback(lambda: 1 / 0)\n"
        "    try: torch.ones(2, device='spyre') + torch.ones(3, device='spyre')\n"
        "    except (RuntimeError, ZeroDivisionError): pass"
    ),
}


@pytest.mark.parametrize("how", EXITS)
def test_the_process_ends_cleanly(run_python, how):
    """50 processes, forked before the runtime starts; each uses the device and goes through the interpreter's end."""
    process = run_python(
        "import gc, os, torch\n"
        "def use():\n"
        "    global x, keep\n"
        f"    {EXITS[how]}\n"
        # Else every child's end walks over all that importing torch has made: half of its time.
        "gc.collect(); gc.freeze()\n"
        "for _ in range(50):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        use()\n"
        "        break\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )
    assert process.stderr == ""
