"""Servers of the demo: watched, and gone when the demo is gone, however it went."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from demo.services import DemoError, Service, Services, free_port

SERVER = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1"]


def service(tmp_path: Path, command: list[str] | None = None) -> Service:
    port = free_port()
    return Service(
        "files",
        command or [*SERVER, str(port)],
        f"http://127.0.0.1:{port}",
        "/",
        {"PATH": os.environ["PATH"]},
        tmp_path / "logs" / "files.log",
    )


def gone(pid: int, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_a_server_serves_inside_the_context_and_is_gone_after_it(tmp_path):
    with Services() as services:
        server = service(tmp_path)
        services.start(server)
        pid = server.process.pid
        services.check()
        assert psutil.pid_exists(pid)
    assert gone(pid)


def test_a_server_that_ends_is_an_error_with_the_end_of_its_log(tmp_path):
    dying = service(tmp_path, [sys.executable, "-c", "print('port 80 is taken'); raise SystemExit(3)"])
    with (
        pytest.raises(DemoError, match=r"files stopped unexpectedly \(exit 3\)(?s:.*)port 80 is taken"),
        Services() as s,
    ):
        s.start(dying)


def test_a_killed_server_is_noticed(tmp_path):
    with Services() as services:
        server = service(tmp_path)
        services.start(server)
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        with pytest.raises(DemoError, match="exit -9"):
            services.check()


def test_children_of_a_server_are_ended_with_it(tmp_path):
    script = textwrap.dedent(
        """
        import subprocess, sys
        from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
        child = subprocess.Popen(["sleep", "600"])
        print(child.pid, flush=True)
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), SimpleHTTPRequestHandler).serve_forever()
        """
    )
    server = service(tmp_path)
    server.command = [sys.executable, "-u", "-c", script, server.url.rpartition(":")[2]]
    with Services() as services:
        services.start(server)
        child = int(server.log.read_text().split()[0])
        assert psutil.pid_exists(child)
    assert gone(child)


def test_servers_end_when_the_demo_is_killed_with_sigkill(tmp_path):
    script = textwrap.dedent(
        f"""
        import os, sys, time
        from pathlib import Path
        from demo.services import Service, free_port
        port = free_port()
        server = Service("files", [*{SERVER!r}, str(port)], f"http://127.0.0.1:{{port}}", "/", dict(os.environ),
                         Path({str(tmp_path)!r}) / "log")
        server.start()
        server.wait_ready()
        print(server.process.pid, flush=True)
        time.sleep(600)
        """
    )
    demo = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pid = int(demo.stdout.readline())
    demo.kill()
    demo.wait()
    assert gone(pid)
