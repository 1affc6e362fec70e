"""Hangs in every phase."""

import subprocess
import sys
import time
import unittest


class TestHangInCall(unittest.TestCase):
    def test_hang(self):
        # A child in the same group must die with it.
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        time.sleep(600)

    def test_z_after(self):
        pass


class TestHangInSetup(unittest.TestCase):
    def setUp(self):
        time.sleep(600)

    def test_setup(self):
        pass


class TestHangInTeardown(unittest.TestCase):
    def tearDown(self):
        time.sleep(600)

    def test_teardown(self):
        pass
