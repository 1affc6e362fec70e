"""Names that pytest's command line could not carry, and tests that are seldom right."""

import os
import tempfile
import unittest
from pathlib import Path


class TestNames(unittest.TestCase):
    pass


def _make(number):
    def test(self):
        self.assertEqual(number >= 0, True)

    return test


for number, name in enumerate(
    ["test_with.dot", "test_with space", "test_ünïcode_✓", "test_a::b", "test_[brackets]", "test_at@sign", "test_%2F"]
):
    setattr(TestNames, name, _make(number))


class TestFlaky(unittest.TestCase):
    def test_passes_the_second_time(self):
        mark = Path(os.environ.get("HOSTILE_MARK", tempfile.gettempdir())) / "flaky.mark"
        if not mark.exists():
            mark.write_text("seen")
            self.fail("first time")

    def test_always_fails(self):
        self.fail("every time")


class TestOuter:
    class TestInner(unittest.TestCase):
        def test_nested(self):
            pass


def test_function():
    pass
