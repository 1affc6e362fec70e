"""What a resumed run may continue, what progress says, and where a run keeps its copy of the tests."""

import io
import subprocess
import sys
import types

import pytest

from conformance.errors import ConformanceError
from conformance.profile import load_profile
from conformance.registry.facts import installed_torch
from conformance.reports.accounts import Accounts, Attempt, Planned
from conformance.reports.progress import Progress
from conformance.runner import run as run_module
from conformance.runner.mirror import mirror, remove
from conformance.runner.run import Request, Session, prepare_output
from conformance.runner.scratch import scratch

TEST = "test/test_a.py::TestA::test_{}"


@pytest.fixture
def parts(tmp_path):
    """A profile with registry and capabilities, and a checkout: (profile folder, checkout, output)."""
    profile, checkout = tmp_path / "profile", tmp_path / "checkout"
    (checkout / "test").mkdir(parents=True)
    (checkout / "version.txt").write_text("2.6.0\n")
    profile.mkdir()
    (profile / "profile.yaml").write_text(
        "name: mine\ndevice: cpu\nregistry: registry.yaml\ncapabilities: capabilities.yaml\n"
    )
    (profile / "registry.yaml").write_text("version: 1\nrules: []\n")
    (profile / "capabilities.yaml").write_text("version: 1\n")
    return profile, checkout, tmp_path / "out"


def request_of(profile, checkout):
    return Request(profile=load_profile(str(profile)), upstream=checkout, targets=("test_a.py",))


def test_C26_the_same_run_is_resumed(parts):
    profile, checkout, output = parts
    prepare_output(output, request_of(profile, checkout), resume=False)
    assert prepare_output(output, request_of(profile, checkout), resume=True) == output / "state"


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("profile/profile.yaml", "policy: {unclassified: include}\n", "profile"),
        ("profile/registry.yaml", "# another state of the rules\n", "registry"),
        ("profile/capabilities.yaml", "# another state\n", "capabilities"),
        ("checkout/version.txt", "1", "version of the checkout"),
    ],
)
def test_C26_a_run_with_other_content_is_not_resumed(parts, tmp_path, name, text, word):
    profile, checkout, output = parts
    prepare_output(output, request_of(profile, checkout), resume=False)
    with (tmp_path / name).open("a") as stream:
        stream.write(text)
    with pytest.raises(ConformanceError, match=word):
        prepare_output(output, request_of(profile, checkout), resume=True)


def test_C26_a_run_of_another_commit_is_not_resumed(parts):
    profile, checkout, output = parts
    (checkout / ".git").mkdir()
    (checkout / ".git" / "HEAD").write_text("a" * 40)
    prepare_output(output, request_of(profile, checkout), resume=False)
    (checkout / ".git" / "HEAD").write_text("b" * 40)
    with pytest.raises(ConformanceError, match="version of the checkout"):
        prepare_output(output, request_of(profile, checkout), resume=True)


def test_C26_a_run_of_another_torch_is_not_resumed(parts, monkeypatch):
    profile, checkout, output = parts
    prepare_output(output, request_of(profile, checkout), resume=False)
    monkeypatch.setattr(run_module, "installed_torch", lambda: "1.0.0")
    with pytest.raises(ConformanceError, match="other torch"):
        prepare_output(output, request_of(profile, checkout), resume=True)


def test_the_version_of_torch_is_known_without_importing_it():
    from importlib import metadata

    assert installed_torch().startswith(metadata.version("torch"))


def shown(accounts, progress):
    supervisor = types.SimpleNamespace(accounts=accounts, finished_units={1}, running=[])
    return progress._line(supervisor, len(accounts.attempts), 1.0, 5.0)


def test_progress_counts_final_outcomes():
    """Also where tests were tried twice, the counts add up to the tests that have a result."""
    accounts, progress = Accounts(), Progress(io.StringIO(), 1)
    tries = {"a": ["crashed", "crashed"], "b": ["failed", "passed"], "c": ["passed"], "d": ["timed_out", "failed"]}
    for name, outcomes in tries.items():
        accounts.plan(Planned(TEST.format(name)))
        for number, outcome in enumerate(outcomes, 1):
            attempt = Attempt(TEST.format(name), outcome, number)
            accounts.record(attempt)
            progress.result(attempt, accounts.outcome(attempt.id))
    line = shown(accounts, progress)
    assert "4 of 4 known tests" in line
    assert line.endswith("crashed 1 · failed 1 · flaky 1 · passed 1")


def test_progress_of_a_plan_says_what_was_found():
    accounts, progress = Accounts(), Progress(io.StringIO(), 3, collect_only=True)
    for name in ("a", "b"):
        accounts.plan(Planned(TEST.format(name)))
    line = shown(accounts, progress)
    assert line == "5 s · 2 tests found · units 1/3"
    broken = Attempt("test/test_b.py", "error")
    accounts.plan(Planned(broken.id))
    accounts.record(broken)
    progress.result(broken, "error")
    assert shown(accounts, progress) == "5 s · 2 tests found · units 1/3 · error 1"


def test_the_copy_of_the_tests_lies_in_the_state_and_goes_with_the_run(parts, tmp_path, monkeypatch):
    """Also what a killed run left there goes, before anything is looked for."""
    profile, checkout, output = parts
    (checkout / "test" / "test_a.py").write_text("def test_x(): pass\n")
    monkeypatch.setenv("CONFORMANCE_CACHE_DIR", str(tmp_path / "cache"))
    state = prepare_output(output, request_of(profile, checkout), resume=False)
    (state / "trees-killed" / "upstream").mkdir(parents=True)
    seen = []

    def run(self, weighted, roots, *_):
        seen.append(roots["test/test_a.py"].folder)
        assert (seen[0] / "test_a.py").is_file()
        assert not (state / "trees-killed").exists()
        raise ConformanceError("enough")

    monkeypatch.setattr(Session, "_run", run)
    with pytest.raises(ConformanceError, match="enough"):
        Session(request_of(profile, checkout), print).execute(state)
    assert seen[0].is_relative_to(state)
    assert [path.name for path in state.iterdir()] == ["request.json"]


def test_a_copy_below_the_tests_does_not_copy_itself(tmp_path):
    (tmp_path / "test" / "inner").mkdir(parents=True)
    (tmp_path / "test" / "inner" / "test_a.py").write_text("")
    target = tmp_path / "test" / "out" / "copy"
    target.mkdir(parents=True)
    copied = mirror(tmp_path, target)
    assert (copied / "inner" / "test_a.py").is_file()
    assert not (copied / "out" / "copy").exists()


def test_what_tests_made_unwritable_is_removed(tmp_path):
    folder = tmp_path / "tree"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("")
    (folder / "a" / "b").chmod(0o000)
    (folder / "a").chmod(0o500)
    remove(folder)
    assert not folder.exists()


def test_scratch_of_the_dead_goes_and_of_the_living_stays(tmp_path):
    program = (
        "import os, sys, time\nfrom pathlib import Path\nfrom conformance.runner.scratch import scratch\n"
        "with scratch(Path(sys.argv[1])) as folder:\n print(folder, flush=True)\n time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "plans")], stdout=subprocess.PIPE, text=True
    )
    other = process.stdout.readline().strip()
    try:
        with scratch(tmp_path / "plans") as mine:
            names = {str(path) for path in (tmp_path / "plans").iterdir() if path.is_dir()}
            assert names == {other, str(mine)}
        assert not mine.exists()
    finally:
        process.kill()
        process.communicate()
    with scratch(tmp_path / "plans") as mine:
        assert [path for path in (tmp_path / "plans").iterdir() if path.is_dir()] == [mine]


def test_scratch_without_a_cache(tmp_path):
    (tmp_path / "file").write_text("")
    with scratch(tmp_path / "file" / "plans") as mine:
        assert mine.is_dir()
    assert not mine.exists()
