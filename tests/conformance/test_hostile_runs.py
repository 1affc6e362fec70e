"""One run over tests that kill, hang and spoil their process; every promise about accounts is asked of it."""

import os
import shutil
import signal
import stat
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import psutil
import pytest

from conformance.profile import load_profile
from conformance.runner.run import Request, prepare_output

HOSTILE = Path(__file__).parent / "hostile_tree"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout that nobody may write into."""
    root = tmp_path_factory.mktemp("checkout") / "tree"
    shutil.copytree(HOSTILE, root)
    for path in [root, *root.rglob("*")]:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
    return root


@pytest.fixture(scope="module")
def hostile(conformance, checkout, tmp_path_factory, results):
    """The run: (finished process, lines, summary, output folder, checkout)."""
    output = tmp_path_factory.mktemp("hostile") / "out"
    before = listing(checkout)
    summary_file = output.parent / "step-summary.md"
    done = conformance(
        "run", "--profile", HOSTILE, "--upstream", checkout, "--output", output, "--jobs", 2,
        HOSTILE_MARK=str(output.parent), GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary_file),
    )  # fmt: skip
    lines, summary = results(output)
    assert listing(checkout) == before, "the checkout was written into"
    return done, lines, summary, output


def listing(folder):
    return sorted((str(p.relative_to(folder)), p.stat().st_mtime_ns) for p in folder.rglob("*"))


def final(lines):
    return {line["id"]: line for line in lines}


def outcome(hostile, name):
    found = [line for key, line in final(hostile[1]).items() if name in key]
    assert len(found) == 1, [line["id"] for line in found]
    return found[0]["outcome"]


def test_C27_accounts_balance(hostile):
    done, lines, summary, _ = hostile
    assert summary["balanced"] is True
    assert summary["planned"] == sum(summary["outcomes"].values()) == len({line["id"] for line in lines})
    assert summary["not_run"] == 0
    assert done.returncode == 1, done.stderr


@pytest.mark.parametrize("test", ["test_abort", "test_exit_zero", "test_kill_itself", "test_segfault"])
def test_C21_a_death_costs_one_test_which_is_named(hostile, test):
    assert f"test/test_deaths.py::TestDeaths::{test}" in hostile[2]["crashed"]


def test_C21_neighbours_of_the_dead_pass(hostile):
    assert outcome(hostile, "test_a_before") == "passed"
    assert outcome(hostile, "TestDeaths::test_z_after") == "passed"


def test_C21_death_is_explained(hostile):
    lines = final(hostile[1])
    assert "SIGSEGV" in lines["test/test_deaths.py::TestDeaths::test_segfault"]["message"]
    assert "Segmentation fault" in lines["test/test_deaths.py::TestDeaths::test_segfault"]["trace"]
    assert "status 0" in lines["test/test_deaths.py::TestDeaths::test_exit_zero"]["message"]


@pytest.mark.parametrize(
    "test", ["TestHangInCall::test_hang", "TestHangInSetup::", "TestHangInTeardown::", "endless_out"]
)
def test_C22_hangs_are_named(hostile, test):
    assert outcome(hostile, test) == "timed_out"
    assert any(test in name for name in hostile[2]["timed_out"])


def test_C22_hang_has_a_stack(hostile):
    line = final(hostile[1])["test/test_hangs.py::TestHangInCall::test_hang"]
    assert "in test_hang" in line["trace"]


def test_C22_tests_after_a_hang_run(hostile):
    assert outcome(hostile, "TestHangInCall::test_z_after") == "passed"
    assert outcome(hostile, "TestOutput::test_z_after") == "passed"


def test_C22_no_process_is_left(hostile):
    for process in psutil.process_iter():
        try:
            mark = process.environ().get("HOSTILE_MARK")
        except psutil.Error:
            continue
        assert mark != str(hostile[3].parent), process.cmdline()


def test_C23_repeated_alone(hostile):
    _, lines, summary, _ = hostile
    attempts = [line for line in lines if line["id"] == "test/test_names.py::TestFlaky::test_passes_the_second_time"]
    assert [(a["attempt"], a["outcome"]) for a in attempts] == [(1, "failed"), (2, "flaky")]
    assert summary["flaky"] == [attempts[0]["id"]]
    always = [line["outcome"] for line in lines if line["test"] == "test_always_fails"]
    assert always == ["failed", "failed"]


@pytest.mark.parametrize(
    "test",
    [
        "test_a_closes_all_descriptors", "test_b_changes_directory", "test_c_daemon", "test_d_fork", "test_e_writes",
        "test_f_passes",
    ],
)  # fmt: skip
def test_C21_spoiled_processes_keep_their_books(hostile, test):
    assert outcome(hostile, test) == "passed"


def test_C1_any_name_survives(hostile):
    names = {line["test"] for line in hostile[1] if line["class"] == "TestNames"}
    expected = ["test_with.dot", "test_with space", "test_ünïcode_✓", "test_a::b", "test_[brackets]", "test_at@sign"]
    assert names == {*expected, "test_%2F"}
    assert all(line["outcome"] == "passed" for line in hostile[1] if line["class"] == "TestNames")


@pytest.mark.parametrize(
    ("file", "expected", "text"),
    [
        ("test_import_error.py", "error", "does_not_exist_anywhere"),
        ("test_import_exit.py", "crashed", "status 0"),
        ("test_import_sysexit.py", "error", "sys.exit(0)"),
        ("test_import_skip.py", "skipped", "no hardware"),
    ],
)
def test_C28_import_failures_are_results_of_the_file(hostile, file, expected, text):
    line = final(hostile[1])[f"test/{file}"]
    assert line["outcome"] == expected
    assert text in line["message"] + line["reason"]


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("test_quarantined", "skipped"),
        ("test_skipped", "skipped"),
        ("test_xfail", "xfailed"),
        ("test_xpass", "xpassed"),
        ("test_other_failure", "failed"),
        ("test_skips_itself", "skipped"),
        ("test_slow", "passed"),
        ("test_upstream_expects_failure", "xfailed"),
        ("test_upstream_expects_failure_but_passes", "xpassed"),
        ("test_subtests", "failed"),
    ],
)
def test_C16_rules(hostile, test, expected):
    line = final(hostile[1])[f"test/test_rules.py::TestRules::{test}"]
    assert line["outcome"] == expected, line


def test_C16_another_failure_says_what_was_expected(hostile):
    line = final(hostile[1])["test/test_rules.py::TestRules::test_other_failure"]
    assert "registry.yaml:" in line["reason"]
    assert "NotImplementedError" in line["reason"]
    assert line["rule"] == "expected"


def test_C16_unexpected_pass_is_reported_but_fails_only_in_strict_mode(hostile):
    assert not any("test_xpass" in name for name in hostile[2]["unexpected"])


def test_setup_class_failure_is_an_error_of_each_test(hostile):
    for test in ("test_one", "test_two"):
        line = final(hostile[1])[f"test/test_rules.py::TestBrokenClass::{test}"]
        assert (line["outcome"], line["phase"]) == ("error", "setup")
        assert "no such device" in line["message"]


def test_C29_junit_is_well_formed_and_agrees(hostile):
    _, lines, summary, output = hostile
    root = ElementTree.parse(output / "junit.xml").getroot()
    cases = list(root.iter("testcase"))
    assert len(cases) == summary["planned"] - summary["outcomes"].get("deselected", 0)
    broken = sum(1 for case in cases if case.find("failure") is not None or case.find("error") is not None)
    assert broken == sum(summary["outcomes"].get(key, 0) for key in ("failed", "error", "crashed", "timed_out"))
    assert len(final(lines)) == summary["planned"]


def test_C29_result_lines_have_the_fixed_fields(hostile):
    names = "id file class test op dtype device label outcome attempt duration phase message trace rule reason"
    fields = [*names.split(), "issue", "expires", "profile", "fallback", "cpu_outcome", "cpu_message"]
    assert all(list(line) == fields for line in hostile[1])
    assert {line["profile"] for line in hostile[1]} == {f"./{HOSTILE.relative_to(Path.cwd())}"}


def test_actions_annotations_and_summary(hostile):
    done, _, summary, output = hostile
    errors = [line for line in done.stdout.splitlines() if line.startswith("::error ")]
    assert 1 < len(errors) <= 11
    text = (output.parent / "step-summary.md").read_text()
    assert f"{len(summary['unexpected'])} unexpected" in text
    assert "test_segfault" in text


def test_plain_progress_without_terminal(hostile):
    assert "\x1b[" not in hostile[0].stderr
    assert "crashed: test/test_deaths.py::TestDeaths::test_abort" in hostile[0].stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_C26_interrupt_and_resume(conformance, tmp_path, results, number):
    output = tmp_path / "out"
    arguments = ("run", "--profile", HOSTILE, "--upstream", HOSTILE, "--output", output, "--jobs", 1)
    targets = ("test_names.py", "test_rules.py::TestRules::test_slow", "test_hangs.py::TestHangInCall")
    environment = {"HOSTILE_MARK": str(tmp_path)}
    process = conformance(*arguments, *targets, start=True, **environment)
    log = output / "state" / "events.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (log.exists() and '"e":"end"' in log.read_text()):
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, (out, err)
    assert "--resume" in err
    partial, summary = results(output)
    assert summary["interrupted"] == signal.Signals(number).name
    assert partial, "what had run is in the results"
    before = {line["id"]: line["duration"] for line in partial if line["outcome"] == "passed"}
    assert not list((output / "state").glob("trees-*")), "the copy of the tests is still there"

    again = conformance(*arguments, *targets, "--resume", **environment)
    assert again.returncode == 1, again.stderr
    lines, summary = results(output)
    assert summary["balanced"] is True
    assert summary["interrupted"] == ""
    after = final(lines)
    assert {key: after[key]["duration"] for key in before} == before, "a finished test ran again"
    assert "test/test_names.py::TestOuter.TestInner::test_nested" not in before or summary["planned"] >= len(before)


def test_C26_resume_refuses_another_run(conformance, tmp_path):
    done = conformance("run", "--profile", HOSTILE, "--upstream", HOSTILE, "--output", tmp_path, "--resume")
    assert done.returncode == 2
    assert "no interrupted run" in done.stderr


def test_C26_killed_supervisor_leaves_no_worker_and_no_file_elsewhere(conformance, tmp_path):
    output, temporary = tmp_path / "out", tmp_path / "tmp"
    temporary.mkdir()
    process = conformance(
        "run",
        "--profile",
        HOSTILE,
        "--upstream",
        HOSTILE,
        "--output",
        output,
        "--jobs",
        1,
        "test_hangs.py::TestHangInCall",
        start=True,
        TMPDIR=str(temporary),
    )
    deadline = time.monotonic() + 60
    while not (journals := list((output / "state").glob("unit-*.jsonl"))) or '"start"' not in journals[0].read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found = psutil.Process(process.pid).children(recursive=True)
    children = [p for p in found if "conformance.runner" in " ".join(p.cmdline())]
    assert len(children) == 2, "the fork server and a worker"
    process.kill()
    process.communicate()
    gone, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    assert gone
    assert not list(temporary.glob("conformance-*"))
    assert len(list((output / "state").glob("trees-*"))) == 1
    prepare_output(output, Request(profile=load_profile(str(HOSTILE)), upstream=HOSTILE), resume=False)
    assert [path.name for path in (output / "state").iterdir()] == ["request.json"]


def test_output_folder_of_somebody_else_is_refused(conformance, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    done = conformance("run", "--profile", HOSTILE, "--upstream", HOSTILE, "--output", tmp_path)
    assert done.returncode == 2
    assert "not empty" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_hash_seed_changes_nothing(conformance, tmp_path):
    plans = []
    for seed in ("0", "4711"):
        done = conformance(
            "plan", "--json", "--profile", HOSTILE, "--upstream", HOSTILE, "test_names.py", "test_rules.py",
            PYTHONHASHSEED=seed,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        plans.append(done.stdout)
    assert plans[0] == plans[1]


def test_read_only_for_others(checkout):
    """The fixture is what it says, or the promise about read-only checkouts was not tested."""
    if os.getuid() == 0:
        assert not any(path.stat().st_mode & 0o222 for path in checkout.rglob("*"))
        return
    with pytest.raises(PermissionError):
        (checkout / "x").write_text("x")
    assert subprocess.run(["test", "-w", str(checkout)]).returncode == 1
