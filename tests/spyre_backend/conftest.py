"""Helpers of the backend's tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def run_python():
    """Runs a script in a fresh interpreter that loads the backend by itself; returns the finished process."""

    def run(script: str, *, check: bool = True, **environment: str) -> subprocess.CompletedProcess:
        process = subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", "-c", script],
            env={**os.environ, **environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
        )
        if check:
            assert process.returncode == 0, f"exit {process.returncode}\n{process.stdout}\n{process.stderr}"
        return process

    return run


@pytest.fixture(scope="session")
def artifact_cache(tmp_path_factory):
    """A folder for the artifacts that tests make without naming a cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("artifacts")
        patch.setenv("SPYRE_CACHE_DIR", str(folder))
        yield folder
