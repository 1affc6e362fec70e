"""C1 and C2: names."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.ids import TestId, normalise, parse

PART = st.text(alphabet=string.printable + "ü✓:[]@%", max_size=12)
NAME = st.text(alphabet=string.ascii_letters + string.digits + "._ []@%:ü✓", min_size=1, max_size=12)


@given(
    cls=st.one_of(st.just(""), NAME), test=NAME, op=PART, dtype=PART, other=PART, device=st.sampled_from(["", "cpu"])
)
def test_C1_every_name_comes_back(cls, test, op, dtype, other, device):
    name = TestId("test/test_x.py", cls, test, op, dtype, other, device)
    assert parse(str(name)) == name


def test_C1_form():
    full = TestId("test/test_ops.py", "TestCommon", "test_out", "add", "float32", "x_1", "spyre")
    assert str(full) == "test/test_ops.py::TestCommon::test_out[add][float32][x_1]@spyre"
    assert str(TestId("f.py", "C", "t", dtype="int8", device="cpu")) == "f.py::C::t[][int8]@cpu"
    assert str(TestId("f.py", "C", "t")) == "f.py::C::t"
    assert str(TestId("f.py")) == "f.py"
    assert full.generic == "test/test_ops.py::TestCommon::test_out"


@pytest.mark.parametrize("text", ["", "a::b::c::d", "[x]", "a@b@c"])
def test_C1_what_is_no_id(text):
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("test_x.py::TestC::test_a", "test_x.py::TestC::test_a"),
        ("test_a (__main__.TestC)", "::TestC::test_a"),
        ("test_a (__main__.TestC.test_a)", "::TestC::test_a"),
        ("test_a (nn.test_pooling.TestC)", "nn/test_pooling.py::TestC::test_a"),
        ("test.nn.test_pooling.TestC.test_a", "test/nn/test_pooling.py::TestC::test_a"),
        ("TestC.test_a", "::TestC::test_a"),
        ("test/test_x.py", "test/test_x.py"),
    ],
)
def test_C2_spellings(text, expected):
    assert normalise(text) == expected
