"""C12 to C16: rules, their errors, their merging."""

from datetime import date
from pathlib import Path

import pytest

from conformance.errors import ConformanceError
from conformance.ids import TestId
from conformance.profile import BUILTIN, load_profile
from conformance.registry.document import Document
from conformance.registry.facts import rule_facts
from conformance.registry.load import load_rules
from conformance.registry.match import Registry, literal, matcher


def rules(tmp_path, text):
    path = tmp_path / "registry.yaml"
    path.write_text("version: 1\nrules:\n" + text)
    return load_rules(path)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("  - {test: a, action: skip}\n", "3:5", "reason: is missing"),
        ("  - test: a\n    action: jump\n    reason: slow\n", "4:5", "action"),
        ("  - test: a\n    action: skip\n    reason: because\n", "5:5", "reason"),
        ("  - test: a\n    action: skip\n    reason: slow\n    ops: add\n", "6:5", "unknown key"),
        ("  - action: skip\n    reason: slow\n", "3:5", "names no test"),
        ("  - {test: a, action: xfail, reason: slow}\n", "3:5", "needs a signature"),
        ("  - test: a\n    action: xfail\n    reason: slow\n    signature: {message: '('}\n", "6:17", "not a regular"),
        ("  - test: a\n    action: skip\n    reason: slow\n    when: {torch: new}\n", "6:12", "not a version range"),
        ("  - test: [\n", "4:1", "not YAML"),
    ],
)
def test_C12_errors_name_file_line_and_column(tmp_path, text, where, what):
    with pytest.raises(ConformanceError) as error:
        rules(tmp_path, text)
    assert f"registry.yaml:{where}: " in str(error.value)
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("-7", -7), ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("'1'", "1"), ('"true"', "true"),
        ("true", True),
        ("no", "no"), ("on", "on"), ("1:30", "1:30"), ("2027-06-30", "2027-06-30"), ("~", None), ("", None),
        (".inf", float("inf")), ("[a, 1]", ["a", 1]), ("{a: null}", {"a": None}), ("&x [1]", [1]),
    ],
)  # fmt: skip
def test_C12_scalars_mean_what_yaml_1_2_says(tmp_path, text, value):
    found = Document(tmp_path, f"key: {text}\n").value["key"]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: 1\na: 2\n", "2:1: the key 'a' stands twice"),
        ("a: &x [*x]\n", "1:4: not YAML: the alias holds itself"),
        ("? [a]\n: 1\n", "1:3: not YAML that is used here"),
        ("a: \x07\n", "1:4: not YAML"),
        ("a: *x\n", "1:4: not YAML"),
        ("[" * 100_000, "not YAML"),
    ],
)
def test_C12_what_is_no_yaml_has_a_place(tmp_path, text, what):
    with pytest.raises(ConformanceError) as error:
        Document(tmp_path / "x.yaml", text)
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("key", "text", "what"),
    [
        ("tset", "tset: a, test: b, action: skip, reason: slow", "unknown key; did you mean 'test'"),
        ("action", "test: b, action: skp, reason: slow", "did you mean 'skip'"),
        ("reason", "test: b, action: skip, reason: numeric", "did you mean 'numerics'"),
    ],
)
def test_C12_the_nearest_key_or_word_is_named(tmp_path, key, text, what):
    with pytest.raises(ConformanceError) as error:
        rules(tmp_path, f"  - {{{text}}}\n")
    assert what in str(error.value)


LEVELS = """
  - {id: file, file: test_x.py, action: skip, reason: slow}
  - {id: class, class: TestC, action: skip, reason: slow}
  - {id: test-glob, test: "test_*", action: skip, reason: slow}
  - {id: test, test: test_a, action: skip, reason: slow}
  - {id: op, op: add, action: quarantine, reason: crash}
  - {id: op-dtype, op: add, dtype: complex64, action: xfail, reason: unsupported-dtype, signature: {message: complex}}
  - {id: tolerance, op: add, action: tolerance, reason: numerics, tolerance: {atol: 0.1, rtol: 0.2}}
  - {id: slow, test: test_a, action: slow, reason: slow, factor: 7}
"""


@pytest.mark.parametrize(
    ("test", "first"),
    [
        (TestId("test/test_x.py", "TestD", "check", device="cpu"), "file"),
        (TestId("test/test_x.py", "TestC", "check"), "class"),
        (TestId("test/test_x.py", "TestC", "test_b"), "test-glob"),
        (TestId("test/test_x.py", "TestC", "test_a"), "test"),
        (TestId("test/test_x.py", "TestC", "test_a", "add", "float32"), "op"),
        (TestId("test/test_x.py", "TestC", "test_a", "add", "float32,complex64"), "op-dtype"),
    ],
)
def test_C14_the_most_specific_rule_wins(tmp_path, test, first):
    registry = Registry(rules(tmp_path, LEVELS))
    assert registry.matching(test)[0].id == first


def test_C14_modifiers_add_to_the_verdict(tmp_path):
    test = TestId("test/test_x.py", "TestC", "test_a", "add", "float32")
    registry = Registry(rules(tmp_path, LEVELS))
    found = registry.matching(test)
    assert Registry.deadline_factor(found) == 7
    assert registry.tolerance(test, found) == (0.1, 0.2)


def test_C13_conditions_and_expiry(tmp_path):
    text = '  - {test: a, action: skip, reason: slow, expires: 2030-01-01, when: {torch: ">=2.14", min_devices: 2}}\n'
    (rule,) = rules(tmp_path, text)
    facts = {"torch": "2.14.1+cpu", "upstream": "", "platform": "linux", "devices": 2, "today": date(2029, 1, 1)}
    assert rule.applies(**facts)
    assert not rule.applies(**{**facts, "torch": "2.13.0"})
    assert not rule.applies(**{**facts, "devices": 1})
    assert not rule.applies(**{**facts, "today": date(2030, 1, 2)})


def test_C13_conditions_on_profile_and_environment(tmp_path, monkeypatch):
    when = "{profile: [other, spy*], environment: {FARM: 'rack-*', CI: ''}}"
    (rule,) = rules(tmp_path, f"  - {{test: a, action: skip, reason: slow, when: {when}}}\n")
    monkeypatch.delenv("CI", raising=False)

    def facts(profile, **environment):
        return rule_facts("2.6.0", "2.14.1", profile=profile, environment=environment)

    assert rule.applies(**facts("spyre", FARM="rack-3"))
    assert "FARM is '', not 'rack-*'" in rule.idle(**facts("spyre"))
    assert "CI is 'true'" in rule.idle(**facts("spyre", FARM="rack-3", CI="true"))
    assert "the profile is cpu, not other or spy*" in rule.idle(**facts("cpu", FARM="rack-3"))
    monkeypatch.setenv("CI", "1")
    assert not rule.applies(**facts("spyre", FARM="rack-3")), "the process's own environment counts"


def test_shipped_profiles_are_valid():
    profile = load_profile("spyre")
    names = [rule.name for rule in profile.rules()]
    assert len(names) == len(set(names)) > 0
    features = {rule.feature for rule in profile.rules() if rule.feature}
    assert features <= set(profile.declared().features)


def test_a_profile_is_found_again_by_what_results_say():
    whole = load_profile(str(BUILTIN / "spyre" / "whole.yaml"))
    assert (load_profile("spyre").argument, Path(whole.argument).name) == ("spyre", "whole.yaml")
    assert load_profile(whole.argument).fingerprint() == whole.fingerprint()


def test_unknown_profile_names_the_known_ones():
    with pytest.raises(ConformanceError, match="spyre"):
        load_profile("nosuch")


@pytest.mark.parametrize("name", ["test_a", "t*[a]", "a?b", "[!x]", "x]", "\\", "[[*?]]"])
def test_C14_a_literal_word_means_one_name(name):
    means = matcher("test", (literal(name),))
    assert means(name)
    assert not any(means(other) for other in ("tx[a]", "txa", "axb", "y", "") if other != name)
