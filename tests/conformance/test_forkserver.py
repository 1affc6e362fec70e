"""Workers as copies of one process that has imported everything: who imports, who survives, who is blamed."""

import signal
import time
from pathlib import Path

import psutil
import pytest

FILE = """
import os, signal, unittest

class Test{number}(unittest.TestCase):
    def test_a(self):
        self.assertEqual(os.getsid(0), os.getpid())
"""


@pytest.fixture
def site(tmp_path):
    """Writes a module, a profile and a tree; returns the options of a run and its environment."""

    def write(module="", files=1, policy="", extra=""):
        (tmp_path / "counted_module.py").write_text(
            f"import os, sys, time, torch\nopen({str(tmp_path / 'imports')!r}, 'a').write(sys.orig_argv[2] + '\\n')\n"
            f"SERVER = 'runner.preload' in sys.orig_argv[2]\n{module}"
        )
        (tmp_path / "profile.yaml").write_text(
            "{name: copies, device: cpu, module: counted_module, environment: {TORCH_DEVICE_BACKEND_AUTOLOAD: '0'}, "
            f"policy: {{labels: [GENERIC], unclassified: include, jobs: 1, {policy}}}}}"
        )
        tests = tmp_path / "tree" / "test"
        tests.mkdir(parents=True)
        (tmp_path / "tree" / "version.txt").write_text("2.14.1")
        for number in range(files):
            (tests / f"test_{number}.py").write_text(FILE.format(number=number) + extra)
        options = ("run", "--profile", tmp_path / "profile.yaml", "--upstream", tmp_path / "tree", "--output")
        return (*options, tmp_path / "out"), {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}

    return write


def imports(tmp_path):
    """What imported the module, besides the probe that every run begins with: ``preload`` and ``worker``."""
    lines = (tmp_path / "imports").read_text().splitlines()
    return [name for line in lines for name in ("preload", "worker") if f"runner.{name} " in line]


@pytest.mark.parametrize(("policy", "expected"), [("", ["preload"]), ("start_method: spawn", ["worker"] * 3)])
def test_C20_everything_is_imported_once_or_by_every_worker(conformance, site, tmp_path, results, policy, expected):
    options, environment = site(files=3, policy=policy)
    done = conformance(*options, **environment)
    assert done.returncode == 0, done.stderr
    _, summary = results(tmp_path / "out")
    assert (summary["outcomes"], summary["balanced"], summary["notes"]) == ({"passed": 3}, True, [])
    assert imports(tmp_path) == expected


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("pid = os.getpid(); torch.cpu._is_in_bad_fork = lambda: os.getpid() != pid", "was started before the copy"),
        ("if SERVER: os.register_at_fork(after_in_child=lambda: os._exit(3))", "it ends with status 3"),
        ("if SERVER: raise OSError('no copies of me')", "OSError: no copies of me"),
        ("if SERVER: os._exit(4)", "exit status 4"),
        ("if SERVER: time.sleep(1000)", "importing took longer than 20 s"),
    ],
)
def test_C20_a_backend_that_cannot_be_copied_starts_fresh_and_the_run_says_why(
    conformance, site, tmp_path, results, module, reason
):
    options, environment = site(module, files=2, policy="timeout: 20, import_timeout: 20")
    done = conformance(*options, **environment)
    assert done.returncode == 0, done.stderr
    _, summary = results(tmp_path / "out")
    assert (summary["outcomes"], summary["balanced"]) == ({"passed": 2}, True)
    (note,) = summary["notes"]
    assert "started fresh" in note and reason in note
    assert imports(tmp_path) == ["preload", "worker", "worker"]


def test_C21_a_test_that_kills_its_parent_costs_one_test(conformance, site, tmp_path, results):
    extra = """
    def test_b(self):
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    def test_c(self):
        pass
"""
    options, environment = site(extra=extra, files=2)
    done = conformance(*options, **environment)
    assert done.returncode == 1, done.stderr
    lines, summary = results(tmp_path / "out")
    assert summary["balanced"] is True
    assert {line["id"].partition("::")[2]: line["outcome"] for line in lines} == {
        f"Test{number}::test_{name}": "crashed" if name == "b" else "passed" for number in (0, 1) for name in "abc"
    }
    assert set(imports(tmp_path)) == {"preload"}


def test_C26_an_interrupt_while_the_server_imports_ends_the_run(conformance, site, tmp_path):
    options, environment = site("if SERVER: time.sleep(1000)")
    process = conformance(*options, start=True, **environment)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out" / "state").glob("forkserver-*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3, said
    assert not psutil.wait_procs(children, timeout=20)[1]
