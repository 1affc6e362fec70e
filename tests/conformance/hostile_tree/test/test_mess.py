"""Tests that spoil their process without ending it."""

import os
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path


class TestMess(unittest.TestCase):
    def test_a_closes_all_descriptors(self):
        os.closerange(0, 256)

    def test_b_changes_directory_and_environment(self):
        os.chdir(tempfile.mkdtemp())
        os.environ.clear()
        sys.path.clear()

    def test_c_daemon_left_running(self):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

    def test_d_fork_runs_on(self):
        if os.fork() == 0:
            return  # The child goes on as if it were the worker.

    def test_e_writes_beside_itself(self):
        Path(__file__).with_name("written.txt").write_text("x")

    def test_f_passes(self):
        pass
