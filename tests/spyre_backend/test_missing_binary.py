"""An installation without the binary: silent where it was never meant to be a backend, a sentence where it was."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def installed(tmp_path) -> Path:
    """A folder on the path with the package as a wheel that was built without torch brings it."""
    shutil.copytree(ROOT / "spyre_backend", tmp_path / "spyre_backend", ignore=shutil.ignore_patterns("*.so", "csrc"))
    return tmp_path


def call(folder: Path, function: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", f"import torch, spyre_backend; spyre_backend.{function}()"],
        env={**os.environ, "PYTHONPATH": str(folder), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_torch_is_left_alone_by_an_installation_for_another_backend(installed):
    done = call(installed, "_autoload")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_loading_it_by_hand_says_what_to_run(installed):
    done = call(installed, "load")
    assert done.returncode != 0
    assert "it has not been compiled" in done.stderr and "-m spyre_backend.build" in done.stderr


@pytest.mark.parametrize("kind", ["checkout", "another torch"])
def test_autoload_says_what_to_run_where_the_backend_is_wanted(installed, kind):
    if kind == "checkout":
        (installed / "pyproject.toml").write_text("")
        reason = "it has not been compiled"
    else:
        (installed / "spyre_backend" / "_C.torch-1.99.cp311.so").write_bytes(b"")
        reason = "there is only _C.torch-1.99.cp311.so"
    done = call(installed, "_autoload")
    assert done.returncode != 0
    assert reason in done.stderr and "-m spyre_backend.build" in done.stderr
