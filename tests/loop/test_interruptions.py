"""The demo where somebody, or the machine, ends one of its processes: a clear sentence, and nothing left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.runner.worker import NAME

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 900.0  # seconds until something that is awaited counts as lost, on a machine that is busy with other things
pytestmark = pytest.mark.timeout(1800)
PLAY = """
import sys
from pathlib import Path
from demo.__main__ import play
from demo.pulls import BUNDLED_TREE
from demo.upstream import Tree
sys.exit(play(Path(sys.argv[1]), once=True, tree=Tree(BUNDLED_TREE, "bundled", "bundled"),
              variables={"CONFORMANCE_PROFILE": sys.argv[2]}))
"""


def processes(marker: str) -> dict[int, list[str]]:
    """Living processes that work in a folder, by their arguments, working directory or environment.

    Returns:
        By process id: its name, then its arguments.
    """
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if "\nState:\tZ" in (entry / "status").read_text():
                continue
            name = (entry / "comm").read_text().strip()
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace")
            environment = (entry / "environ").read_bytes().decode(errors="replace")
            said = arguments + str((entry / "cwd").readlink()) + environment
        except OSError:
            continue  # it ended while we were looking
        if marker in said:
            found[int(entry.name)] = [name, *arguments.split("\0")]
    return found


class Demo:
    """One demo in a process group of its own, as a terminal's job."""

    def __init__(self, build: Path) -> None:
        self.build = build
        profile = str(ROOT / "tests" / "loop" / "profile.yaml")
        self.process = subprocess.Popen(
            [sys.executable, "-c", PLAY, str(build), profile],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # What runs behind a shell's prompt ignores Ctrl-C, and what it starts would too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def until(self, what: Callable[[list[str]], bool]) -> int:
        """Wait for a process of this demo whose arguments ``what`` accepts; gives its id."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.process.communicate()
            for number, arguments in processes(str(self.build)).items():
                if what(arguments):
                    return number
            time.sleep(0.05)
        raise AssertionError(f"not seen: {processes(str(self.build))}")

    def ended(self) -> tuple[int, str]:
        """Exit code and stderr, once the demo and everything of it has ended."""
        _, errors = self.process.communicate(timeout=PATIENCE)
        deadline = time.monotonic() + 20
        while (left := processes(str(self.build))) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left
        return self.process.returncode, errors


@pytest.fixture
def demo(tmp_path) -> Iterator[Demo]:
    demo = Demo(tmp_path / "build")
    yield demo
    for number in [demo.process.pid, *processes(str(demo.build))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def is_worker(arguments: list[str]) -> bool:
    """A process that runs upstream's tests for the supervisor."""
    return arguments[0] == NAME.decode()


def runs(command: str) -> Callable[[list[str]], bool]:
    """A process of ``python -m COMMAND``."""
    return lambda arguments: f"-m {command} " in " ".join(arguments)


@pytest.mark.parametrize(("name", "command"), [("relay", "relay serve"), ("github", "relay emulator serve")])
def test_a_server_that_is_killed_in_the_middle_of_a_job_is_named_and_nothing_outlives_it(demo, name, command):
    demo.until(is_worker)
    os.kill(demo.until(runs(command)), signal.SIGKILL)
    code, errors = demo.ended()
    assert code == 1
    assert errors.startswith(f"demo: {name} stopped unexpectedly (exit -9).")
    assert "Traceback" not in errors


@pytest.mark.parametrize("moment", ["servers start", "tests run"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_no_process(demo, moment, number):
    demo.until(is_worker if moment == "tests run" else runs("hud serve"))
    if number == signal.SIGINT:
        os.killpg(demo.process.pid, number)  # as a terminal sends it
    else:
        demo.process.send_signal(number)
    code, errors = demo.ended()
    assert code == (-9 if number == signal.SIGKILL else 130)
    assert errors == ("" if number == signal.SIGKILL else "\ndemo: stopped.\n")


def test_a_worker_that_is_killed_costs_its_test_and_no_account(demo):
    os.kill(demo.until(is_worker), signal.SIGKILL)
    code, errors = demo.ended()
    assert (code, errors) == (0, "")
    summary = json.loads((demo.build / "demo" / "summary.json").read_text())
    assert summary["conformance"]["balanced"] is True
    assert [pull["verdict"] for pull in summary["prs"]] == ["passed", "broken by this PR"]
