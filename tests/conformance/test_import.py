"""Lists that other projects keep become rules that say the same (issue: importers)."""

import json
import math
import random
from pathlib import Path

import pytest

from conformance.errors import ConformanceError
from conformance.ids import TestId
from conformance.importers.cluster import PARTS, cluster, widen
from conformance.importers.entry import Entry, Treatment
from conformance.importers.formats import FORMATS
from conformance.inventory import load_inventory
from conformance.inventory.written import Variants, Written
from conformance.registry.document import Document
from conformance.registry.load import load_rules
from conformance.registry.match import Registry

TREE = """
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops, dtypes
class TestCommon:
    @ops(op_db)
    def test_out(self, device, dtype, op): pass
    @ops(op_db)
    @parametrize("mode", ["a", "b"])
    def test_out_warning(self, device, dtype, op): pass
    @dtypes(torch.float32, torch.int8)
    def test_flip(self, device, dtype): pass
class TestPlain:
    def test_print(self): pass
    def test_print_more(self): pass
instantiate_device_type_tests(TestCommon, globals())
"""
INFOS = {"add": "add", "nn.functional.conv2d": "nn_functional_conv2d", "sub": "sub", "sub.special": "sub_special"}
DTYPES = ("float32", "float64", "int8", "bool")


@pytest.fixture
def resolve(tmp_path, monkeypatch):
    monkeypatch.setenv("CONFORMANCE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "tree" / "test" / "nn").mkdir(parents=True)
    (tmp_path / "tree" / "test" / "test_ops.py").write_text(TREE)
    (tmp_path / "tree" / "test" / "nn" / "test_pool.py").write_text("class TestPool:\n    def test_print(self): pass\n")
    return Variants(Written(load_inventory(tmp_path / "tree").files), INFOS, DTYPES, ["tiny"]).resolve


@pytest.mark.parametrize(
    ("cls", "test", "expected"),
    [
        ("TestCommonPRIVATEUSE1", "test_out_add_npu_float32", ("test_out", "add", "float32", "")),
        ("TestCommonNPU", "test_out_nn_functional_conv2d_privateuse1_int8",
         ("test_out", "nn.functional.conv2d", "int8", "")),
        ("TestCommonTINY", "test_out_sub_special_tiny_float32", ("test_out", "sub.special", "float32", "")),
        ("TestCommonXPU", "test_out_warning_a_sub_xpu_float32", ("test_out_warning", "sub", "float32", "a")),
        ("TestCommonCPU", "test_flip_cpu_float32_float64", ("test_flip", "", "float32,float64", "")),
        ("TestCommonCPU", "test_flip_cpu", ("test_flip", "", "", "")),
        ("TestPlain", "test_print", ("test_print", "", "", "")),
        ("TestPlain", "test_print_more", ("test_print_more", "", "", "")),
    ],
)  # fmt: skip
def test_C2_generated_names_are_taken_apart(resolve, cls, test, expected):
    found = resolve(cls, test, "test/test_ops.py")
    assert [(t.test, t.op, t.dtype, t.other) for t in found] == [expected]


@pytest.mark.parametrize(
    ("cls", "test"), [("TestPlain", "test_printer"), ("TestPlain", "test_print_x"), ("TestX", "test_out")]
)
def test_C2_what_no_class_has_is_not_guessed(resolve, cls, test):
    assert resolve(cls, test, "") == []


def read(kind, text, resolve):
    return FORMATS[kind](Path("list"), text, resolve)


def rules_of(found):
    return [item.rule() for item in cluster(found.entries)]


def test_torch_npu(resolve):
    text = json.dumps(
        {
            "test_out_add_npu_float32 (__main__.TestCommonPRIVATEUSE1)": ["", [""]],
            "test_out_add_npu_int8 (__main__.TestCommonPRIVATEUSE1)": ["", [""]],
            "test_out_sub_npu_float32 (__main__.TestCommonPRIVATEUSE1)": ["", [""]],
            "test_out_sub_npu_int8 (__main__.TestCommonPRIVATEUSE1)": ["", [""]],
            "test_flip_npu_bool (__main__.TestCommonPRIVATEUSE1)": ["", ["A2"]],
            "test_x (__main__.TestUnheard)": ["", [""]],
        }
    )
    found = read("torch-npu", text, resolve)
    assert rules_of(found) == [
        {"file": "test_ops.py", "class": "TestCommon", "test": "test_out", "op": ["add", "sub"],
         "dtype": ["float32", "int8"], "action": "skip", "reason": "untriaged"},
        {"file": "test_ops.py", "class": "TestCommon", "test": "test_flip", "dtype": "bool", "action": "skip",
         "reason": "untriaged", "note": "only on A2"},
        {"class": "TestUnheard", "test": "test_x", "action": "skip", "reason": "untriaged"},
    ]  # fmt: skip
    assert found.unresolved == ["TestUnheard::test_x"]


def test_upstreams_disabled_tests(resolve):
    url = "https://github.com/pytorch/pytorch/issues/"
    text = json.dumps(
        {
            "test_print (nn.test_pool.TestPool)": ["1", f"{url}1", []],
            "test_flip_cpu_float32 (__main__.TestCommonCPU)": ["2", f"{url}2", ["linux", "rocm"]],
            "test_print_more (__main__.TestPlain)": ["3", f"{url}3", ["rocm", "asan"]],
        }
    )
    found = read("disabled-tests", text, resolve)
    first, second = rules_of(found)
    assert (first["file"], first["issue"], "when" in first) == ("nn/test_pool.py", f"{url}1", False)
    assert (second["dtype"], second["when"]) == ("float32", {"platform": "linux"})
    assert found.left_out == {"for configurations of upstream's CI only": 1}


def test_torch_xpu_ops(resolve):
    text = """
import os
os.abort()
DIR = "../../test"
skip_dict = {
    "test_ops_xpu.py": (
        # crash, https://github.com/intel/torch-xpu-ops/issues/12
        # on every machine
        "test_out_add_xpu_float32",
        "_warning_",
    ),
    DIR + "/nn/test_pool.py": ("test_print",),
    "test_none_xpu.py": None,
}
"""
    found = read("torch-xpu-ops", text, resolve)
    rules = rules_of(found)
    assert rules[0] == {
        "file": "test_ops.py", "class": "TestCommon", "test": "test_out", "op": "add", "dtype": "float32",
        "action": "skip", "reason": "untriaged", "issue": "https://github.com/intel/torch-xpu-ops/issues/12",
        "note": "crash, https://github.com/intel/torch-xpu-ops/issues/12 on every machine",
    }  # fmt: skip
    assert {"file": "nn/test_pool.py", "class": "TestPool", "test": "test_print", "action": "skip",
            "reason": "untriaged"} in rules  # fmt: skip
    assert [rule.get("test") or rule.get("op") for rule in rules if rule.get("class") is None] == ["*warning*"] * 2
    assert found.lines == 3


SPYRE = """
test_suite_config:
  files:
    - path: ${TORCH_ROOT}/test/test_ops.py
      unlisted_test_mode: skip
      tests:
        - names: [TestCommon::test_out, TestCommon::test_flip]
          mode: mandatory_success
          edits:
            ops: {exclude: [{name: sub, description: wrong}]}
            dtypes: {exclude: [{name: bool}], include: [{name: int8}]}
        - names: [TestCommon::test_out_warning]
          mode: xfail
    - path: ${TORCH_DEVICE_ROOT}/tests/test_own.py
  global:
    supported_dtypes: [{name: float32}]
    supported_ops: [{name: add, dtypes: [{name: float32}]}, {name: sub, force_xfail: true}]
"""


def test_torch_spyre_says_the_same_of_every_test(resolve, tmp_path):
    found = read("torch-spyre", SPYRE, resolve)
    assert found.dtypes == ("float32",) and found.operators == {"add": ("float32",), "sub": ()}
    assert found.left_out["files of the backend's own"] == 1
    registry = registry_of([rule for rule in rules_of(found) if rule.get("op") != "sub" or "file" in rule], tmp_path)

    def action(cls, test, op="", dtype=""):
        return registry.matching(TestId("test/test_ops.py", cls, test, op, dtype))[0].action.value

    assert action("TestPlain", "test_print") == "skip"
    assert action("TestCommon", "test_out", "add", "float32") == "run"
    assert action("TestCommon", "test_out", "sub", "float32") == "skip"
    assert action("TestCommon", "test_flip", "", "bool") == "skip"
    assert action("TestCommon", "test_out_warning", "add", "float32") == "xfail"


def registry_of(rules, folder):
    from conformance.cli.import_ import dump

    path = folder / "registry.yaml"
    path.write_text(dump({"version": 1, "rules": rules}))
    return Registry(load_rules(path))


@pytest.mark.parametrize(
    ("kind", "text", "what"),
    [
        ("torch-npu", "{", "list:1:2: not JSON"),
        ("torch-npu", "[]", "expected an object"),
        ("disabled-tests", '{"test_x": ["1", "u", []]}', "expected"),
        ("torch-xpu-ops", "skip_dict = {", "list:1: not Python"),
        ("torch-xpu-ops", "x = 1", "no `skip_dict"),
        ("torch-spyre", "a: [", "not YAML"),
        ("torch-spyre", "a: 1", "no test_suite_config"),
        ("torch-spyre", "test_suite_config: {files: [{path: /test/a.py, unlisted_test_mode: maybe}]}", "unknown mode"),
        ("torch-npu", '{"test_x (__main__.T)": [5]}', "list: 'test_x (__main__.T)'[0]: expected a text, found 5"),
        ("torch-npu", '{"test_x (__main__.T)": ["", "A2"]}', "[1]: expected a list, found a text"),
        ("torch-npu", '{"test_x (__main__.T)": ["", [[]]]}', "[1][0]: expected a text, found a list"),
        ("disabled-tests", '{"test_x (__main__.T)": ["1", {}, []]}', "[1]: expected a text, found a mapping"),
        ("disabled-tests", '{"test_x (__main__.T)": ["1", "u", "linux"]}', "[2]: expected a list, found a text"),
        ("disabled-tests", '{"test_x (__main__.T)": ["1", "u", [1]]}', "[2][0]: expected a text, found 1"),
    ],
)
def test_a_list_that_is_none_is_a_sentence(kind, text, what):
    with pytest.raises(ConformanceError) as error:
        read(kind, text, lambda *_: [])
    assert what in str(error.value)


FILE = "{path: /test/a.py, "


@pytest.mark.parametrize(
    ("files", "rest", "what"),
    [
        ("a", "", "list: files[0]: expected a mapping, found a text"),
        ("{}", "", "files[0].path: is missing"),
        ("{path: [a]}", "", "files[0].path: expected a text, found a list"),
        (FILE + "unlisted_test_mode: [x]}", "", "files[0].unlisted_test_mode: expected a text, found a list"),
        (FILE + "tests: {a: b}}", "", "files[0].tests: expected a list, found a mapping"),
        (FILE + "tests: [a]}", "", "files[0].tests[0]: expected a mapping"),
        (FILE + "tests: [{names: a}]}", "", "files[0].tests[0].names: expected a list"),
        (FILE + "tests: [{names: [5]}]}", "", "files[0].tests[0].names[0]: expected a text, found 5"),
        (FILE + "tests: [{names: [a], mode: {}}]}", "", "tests[0].mode: expected a text, found a mapping"),
        (FILE + "tests: [{edits: [x]}]}", "", "files[0].tests[0].edits: expected a mapping, found a list"),
        (FILE + "tests: [{names: [a], edits: {ops: x}}]}", "", "tests[0].edits.ops: expected a mapping"),
        (FILE + "tests: [{names: [a], edits: {ops: {exclude: x}}}]}", "", "edits.ops.exclude: expected a list"),
        (FILE + "tests: [{names: [a], edits: {ops: {exclude: [{}]}}}]}", "", "edits.ops.exclude[0]: has no name"),
        ("", ", global: x", "list: global: expected a mapping, found a text"),
        ("", ", global: {supported_dtypes: x}", "global.supported_dtypes: expected a list"),
        ("", ", global: {supported_ops: [{dtypes: [float32]}]}", "list: global.supported_ops[0]: has no name"),
        ("", ", global: {supported_ops: [[add]]}", "global.supported_ops[0]: expected a text, found a list"),
        ("", ", global: {supported_ops: [{name: a, dtypes: 5}]}", "supported_ops[0].dtypes: expected a list, found 5"),
    ],
)
def test_a_wrong_type_is_said_with_its_place(files, rest, what):
    with pytest.raises(ConformanceError) as error:
        read("torch-spyre", f"test_suite_config: {{files: [{files}]{rest}}}", lambda *_: [])
    assert what in str(error.value)


def test_torch_xpu_ops_counts_what_is_not_written_out(resolve):
    text = """
skip_dict = {
    "test_ops_xpu.py": ("test_print", *OTHERS, f"test_{name}", "a" + b, 5),
    "test_pool_xpu.py": more(),
    **rest,
    NAME: ("test_x",),
    "test_none_xpu.py": None,
}
"""
    found = read("torch-xpu-ops", text, resolve)
    assert found.lines == 1
    assert found.left_out["names that only running the file would tell"] == 5
    assert found.left_out["an entry whose file is not written out"] == 2


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("torch-npu", '{"t*[a] (__main__.T)": ["", []]}'),
        ("disabled-tests", '{"t*[a] (__main__.T)": ["1", "u", []]}'),
        ("torch-spyre", "test_suite_config: {files: [{path: /test/t.py, tests: [{names: ['T::t*[a]']}]}]}"),
    ],
)
def test_a_name_means_itself_whatever_characters_it_has(kind, text, resolve, tmp_path):
    rules = [rule for rule in rules_of(read(kind, text, resolve)) if "test" in rule]
    registry = registry_of(rules, tmp_path)
    assert registry.matching(TestId("test/t.py", "T", "t*[a]"))
    assert not registry.matching(TestId("test/t.py", "T", "t_other_a"))


def test_a_part_of_a_name_means_itself_too(resolve, tmp_path):
    registry = registry_of(rules_of(read("torch-xpu-ops", 'skip_dict = {"t.py": ("x[1]",)}', resolve)), tmp_path)
    assert registry.matching(TestId("test/t.py", "T", "test_x[1]_b"))
    assert not registry.matching(TestId("test/t.py", "T", "test_x1"))


def test_torch_spyre_patterns_and_what_the_checkout_does_not_have(conformance, resolve, tmp_path):
    (tmp_path / "list.yaml").write_text("""
test_suite_config:
  files:
    - path: /test/test_ops.py
      tests:
        - names: [TestCommon::test_.*war.*, TestPlain::test_print, TestNope::test_nope, TestPlain::test_no.*ne]
    - path: /test/test_nonesuch.py
    - path: /test/nn/test_.*ol.py
""")
    done = conformance(
        "import", "--format", "torch-spyre", tmp_path / "list.yaml", "--upstream", tmp_path / "tree", "--json"
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["unresolved"] == [
        "test/test_ops.py::TestNope::test_nope", "test/test_ops.py::TestPlain::test_no*ne", "test/test_nonesuch.py",
    ]  # fmt: skip
    assert "test_*war*" in answer["registry"] and "nn/test_*ol.py" in answer["registry"]


def test_thirty_thousand_entries_become_hundreds_of_rules_that_name_exactly_the_same(tmp_path):
    chance = random.Random(7)
    dtypes = [f"dtype{n}" for n in range(12)]
    everything, listed = [], []
    for written in range(150):
        cls = f"TestC{written % 30}"
        refused = {op: chance.sample(dtypes, chance.choice((3, 6, 12))) for op in range(40) if chance.random() < 0.7}
        kinds = list(refused.values())[:2]
        for op in range(40):
            for dtype in dtypes:
                test = TestId(f"test/test_{written % 10}.py", cls, f"test_{written}", f"op{op}", dtype)
                everything.append(test)
                if op in refused and dtype in kinds[op % 2]:
                    listed.append(test)
    assert 20_000 < len(listed) < 40_000
    entries = [Entry(Treatment(), t.file, t.cls, t.test, t.op, t.dtype) for t in listed]
    chance.shuffle(entries)
    found = cluster(widen(entries, everything))
    assert len(found) < 600
    registry = registry_of([item.rule() for item in found], tmp_path)
    assert {test for test in everything if registry.matching(test)} == set(listed)
    exact = cluster(entries)
    assert sum(math.prod(max(1, len(words)) for words in item.words) for item in exact) == len(listed)
    assert len({word for item in exact for word in item.words[PARTS.index("test")]}) == 150


def test_the_command_writes_a_registry_that_lint_accepts(conformance, resolve, tmp_path):
    (tmp_path / "list.json").write_text('{"test_out_add_npu_float32 (__main__.TestCommonPRIVATEUSE1)": ["", [""]]}')
    out = tmp_path / "registry.yaml"
    call = ["import", "--format", "torch-npu", tmp_path / "list.json", "--upstream", tmp_path / "tree", "--output", out]
    done = conformance(*call, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rules"] == 1
    assert Document(out, out.read_text()).value["rules"][0]["op"] == "add"
    (tmp_path / "profile.yaml").write_text("name: t\ndevice: t\nregistry: registry.yaml\n")
    linted = conformance("lint", "--profile", tmp_path, "--upstream", tmp_path / "tree")
    assert linted.returncode == 0, linted.stdout
    assert "1 warnings" in linted.stdout  # untriaged
    again = conformance(*call)
    assert again.returncode == 2 and "exists" in again.stderr
    assert conformance("import", "--format", "other", tmp_path / "list.json").returncode == 2
