"""Shared by the conformance tests: the command as a process, trees of our own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HOSTILE = HERE / "hostile_tree"
LABELS = HERE / "labels_tree"
CPU_PROFILE = HERE / "cpu_profile"

# Trees that are run by conformance; pytest itself would not survive collecting them.
collect_ignore = ["hostile_tree", "labels_tree", "pocket_device"]


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    """A cache of this session only, so that no earlier run can help or hurt."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def conformance(cache_dir):
    """Runs ``conformance …`` and returns the finished process; ``start=True`` returns the running one."""

    def call(*arguments, start=False, cwd=None, **environment):
        base = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
        env = {**base, "CONFORMANCE_CACHE_DIR": str(cache_dir), "PYTHONPATH": str(HERE.parents[1]), **environment}
        command = [sys.executable, "-m", "conformance", *map(str, arguments)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env=env, cwd=cwd, start_new_session=True, **streams)
        if start:
            return process
        out, err = process.communicate(timeout=280)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return call


def read_results(output):
    """Lines of a run's ``results.jsonl`` and its summary."""
    lines = [json.loads(line) for line in (Path(output) / "results.jsonl").read_text().splitlines()]
    return lines, json.loads((Path(output) / "summary.json").read_text())


@pytest.fixture(scope="session")
def results():
    return read_results
