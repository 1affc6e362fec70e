"""Looks at the backend in a process of its own, before any test (C20)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.profile import Profile

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_MARK = "conformance-probe:"
_SCRIPT = """
import importlib, json, sys
sys.path[:] = [p for p in sys.path if p] + [sys.argv[1]]
module, device, custom = sys.argv[2], sys.argv[3], sys.argv[4] == "1"
import torch
if module:
    importlib.import_module(module)
name = torch._C._get_privateuse1_backend_name()
problem = ""
count = 1
if custom:
    if name != device:
        problem = f"the PrivateUse1 backend is named {name!r}, the profile's device is {device!r}"
    elif not hasattr(torch, device):
        problem = f"torch.{device} does not exist; the backend must call torch._register_device_module"
    else:
        backend = getattr(torch, device)
        missing = [n for n in ("is_available", "device_count", "current_device") if not hasattr(backend, n)]
        if missing:
            problem = f"torch.{device} has no {', '.join(missing)}"
        else:
            count = backend.device_count()
            if not backend.is_available() or count < 1:
                problem = f"torch.{device} has no device ({count} found)"
if not problem:
    value = torch.ones(2, device=device).cpu()
    if value.tolist() != [1.0, 1.0]:
        problem = f"torch.ones(2, device={device!r}).cpu() gave {value.tolist()}"
print("conformance-probe:" + json.dumps({"torch": torch.__version__, "devices": count, "problem": problem}))
"""


@dataclass(frozen=True, slots=True)
class Backend:
    """What the probe found: torch's version and the number of devices."""

    torch: str
    devices: int


class Probe:
    """A probe that runs beside other preparations."""

    def __init__(self, profile: Profile) -> None:
        """Starts it."""
        self._profile = profile
        self._process = subprocess.Popen(
            [
                sys.executable, "-c", _SCRIPT, str(_PACKAGE_ROOT), profile.module, profile.device,
                "1" if profile.custom else "0",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **profile.environment, "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip

    def close(self) -> None:
        """Ends a probe that nobody waits for any more."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def result(self) -> Backend:
        """Waits for the answer.

        Raises:
            ConformanceError: torch or the backend cannot be imported, breaks its contract or has no device.
        """
        profile = self._profile
        try:
            out, err = self._process.communicate(timeout=profile.policy.import_timeout)
        except subprocess.TimeoutExpired:
            self.close()
            raise ConformanceError(
                f"profile {profile.name}: importing the backend took longer than {profile.policy.import_timeout:g} s"
            ) from None
        line = next((text for text in out.splitlines() if text.startswith(_MARK)), "")
        if not line:
            last = [text for text in err.splitlines() if text.strip()][-3:]
            what = f"module {profile.module}" if profile.module else f"device {profile.device}"
            raise ConformanceError(
                f"profile {profile.name}: {what} does not work (exit status {self._process.returncode}):\n  "
                + "\n  ".join(last or ["no output"])
            )
        answer = json.loads(line.removeprefix(_MARK))
        if answer["problem"]:
            raise ConformanceError(f"profile {profile.name}: {answer['problem']}")
        return Backend(answer["torch"], answer["devices"])
