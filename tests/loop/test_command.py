"""The demo's command line where it cannot work."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder with the demo in it and nothing built."""
    shutil.copytree(ROOT / "demo", tmp_path / "demo")
    return tmp_path


def play(checkout: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "demo"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout), "DEMO_ONCE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_second_demo_is_refused(checkout):
    checkout.joinpath("build").mkdir()
    with checkout.joinpath("build", "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = play(checkout)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "another demo is running" in done.stderr


@pytest.mark.parametrize("obstacle", ["build is a file", "the lock is a folder"])
def test_a_build_folder_that_cannot_be_used_is_one_sentence(checkout, obstacle):
    if obstacle == "build is a file":
        checkout.joinpath("build").write_text("")
    else:
        checkout.joinpath("build", "demo.lock").mkdir(parents=True)
    done = play(checkout)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert str(checkout / "build") in done.stderr
