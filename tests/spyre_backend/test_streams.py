"""Several streams and threads: what may overlap, what stays apart, and that nobody holds up somebody else."""

import threading

import torch


def staged(steps, compute, transfer):
    """``steps`` steps of a recurrence on pinned inputs, transfers and operators on the streams they are given."""
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(64, 64, generator=generator).pin_memory() for _ in range(steps)]
    outputs = [torch.empty(64, 64).pin_memory() for _ in range(steps)]
    state = torch.eye(64, device="spyre")
    compute.wait_stream(torch.spyre.current_stream())
    for i in range(steps):
        with torch.spyre.stream(transfer):
            there = inputs[i].to("spyre", non_blocking=True)
        compute.wait_stream(transfer)
        with torch.spyre.stream(compute):
            state = torch.tanh(state @ there)
        there.record_stream(compute)
        transfer.wait_stream(compute)
        with torch.spyre.stream(transfer):
            outputs[i].copy_(state, non_blocking=True)
        state.record_stream(transfer)
    torch.spyre.synchronize()
    expected, on_cpu = [], torch.eye(64)
    for value in inputs:
        on_cpu = torch.tanh(on_cpu @ value)
        expected.append(on_cpu)
    return outputs, expected


def test_R4_1_split_streams_or_one_or_the_cpu_give_the_same():
    one = torch.spyre.Stream()
    together, expected = staged(30, one, one)
    apart, _ = staged(30, torch.spyre.Stream(), torch.spyre.Stream())
    for a, b, c in zip(together, apart, expected, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, c)


def test_R4_14_every_copy_between_devices_has_events_of_its_own():
    """Held copies and free ones between the same devices, in turns: none waits for, or goes with, another's."""
    gate, held = threading.Event(), []
    source = torch.arange(100.0, device="spyre:0")
    torch.spyre.synchronize()
    for round in range(20):
        there, back = torch.spyre.Stream(device=0), torch.spyre.Stream(device=1)
        if round % 2 == 0:
            torch.spyre.launch_host_callback(gate.wait, there)
        with torch.spyre.stream(there), torch.spyre.stream(back):
            copy = source.to("spyre:1", non_blocking=True)
        if round % 2 == 0:
            assert not back.query()
            held.append((back, copy))
        else:
            back.synchronize()
            assert copy.tolist() == source.tolist()
    assert not any(back.query() for back, _ in held)
    gate.set()
    for back, copy in held:
        back.synchronize()
        assert copy.tolist() == source.tolist()


def test_R4_19_without_host_work_there_is_no_preparation_stream():
    x = torch.ones(100, device="spyre")
    x = x * 1.5  # compiled and uploaded now
    streams = len(torch.spyre.device_state().streams)
    with torch.spyre.record_timeline() as timeline:
        for _ in range(10):
            x = x * 1.5
        torch.spyre.synchronize()
    assert {interval.pipeline for interval in timeline.intervals} == {"compute"}
    assert len({interval.stream for interval in timeline.intervals}) == 1
    assert len(torch.spyre.device_state().streams) == streams


def test_R2_15_the_allocator_is_free_while_python_is_entered(run_python):
    """Memory runs out, garbage is collected with Python's lock, and what Python runs then allocates: in two threads."""
    run_python(
        "import gc, threading, torch\n"
        "gc.disable()\n"
        "collected = 0\n"
        "def allocate(phase, info):\n"
        "    global collected\n"
        "    collected += 1\n"
        "    torch.empty(1000, device='spyre')\n"
        "    torch.spyre.memory_stats()\n"
        "gc.enable()\n"
        "gc.set_threshold(1_000_000)\n"
        "gc.callbacks.append(allocate)\n"
        "def fill():\n"
        "    for _ in range(20):\n"
        "        class Holder: pass\n"
        "        holder = Holder()\n"
        "        holder.itself, holder.tensor = holder, torch.empty(20 << 20, dtype=torch.uint8, device='spyre')\n"
        "        del holder\n"
        "threads = [threading.Thread(target=fill) for _ in range(2)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "assert collected >= 2, collected\n",
        SPYRE_MEMORY_GB="0.125",
    )


def test_on_the_virtual_clock_a_sleeping_thread_lets_python_callbacks_run(run_python):
    """One thread plays Python callbacks while another, holding Python's lock, records and waits for events."""
    run_python(
        "import threading, time, torch\n"
        "one, two = torch.spyre.Stream(), torch.spyre.Stream()\n"
        "stop = threading.Event()\n"
        "def record():\n"
        "    while not stop.is_set():\n"
        "        two.wait_event(two.record_event())\n"
        "        two.query()\n"
        "thread = threading.Thread(target=record)\n"
        "thread.start()\n"
        "ran = []\n"
        "for _ in range(50):\n"
        "    torch.spyre.launch_host_callback(lambda: (time.sleep(0.0005), ran.append(1)), one)\n"
        "    one.synchronize()\n"
        "stop.set()\n"
        "thread.join()\n"
        "torch.spyre.synchronize()\n"
        "assert len(ran) == 50\n",
        SPYRE_CLOCK="virtual",
    )
