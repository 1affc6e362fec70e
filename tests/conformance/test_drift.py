"""C31: what changed between two checkouts, and which rules it breaks."""

import json

import pytest

OLD = """
from torch.testing._internal.common_utils import TestCase, HardwareClassification
class TestKept(TestCase):
    def test_same(self): pass
    def test_indexing_with_negative_steps(self): pass
    def test_goes(self): pass
class TestBig(TestCase):
    def test_a(self): pass
    def test_b(self, device): pass
    def test_c(self, device): pass
class TestOldName(TestCase):
    def test_one(self): pass
    def test_two(self): pass
class TestGone(TestCase):
    def test_gone(self): pass
"""
NEW = """
from torch.testing._internal.common_utils import TestCase, HardwareClassification
class TestKept(TestCase):
    hw_classification = HardwareClassification.GENERIC
    def test_same(self): pass
    def test_indexing_with_negative_strides(self): pass
    def test_comes(self): pass
class TestBig(TestCase):
    hw_classification = HardwareClassification.GENERIC
    def test_a(self): pass
class TestBigDevice(TestCase):
    hw_classification = HardwareClassification.ACCELERATOR
    def test_b(self, device): pass
    def test_c(self, device): pass
class TestNewName(TestCase):
    def test_one(self): pass
    def test_two(self): pass
"""
REGISTRY = """version: 1
rules:
  - {id: renamed-test, class: TestKept, test: test_indexing_with_negative_steps, action: skip, reason: slow}
  - {id: moved-by-split, class: TestBig, test: [test_b, test_c], action: skip, reason: slow}
  - {id: renamed-class, file: test_x.py, class: TestOldName, action: skip, reason: slow}
  - {id: moved-file, file: test_moves.py, class: TestMoves, action: skip, reason: slow}
  - {id: nothing-left, test: test_gone, action: skip, reason: slow}
  - {id: unharmed, class: TestKept, test: test_same, action: skip, reason: slow}
  - {id: never-matched, test: test_unheard_of, action: skip, reason: slow}
"""
MOVES = "class TestMoves:\n    def test_m(self): pass\n"


@pytest.fixture
def trees(tmp_path):
    for name, text in (("old", OLD), ("new", NEW)):
        (tmp_path / name / "test" / "nn").mkdir(parents=True)
        (tmp_path / name / "test" / "test_x.py").write_text(text)
    (tmp_path / "old" / "test" / "test_moves.py").write_text(MOVES)
    (tmp_path / "new" / "test" / "nn" / "test_moves.py").write_text(MOVES)
    (tmp_path / "new" / "test" / "test_broken.py").write_text("def (:\n")
    (tmp_path / "profile.yaml").write_text("name: mine\ndevice: mine\nregistry: registry.yaml\n")
    (tmp_path / "registry.yaml").write_text(REGISTRY)
    return tmp_path


@pytest.fixture
def answer(trees, conformance):
    done = conformance("drift", trees / "old", trees / "new", "--profile", trees, "--json")
    assert done.returncode == 2, done.stderr
    return json.loads(done.stdout)


def test_C31_tests_and_classes(answer):
    assert answer["files_added"] == ["test/nn/test_moves.py", "test/test_broken.py"]
    assert answer["files_removed"] == ["test/test_moves.py"]
    assert answer["classes_renamed"] == {
        "test/test_x.py::TestOldName": "test/test_x.py::TestNewName",
        "test/test_moves.py::TestMoves": "test/nn/test_moves.py::TestMoves",
    }
    assert answer["classes_split"] == {
        "test/test_x.py::TestBig": ["test/test_x.py::TestBig", "test/test_x.py::TestBigDevice"]
    }
    assert answer["classes_removed"] == ["test/test_x.py::TestGone"]
    assert answer["classes_added"] == []
    kept = "test/test_x.py::TestKept::"
    assert answer["tests_renamed"] == {
        f"{kept}test_indexing_with_negative_steps": f"{kept}test_indexing_with_negative_strides"
    }
    assert answer["tests_removed"] == [f"{kept}test_goes"]
    assert answer["tests_added"] == [f"{kept}test_comes"]
    assert answer["relabelled"]["test/test_x.py::TestBigDevice"] == {"old": "unclassified", "new": "ACCELERATOR"}
    assert "line 1" in answer["unreadable"]["test/test_broken.py"]


def test_C31_broken_rules_come_with_a_rewrite(answer):
    broken = {item["rule"]: item["rewrite"] for item in answer["broken_rules"]}
    assert broken == {
        "renamed-test": {"test": ["test_indexing_with_negative_strides"]},
        "moved-by-split": {"class": ["TestBig", "TestBigDevice"]},
        "renamed-class": {"class": ["TestNewName"]},
        "moved-file": {"file": ["nn/test_moves.py"]},
        "nothing-left": {},
    }


def test_C31_a_tree_against_itself_drifts_nowhere(trees, conformance):
    done = conformance("drift", trees / "old", trees / "old", "--profile", trees)
    assert done.returncode == 0
    assert done.stdout == "0 rules break\n"


@pytest.fixture
def drifted(tmp_path, conformance):
    """Drift between two files with rules."""

    def call(old, new, *rules):
        for name, text in (("old", old), ("new", new)):
            (tmp_path / name / "test").mkdir(parents=True)
            (tmp_path / name / "test" / "test_x.py").write_text(text)
        (tmp_path / "profile.yaml").write_text("name: mine\ndevice: mine\nregistry: registry.yaml\n")
        text = "".join(f"  - {{{rule}, action: skip, reason: slow}}\n" for rule in rules)
        (tmp_path / "registry.yaml").write_text(f"version: 1\nrules:\n{text}")
        done = conformance("drift", tmp_path / "old", tmp_path / "new", "--profile", tmp_path, "--json")
        answer = json.loads(done.stdout)
        assert done.returncode == (2 if answer["broken_rules"] else 0)
        return answer

    return call


def classes(**tests):
    return "".join(
        f"class {name}:\n" + "".join(f"    def {test}(self): pass\n" for test in names.split())
        for name, names in tests.items()
    )


def test_C31_rules_that_lose_tests_to_a_split_or_by_a_pattern(drifted):
    answer = drifted(
        classes(TestA="test_one test_two test_three", TestB="test_old_x test_y", TestOwn="test_own"),
        classes(TestA="test_two test_three", TestNew="test_one", TestB="test_y", TestOwn="test_own"),
        "id: class, class: TestA",
        'id: glob, class: TestA, test: "test_o*"',
        'id: classes, class: "Test[AB]", test: "test_o*"',
        'id: nothing, test: "test_old_*"',
        'id: reaches, class: "Test*", test: "test_o*"',
        "id: file, file: test_x.py",
        "id: other, class: TestA, test: test_two",
        "id: op, op: add",
    )
    assert answer["classes_split"] == {"test/test_x.py::TestA": ["test/test_x.py::TestA", "test/test_x.py::TestNew"]}
    broken = {item["rule"]: (item["lost"], item["rewrite"]) for item in answer["broken_rules"]}
    moved = ["test_one of TestA, now in TestNew"]
    assert broken == {
        "class": (moved, {"class": ["TestA", "TestNew"]}),
        "glob": (moved, {"class": ["TestA", "TestNew"]}),
        "classes": (moved, {"class": ["Test[AB]", "TestNew"]}),
        "nothing": (["test: test_old_*"], {}),
    }


def test_C31_what_may_be_a_renaming_is_said_to_be_a_guess(drifted):
    answer = drifted(
        classes(TestA="test_add_int8 test_same", TestB="test_mul_large_float32", TestC="test_negative_steps test_c"),
        classes(TestA="test_add_int16 test_add_uint8 test_same", TestB="test_mul_large_float64",
                TestC="test_negative_strides test_c"),
        "id: two, class: TestA, test: test_add_int8",
        "id: dtype, test: test_mul_large_float32",
        "id: sure, test: test_negative_steps",
    )  # fmt: skip
    file = "test/test_x.py"
    assert answer["tests_renamed"] == {f"{file}::TestC::test_negative_steps": f"{file}::TestC::test_negative_strides"}
    assert answer["tests_perhaps_renamed"][f"{file}::TestA::test_add_int8"] == [
        f"{file}::TestA::test_add_uint8", f"{file}::TestA::test_add_int16",
    ]  # fmt: skip
    assert f"{file}::TestA::test_add_int8" in answer["tests_removed"]
    broken = {item["rule"]: (item["rewrite"], item["guesses"]) for item in answer["broken_rules"]}
    assert broken == {
        "two": ({}, ["test_add_uint8", "test_add_int16"]),
        "dtype": ({}, ["test_mul_large_float64"]),
        "sure": ({"test": ["test_negative_strides"]}, []),
    }
