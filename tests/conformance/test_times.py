"""C22, C25, C26: recorded times decide deadlines, shards and workers; a run that is resumed may be divided anew."""

import json
import signal
import time

import pytest

from conformance.errors import ConformanceError
from conformance.ids import parse
from conformance.inventory.model import FileRow
from conformance.reports.accounts import Accounts, Attempt, Planned
from conformance.runner.spec import BUCKETS, Root, Target, bucket
from conformance.runner.units import START, divide, expected_seconds, make_units, shard
from conformance.times import MARGIN, Times

FILE = "test/test_a.py"
TREE = """
import os, pathlib, time, unittest

class TestA(unittest.TestCase):
    pass

def add(number):
    def test(self):
        if number == {waits}:
            pathlib.Path(os.environ["MARK"], "began").touch()
            while not pathlib.Path(os.environ["MARK"], "go").exists():
                time.sleep(0.02)
    setattr(TestA, f"test_{{number}}", test)

for number in range(12):
    add(number)
"""
NAMES = [f"{FILE}::TestA::test_{number}" for number in range(12)]


def recorded(*rows):
    """The times of (id, outcome, seconds)."""
    accounts = Accounts()
    for name, outcome, seconds in rows:
        accounts.plan(Planned(name))
        accounts.record(Attempt(name, outcome, len(accounts.attempts.get(name, ())) + 1, seconds))
    return Times.of(accounts)


def test_C22_a_deadline_follows_from_what_a_test_took_and_never_from_how_long_it_hung(tmp_path):
    times = recorded((NAMES[0], "passed", 9.0), (NAMES[1], "timed_out", 60.0), (NAMES[2], "failed", 0.01))
    (tmp_path / "times.json").write_text(times.text())
    again = Times.read(tmp_path)
    assert again.deadline(NAMES[0], floor=20.0) == MARGIN * 9.0
    assert again.deadline(NAMES[0], floor=600.0) == 600.0
    assert again.deadline(NAMES[1], floor=20.0) == 20.0
    assert again.deadline("test/test_a.py::TestA::test_new", floor=20.0) == 20.0
    assert again.seconds(FILE) == pytest.approx(9.01)
    assert again.seconds(FILE, (("TestA", "test_2"),)) == pytest.approx(0.01)
    assert again.seconds(FILE, (("", "test_0"),)) == again.seconds(FILE, (("TestA", "test_0"),)) == 9.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "should be an object"),
        ('{"version": 2, "files": {}, "slow": {}}', "version"),
        ('{"version": 1, "files": {"a.py": {"A::b": -1}}, "slow": {}}', "files.a.py.A::b"),
        ('{"version": 1, "files": {}, "slow": {"a": NaN}}', "slow.a"),
    ],
)
def test_C22_a_file_that_holds_no_times_is_refused(tmp_path, text, said):
    (tmp_path / "times.json").write_text(text)
    with pytest.raises(ConformanceError, match=said):
        Times.read(tmp_path / "times.json")
    with pytest.raises(ConformanceError, match="a run or merge left"):
        Times.read(tmp_path / "none.json")


def test_C25_shards_are_balanced_by_recorded_time_and_hold_everything_once():
    # One file holds most of the time, and a third of that lies in one test.
    rows = [(f"test/test_big.py::TestB::test_{n}", "passed", 1.0) for n in range(100)]
    rows += [("test/test_big.py::TestB::test_long", "passed", 50.0)]
    rows += [(f"test/test_{n}.py::TestS::test_x", "passed", 8.0) for n in range(6)]
    times = recorded(*rows)
    targets = [Target(path) for path in times.files]
    weighted = [(target, expected_seconds(target, None, times)) for target in targets]
    shards = [shard(weighted, number, 3, times) for number in (1, 2, 3)]
    taken = {
        name: [
            number
            for number, parts in enumerate(shards)
            for target, _ in parts
            if target.path == parse(name).file and target.low <= bucket(name) < target.high
        ]
        for name, _, _ in rows
    }
    assert all(len(where) == 1 for where in taken.values()), "a test is in no shard or in several"
    loads = [sum(seconds for name, _, seconds in rows if taken[name] == [number]) for number in range(3)]
    assert max(loads) < 1.25 * sum(loads) / 3, loads
    assert [shard(weighted, number, 3, times) for number in (1, 2, 3)] == shards


def test_C25_a_file_without_a_record_is_weighed_by_its_source():
    row = FileRow(FILE, 0, 0, "", [], [], [], [], [], False)
    assert expected_seconds(Target(FILE), row, Times()) == START
    assert divide(Target(FILE), 100.0, 4, Times()) == [
        (Target(FILE, low=low, high=low + BUCKETS // 4), pytest.approx(25.0)) for low in range(0, BUCKETS, BUCKETS // 4)
    ]


def test_C26_a_run_is_resumed_with_other_workers_and_other_times(conformance, results, tmp_path):
    # Two workers take half of the file each. One half is over when the run is stopped; the other waits.
    times = recorded(*((name, "passed", 10.0) for name in NAMES))
    halves = [unit.targets[0] for unit in make_units(
        [(Target(FILE), 120.0)], {FILE: Root("test/", tmp_path, tmp_path)}, jobs=2, files_per_process=1, times=times
    )]  # fmt: skip
    assert len(halves) == 2
    waits = next(n for n, name in enumerate(NAMES) if halves[1].low <= bucket(name) < halves[1].high)
    tests = tmp_path / "tree" / "test"
    tests.mkdir(parents=True)
    (tmp_path / "tree" / "version.txt").write_text("2.14.0")
    (tests / "test_a.py").write_text(TREE.format(waits=waits))
    (tmp_path / "profile.yaml").write_text("name: cpu\ndevice: cpu\npolicy: {labels: [GENERIC], timeout: 250}\n")
    (tmp_path / "times.json").write_text(times.text())
    output = tmp_path / "out"
    arguments = ("run", "--profile", tmp_path, "--upstream", tmp_path / "tree", "--output", output)
    environment = {"MARK": str(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    process = conformance(*arguments, "--jobs", 2, "--times", tmp_path, start=True, **environment)
    log = output / "state" / "events.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (
        log.exists() and '"unit_done"' in log.read_text() and (tmp_path / "began").exists()
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    (tmp_path / "go").touch()
    done = conformance(*arguments, "--jobs", 1, "--resume", **environment)
    assert done.returncode == 0, done.stderr
    lines, summary = results(output)
    assert summary["planned"] == summary["outcomes"]["passed"] == len(NAMES), summary
    assert {line["id"] for line in lines} == set(NAMES)
    assert json.loads((output / "times.json").read_text())["files"][FILE].keys() == {
        name.partition("::")[2] for name in NAMES
    }
