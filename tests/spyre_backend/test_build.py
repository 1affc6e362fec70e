"""Building and loading: one clear sentence when something is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spyre_backend import build

ROOT = Path(__file__).resolve().parents[2]


def command(arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_the_binary_is_named_after_torch_and_python():
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert build.binary_for("2.13.0+cpu").name == f"_C.torch-2.13.{tag}.so"
    assert build.binary_for(torch.__version__).exists()


def test_a_missing_compiler_is_one_sentence():
    process = command(["-m", "spyre_backend.build"], CXX="no-such-compiler")
    assert process.returncode == 1
    assert process.stderr.strip() == (
        "error: CXX=no-such-compiler: there is no such program; unset CXX or install that compiler"
    )


def test_no_compiler_at_all_and_no_ninja(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler found"):
        build.find_compiler()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(build.BuildError, match="pip install ninja"):
        build.find_ninja()


def test_without_torch_the_build_says_so(monkeypatch):
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(build.BuildError, match="torch is not installed"):
        build.build()


@pytest.mark.parametrize(
    ("others", "reason"),
    [([], "it has not been compiled"), (["_C.torch-2.99.cp311.so"], "there is only _C.torch-2.99.cp311.so")],
)
def test_a_missing_or_foreign_binary_says_what_to_run(tmp_path, others, reason):
    package = tmp_path / "spyre_backend"
    shutil.copytree(ROOT / "spyre_backend", package, ignore=shutil.ignore_patterns("*.so", "csrc", "__pycache__"))
    for name in others:
        (package / name).touch()
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import spyre_backend; spyre_backend.load()"
    process = command(["-c", script], TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert process.returncode == 1
    last = process.stderr.strip().splitlines()[-1]
    assert reason in last
    assert f"run `{sys.executable} -m spyre_backend.build`" in last


def test_another_backend_in_the_place_is_named():
    script = (
        "import torch; torch.utils.rename_privateuse1_backend('other')\n"
        "import spyre_backend\n"
        "try:\n    spyre_backend.load()\n"
        "except RuntimeError as error:\n    assert \"'other' is loaded already\" in str(error)\n"
        "else:\n    raise SystemExit(3)"
    )
    process = command(["-c", script], TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert process.returncode == 0, process.stderr
