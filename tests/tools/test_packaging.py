"""What is installed: everything that a part needs at run time, and nothing of torch where there is no need of it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("spyre_backend", "conformance", "relay", "hud")


@pytest.mark.timeout(900)  # compiles the extension where nobody has yet
def test_a_wheel_holds_every_file_of_the_packages(tmp_path):
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True)
    assert set(listed.stdout.split()) - inside == set()
    assert any(name.startswith("spyre_backend/_C.") for name in inside), "the extension is missing"
    assert not any(name.startswith(("tests/", "demo/", "tools/")) for name in inside)


@pytest.mark.parametrize("module", ["relay.cli", "relay.app.api", "relay.emulator.cli", "hud.cli", "hud.app.factory"])
def test_a_service_needs_no_torch(module):
    script = f"import sys; sys.modules['torch'] = None; import {module}; assert sys.modules['torch'] is None"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
