"""C11, C13 to C15, C32: what is said of rules, of one test, and of labels, without running anything."""

import json
import re
from pathlib import Path

import jsonschema
import pytest

from conformance.cli.schema import MODELS, schema_of
from conformance.profile import BUILTIN
from conformance.registry.document import read_document

HERE = Path(__file__).parent
SCHEMAS = BUILTIN.parent / "schemas"

TESTS = """
from torch.testing._internal.common_device_type import instantiate_device_type_tests, onlyCUDA, ops
from torch.testing._internal.common_utils import TestCase, HardwareClassification
class TestLinear(TestCase):
    hw_classification = HardwareClassification.ACCELERATOR
    @ops(op_db)
    def test_forward(self, device, dtype, op): pass
    def test_backward(self, device): pass
    @onlyCUDA
    def test_graphs(self, device): pass
class TestCudaLinear(TestCase):
    hw_classification = HardwareClassification.ACCELERATOR
    def test_c(self, device): pass
class TestPlain(TestCase):
    def test_plain(self): pass
instantiate_device_type_tests(TestLinear, globals())
instantiate_device_type_tests(TestCudaLinear, globals(), only_for="cuda")
"""
MADE = """
class TestMade:
    def test_w(self): pass
for n in (1, 2):
    setattr(TestMade, f"test_{n}", lambda self: None)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    (root / "test").mkdir()
    (root / "test" / "test_linear.py").write_text(TESTS)
    (root / "test" / "test_made.py").write_text(MADE)
    (root / "version.txt").write_text("2.13.0\n")
    return root


@pytest.fixture
def profile(tmp_path):
    """Writes a profile with rules: one string per rule."""

    def write(*rules, policy="{}"):
        (tmp_path / "profile.yaml").write_text(
            f"name: tiny\ndevice: tiny\nregistry: registry.yaml\ncapabilities: capabilities.yaml\npolicy: {policy}\n"
        )
        (tmp_path / "capabilities.yaml").write_text(
            "version: 1\nfeatures: {sparse: {supported: false, tests: [{test: test_backward}]}}\n"
        )
        (tmp_path / "registry.yaml").write_text("version: 1\nrules:\n" + "".join(f"  - {rule}\n" for rule in rules))
        return tmp_path

    return write


@pytest.fixture
def lint(conformance, profile, tree):
    """Lints rules: findings by code."""

    def run(*rules, tests=None, policy="{}"):
        folder = profile(*rules, policy=policy)
        extra = []
        if tests is not None:
            (folder / "tests.txt").write_text("\n".join(tests))
            extra = ["--tests", folder / "tests.txt"]
        done = conformance("lint", "--json", "--profile", folder, "--upstream", tree, *extra)
        answer = json.loads(done.stdout)
        assert done.returncode == (2 if answer["errors"] else 0), done.stderr
        return {(item["line"], item["code"]): item for item in answer["findings"]}

    return run


def test_C15_every_fault_has_a_place_and_the_nearest_name(lint):
    found = lint(
        "{test: test_forwrd, action: skip, reason: slow}",
        "{class: TestLinar, action: skip, reason: slow}",
        "{file: test_liner.py, action: skip, reason: slow}",
        "{op: nn.functional.lineer, action: skip, reason: slow}",
        "{test: test_forward, dtype: [float32, float23], action: skip, reason: slow}",
        "{feature: spars, action: skip, reason: slow}",
        "{test: test_backward, expires: 2020-01-01, action: skip, reason: slow}",
        "{id: a, test: test_plain, action: skip, reason: slow}",
        "{id: a, class: TestPlain, test: test_plain, action: skip, reason: slow}",
        "{test: test_plain, action: skip, reason: hang}",
        "{test: test_graphs, action: skip, reason: untriaged}",
    )
    assert {key: item["severity"] for key, item in found.items()} == {
        (3, "unknown-test"): "error",
        (4, "unknown-class"): "error",
        (5, "unknown-file"): "error",
        (6, "unknown-op"): "error",
        (7, "unknown-dtype"): "error",
        (8, "unknown-feature"): "error",
        (9, "expired"): "error",
        (11, "duplicate-id"): "error",
        (12, "duplicate"): "error",
        (13, "untriaged"): "warning",
    }
    for (line, code), name in {
        (3, "unknown-test"): "test_forward",
        (4, "unknown-class"): "TestLinear",
        (5, "unknown-file"): "test_linear.py",
        (6, "unknown-op"): "nn.functional.linear",
        (7, "unknown-dtype"): "float32",
        (8, "unknown-feature"): "sparse",
    }.items():
        assert f"'{name}'" in found[line, code]["message"]
    assert found[4, "unknown-class"]["column"] == 6


def test_C15_a_test_that_may_be_made_at_import_is_a_warning_there_alone(lint):
    found = lint(
        "{class: TestMade, test: test_1, action: skip, reason: slow}",
        "{class: TestLinear, test: test_1, action: skip, reason: slow}",
    )
    assert found[3, "unknown-test"]["severity"] == "warning"
    assert found[4, "unknown-test"]["severity"] == "error"


def test_C14_C15_a_list_of_tests_shows_what_matches_what_decides_and_what_contradicts(lint):
    where = "test/test_linear.py::TestLinear::test_forward"
    found = lint(
        "{id: wide, class: TestLinear, action: skip, reason: slow}",
        "{id: narrow, test: test_forward, op: add, action: xfail, reason: numerics, signature: {message: x}}",
        "{id: other, test: test_forward, op: add, action: skip, reason: slow, when: {platform: linux}}",
        "{id: unused, test: test_forward, op: mul, action: skip, reason: slow}",
        "{id: later, test: test_forward, op: [mul, sub], action: skip, reason: slow, when: {torch: '>=99'}}",
        tests=[f"{where}[add][float32]@tiny", f"{where}[add][int8]@tiny", f"{where}[sub][int8]@tiny"],
    )
    assert {key: item["severity"] for key, item in found.items()} == {
        (5, "tie"): "error", (5, "shadowed"): "warning", (6, "unmatched"): "error",
    }  # fmt: skip
    assert "contradicts narrow" in found[5, "tie"]["message"]
    assert f"{where}[add][float32]@tiny" in found[5, "tie"]["message"]


def test_C13_the_profile_says_what_every_rule_needs(lint):
    found = lint("{test: test_plain, action: skip, reason: slow, note: n}", policy="{require: [issue, owner, note]}")
    assert set(found) == {(3, "no-issue"), (3, "no-owner")}


def test_the_shipped_profile_has_no_fault(conformance):
    done = conformance("lint", "--profile", "spyre")
    assert done.returncode == 0, done.stdout
    assert "0 errors, 0 warnings" in done.stdout


@pytest.mark.parametrize("kind", list(MODELS))
def test_C12_the_published_schema_is_that_of_the_models(kind):
    published = json.loads((SCHEMAS / f"{kind}.schema.json").read_text())
    assert published == schema_of(kind), f"conformance schema {kind} > conformance/schemas/{kind}.schema.json"


@pytest.mark.parametrize("name", ["profile", "registry", "capabilities"])
def test_C12_the_schema_accepts_what_ships_and_refuses_mistakes(name):
    value = read_document(BUILTIN / "spyre" / f"{name}.yaml").value
    validator = jsonschema.Draft202012Validator(schema_of(name))
    validator.validate(value)
    assert not validator.is_valid({**value, "unheard": 1})
    if name == "registry":
        assert not validator.is_valid({"version": 1, "rules": [{"test": "a", "action": "jump", "reason": "slow"}]})
        assert validator.is_valid({"version": 1, "rules": [{"test": "a", "action": "skip", "reason": "slow"}]})


# explain


@pytest.fixture
def explain(conformance, profile, tree):
    def run(name, *arguments, rules=()):
        folder = profile(*rules)
        done = conformance("explain", name, "--json", "--profile", folder, "--upstream", tree, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_C11_every_rule_its_weight_and_the_winner(explain):
    (found,) = explain(
        "test_linear.py::TestLinear::test_forward[add][float32]@tiny",
        rules=[
            "{id: class, class: TestLinear, action: skip, reason: slow}",
            "{id: op, op: add, test: test_forward, action: quarantine, reason: crash, issue: 'https://x/1'}",
            "{id: old, test: test_forward, action: skip, reason: slow, when: {torch: '<1.0'}}",
            "{id: gone, test: test_forward, action: skip, reason: slow, expires: 2020-01-01}",
            "{id: not-this, op: mul, action: skip, reason: slow}",
        ],
    )
    assert (found["label"], found["label_source"], found["label_from"]) == ("ACCELERATOR", "hw_classification", "own")
    assert found["line"] == 7
    rules = {rule["rule"]: rule for rule in found["rules"]}
    assert list(rules) == ["op", "old", "gone", "class"]
    assert [name for name, rule in rules.items() if rule["wins"]] == ["op"]
    assert "is not <1.0" in rules["old"]["idle"] and "expired" in rules["gone"]["idle"]
    assert (found["action"], found["reason"], found["rule"]) == ("quarantine", "crash", "op")


@pytest.mark.parametrize(
    ("spelling", "identity", "action"),
    [
        ("TestPlain.test_plain", "test/test_linear.py::TestPlain::test_plain", "deselected"),
        ("test_graphs (__main__.TestLinear)", "test/test_linear.py::TestLinear::test_graphs@tiny", "not_applicable"),
        (
            "test_linear.py::TestCudaLinear::test_c",
            "test/test_linear.py::TestCudaLinear::test_c@tiny",
            "not_applicable",
        ),
        (
            "test_linear.py::TestLinearTINY::test_forward_nn_functional_linear_tiny_float32",
            "test/test_linear.py::TestLinear::test_forward[nn.functional.linear][float32]@tiny",
            "run",
        ),
    ],
)
def test_C2_C11_any_spelling(explain, spelling, identity, action):
    (found,) = explain(spelling)
    assert (found["id"], found["action"]) == (identity, action)


def test_C11_says_why_in_words(conformance, profile, tree):
    folder = profile("{id: why, test: test_backward, action: skip, reason: hang, note: never ends}")
    done = conformance("explain", "TestLinear.test_backward", "--profile", folder, "--upstream", tree)
    assert "label      ACCELERATOR: hw_classification, own" in done.stdout
    assert "why (registry.yaml:3): skip, weight 16, wins" in done.stdout
    assert done.stdout.endswith("→ skip: hang: never ends\n")


def test_explain_of_nothing_is_a_usage_error(conformance, profile, tree):
    done = conformance("explain", "TestLinea.test_backward", "--profile", profile(), "--upstream", tree)
    assert done.returncode == 2
    assert "TestLinear" in done.stderr


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("test_linear.py::TestLinear::test_forward[add][float32]@cuda", "on cuda; profile tiny is for tiny"),
        ("test_linear.py::TestLinear::test_forward[add][float3]@tiny", "no dtype 'float3'; did you mean 'float32'"),
        ("test_linear.py::TestLinear::test_forward[add][float32,int9]@tiny", "no dtype 'int9'"),
        ("test_linear.py::TestLinear::test_forward[ad][float32]@tiny", "no operator 'ad'"),
        ("test_linear.py::TestLinear::test_nothing[add][float32]@tiny", "names no single test"),
        ("test_linear.py::TestPlain::test_forward[add][float32]@tiny", "names no single test"),
        ("wheel/op_out.py::TestOut::test_out[add][float32]@tiny", "names no single test"),
        ("wheel/op_out.py::TestOpOut::test_out[add][float32]@tiny", "names no single test"),
    ],
)
def test_C11_what_no_run_of_the_profile_has_is_not_explained(conformance, profile, tree, name, what):
    done = conformance("explain", name, "--profile", profile(), "--upstream", tree)
    assert done.returncode == 2, done.stdout
    assert what in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "name",
    [
        "test/test_made.py::TestMade::test_1[][][x]",
        "wheel/op_out.py::TestOpOut::test_out_matches_functional[add][float32]@tiny",
    ],
)
def test_C11_ids_of_the_wheel_suite_and_of_tests_made_at_import(explain, name):
    (found,) = explain(name)
    assert found["id"] == name


# labels

OFFENDERS = """
from torch.testing._internal.common_device_type import instantiate_device_type_tests, onlyCUDA, onlyAccelerator
from torch.testing._internal.common_utils import TestCase, HardwareClassification as H
class TestGood(TestCase):
    hw_classification = HardwareClassification.ACCELERATOR
    @onlyAccelerator
    def test_a(self, device): pass
class TestNone(TestCase):
    def test_a(self): pass
class TestWrong(TestCase):
    hw_classification = "cpu"
    def test_a(self): pass
class TestGeneric(TestCase):
    hw_classification = HardwareClassification.GENERIC
    def test_a(self, device): pass
class TestAlone(TestCase):
    hw_classification = HardwareClassification.ACCELERATOR
    def test_a(self, device): pass
class TestOnly(TestCase):
    hw_classification = HardwareClassification.ACCELERATOR
    @onlyCUDA
    def test_a(self, device): pass
    def test_b(self): pass
class TestCuda(TestCase):
    hw_classification = HardwareClassification.CUDA
    def test_a(self, device): pass
class TestXpu(TestCase):
    hw_classification = HardwareClassification.XPU
    def test_a(self, device): pass
instantiate_device_type_tests(TestGood, globals())
instantiate_device_type_tests(TestGeneric, globals())
instantiate_device_type_tests(TestOnly, globals(), only_for=("cuda", "xpu"))
instantiate_device_type_tests(TestCuda, globals(), only_for="cuda")
instantiate_device_type_tests(TestXpu, globals(), only_for=("xpu", "cuda"))
"""


@pytest.fixture
def offenders(tmp_path):
    (tmp_path / "upstream" / "test").mkdir(parents=True)
    (tmp_path / "upstream" / "test" / "test_o.py").write_text(OFFENDERS)
    return tmp_path


def test_C32_each_rule_has_an_offender(conformance, offenders):
    done = conformance("lint-labels", "--upstream", offenders / "upstream", "--json")
    assert done.returncode == 2
    found = sorted((row["name"].rpartition("::")[2], row["code"]) for row in json.loads(done.stdout)["new"])
    assert found == [
        ("TestAlone", "accelerator-alone"),
        ("TestGeneric", "generic-device"),
        ("TestGeneric", "generic-instantiated"),
        ("TestNone", "unclassified"),
        ("TestOnly", "accelerator-no-device"),
        ("TestOnly", "accelerator-only"),
        ("TestOnly", "accelerator-only-for"),
        ("TestWrong", "wrong-type"),
        ("TestXpu", "device-only-for"),
    ]


def test_C32_the_allowlist_may_only_shrink(conformance, offenders):
    call = ["lint-labels", "--upstream", offenders / "upstream", "--allowlist", offenders / "allowed.txt"]
    assert conformance(*call, "--write-allowlist").returncode == 0
    entries = (offenders / "allowed.txt").read_text().splitlines()
    assert len(entries) == 9
    path = offenders / "upstream" / "test" / "test_o.py"
    repaired = OFFENDERS.replace('hw_classification = "cpu"', "hw_classification = HardwareClassification.GENERIC")
    path.write_text(repaired)
    done = conformance(*call)
    assert done.returncode == 2
    assert "test/test_o.py::TestWrong wrong-type no longer offends" in done.stdout
    path.write_text(repaired + "class TestFresh(TestCase):\n    def test_a(self): pass\n")
    assert conformance(*call, "--write-allowlist").returncode == 2  # what is new is never added
    assert len((offenders / "allowed.txt").read_text().splitlines()) == 8
    assert "TestFresh" in conformance(*call).stdout


def test_C18_unknown_names_in_the_capabilities_are_found_with_their_place(conformance, profile):
    folder = profile("{test: test_backward, action: skip, reason: slow}")
    (folder / "capabilities.yaml").write_text(
        "version: 1\n"
        "dtypes: [float32, flaot16]\n"
        "operators:\n"
        "  ad: {supported: false}\n"
        "  add:\n"
        "    dtypes: [float32, flota64]\n"
        "    tolerances: {flot32: {atol: 1}}\n"
        "features:\n"
        "  sparse: {supported: false, tests: [{op: [sum, summ], dtype: 'float*'}]}\n"
    )
    done = conformance("lint", "--profile", folder, "--json")
    assert done.returncode == 2, done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert {Path(row["file"]).name for row in findings} == {"capabilities.yaml"}
    found = {
        (row["line"], row["column"], row["code"]): re.search(
            r"no \w+ '(\w+)'; did you mean '([\w.]+)'", row["message"]
        ).groups()
        for row in findings
    }
    assert found == {
        (2, 19, "unknown-dtype"): ("flaot16", "float16"),
        (4, 3, "unknown-op"): ("ad", "add"),
        (6, 23, "unknown-dtype"): ("flota64", "float64"),
        (7, 18, "unknown-dtype"): ("flot32", "float32"),
        (9, 49, "unknown-op"): ("summ", "sum"),
    }
