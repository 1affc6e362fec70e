"""A new PrivateUse1 backend needs a profile and no code."""

import re
from pathlib import Path

POCKET = Path(__file__).parent / "pocket_device"
ROOT = Path(__file__).parents[2]


def test_a_backend_that_no_code_knows_runs_its_first_tests(conformance, tmp_path, results):
    done = conformance(
        "run", "--profile", POCKET, "--upstream", POCKET / "tree", "--output", tmp_path / "out",
        PYTHONPATH=f"{POCKET}:{ROOT}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines, summary = results(tmp_path / "out")
    assert summary["balanced"] is True
    assert {line["id"].rpartition("::")[2]: line["outcome"] for line in lines} == {
        "test_add[][float32]@pocket": "passed",
        "test_add[][int64]@pocket": "passed",
        "test_expected@pocket": "xfailed",
        "test_cuda@pocket": "not_applicable",
    }


def test_C10_what_upstream_limits_to_another_device_is_unlocked_on_request(conformance, tmp_path, results):
    options = ("--profile", POCKET, "--upstream", POCKET / "tree", "--unlock", "test_pocket.py::TestAny::test_cuda")
    done = conformance("run", *options, "--output", tmp_path / "out", PYTHONPATH=f"{POCKET}:{ROOT}")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = results(tmp_path / "out")[1]
    assert (summary["outcomes"], summary["unlocked"]) == ({"passed": 1}, True)
    done = conformance("plan", "--profile", ROOT / "tests" / "conformance" / "cpu_profile", "--unlock")
    assert (done.returncode, "PrivateUse1" in done.stderr) == (2, True)


def test_no_code_names_a_backend():
    for path in (ROOT / "conformance").rglob("*.py"):
        words = path.read_text(encoding="utf-8")
        # Formats are named after the projects whose lists they are; docstrings show names as examples.
        assert not re.search(r"""spyre_backend|["']spyre["']|torch\.spyre\b""", words), path
