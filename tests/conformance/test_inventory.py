"""C3, C4, C7 and C9: the static picture of a tree."""

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.errors import ConformanceError
from conformance.inventory import load_inventory
from conformance.registry.document import read_document
from conformance.selection.changed import changed_in_payload, select_changed
from conformance.selection.infer import infer
from conformance.selection.labels import parse_labels, torch_labels

HERE = Path(__file__).parent

BASE = """
from torch.testing._internal.common_utils import TestCase, HardwareClassification
class Base(TestCase):
    hw_classification = HardwareClassification.GENERIC
    def test_base(self): pass
"""
USER = """
from base_util import Base
from torch.testing._internal.common_device_type import instantiate_device_type_tests, onlyCUDA
class TestInherits(Base):
    def test_one(self): pass
class TestOwn(Base):
    hw_classification = HardwareClassification.ACCELERATOR
    def test_two(self, device): pass
    if True:
        def test_conditional(self): pass
class TestWrong(Base):
    hw_classification = "cuda"
    def test_three(self): pass
class TestDevice:
    @onlyCUDA
    def test_four(self, device): torch.ones(1, device="cuda:0")
class TestPlain:
    def test_five(self): pass
instantiate_device_type_tests(TestOwn, globals(), only_for=("cpu", "cuda"))
instantiate_device_type_tests(TestDevice, globals())
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setenv("CONFORMANCE_CACHE_DIR", str(tmp_path / "cache"))
    test = tmp_path / "tree" / "test"
    (test / "nn").mkdir(parents=True)
    (test / "base_util.py").write_text(BASE)
    (test / "test_user.py").write_text(USER)
    (test / "nn" / "test_far.py").write_text("import middle\n")
    (test / "nn" / "middle.py").write_text("from base_util import Base\n")
    (test / "test_syntax.py").write_text("def broken(:\n")
    (test / "test_bytes.py").write_bytes(b"x = '\xff\xfe'\n")
    (test / "test_cycle_a.py").write_text("from test_cycle_b import B\nclass A(B):\n    def test_a(self): pass\n")
    (test / "test_cycle_b.py").write_text("from test_cycle_a import A\nclass B(A):\n    def test_b(self): pass\n")
    return test.parent


def classes(inventory, path):
    return {cls.name: cls for cls in inventory.files[path].classes}


def test_C3_counts_labels_and_errors(tree):
    summary = load_inventory(tree).summary()
    assert (summary["files"], summary["classes"], summary["tests"]) == (6, 7, 7)
    assert summary["labels"] == {"ACCELERATOR": 1, "GENERIC": 1, "unclassified": 5}
    errors = {error["file"]: error["error"] for error in summary["errors"]}
    assert errors["test/test_syntax.py"].startswith("line 1:")
    assert "UTF-8" in errors["test/test_bytes.py"].upper()
    assert "must be a member" in errors["test/test_user.py"]


def test_C3_mro_across_files_and_cycles(tree):
    inventory = load_inventory(tree)
    found = classes(inventory, "test/test_user.py")
    assert found["TestInherits"].mro == ["test/base_util.py::Base"]
    assert found["TestInherits"].label_from == "inherited from test/base_util.py::Base"
    assert classes(inventory, "test/test_cycle_a.py")["A"].mro == ["test/test_cycle_b.py::B"]


def test_C4_cache_follows_the_tree(tree):
    assert not load_inventory(tree).cached
    first = load_inventory(tree)
    assert first.cached
    path = tree / "test" / "test_user.py"
    path.write_text(USER + "class TestNew:\n    def test_new(self): pass\n")
    second = load_inventory(tree)
    assert not second.cached
    assert second.identity != first.identity
    assert second.summary()["tests"] == first.summary()["tests"] + 1
    path.unlink()
    assert load_inventory(tree).summary()["files"] == 5


def test_C4_another_checkout_of_the_same_files_is_not_scanned_again(tree, tmp_path):
    files = load_inventory(tree).files
    other = tmp_path / "other"
    shutil.copytree(tree, other, copy_function=shutil.copyfile)  # as git does: new times, the same content
    (other / "test" / "test_user.py").write_text(USER + "class TestNew:\n    def test_new(self): pass\n")
    (other / "test" / "nn" / "test_far.py").rename(other / "test" / "test_near.py")
    second = load_inventory(other)
    assert second.scanned == 2  # what was changed and what was moved: relative imports depend on the place
    for path in files.keys() - {"test/test_user.py", "test/nn/test_far.py"}:
        assert second.files[path].classes == files[path].classes
    assert load_inventory(other, use_cache=False).summary() == second.summary()


def test_C4_a_cache_is_data_and_nothing_in_it_runs(tree, tmp_path):
    load_inventory(tree)
    for path in (tmp_path / "cache" / "inventory").iterdir():
        if path.suffix == ".json":
            json.loads(path.read_bytes())
            continue
        assert path.suffix == ".sqlite"
        with contextlib.closing(sqlite3.connect(path)) as rows:
            found = rows.execute("SELECT data FROM row").fetchall()
        assert found and all(json.loads(data) for (data,) in found)


def test_C4_a_spoiled_cache_is_no_cache(tree, tmp_path):
    expected = load_inventory(tree).summary()
    for path in (tmp_path / "cache" / "inventory").iterdir():
        path.write_bytes(b"not a pickle")
    assert load_inventory(tree).summary() == expected


def test_C4_a_row_store_that_is_damaged_inside_is_made_again(tree, tmp_path):
    def use() -> int:
        for picture in (tmp_path / "cache" / "inventory").glob("tree-*.json"):
            picture.unlink()
        return load_inventory(tree).scanned

    use()
    assert use() == 0
    (store,) = (tmp_path / "cache" / "inventory").glob("*.sqlite")
    content = store.read_bytes()
    store.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    assert use() > 0
    use()
    assert use() == 0, "the damaged store is not kept for ever"


def test_C7_inference_has_evidence(tree):
    inventory = load_inventory(tree)
    row = inventory.files["test/test_user.py"]
    found = classes(inventory, row.path)
    device = infer(row, found["TestDevice"], inventory)
    assert device.label == "CUDA"
    assert any("limited to CUDA" in text for text in device.evidence)
    assert infer(row, found["TestPlain"], inventory).label == "GENERIC"
    assert all(infer(row, cls, inventory).evidence for cls in found.values())


@pytest.mark.parametrize(
    ("changed", "files"),
    [
        (["test/test_user.py"], {"test/test_user.py"}),
        (["test/base_util.py"], {"test/test_user.py", "test/nn/test_far.py"}),
        (["test/nn/middle.py", "README.md"], {"test/nn/test_far.py"}),
        (["test/test_cycle_a.py"], {"test/test_cycle_a.py", "test/test_cycle_b.py"}),
        (["torch/_tensor.py"], None),
        (["test/test_user.py", "c10/core/Device.cpp"], None),
        (["docs/source/x.md"], None),
        (["test/test_user.py", "aten/src/ATen/native/cuda/Sort.cu", ".github/workflows/x.yml"], {"test/test_user.py"}),
        (["test/test_user.py", "torch/cuda/__init__.py"], None),
        (["test/expect/TestOwn.test_two.expect"], {"test/test_user.py"}),
        (["test/dynamo_expected_failures/TestOwn.test_two", "test/nn/middle.py"], {"test/nn/test_far.py"}),
    ],
)
def test_C9_changed_files(tree, changed, files):
    answer = select_changed(load_inventory(tree), changed)
    assert (set(answer.files) if answer.files is not None else None) == files
    if files is None:
        assert "everything is taken" in answer.notes[-1]


@pytest.mark.parametrize(
    ("payload", "names", "why"),
    [
        ([{"filename": "test/a.py", "status": "modified"}], ["test/a.py"], ""),
        ([[{"filename": "b.py", "previous_filename": "a.py"}], [{"filename": "c.py"}]], ["b.py", "a.py", "c.py"], ""),
        ({"files": ["a.py"]}, ["a.py"], ""),
        ({"client_payload": {"payload": {"files": [{"filename": "a.py"}]}}}, ["a.py"], ""),
        ({"pull_request": {"changed_files": 2}, "files": [{"filename": "a.py"}]}, None, "only 1 are listed"),
        ({"pull_request": {"changed_files": 2}}, None, "no list of files"),
        ({"commits": [{"added": ["a"], "removed": ["b"], "modified": ["a"]}]}, ["a", "b"], ""),
        ({"commits": [{"added": ["a"]}], "forced": True}, None, "forced push"),
        ([{"name": "x"}], None, "no file of a pull request"),
        (7, None, "no event of GitHub"),
        ({"commits": [1]}, None, "'1' is no commit"),
        ({"commits": [{"added": 5}]}, None, "'added' of a commit is '5'"),
        ({"commits": [{"removed": [5]}]}, None, "'removed' of a commit is '[5]'"),
        ({"commits": [{"modified": "test/x.py"}]}, None, "no list of files"),
        ({"commits": [{"added": None, "modified": ["a"]}]}, ["a"], ""),
        ([{"filename": "a", "previous_filename": 5}], None, "no file of a pull request"),
        ([{"filename": "a", "previous_filename": None}], ["a"], ""),
        ([{"filename": 5}], None, "no file of a pull request"),
        ([None], None, "no file of a pull request"),
        ([[["a"]]], None, "no file of a pull request"),
    ],
)
def test_C9_files_of_an_event(payload, names, why):
    found, said = changed_in_payload(payload)
    assert found == names
    assert why in said


@pytest.mark.parametrize("count", [30, 100, 3000])
def test_C9_a_full_page_may_not_be_all(count):
    rows = [{"filename": f"{n}.py"} for n in range(count)]
    for payload in (rows, {"files": rows}, [rows], [["a.py"] * 100, rows], [row["filename"] for row in rows]):
        found, said = changed_in_payload(payload)
        assert found is None and f"cannot be told whether {count} files are all" in said
    assert len(changed_in_payload(rows[1:])[0]) == count - 1
    assert len(changed_in_payload([rows, ["a.py"]])[0]) == count + 1
    assert len(changed_in_payload({"pull_request": {"changed_files": count}, "files": rows})[0]) == count


def test_C9_an_event_of_the_wrong_shape_takes_everything(conformance, tree, tmp_path):
    (tmp_path / "event.json").write_text('{"commits": [{"added": "test/test_user.py"}]}')
    (tmp_path / "all.yaml").write_text("name: all\ndevice: cpu\npolicy: {unclassified: include}\n")

    def planned(*options):
        done = conformance("plan", "--profile", tmp_path / "all.yaml", "--upstream", tree, "--json", *options)
        return done, json.loads(done.stdout)["tests"]

    done, tests = planned("--pr", tmp_path / "event.json")
    assert "everything is taken, because 'added' of a commit" in done.stderr
    assert (done.returncode, tests) == (0, planned()[1])
    assert len(tests) > 1
    # Where the profile's own files are not there, the reason stands before the refusal.
    done = conformance(
        "plan", "--profile", HERE / "cpu_profile", "--upstream", tree, "--pr", tmp_path / "event.json", "--json"
    )
    assert done.returncode == 3 and "everything is taken, because" in done.stderr


def test_C5_labels(tree):
    assert parse_labels(["generic,accelerator", "DEVICE_GENERIC"]) == {"GENERIC", "ACCELERATOR"}
    assert {"GENERIC", "ACCELERATOR", "CUDA"} <= set(torch_labels())
    with pytest.raises(ConformanceError, match="unknown hardware classification NPU"):
        parse_labels(["npu"])


def test_not_a_checkout(tmp_path):
    with pytest.raises(ConformanceError, match="no folder 'test'"):
        load_inventory(tmp_path)


@pytest.fixture(scope="module")
def real_tree():
    """The fetched tree; the first time that takes minutes."""
    fetch = subprocess.run([sys.executable, "-m", "conformance", "fetch", "--json"], capture_output=True, text=True)
    assert fetch.returncode == 0, fetch.stderr
    return json.loads(fetch.stdout)


@pytest.fixture(scope="module")
def real_inventory(real_tree):
    return load_inventory(Path(real_tree["path"]), use_cache=False)


@pytest.mark.timeout(900)
def test_C3_figures_of_the_real_tree(real_tree, real_inventory):
    summary = real_inventory.summary()
    if real_tree["version"] == "2.6.0":
        assert (summary["files"], summary["classes"], summary["tests"]) == (855, 1883, 23788)
        assert summary["labels"] == {"unclassified": 1883}
    else:
        assert summary["files"] > 800 and summary["classes"] == sum(summary["labels"].values())


@pytest.mark.timeout(900)
def test_C7_inference_agrees_with_labels_given_by_hand(real_tree, real_inventory):
    sample = read_document(HERE / "hand_labels.yaml").value
    if real_tree["version"] != sample["version"]:
        pytest.skip(f"the labels are those of {sample['version']}, the tree is {real_tree['version']}")
    wrong = []
    for item in sample["classes"]:
        path, _, name = item["class"].partition("::")
        row = real_inventory.files[path]
        guess = infer(row, next(cls for cls in row.classes if cls.name == name), real_inventory)
        assert guess.evidence
        if guess.label != item["label"]:
            wrong.append((item["class"], item["label"], guess))
    assert len(sample["classes"]) == 60
    assert len(wrong) <= 0.05 * 60, wrong
