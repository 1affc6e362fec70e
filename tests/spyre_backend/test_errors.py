"""Errors of streams: typed, the first one, raised once; a failed stream fails nobody else."""

import contextlib
import threading
import time

import pytest
import torch

from spyre_backend import _C


@pytest.fixture
def stream():
    """A stream of its own; its error, if a test left one, is dropped."""
    stream = torch.spyre.Stream()
    yield stream
    with contextlib.suppress(Exception):
        stream.synchronize()


class Broken(Exception):
    """Nobody else's error."""


def until(condition):
    while not condition():
        time.sleep(0.001)


def fail(stream, error):
    def call():
        raise error

    torch.spyre.launch_host_callback(call, stream)


def test_R4_15_the_first_error_keeps_its_type_text_and_traceback(stream):
    fail(stream, Broken("first"))
    fail(stream, ValueError("second"))
    with pytest.raises(Broken, match=r"^first$") as caught:
        stream.synchronize()
    assert caught.traceback[-1].name == "call"
    stream.synchronize()


def test_R3_13_an_error_is_raised_by_the_next_operation(stream):
    with torch.spyre.stream(stream):
        x = torch.ones(3, device="spyre")
        fail(stream, Broken("before the addition"))
        with pytest.raises(Broken, match="before the addition"):
            x + x
        assert (x + x).tolist() == [2, 2, 2]


def test_R4_11_waiting_for_failed_work_is_poisoned(stream):
    other = torch.spyre.Stream()
    fail(stream, Broken("the cause"))
    event = stream.record_event()
    other.wait_event(event)
    with pytest.raises(torch.spyre.Poisoned, match="the cause"):
        other.synchronize()
    with pytest.raises(torch.spyre.Poisoned, match="the cause"):
        event.synchronize()
    assert issubclass(torch.spyre.Poisoned, torch.spyre.SpyreError)
    assert issubclass(torch.spyre.SpyreError, RuntimeError)


def test_R4_16_device_synchronise_waits_for_all_and_raises_the_earliest(stream):
    ran = threading.Event()
    good, late = torch.spyre.Stream(), torch.spyre.Stream()
    fail(stream, Broken("earliest"))
    until(lambda: torch.spyre.device_state().status == "failed")
    fail(late, ValueError("later"))
    torch.spyre.launch_host_callback(ran.set, good)
    with pytest.raises(Broken, match="earliest"):
        torch.spyre.synchronize()
    assert ran.is_set()
    torch.spyre.synchronize()


def test_device_state_tells_and_a_failed_stream_can_be_replaced(stream):
    gate = threading.Event()
    torch.spyre.launch_host_callback(gate.wait, stream)
    fail(stream, Broken("visible"))
    assert torch.spyre.device_state().status == "busy"
    state = {s.stream_id: s for s in torch.spyre.device_state().streams}[stream.stream_id]
    assert (state.pending, state.error) == (2, None)
    gate.set()
    until(lambda: torch.spyre.device_state().status != "busy")
    state = torch.spyre.device_state("spyre:0")
    assert state.status == "failed"
    assert "visible" in {s.stream_id: s for s in state.streams}[stream.stream_id].error
    with torch.spyre.stream(torch.spyre.Stream()):
        assert torch.ones(2, device="spyre").sum().item() == 2
    with pytest.raises(Broken):
        stream.synchronize()
    assert torch.spyre.device_state().status == "idle"
    with pytest.raises(RuntimeError, match="no device spyre:9"):
        torch.spyre.device_state(9)


def test_device_state_starts_nothing(run_python):
    run_python(
        "import torch\n"
        "assert torch.spyre.device_state() == torch.spyre.DeviceState(0, 'not started', ())\n"
        "assert not torch.spyre.is_initialized()\n"
    )


def test_an_unknown_stream_is_an_invalid_argument():
    unknown = torch.spyre.Stream(stream_id=12345, device_index=0, device_type=_C.DEVICE_TYPE)
    x, y = torch.ones(2, device="spyre:0"), torch.ones(2, device="spyre:1")
    uses = [
        unknown.synchronize,
        unknown.query,
        unknown.record_event,
        lambda: torch.spyre.launch_host_callback(print, unknown),
        lambda: x + x,
        x.cpu,
        lambda: torch.ones(2).to("spyre:0"),
        lambda: x.to("spyre:1"),
        lambda: y.to("spyre:0"),
    ]
    for use in uses:
        with torch.spyre.stream(unknown), pytest.raises(torch.spyre.InvalidArgument, match="no stream 12345"):
            use()


def test_after_the_end_work_is_refused_with_a_type(run_python):
    run_python(
        "import torch\n"
        "from spyre_backend import _C\n"
        "x = torch.ones(2, device='spyre')\n"
        "_C.shut_down()\n"
        "for use in (lambda: x + x, lambda: torch.spyre.launch_host_callback(print), lambda: x.cpu()):\n"
        "    try:\n"
        "        use()\n"
        "    except torch.spyre.ShutDown as error:\n"
        "        assert 'shut down' in str(error)\n"
        "    else:\n"
        "        raise SystemExit('not refused')\n"
    )


def test_R2_14_garbage_is_collected_before_memory_is_refused(run_python):
    run_python(
        "import gc, torch\n"
        "gc.set_threshold(1_000_000)\n"
        "for _ in range(20):\n"
        "    class Holder: pass\n"
        "    holder = Holder()\n"
        "    holder.itself, holder.tensor = holder, torch.empty(40 << 20, dtype=torch.uint8, device='spyre')\n"
        "    del holder\n"
        "stats = torch.spyre.memory_stats()\n"
        "assert stats['num_alloc_retries'] >= 1 and stats['num_ooms'] == 0\n",
        SPYRE_MEMORY_GB="0.125",
    )


def test_R4_20_priorities_are_accepted_and_shown():
    stream = torch.spyre.Stream(priority=-1)
    states = {s.stream_id: s for s in torch.spyre.device_state().streams}
    assert states[stream.stream_id].priority == -1
