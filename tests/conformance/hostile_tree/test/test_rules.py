"""What a registry says about tests."""

import os
import time
import unittest


class TestRules(unittest.TestCase):
    def test_quarantined(self):
        os.abort()

    def test_xfail(self):
        raise NotImplementedError("no such operator")

    def test_other_failure(self):
        raise ValueError("something new")

    def test_xpass(self):
        pass

    def test_skips_itself(self):
        raise unittest.SkipTest("not today")

    def test_skipped(self):
        self.fail("must not run")

    def test_slow(self):
        time.sleep(6)

    @unittest.expectedFailure
    def test_upstream_expects_failure(self):
        self.fail("known upstream")

    @unittest.expectedFailure
    def test_upstream_expects_failure_but_passes(self):
        pass

    def test_subtests(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)


class TestBrokenClass(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise OSError("no such device")

    def test_one(self):
        pass

    def test_two(self):
        pass
