"""What conditions of rules are compared with."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import TypedDict


class Facts(TypedDict):
    """Arguments of :meth:`Rule.applies`."""

    torch: str
    upstream: str
    platform: str
    devices: int
    today: date
    profile: str
    environment: Mapping[str, str]


def installed_torch() -> str:
    """Version and commit of the torch that workers will import, without the seconds that importing it takes."""
    try:
        found = importlib.util.find_spec("torch")
        text = Path(found.origin or "").with_name("version.py").read_text(encoding="utf-8") if found else ""
    except (OSError, ValueError):
        return ""
    return " ".join(re.findall(r"""^(?:__version__|git_version)\b[^=]*=\s*["']([^"']*)""", text, re.MULTILINE))


def rule_facts(
    upstream: str,
    torch: str | None = None,
    devices: int = 1,
    *,
    profile: str = "",
    environment: Mapping[str, str] | None = None,
) -> Facts:
    """Facts of this machine and day.

    Args:
        upstream: version of the checkout as the inventory gives it, ``""`` or ``unknown`` without one.
        torch: version; ``None``: of the torch that is installed.
        devices: how many the backend has.
        profile: its name.
        environment: what the profile adds to this process's environment for its workers.
    """
    version = upstream.split("+")[0]
    return {
        "torch": installed_torch().partition(" ")[0] if torch is None else torch,
        "upstream": "" if version == "unknown" else version,
        "platform": sys.platform,
        "devices": devices,
        "today": date.today(),
        "profile": profile,
        "environment": {**os.environ, **(environment or {})},
    }
