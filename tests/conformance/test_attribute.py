"""C34: what failed on the device is repeated on the CPU with the same tree and torch, and told apart."""

import json
import signal
import time
from pathlib import Path

import pytest

from conformance.reports.accounts import Accounts, Attempt, OnCpu, Planned
from conformance.reports.diff import diff

HERE = Path(__file__).parent
POCKET = HERE / "pocket_device"
PATH = f"{POCKET}:{HERE.parents[1]}"

TESTS = """
import os, pathlib, time
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

def wait_on_the_cpu(device):
    mark = pathlib.Path(os.environ.get("MARK", "/"))
    while device == "cpu" and (mark / "wait").exists():
        (mark / "began").touch()
        time.sleep(0.02)

class TestAny(TestCase):
    def test_passes(self, device):
        pass

    def test_both(self, device):
        wait_on_the_cpu(device)
        self.assertEqual(1, 2)

    def test_known(self, device):
        raise NotImplementedError("nowhere")

    def test_device_alone(self, device):
        self.assertEqual(device[:3], "cpu")

    def test_crash(self, device):
        if device != "cpu":
            os.abort()
        self.fail("not a crash")

instantiate_device_type_tests(TestAny, globals())
"""
REGISTRY = """
version: 1
rules:
  - test: test_known
    action: xfail
    reason: unsupported-feature
    signature: {message: nowhere}
"""
CLASS = "test/test_any.py::TestAny::"


@pytest.fixture(scope="module")
def attributed(conformance, tmp_path_factory):
    """A finished run of tests that fail here, there or on both, and what is needed to repeat it."""
    work = tmp_path_factory.mktemp("attributed")
    (work / "tree" / "test").mkdir(parents=True)
    (work / "tree" / "version.txt").write_text("2.14.0")
    (work / "tree" / "test" / "test_any.py").write_text(TESTS)
    (work / "tree" / "test" / "test_gone.py").write_text(TESTS + "\nfrom torch.testing import nothing_of_this_name\n")
    (work / "profile.yaml").write_text((POCKET / "profile.yaml").read_text())
    (work / "registry.yaml").write_text(REGISTRY)
    arguments = ("run", "--profile", work, "--upstream", work / "tree", "--attribute", "--output")
    return conformance(*arguments, work / "out", PYTHONPATH=PATH), work, arguments


def test_C34_each_failure_says_what_the_cpu_made_of_it(attributed, results):
    done, work, _ = attributed
    lines, summary = results(work / "out")
    last = {line["id"]: line for line in lines}
    found = {
        name.removeprefix(CLASS): (line["outcome"], line["cpu_outcome"], line["cpu_message"][:25])
        for name, line in last.items()
    }
    assert found == {
        "test_passes@pocket": ("passed", "", ""),
        "test_both@pocket": ("failed", "failed", "AssertionError: Scalars a"),
        "test_known@pocket": ("xfailed", "failed", "NotImplementedError: nowh"),
        "test_device_alone@pocket": ("failed", "passed", ""),
        "test_crash@pocket": ("crashed", "failed", "AssertionError: not a cra"),
        "test/test_gone.py": ("error", "error", "ImportError: cannot impor"),
    }
    assert summary["balanced"] is True
    assert summary["planned"] == len(found), "the repetition is no further test"
    assert summary["on_cpu"] == {
        "crashed": {"failed": 1}, "error": {"error": 1}, "failed": {"failed": 1, "passed": 1}, "xfailed": {"failed": 1}
    }  # fmt: skip
    assert summary["breaks_on_cpu_too"] == [f"{CLASS}test_both@pocket", "test/test_gone.py"]
    assert summary["unexpected"] == [f"{CLASS}test_crash@pocket", f"{CLASS}test_device_alone@pocket"]
    assert done.returncode == 1
    assert "2 failures are not the backend's" in done.stdout


def test_C34_the_reports_tell_them_apart(attributed, conformance):
    _, work, _ = attributed
    assert conformance("report", work / "out", "--format", "markdown").returncode == 0
    text = (work / "out" / "report.md").read_text()
    assert "2 unexpected, 2 fail on the CPU too" in text
    unexpected, _, upstreams = text.partition("not the backend's")
    assert "test_device_alone" in unexpected and "test_both" not in unexpected
    assert "test_both" in upstreams and "test_device_alone" not in upstreams
    page = (work / "out" / "report.html").read_text()
    assert page.index("test_device_alone") < page.index("Not the backend's") < page.index("test_both")


def test_C34_what_fails_on_both_alone_does_not_fail_a_run_that_was_interrupted_there(
    attributed, conformance, results, tmp_path
):
    arguments = (*attributed[2], tmp_path / "out", "test_any.py::TestAny::test_both")
    environment = {"PYTHONPATH": PATH, "MARK": str(tmp_path)}
    (tmp_path / "wait").touch()
    process = conformance(*arguments, start=True, **environment)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (tmp_path / "began").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 3, process.communicate()
    assert results(tmp_path / "out")[0][-1]["cpu_outcome"] == "", "it is not known what the CPU has"
    (tmp_path / "wait").unlink()
    done = conformance(*arguments, "--resume", **environment)
    assert done.returncode == 0, done.stderr
    lines, summary = results(tmp_path / "out")
    assert (lines[-1]["outcome"], lines[-1]["cpu_outcome"], summary["outcomes"]) == ("failed", "failed", {"failed": 1})


def test_C34_the_cpu_is_not_compared_with_itself(conformance, tmp_path):
    done = conformance("run", "--profile", HERE / "cpu_profile", "--attribute", "--output", tmp_path / "out")
    assert (done.returncode, "profile cpu is for cpu" in done.stderr) == (2, True)


def test_C34_a_diff_does_not_call_upstreams_failure_worse():
    def one(outcome, there=""):
        accounts = Accounts(on_cpu={"test/test_a.py::TestA::test_a@x": OnCpu(there)} if there else {})
        accounts.plan(Planned("test/test_a.py::TestA::test_a@x"))
        accounts.record(Attempt("test/test_a.py::TestA::test_a@x", outcome))
        return accounts

    found = diff(one("passed"), one("failed", "error"))
    assert (found.worse, len(found.upstreams), found.newly_failing) == (False, 1, ())
    for head in (one("failed"), one("failed", "passed"), one("crashed", "failed")):
        assert diff(one("passed"), head).worse is True
    assert json.dumps(found.as_json()["upstreams"])
