"""Labels of ``hw_classification`` (C5)."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

from conformance.errors import ConformanceError

KNOWN = ("GENERIC", "ACCELERATOR", "CPU", "CUDA", "MPS", "XPU")
"""Members of ``HardwareClassification`` since torch 2.14; the installed torch may define more."""

ALIASES = {"DEVICE_GENERIC": "ACCELERATOR"}
"""Upstream's earlier names that trees between releases carry."""


def torch_labels() -> tuple[str, ...]:
    """Members that the installed torch defines (read from its source, not imported); ``KNOWN`` where it has none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return KNOWN
    source = Path(spec.origin).parent / "testing" / "_internal" / "common_utils.py"
    try:
        text = source.read_text(encoding="utf-8")
    except OSError:
        return KNOWN
    match = re.search(r"^class HardwareClassification\(Enum\):\n(?P<body>(?:[ \t]+.*\n|\n)+)", text, re.MULTILINE)
    found = re.findall(r"^    ([A-Z][A-Z0-9_]*) = ", match["body"], re.MULTILINE) if match else []
    return tuple(dict.fromkeys([*KNOWN, *found]))


def canonical(name: str) -> str:
    """Upper case, aliases resolved."""
    return ALIASES.get(name.upper(), name.upper())


def parse_labels(names: Iterable[str], known: Iterable[str] | None = None) -> frozenset[str]:
    """Labels that a person typed.

    Raises:
        ConformanceError: a label that neither the alias table nor the installed torch knows.
    """
    allowed = tuple(known) if known is not None else torch_labels()
    labels = frozenset(canonical(part) for name in names for part in name.replace(",", " ").split())
    unknown = sorted(labels - set(allowed))
    if unknown:
        raise ConformanceError(
            f"unknown hardware classification {', '.join(unknown)}; known: {', '.join(allowed)}"
            f" (aliases: {', '.join(f'{a} = {b}' for a, b in ALIASES.items())})"
        )
    return labels
