"""``make`` sets up what is missing, once, and says in one sentence what it cannot get itself."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "setup.py"


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("setup_tool", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--venv", str(tmp_path / "venv"), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_a_step_runs_once_for_the_same_inputs_and_again_for_others(tool, tmp_path):
    setup = tool.Setup(tmp_path, "1", sys.executable)
    ran = []
    for key in ("a", "a", "b"):
        setup.step("thing", key, lambda key=key: ran.append(key))
    assert ran == ["a", "b"]


def test_a_step_that_failed_runs_again(tool, tmp_path):
    setup = tool.Setup(tmp_path, "1", sys.executable)

    def fail():
        raise tool.SetupError("no")

    with pytest.raises(tool.SetupError):
        setup.step("thing", "a", fail)
    ran = []
    setup.step("thing", "a", lambda: ran.append(1))
    assert ran == [1]


def test_a_missing_compiler_is_one_sentence(tmp_path):
    done = call(tmp_path, CXX="no-such-compiler")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "No C++ compiler `no-such-compiler`" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_no_disk_space_is_one_sentence(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool.shutil, "disk_usage", lambda _: SimpleNamespace(free=2e9))
    with pytest.raises(tool.SetupError, match=r"Not enough disk space for torch 2\.14\.1: 2\.0 GB free"):
        tool.check_machine(tmp_path / "venv", "2.14.1")


def test_an_unsupported_python_is_one_sentence(tmp_path):
    old = tmp_path / "python-old"
    old.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 8, 1); exec(sys.argv[1])" "$2"\n'
    )
    old.chmod(0o755)
    done = subprocess.run(["make", "-s", "setup", f"PYTHON={old}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "Python 3.10 or newer is needed, this is 3.8" in done.stderr


def test_a_failing_command_shows_its_output(tool, capsys):
    with pytest.raises(tool.SetupError, match=r"Thing failed \(exit 3\)"):
        tool.run([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], "Thing")
    assert "the reason" in capsys.readouterr().err


def test_every_target_of_the_guide_exists():
    known = (ROOT / "Makefile").read_text()
    for name in ("demo", "test", "lint", "format", "bench"):
        assert f"\n{name}:" in known
