"""Output without end."""

import sys
import unittest


class TestOutput(unittest.TestCase):
    def test_endless_output(self):
        while True:
            sys.stdout.write("x" * 65_536)

    def test_z_after(self):
        pass
