"""C27, C29, C30: what is done with runs that are over: merge, diff, report."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from conformance.cli.request import build_request
from conformance.errors import AccountsError, ConformanceError
from conformance.profile import load_profile
from conformance.reports.accounts import OUTCOMES, Accounts, Attempt, OnCpu, Planned
from conformance.reports.actions import links
from conformance.reports.cause import cause
from conformance.reports.diff import diff
from conformance.reports.html import blocked, clusters, html
from conformance.reports.merge import merge
from conformance.reports.read import read_run
from conformance.reports.summary import summarise
from conformance.reports.write import write_results, write_summary
from conformance.runner.run import Session

HERE = Path(__file__).parent
TEST = """
import unittest

class Test{name}(unittest.TestCase):
    def test_passes(self):
        pass

    def test_fails(self):
        self.assertEqual(len("{name}"), 0)

    @unittest.skip("not here")
    def test_skips(self):
        pass
"""


def made(**outcomes):
    """Accounts of tests by name; a list is a test's attempts."""
    accounts = Accounts()
    for name, listed in outcomes.items():
        test = f"test/test_a.py::TestA::test_{name}@spyre"
        accounts.plan(Planned(test, "GENERIC"))
        for number, outcome in enumerate([listed] if isinstance(listed, str) else listed, start=1):
            message = f"{outcome} at 0x7f{number}" if outcome not in ("passed", "deselected") else ""
            accounts.record(Attempt(test, outcome, number, 0.5, "call", message, "a trace"))
    return accounts


def left(folder, accounts, **more):
    """The folder that a run with these accounts leaves."""
    folder.mkdir()
    write_results(accounts, folder / "results.jsonl")
    base = {
        "seconds": 2,
        "torch": "2.14.1",
        "upstream": "2.6.0",
        "profile": "spyre",
        "expectations": "abc",
        "devices": 2,
    }
    write_summary(
        summarise(accounts, unexpected=accounts.unexpected(False), **{**base, **more}), folder / "summary.json"
    )
    return folder


@pytest.fixture(scope="module")
def runs(conformance, tmp_path_factory):
    """Real runs of a tree of three files: the whole, and its two shards."""
    work = tmp_path_factory.mktemp("runs")
    tests = work / "tree" / "test"
    tests.mkdir(parents=True)
    (work / "tree" / "version.txt").write_text("2.14.0")
    for name in ("a", "bb", "ccc"):
        (tests / f"test_{name}.py").write_text(TEST.format(name=name))

    def run(output, *more):
        done = conformance(
            "run", "--profile", HERE / "cpu_profile", "--upstream", work / "tree", "--unclassified", "include",
            "--output", work / output, *more, *sorted(tests.glob("*.py")),
        )  # fmt: skip
        assert done.returncode == 1, done.stderr

    run("whole")
    run("one", "--shard", "1/2")
    run("two", "--shard", "2/2")
    return work


def facts(folder):
    """Results without what differs between two runs of the same: times, and paths of temporary folders."""
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("duration", "trace")} for line in lines]


def test_C27_shards_merge_to_the_whole(conformance, runs):
    done = conformance("merge", runs / "one", runs / "two", "--output", runs / "merged", "--json")
    assert done.returncode == 1, done.stderr
    assert facts(runs / "merged") == facts(runs / "whole")
    whole = json.loads((runs / "whole" / "summary.json").read_text())
    merged = json.loads(done.stdout)
    assert merged == json.loads((runs / "merged" / "summary.json").read_text())
    for name in whole.keys() - {"seconds"}:
        assert merged[name] == whole[name], name
    written = {"results.jsonl", "junit.xml", "summary.json", "report.html", "times.json"}
    assert {path.name for path in (runs / "merged").iterdir()} == written
    assert {path.name for path in (runs / "whole").iterdir()} == written
    assert merged["planned"] == 9 and merged["outcomes"] == {"failed": 3, "passed": 3, "skipped": 3}


def test_C29_what_was_read_is_written_again_to_the_letter(runs, tmp_path):
    """A field that the reader forgets would be lost in every merge."""
    write_results(read_run(runs / "whole").accounts, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_text() == (runs / "whole" / "results.jsonl").read_text()


def test_C27_a_missing_shard_is_named(conformance, runs, tmp_path):
    done = conformance("merge", runs / "two", "--output", tmp_path / "out")
    assert (done.returncode, done.stderr) == (3, "conformance: missing shards: 1/2\n")
    assert not (tmp_path / "out").exists()


def test_C27_parts_that_share_no_test_are_one_run(tmp_path):
    first, second = made(x="passed", y="flaky"), Accounts()
    second.plan(Planned("wheel/ops.py::TestOps::test_z[add][float32]@spyre"))
    second.record(Attempt("wheel/ops.py::TestOps::test_z[add][float32]@spyre", "timed_out"))
    parts = [left(tmp_path / "a", first), left(tmp_path / "b", second, upstream="", notes=["no checkout"])]
    accounts, summary = merge([read_run(part) for part in parts])
    assert summary["outcomes"] == {"flaky": 1, "passed": 1, "timed_out": 1}
    assert (summary["planned"], summary["balanced"], summary["seconds"]) == (3, True, 4)
    assert (summary["upstream"], summary["notes"]) == ("2.6.0", ["no checkout"])
    assert summary["unexpected"] == ["wheel/ops.py::TestOps::test_z[add][float32]@spyre"] == summary["timed_out"]
    assert accounts.balanced()


@pytest.mark.parametrize(
    ("first", "second", "kind", "words"),
    [
        ({}, {}, AccountsError, "more than one run"),
        ({"shard": "1/2"}, {}, ConformanceError, "is a whole run"),
        ({"shard": "1/2"}, {"shard": "1/2"}, ConformanceError, "there twice"),
        ({"shard": "1/2"}, {"shard": "2/3"}, ConformanceError, "different runs"),
        ({"shard": "1/3"}, {"shard": "3/3"}, AccountsError, "missing shards: 2/3"),
        ({"shard": "1/2"}, {"shard": "two"}, ConformanceError, "shard"),
        ({"torch": "2.13.0"}, {}, ConformanceError, "with one torch"),
        ({"profile": "xpu"}, {}, ConformanceError, "with one profile"),
        ({"expectations": "xyz"}, {}, ConformanceError, "with one expectations"),
        ({"upstream": "2.7.0"}, {}, ConformanceError, "with one upstream"),
        ({"interrupted": "SIGINT"}, {}, ConformanceError, "--resume"),
    ],
)
def test_C27_what_is_not_one_run_is_refused(tmp_path, first, second, kind, words):
    folders = [left(tmp_path / name, made(x="passed"), **more) for name, more in (("a", first), ("b", second))]
    with pytest.raises(kind, match=words):
        merge([read_run(folder) for folder in folders])


RESULTS, SUMMARY = "results.jsonl", "summary.json"
DAMAGE = {
    "no folder": (lambda folder: shutil.rmtree(folder), "summary.json: No such file"),
    "no results": (lambda folder: (folder / RESULTS).unlink(), "results.jsonl: No such file"),
    "a line is cut": (lambda folder: cut(folder / RESULTS), r"results\.jsonl:2: not JSON"),
    "a line is lost": (lambda folder: drop(folder / RESULTS), "holds 1 tests, but summary.json says 2"),
    "no summary": (lambda folder: (folder / SUMMARY).write_text("[]"), "summary.json: not a JSON object"),
    "summary of text": (lambda folder: edit(folder / SUMMARY, '"planned": 2', '"planned": "2"'), "'planned'"),
    "no outcome": (lambda folder: edit(folder / RESULTS, '"outcome"', '"outcom"'), ":1: no field 'outcome'"),
    "strange outcome": (lambda folder: edit(folder / RESULTS, '"passed"', '"great"'), ":1: outcome 'great'"),
    "attempt of text": (lambda folder: edit(folder / RESULTS, '"attempt": 1', '"attempt": "1"'), ":1: field"),
    "attempt of truth": (lambda folder: edit(folder / RESULTS, '"attempt": 1', '"attempt": true'), ":1: field"),
    "attempt 0": (lambda folder: edit(folder / RESULTS, '"attempt": 1', '"attempt": 0'), ":1: attempt 0"),
    "a line twice": (lambda folder: double(folder / RESULTS), ":2: attempt 1 of"),
    "an id of nothing": (lambda folder: edit(folder / RESULTS, "::TestA::", "::A::B::C::"), ":1: .* parts"),
    "not text": (lambda folder: (folder / RESULTS).write_bytes(b"\xff\xfe{}\n"), ":1: not JSON"),
    "deep": (lambda folder: (folder / RESULTS).write_text("[" * 100_000 + "\n"), ":1: not JSON"),
}


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def cut(path):
    path.write_text(path.read_text()[:-40])


def drop(path):
    path.write_text(path.read_text().splitlines(keepends=True)[0])


def double(path):
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, first, *rest]))


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_refused_with_its_place(tmp_path, damage):
    folder = left(tmp_path / "run", made(x="passed", y="failed"))
    action, words = DAMAGE[damage]
    action(folder)
    with pytest.raises(ConformanceError, match=words):
        read_run(folder)


@pytest.mark.parametrize(
    ("options", "narrowed"),
    [
        ([], []),
        (["--changed", "c10/core/Device.cpp"], []),
        (["--changed", "test/test_a.py"], ["--changed"]),
        (["--hw-classification", "ACCELERATOR,GENERIC"], []),
        (["--hw-classification", "GENERIC"], ["--hw-classification"]),
        (["--unclassified", "exclude", "--hw-classification", "GENERIC"], ["--hw-classification", "--unclassified"]),
    ],
)
def test_C30_a_run_says_whether_it_took_less_than_the_whole(tmp_path, options, narrowed):
    """By what was taken: a change that can affect everything narrows nothing."""
    (tmp_path / "tree" / "test").mkdir(parents=True)
    for name in "ab":
        (tmp_path / "tree" / "test" / f"test_{name}.py").write_text(TEST.format(name=name))
    (tmp_path / "profile.yaml").write_text("name: cpu\ndevice: cpu\npolicy: {unclassified: infer}\n")
    given = dict(zip(options[::2], options[1::2], strict=True))
    request = build_request(
        profile=str(tmp_path / "profile.yaml"), upstream=tmp_path / "tree", suite=None, device=None,
        labels=[given["--hw-classification"]] if "--hw-classification" in given else None,
        unclassified=given.get("--unclassified"), keyword="", pull=None, shard="", jobs=None, timeout=None,
        targets=None, changed=[given["--changed"]] if "--changed" in given else None,
    )  # fmt: skip
    session = Session(request, lambda _: None)
    session._choose()
    assert list(session._narrowed()) == narrowed


def test_C30_each_change_has_its_list():
    base = made(
        stays="passed", breaks="passed", crashes="xfailed", broken="failed", mended="error", now_skipped="passed",
        gone="passed", never="deselected", was_skipped="skipped", a="passed", b="passed", c="passed",
    )  # fmt: skip
    head = made(
        stays="passed", breaks=["failed", "failed"], crashes="crashed", broken="timed_out", mended="passed",
        now_skipped="skipped", fresh="failed", was_skipped="failed", a="passed", b="passed", c=["failed", "passed"],
    )  # fmt: skip
    found = {
        field: [re.search("test_(\\w+)@", name)[1] for name in names]
        for field, names in diff(base, head).as_json().items()
        if field != "narrowed"
    }
    assert found == {
        "newly_failing": ["breaks", "crashes", "fresh", "was_skipped"],
        "still_failing": ["broken"],
        "fixed": ["mended"],
        "missing": ["gone"],
        "newly_skipped": ["now_skipped"],
        "appeared": ["fresh"],
        "upstreams": [],
    }


def test_C30_a_selection_does_not_miss_what_it_was_not_asked_for():
    base = made(**{f"t{number}": "passed" for number in range(20)})
    head = made(t1="passed", t2="passed")
    found = diff(base, head)
    assert (found.narrowed, found.missing, found.worse) == (True, (), False)
    assert diff(base, base).worse is False


def test_C30_a_whole_run_that_lost_tests_is_worse_however_many(conformance, tmp_path):
    names = [f"t{number}" for number in range(20)]
    base = left(tmp_path / "base", made(**dict.fromkeys(names, "passed")))
    lost = left(tmp_path / "lost", made(**dict.fromkeys(names[:5], "passed")))
    assert conformance("diff", base, lost).returncode == 1
    part = left(tmp_path / "part", made(**dict.fromkeys(names[:5], "passed")), narrowed=["--changed"])
    assert conformance("diff", base, part).returncode == 0


def test_C30_the_command(conformance, tmp_path):
    base = left(tmp_path / "base", made(a="passed", b="failed"))
    head = left(tmp_path / "head", made(a="failed", b="passed"))
    done = conformance("diff", base, head / "results.jsonl")
    assert done.returncode == 1
    assert "1 newly failing:\n  test/test_a.py::TestA::test_a@spyre  passed → failed  failed at" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("worse: 1 newly failing, 0 missing")
    done = conformance("diff", "--json", head, base)
    assert json.loads(done.stdout)["fixed"] == ["test/test_a.py::TestA::test_a@spyre"]
    same = conformance("diff", base, base)
    assert (same.returncode, "not worse: " in same.stdout) == (0, True)
    (tmp_path / "empty.jsonl").write_text("")
    empty = conformance("diff", base, tmp_path / "empty.jsonl")
    assert (empty.returncode, empty.stderr.count("\n")) == (3, 1)
    nothing = conformance("diff", base, tmp_path / "nowhere")
    assert (nothing.returncode, nothing.stderr.count("\n")) == (2, 1)
    assert f"{tmp_path}/nowhere" in nothing.stderr


class Page(HTMLParser):
    """What a browser would load and run, and the page's text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.asked, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.asked += [value for name, value in attrs if name in ("src", "href", "srcset") or name.startswith("on")]

    def handle_data(self, data):
        self.text.append(data)


def test_C29_the_page_asks_for_nothing_and_shows_hostile_text_as_text(tmp_path):
    accounts = made(fine="passed")
    hostile = "<script>alert(1)</script>\x1b[31m\u202e{{ 7 * 7 }}"
    name = 'test/test_a.py::TestA::test_<img src=x onerror=alert(1)>[add"onload=x][float32]@spyre'
    accounts.plan(Planned(name))
    accounts.record(Attempt(name, "failed", 1, 0.5, "call", hostile, hostile, hostile))
    summary = json.loads(
        (left(tmp_path / "run", accounts, profile=hostile, notes=[hostile]) / "summary.json").read_text()
    )
    text = html(accounts, summary)
    page = Page(text)
    assert page.asked == [] and not {"script", "img", "link", "iframe"} & set(page.tags)
    shown = "".join(page.text)
    assert "<script>alert(1)</script>" in shown and "{{ 7 * 7 }}" in shown and name in shown


def test_C29_the_page_tells_the_whole_run(conformance, runs, tmp_path):
    done = conformance("report", runs / "whole")
    assert (done.returncode, done.stdout.strip()) == (0, str(runs / "whole" / "report.html"))
    shown = "".join(Page((runs / "whole" / "report.html").read_text()).text)
    assert "3 unexpected" in shown and "planned9" in shown
    for line in facts(runs / "whole"):
        assert line["outcome"] in shown
    done = conformance("report", runs / "whole", "--format", "markdown", "--output", tmp_path / "own.md")
    assert "3 unexpected" in (tmp_path / "own.md").read_text()


def test_C10_the_page_says_how_much_is_blocked_upstream_and_by_what():
    accounts = Accounts()
    reasons = {
        "a": ("not_applicable", "blocked upstream by @onlyCUDA"),
        "b": ("not_applicable", "blocked upstream by only_for=['cuda']"),
        "c": ("skipped", "blocked upstream: requires CUDA"),
        "d": ("not_applicable", "blocked upstream by @onlyCUDA"),
        "e": ("skipped", "slow test"),
    }
    for name, (outcome, reason) in reasons.items():
        test = f"test/test_a.py::TestA::test_{name}"
        accounts.plan(Planned(test, reason=reason))
        accounts.record(Attempt(test, outcome, reason=reason if outcome == "skipped" else ""))
    assert blocked(accounts) == [("@onlyCUDA", 2), ("only_for=['cuda']", 1), ("requires CUDA", 1)]


def test_C29_every_outcome_has_a_place_on_the_page():
    accounts = Accounts()
    for number, outcome in enumerate(OUTCOMES):
        name = f"wheel/ops.py::TestOps::test_{outcome}[op{number}][float32]@spyre"
        accounts.plan(Planned(name))
        accounts.record(Attempt(name, outcome))
    summary = summarise(
        accounts, unexpected=[], seconds=1, torch="2.14.1", upstream="", profile="spyre", expectations="", devices=1
    )
    shown = "".join(Page(html(accounts, summary)).text)
    assert all(outcome in shown for outcome in OUTCOMES)
    assert sum(f"op{number}" in shown for number in range(len(OUTCOMES))) >= len(OUTCOMES) - 1


def test_C29_upstreams_advice_on_how_to_repeat_a_test_does_not_hide_a_common_cause(conformance, tmp_path):
    tests = tmp_path / "tree" / "test"
    tests.mkdir(parents=True)
    (tests / "test_two.py").write_text(
        "from torch.testing._internal.common_utils import TestCase\n"
        "class TestTwo(TestCase):\n"
        "    def test_a(self): raise ValueError('no kernel 7')\n"
        "    def test_b(self): raise ValueError('no kernel 8')\n"
    )
    done = conformance(
        "run", "--profile", HERE / "cpu_profile", "--upstream", tmp_path / "tree", "--unclassified", "include",
        "--output", tmp_path / "out", tests / "test_two.py",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    accounts = read_run(tmp_path / "out").accounts
    assert [len(found.names) for found in clusters(accounts)] == [2]
    assert "To execute this test" in next(iter(accounts.attempts.values()))[-1].trace


def test_C29_failures_of_one_cause_are_one_cluster():
    accounts = made(a="failed", b="failed", c=["failed", "failed"], d="crashed", e="passed")
    assert [(found.outcome, len(found.names)) for found in clusters(accounts)] == [("failed", 3), ("crashed", 1)]
    assert cause("index 7 is out of bounds for size 3.5e-2 at 0xfeed in /usr/lib/x.so") == (
        "index # is out of bounds for size # at <address> in /…"
    )


def test_C33_a_bundle_shows_where_a_backend_stands_and_how_to_see_it_again(conformance, tmp_path):
    profile = tmp_path / "mine"
    profile.mkdir()
    (profile / "profile.yaml").write_text("name: mine\ndevice: mine\nmodule: mine\nregistry: rules.yaml\n")
    (profile / "rules.yaml").write_text(
        "version: 1\nrules:\n  - {id: no-such, test: test_known, action: xfail, reason: unsupported-feature, "
        "note: not | here, signature: {message: nowhere}}\n"
    )
    accounts = Accounts()
    for name, outcome, rule, there in (
        ("good[add][float32]", "passed", "", ""), ("good[add][int64]", "passed", "", ""),
        ("good[mul][float32]", "passed", "", ""), ("known[sub][float32]", "xfailed", "no-such", "passed"),
        ("bad", "failed", "", "passed"), ("skew", "failed", "", "failed"), ("elsewhere", "not_applicable", "", ""),
        ("unasked", "deselected", "", ""), ("upstreams", "xfailed", "", ""),
    ):  # fmt: skip
        test = f"test/test_a.py::TestA::test_{name}@mine"
        accounts.plan(Planned(test, "ACCELERATOR", rule=rule))
        accounts.record(Attempt(test, outcome, message="Error: no | use" if outcome == "failed" else ""))
        if there:
            accounts.on_cpu[test] = OnCpu(there)
    run = left(
        tmp_path / "run", accounts, profile="mine", expectations=load_profile(str(profile)).fingerprint(),
        links=["https://ci.example/1"], unlocked=True,
    )  # fmt: skip
    done = conformance("report", run, "--bundle", tmp_path / "bundle", "--profile", profile)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "bundle" / "coverage.json").read_text())
    assert {key: found[key] for key in ("planned", "blocked", "passed", "known", "failed", "fails_on_cpu_too")} == {
        "planned": 8, "blocked": 1, "passed": 4, "known": 1, "failed": 2, "fails_on_cpu_too": 1,
    }  # fmt: skip
    assert (found["share"], found["operators"]) == (pytest.approx(4 / 6), [2, 3])
    assert (tmp_path / "bundle" / "operators.csv").read_text() == (
        "operator,float32,int64\nadd,1 passed,1 passed\nmul,1 passed,\nsub,1 xfailed,\n"
    )
    text = (tmp_path / "bundle" / "README.md").read_text()
    assert "**66.67 %**" in text and "https://ci.example/1" in text and "pip install torch==2.14.1" in text
    assert "| no-such | 1 | unsupported-feature: not \\| here |" in text
    assert "conformance run --profile THIS_FOLDER --upstream TREE --unlock --attribute" in text
    # The folder is the profile, and the run can be read again from it.
    again = load_profile(str(tmp_path / "bundle"))
    assert [rule.id for rule in again.rules()] == ["no-such"]
    assert read_run(tmp_path / "bundle").accounts.on_cpu == accounts.on_cpu
    program = json.loads(conformance("report", run, "--json").stdout)
    assert program["coverage"] == found
    assert program["operators"]["add"] == {"float32": {"passed": 1}, "int64": {"passed": 1}}
    assert [group["tests"] for group in program["failures_on_cpu_too"]] == [["test/test_a.py::TestA::test_skew@mine"]]
    (profile / "rules.yaml").write_text("version: 1\nrules: []\n")
    edited = conformance("report", run, "--bundle", tmp_path / "other", "--profile", profile)
    assert (edited.returncode, "run again" in edited.stderr) == (2, True)
    both = conformance("report", run, "--bundle", tmp_path / "third", "--json")
    assert (both.returncode, "--json and --bundle: one at a time" in both.stderr) == (2, True)
    full = conformance("report", run, "--bundle", tmp_path / "bundle", "--profile", profile)
    assert full.returncode == 2


def test_C33_a_run_in_actions_links_its_page():
    there = {"GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": "https://g", "GITHUB_REPOSITORY": "o/r"}
    assert links({**there, "GITHUB_RUN_ID": "7"}) == ("https://g/o/r/actions/runs/7",)
    assert links(there) == links({}) == ()
