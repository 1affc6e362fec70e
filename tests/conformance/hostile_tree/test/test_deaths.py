"""Each test ends its process in another way; the neighbours must pass."""

import ctypes
import os
import signal
import sys
import unittest


class TestDeaths(unittest.TestCase):
    def test_a_before(self):
        pass

    def test_abort(self):
        os.abort()

    def test_exit_zero(self):
        os._exit(0)

    def test_kill_itself(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def test_segfault(self):
        ctypes.string_at(0)

    def test_sys_exit(self):
        # pytest makes an ordinary failure of it.
        sys.exit(0)

    def test_z_after(self):
        pass
