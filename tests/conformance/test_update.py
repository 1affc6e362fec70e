"""C17: results become edits of the registry, as few as say it."""

import json
import os
import random
import re
import threading

import pytest

from conformance.errors import ConformanceError
from conformance.ids import parse
from conformance.registry.load import load_rules
from conformance.registry.match import Registry
from conformance.registry.model import Capabilities, Operator
from conformance.registry.update import edit, pattern, propose
from conformance.reports.accounts import Accounts, Attempt, Planned
from conformance.reports.write import replace

TESTS = """
import unittest

class TestOld(unittest.TestCase):
    def test_always(self):
        pass

    def test_once(self):
        self.assertEqual(len("{broken}"), 0, "length")

    def test_exit(self):
        if "{broken}":
            import os
            os.abort()

class TestAll(unittest.TestCase):
    def test_one(self):
        raise_if("{broken}")

    def test_two(self):
        raise_if("{broken}")

def raise_if(word):
    if word:
        raise NotImplementedError(f"no kernel at 0x{{id(word):x}} for {{word}}")
"""
PROFILE = """
name: mine
device: cpu
registry: registry.yaml
environment: {TORCH_DEVICE_BACKEND_AUTOLOAD: "0"}
policy: {unclassified: include}
"""
REGISTRY = """\
# The first line of a person.
version: 1
rules:
  # Kept, whatever comes.
  - id: never-run   # a comment beside a rule
    file: test_mine.py
    test: test_nothing
    action: skip
    reason: environment
"""


def rules_of(count, chance):
    """A registry as people write it: comments above, beside and between, several styles of a rule."""
    lines = ["# What is known.", "version: 1", "", "rules:"]
    for number in range(count):
        if chance.random() < 0.4:
            lines += ["", f"  # Group {number}: see the notes"]
        if chance.random() < 0.5:
            lines += [
                f"  - id: rule-{number}", "    # a comment inside", f"    test: test_{number}  # beside",
                "    action: xfail", "    reason: backend-bug",
                "    signature: {exception: RuntimeError}",
            ]  # fmt: skip
        else:
            lines += [
                f"  - {{id: rule-{number}, test: test_{number}, action: xfail, reason: numerics,",
                "     signature: {message: 'a # that is no comment'}}",
            ]
        if chance.random() < 0.3:
            lines.append("")
    return "\n".join(lines) + "\n"


def results(*rows):
    accounts = Accounts()
    for name, outcome, rule, message in rows:
        accounts.plan(Planned(name, rule=rule))
        accounts.record(Attempt(name, outcome, 1, 0.1, "call", message))
    return accounts


@pytest.mark.parametrize("seed", range(4))
def test_C17_only_lines_of_removed_rules_go_from_a_registry_of_500(tmp_path, seed):
    chance = random.Random(seed)
    text = rules_of(500, chance)
    path = tmp_path / "registry.yaml"
    path.write_text(text)
    rules = load_rules(path)
    passing = {number for number in range(500) if chance.random() < (0.02, 0.5, 1, 0)[seed]}
    accounts = results(
        *((f"test/test_a.py::TestA::test_{number}", "xpassed" if number in passing else "xfailed", f"rule-{number}", "")
          for number in range(500)),
        ("test/test_a.py::TestA::test_new", "failed", "", "ValueError: what 7 is"),
    )  # fmt: skip
    proposal = propose(accounts, rules)
    edited = edit(path, text, proposal)
    path.write_text(edited)
    left = load_rules(path)
    assert [rule.id for rule in left[:-1]] == [rule.id for rule in rules if int(rule.id[5:]) not in passing]
    assert (left[-1].test, left[-1].action.value, left[-1].signature.message) == (("test_new",), "xfail", "what .* is")
    # Every line that is still there stands in the file in this order, and every comment above a rule is there.
    body = edited[: edited.rindex("  - file: test_a.py")].rstrip("\n").splitlines()
    old = iter(text.splitlines())
    assert all(line in old for line in body)
    assert [line for line in body if line.startswith("  #")] == re.findall("^  #.*", text, re.MULTILINE)


def test_C17_ratchet_only_removes():
    accounts = results(("test/test_a.py::TestA::test_new", "failed", "", "ValueError: x"))
    assert not propose(accounts, [], ratchet=True)
    assert propose(accounts, []).added


def test_C17_a_rule_that_still_has_a_failure_stays_and_is_told(tmp_path):
    path = tmp_path / "registry.yaml"
    path.write_text(rules_of(1, random.Random(0)))
    accounts = results(
        ("test/test_a.py::TestA::test_0[add]", "xpassed", "rule-0", ""),
        ("test/test_a.py::TestA::test_0[mul]", "xfailed", "rule-0", ""),
        ("test/test_a.py::TestA::test_0[sub]", "failed", "rule-0", "ValueError: other"),
    )
    proposal = propose(accounts, load_rules(path))
    assert not proposal
    assert ["expects too much" in proposal.left[0], "but registry.yaml" in proposal.left[1]] == [True, True]


def test_C17_variants_of_one_cause_become_one_rule():
    variants = [f"[{op}][{dtype}]" for op in ("add", "mul", "sub") for dtype in ("int8", "int16")]
    rows = [
        (f"wheel/op.py::TestOps::test_out{variant}@spyre", "failed", "", f"RuntimeError: size {number} at 0x{number}f")
        for number, variant in enumerate(variants)
    ]
    rows.append(("wheel/op.py::TestOps::test_out[div][int8]@spyre", "passed", "", ""))
    rows.append(("wheel/op.py::TestOps::test_grad[add][float32]@spyre", "timed_out", "", ""))
    rows.append(("wheel/op.py::TestOps::test_grad[mul][float32]@spyre", "crashed", "", "killed by SIGSEGV"))
    added = propose(results(*rows), []).added
    assert added == [
        {
            "file": "wheel/op.py", "class": "TestOps", "test": "test_grad", "op": "add",
            "action": "quarantine", "reason": "hang",
        },
        {
            "file": "wheel/op.py", "class": "TestOps", "test": "test_grad", "op": "mul",
            "action": "quarantine", "reason": "crash", "note": "killed by SIGSEGV",
        },
        {
            "file": "wheel/op.py", "class": "TestOps", "test": "test_out", "op": ["add", "mul", "sub"],
            "action": "xfail", "reason": "untriaged",
            "signature": {"exception": "RuntimeError", "message": "size .* at"},
        },
    ]  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [
        "plain",
        "with (brackets) [and] more.*",
        "at 0xdead in /usr/lib/x.so:12",
        "two\nlines",
        "-1.5e-3 of 7",
        "",
        "'a' # b",
    ],
)
def test_C17_a_signature_finds_the_failure_that_it_was_made_of(message):
    assert re.search(pattern(message), message)


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nrules: [{test: a, action: skip, reason: slow}]\n",
        "{version: 1, rules: []}",
        "version: 1\nrules: &all\n  - &one {test: a, action: skip, reason: slow}\n  - [*one]\n",
    ],
)
def test_C17_a_style_that_cannot_be_edited_by_lines_is_said(tmp_path, text):
    path = tmp_path / "registry.yaml"
    proposal = propose(results(("test/test_a.py::TestA::test_new", "failed", "", "ValueError: x")), [])
    with pytest.raises(ConformanceError, match=r"registry\.yaml"):
        edit(path, text, proposal)


@pytest.mark.parametrize("text", ["version: 1\n", "version: 1\nrules:\n", "# ours\nversion: 1\nrules:  # none yet"])
def test_C17_the_first_rule_of_a_registry(tmp_path, text):
    path = tmp_path / "registry.yaml"
    proposal = propose(results(("test/test_a.py::TestA::test_new", "failed", "", "ValueError: x")), [])
    path.write_text(edit(path, text, proposal))
    assert path.read_text().startswith(text)
    assert load_rules(path)[0].test == ("test_new",)


def registry(tmp_path, text):
    path = tmp_path / "registry.yaml"
    path.write_bytes(text.encode())
    return path


def test_C17_a_rule_stays_where_a_wider_one_would_take_its_test(tmp_path):
    """Else the test that passes would silently no longer run."""
    wide = "version: 1\nrules:\n  - {file: test_a.py, action: skip, reason: slow}\n"
    fine = "  - {id: one, file: test_a.py, test: test_one, action: xfail, reason: slow, signature: {message: a}}\n"
    passing = results(("test/test_a.py::TestA::test_one", "xpassed", "one", ""))
    proposal = propose(passing, load_rules(registry(tmp_path, wide + fine)))
    assert not proposal and "registry.yaml:3 makes test/test_a.py::TestA::test_one skip" in proposal.left[0]
    rules = load_rules(registry(tmp_path, wide + fine))
    assert propose(passing, rules, in_force=lambda rule: rule.id == "one").removed, "the wide one was not in force"
    declared = Capabilities(version=1, operators={"add": Operator(supported=False)})
    only = load_rules(registry(tmp_path, "version: 1\nrules:\n" + fine))
    of_operator = results(("test/test_a.py::TestA::test_one[add][int8]", "xpassed", "one", ""))
    proposal = propose(of_operator, only, capabilities=declared)
    assert not proposal and "the capabilities" in proposal.left[0]


def test_C17_a_rule_that_would_not_decide_is_not_added(tmp_path):
    text = "version: 1\nrules:\n  - {id: r, class: TestA, test: test_two, action: run, reason: supported}\n"
    rules = load_rules(registry(tmp_path, text))
    failing = ("test/test_a.py::TestA::test_two", "failed", "r", "ValueError: x")
    proposal = propose(results(failing), rules)
    assert not proposal and "but registry.yaml:3 expects" in proposal.left[0]


def test_C17_two_rules_of_one_name_are_told_apart_by_a_person(tmp_path):
    item = "  - {id: x, test: test_NAME, action: xfail, reason: slow, signature: {message: a}}\n"
    text = "version: 1\nrules:\n" + item.replace("NAME", "one") + item.replace("NAME", "two")
    proposal = propose(
        results(("test/test_a.py::TestA::test_one", "xpassed", "x", "")), load_rules(registry(tmp_path, text))
    )
    assert not proposal and "2 rules are called x" in proposal.left[0]


def test_C17_a_name_with_the_characters_of_a_pattern_means_itself(tmp_path):
    rows = [(f"test/test_a.py::TestA::test_q[][][{name}]", outcome, "", "ValueError: x") for name, outcome in
            (("q%2A", "failed"), ("x_%5Bab%5D", "failed"), ("qz", "passed"), ("x_a", "passed"))]  # fmt: skip
    text = "version: 1\nrules:\n"
    path = registry(tmp_path, text)
    path.write_text(edit(path, text, propose(results(*rows), [])))
    known = Registry(load_rules(path))
    assert [bool(known.matching(parse(name))) for name, *_ in rows] == [True, True, False, False]


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nrules: []\n",
        "rules:\nversion: 1\n",
        "rules:\n  - {id: y, test: test_y, action: skip, reason: slow}\nversion: 1\n",
        "version: 1\nrules:\n- id: y\n  test: test_y\n  action: skip\n  reason: slow\n\n# the end\n",
        "version: 1\r\nrules:\r\n  - id: y\r\n    test: test_y\r\n    action: skip\r\n    reason: slow\r\n",
        "\ufeffversion: 1\nrules:\n",
    ],
)
def test_C17_styles_of_a_file_stay(conformance, tmp_path, text):
    path = registry(tmp_path, text)
    new = "test/test_a.py::TestA::test_new"
    edited = edit(path, path.read_bytes().decode(), propose(results((new, "failed", "", "ValueError: x")), []))
    path.write_bytes(edited.encode())
    assert Registry(load_rules(path)).matching(parse(new))
    assert edited.count("\r\n") == (edited.count("\n") if "\r\n" in text else 0)
    assert all(line in edited for line in text.replace("rules: []", "rules:").splitlines())


def test_C17_a_link_stays_one_and_keeps_its_permissions(tmp_path):
    real = tmp_path / "real.yaml"
    real.write_text("old")
    real.chmod(0o600)
    link = tmp_path / "link.yaml"
    link.symlink_to(real)
    replace(link, "new")
    assert (link.is_symlink(), real.read_text(), real.stat().st_mode & 0o777) == (True, "new", 0o600)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    heard = []
    reader.start()
    replace(pipe, "through")
    reader.join(10)
    assert (heard, pipe.is_fifo()) == (["through"], True)


def test_C17_there_and_back_on_real_runs(conformance, tmp_path):
    tests = tmp_path / "tree" / "test"
    tests.mkdir(parents=True)
    profile = tmp_path / "profile"
    profile.mkdir()
    (profile / "profile.yaml").write_text(PROFILE)
    registry = profile / "registry.yaml"
    registry.write_text(REGISTRY)

    def run(broken):
        (tests / "test_mine.py").write_text(TESTS.replace("{broken}", broken).replace("{{", "{").replace("}}", "}"))
        done = conformance(
            "run", "--profile", profile, "--upstream", tmp_path / "tree", "--output", tmp_path / "out", "--json"
        )
        return done.returncode, json.loads(done.stdout)["outcomes"]

    def update(*more):
        return conformance("update-expectations", tmp_path / "out", "--profile", profile, *more)

    assert run("broken") == (1, {"crashed": 1, "failed": 3, "passed": 1})
    shown = update()
    assert (shown.returncode, registry.read_text()) == (1, REGISTRY)
    assert "+    test: [test_one, test_two]\n" in shown.stdout
    assert not re.search("^-(?!--)", shown.stdout, re.MULTILINE), "nothing is removed"
    assert update("--write").returncode == 0
    assert registry.read_text().startswith(REGISTRY)
    assert "run again" in update("--write").stderr, "those results are of the registry before"
    assert run("broken") == (0, {"passed": 1, "skipped": 1, "xfailed": 3})
    assert "0 rules to remove, 0 to add, 0 to look at" in update().stderr
    assert run("") == (0, {"passed": 1, "skipped": 1, "xpassed": 3})
    assert update("--ratchet", "--write").returncode == 0
    left = load_rules(registry)
    assert [rule.name for rule in left[:1]] + [rule.action.value for rule in left[1:]] == ["never-run", "quarantine"]


def test_C17_runs_of_a_part_are_refused(conformance, tmp_path):
    profile = tmp_path / "profile"
    profile.mkdir()
    (profile / "profile.yaml").write_text(PROFILE)
    (profile / "registry.yaml").write_text(REGISTRY)
    tests = tmp_path / "tree" / "test"
    tests.mkdir(parents=True)
    for name in "ab":
        (tests / f"test_{name}.py").write_text(TESTS.replace("{broken}", "").replace("{{", "{").replace("}}", "}"))
    parts = {"merge all shards": ["--shard", "1/2"], "(-k)": ["-k", "one"], "(FILE)": [tests / "test_a.py"]}
    for words, options in parts.items():
        done = conformance(
            "run", "--profile", profile, "--upstream", tmp_path / "tree", "--output", tmp_path / "out", *options
        )
        assert done.returncode == 0, done.stderr
        refused = conformance("update-expectations", tmp_path / "out", "--profile", profile)
        assert refused.returncode == 2 and words in refused.stderr
