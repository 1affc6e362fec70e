"""C1, C5 to C7: selection and names against the installed torch itself."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

from conformance.ids import parse
from conformance.inventory import load_inventory
from conformance.profile import load_profile
from conformance.registry.facts import rule_facts
from conformance.selection.decide import Selection
from conformance.selection.explain import explain

# The tree imports the enumeration, and an older torch has no loader to compare with.
pytestmark = pytest.mark.skipif(
    Version(version("torch")) < Version("2.14"), reason="HardwareClassification came with torch 2.14"
)
HERE = Path(__file__).parent
TREE = HERE / "labels_tree"

UNITTEST = """
import json, sys
sys.path.insert(0, sys.argv[1])
from torch.testing._internal.common_utils import HardwareClassification, HardwareClassificationTestLoader
import test_labels
answer = {}
for label in HardwareClassification:
    loader = HardwareClassificationTestLoader({label})
    suite = loader.loadTestsFromModule(test_labels)
    cases = HardwareClassificationTestLoader.iter_test_cases_recursively(suite)
    answer[label.name] = sorted((type(c).__name__, c._testMethodName) for c in cases)
print("answer:" + json.dumps(answer))
"""
PYTEST = """
import json, sys
import pytest
from torch.testing._internal.common_utils import HardwareClassification, filter_by_hw_classification

class Filter:
    def pytest_collection_modifyitems(self, items):
        answer = {}
        for label in HardwareClassification:
            kept = []
            filter_by_hw_classification(items, {label}, lambda item: getattr(item, "cls", None), on_match=kept.append)
            answer[label.name] = sorted((item.cls.__name__, item.name) for item in kept)
        print("\\nanswer:" + json.dumps(answer))

pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "--noconftest", "-c", "/dev/null", "--rootdir",
             sys.argv[1],
             sys.argv[1] + "/test_labels.py"], plugins=[Filter()])
"""


@pytest.fixture(scope="module", params=["unittest", "pytest"])
def upstream(request):
    """What upstream's own filter selects, label by label: class and method names as upstream generates them."""
    script = {"unittest": UNITTEST, "pytest": PYTEST}[request.param]
    done = subprocess.run(
        [sys.executable, "-c", script, str(TREE / "test")], capture_output=True, text=True,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu",
             "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    line = next((text for text in done.stdout.splitlines() if text.startswith("answer:")), None)
    assert line is not None, done.stdout + done.stderr
    return json.loads(line.removeprefix("answer:"))


@pytest.fixture(scope="module")
def plan(conformance):
    """Our plan of the same file with every label wanted, so that each test tells its own."""
    labels = "GENERIC,ACCELERATOR,CPU,CUDA,MPS,XPU"
    done = conformance(
        "plan", "--json", "--profile", HERE / "cpu_profile", "--upstream", TREE, "--hw-classification", labels,
        "--unclassified", "exclude", "test_labels.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_C6_same_answer_as_upstreams_own_filter(upstream, plan):
    for label, cases in upstream.items():
        ours = sorted(
            tuple(row["id"].partition("::")[2].split("::"))
            for row in plan["tests"]
            if row["label"] == label and row["action"] == "run"
        )
        assert len(ours) == len(cases), (label, cases, ours)
        for (our_class, our_test), (cls, method) in zip(ours, cases, strict=True):
            assert cls.removesuffix("CPU") == our_class
            assert method.startswith(our_test.partition("[")[0].partition("@")[0])
    assert sum(map(len, upstream.values())) >= 16


def test_C10_classes_that_upstream_leaves_out_are_not_applicable(plan):
    rows = {row["id"]: row for row in plan["tests"]}
    cuda = rows["test/test_labels.py::TestCudaOnly::test_l@cpu"]
    assert (cuda["action"], cuda["reason"]) == ("not_applicable", "blocked upstream by only_for=['cuda']")
    assert rows["test/test_labels.py::TestNotOnCpu::test_m@cpu"]["action"] == "deselected"  # it has no label


def test_C10_a_run_accounts_for_classes_that_upstream_leaves_out(conformance, tmp_path, results):
    done = conformance(
        "run", "--profile", HERE / "cpu_profile", "--upstream", TREE, "--output", tmp_path / "out",
        "test_labels.py::TestCudaOnly", "test_labels.py::TestNotOnCpu", "test_labels.py::TestDevice",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines, summary = results(tmp_path / "out")
    assert summary["balanced"] is True
    assert summary["outcomes"] == {"not_applicable": 2, "passed": 3}
    blocked = {line["test"]: line["reason"] for line in lines if line["outcome"] == "not_applicable"}
    assert blocked["test_m"] == "blocked upstream by except_for=['cpu', 'meta']"


def test_C6_a_label_of_the_wrong_type_is_an_error(conformance):
    done = conformance(
        "plan", "--json", "--profile", HERE / "cpu_profile", "--upstream", TREE, "test_wrong_label.py",
    )  # fmt: skip
    (error,) = json.loads(done.stdout)["errors"]
    assert error["outcome"] == "error"
    assert error["file"] == "test/test_wrong_label.py::TestWrong::test_a"


def test_C7_unclassified_are_listed_by_name(plan):
    left = {row["id"] for row in plan["tests"] if row["label_source"] == "unclassified"}
    assert left == {
        "test/test_labels.py::TestTakenBack::test_a",
        "test/test_labels.py::TestTakenBack::test_d",
        "test/test_labels.py::TestPlain::test_e",
        "test/test_labels.py::TestNotOnCpu::test_m@cpu",
        "test/test_labels.py::test_function",
    }
    assert {row["action"] for row in plan["tests"] if row["id"] in left} == {"deselected"}


def test_C1_ids_of_instantiated_tests(plan):
    ids = {row["id"] for row in plan["tests"]}
    assert "test/test_labels.py::TestDevice::test_f@cpu" in ids
    assert "test/test_labels.py::TestDevice::test_g[][][x_1]@cpu" in ids
    assert "test/test_labels.py::TestParametrized::test_h[][][x_2]" in ids
    assert "test/test_labels.py::TestMade::test_j" in ids


def test_wheel_suite_names_operators_and_dtypes(conformance, tmp_path, results):
    done = conformance(
        "run", "--profile", HERE / "cpu_profile", "--output", tmp_path / "out", "--jobs", 1, "-k", "add and not addm",
        "wheel/op_forward.py::TestOpForward",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines, summary = results(tmp_path / "out")
    ran = {line["op"]: line for line in lines if line["outcome"] == "passed"}
    assert "add" in ran and ran["add"]["dtype"] == "float32" and ran["add"]["label"] == "ACCELERATOR"
    assert ran["add"]["id"] == "wheel/op_forward.py::TestOpForward::test_matches_cpu[add][float32]@cpu"
    assert summary["balanced"] is True
    assert summary["outcomes"]["deselected"] > 500


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["test_nothing.py"], 2, "no such test file"),
        (["test_label.py"], 2, "near names: test/test_labels.py"),
        (["TestGenerics.test_a"], 2, "near names: test/test_labels.py::TestGeneric"),
        (["--hw-classification", "NPU"], 2, "unknown hardware classification NPU"),
        (["--unclassified", "maybe"], 2, "exclude, include, infer"),
        (["--shard", "3/2"], 2, "1 <= i <= n"),
        (["-k", "a and ("], 2, "-k"),
        (["--suite", "other"], 2, "only 'wheel'"),
        (["--device", "cuda"], 2, "profile cpu is for cpu"),
        (["--no-such-option"], 2, "No such option"),
        (["--upstream", "/nonexistent/tree"], 2, "no such folder"),
    ],
)
def test_usage_errors(conformance, tmp_path, arguments, code, text):
    upstream = [] if "--upstream" in arguments else ["--upstream", TREE]
    done = conformance("run", "--profile", HERE / "cpu_profile", "--output", tmp_path / "out", *upstream, *arguments)
    assert done.returncode == code, done.stderr
    assert text in done.stderr.replace("\n", " ")


def test_a_backend_that_does_not_work_is_said(conformance, tmp_path):
    (tmp_path / "profile.yaml").write_text("name: broken\nmodule: no_such_backend\ndevice: nothing\n")
    done = conformance("run", "--profile", tmp_path, "--output", tmp_path / "out", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 2
    assert "no_such_backend" in done.stderr


def test_nothing_selected_is_a_failure(conformance, tmp_path):
    done = conformance(
        "run", "--profile", HERE / "cpu_profile", "--upstream", TREE, "--output", tmp_path / "out",
        "test_labels.py::TestGeneric::test_none",
    )  # fmt: skip
    assert done.returncode == 3
    assert "no test selected" in done.stderr


def test_a_keyword_that_matches_nothing_is_a_failure(conformance, tmp_path):
    done = conformance(
        "run", "--profile", HERE / "cpu_profile", "--upstream", TREE, "--output", tmp_path / "out",
        "-k", "no_test_has_this_name", "test_labels.py",
    )  # fmt: skip
    assert done.returncode == 3
    assert "no test selected" in done.stderr


def test_a_relative_output_is_relative_to_where_the_command_runs(conformance, tmp_path, results):
    done = conformance(
        "run", "--profile", HERE / "cpu_profile", "--upstream", TREE, "--output", "out",
        "--hw-classification", "GENERIC", "test_labels.py::TestGeneric", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert results(tmp_path / "out")[1]["outcomes"]["passed"] >= 1


def test_C11_explain_and_plan_say_the_same_of_every_test(conformance):
    options = ("--json", "--profile", HERE / "cpu_profile", "--upstream", TREE)
    names = ("test_labels.py", "test_wrong_label.py", "test_inherited.py")
    rows = [row for row in json.loads(conformance("plan", *options, *names).stdout)["tests"] if "::" in row["id"]]
    assert {row["action"] for row in rows} == {"run", "not_applicable", "deselected", "error"}
    profile, inventory = load_profile(str(HERE / "cpu_profile")), load_inventory(TREE)
    differing = {}
    for row in rows:
        test = parse(row["id"])
        if test.cls == "TestMade":
            continue  # no class statement says that it is there
        found = explain(
            test, inventory.files[test.file], inventory, device=profile.device, custom=profile.custom,
            selection=Selection(frozenset(profile.policy.labels), profile.policy.unclassified), rules=[],
            capabilities=profile.declared(), facts=rule_facts(inventory.version),
        ).row()  # fmt: skip
        keys = ("label", "label_source", "action", "reason", "rule")
        if [found[key] for key in keys] != [row[key] for key in keys]:
            differing[row["id"]] = [(row[key], found[key]) for key in keys]
    assert differing == {}
    limited = next(row for row in rows if row["id"] == "test/test_inherited.py::TestLimited::test_a@cpu")
    assert limited["reason"] == "blocked upstream by @onlyCUDA", "known before it runs"
