"""The fork server's own process: imports what workers need, then copies itself for each of them. Started by
``runner.forkserver`` only; its docstring has the packets.

One thread and no event loop: whatever a library does at a fork happens as in a process that has just imported it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

from conformance.runner.spec import WorkerSpec
from conformance.runner.worker import die_with, run

PACKET = 65_536
"""Bytes of a request at most; a path has 4,096."""

MODULES = ("torch.testing._internal.common_device_type", "torch.testing._internal.common_methods_invocations")
"""What nearly every upstream test file imports, and what takes longest."""

TRIAL_LIMIT = 60.0
"""Seconds that the first copy may take for its two operators."""

PARALLEL = 1 << 18
"""Elements that an operator of the CPU shares among threads; some runtimes of threads hang there after a fork."""


def main(descriptor: str, supervisor: str, module: str, device: str) -> int:
    """Serves until the supervisor closes its end of the socket.

    Args:
        descriptor: of the socket.
        supervisor: process id; the server does not outlive it.
        module: brings the device; ``""``: PyTorch has it.
        device: device type under test.

    Returns:
        In a worker: its exit status.
    """
    die_with(int(supervisor))
    control = socket.socket(fileno=int(descriptor))
    control.set_inheritable(False)
    for name in (*([module] if module else []), *MODULES, "conformance.runner.plugin"):
        importlib.import_module(name)
    # What is collected no more is not written to, and stays shared among the copies.
    gc.collect()
    gc.freeze()
    sys.stdout.flush()
    control.send(json.dumps({"ready": _problem(device)}).encode())
    spec = _serve(control)
    if spec is None:
        os._exit(0)  # The end of a process that computed nothing has nothing to tidy up.
    return run(WorkerSpec.read(spec))


def _problem(device: str) -> str:
    """Why copies cannot compute on the device, in one line; ``""`` where they can."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = _compute(device)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode(errors="replace")[: select.PIPE_BUF])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        hangs = not select.select([stream], [], [], TRIAL_LIMIT)[0]
        if hangs:
            os.kill(pid, signal.SIGKILL)
        said = stream.read().decode(errors="replace").partition("\n")[0]
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if hangs:
        said = f"it hangs for {TRIAL_LIMIT:g} s"
    elif status:
        said = f"it ends with status {status}"
    return said and f"a copy cannot compute on {device}: {said}"


def _compute(device: str) -> str:
    import torch

    backend = getattr(torch, device, None)
    # By convention a device's module has this function; torch.random and torch.cuda ask it.
    if backend is not None and getattr(backend, "_is_in_bad_fork", lambda: False)():
        return f"torch.{device} was started before the copy"
    torch.ones(PARALLEL).add_(1)
    torch.ones(2, device=device).add_(1)
    return ""


def _serve(control: socket.socket) -> Path | None:
    """Makes workers.

    Returns:
        In a worker: the path of its spec. In the server, when the supervisor is gone: ``None``.
    """
    server = os.getpid()
    workers: dict[int, int] = {}  # process ids, by a descriptor that becomes readable when the process ends
    while True:
        for one in select.select([control.fileno(), *workers], [], [])[0]:
            if one == control.fileno():
                data, descriptors, _, _ = socket.recv_fds(control, PACKET, 1)
                if not data:
                    return None
                request = json.loads(data)
                pid = os.fork()
                if pid == 0:
                    for descriptor in (control.detach(), *workers):
                        os.close(descriptor)
                    _become_worker(server, descriptors[0], request["cwd"])
                    return Path(request["spec"])
                os.close(descriptors[0])
                workers[os.pidfd_open(pid)] = pid
                answer = {"pid": pid}
            else:
                pid = workers.pop(one)
                os.close(one)
                answer = {"ended": pid, "status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}
            try:
                control.send(json.dumps(answer).encode())
            except OSError:
                return None


def _become_worker(server: int, output: int, cwd: str) -> None:
    """Gives a copy what a process that is started fresh gets from its parent: session, output, folder."""
    os.setsid()
    die_with(server)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(cwd)
