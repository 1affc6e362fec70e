"""Rows of the wheel suite, which is part of this package."""

from __future__ import annotations

from pathlib import Path

from conformance.inventory.model import FileRow
from conformance.inventory.scan import scan_file

SUITE = Path(__file__).resolve().parents[1] / "suite"


def wheel_rows() -> dict[str, FileRow]:
    """Static rows of the wheel suite."""
    rows = {}
    for path in sorted(SUITE.glob("*.py")):
        if path.name in ("__init__.py", "support.py"):
            continue
        row = scan_file(SUITE, path.name, path.stat().st_size, path.stat().st_mtime_ns)
        row.path = f"wheel/{path.name}"
        rows[row.path] = row
    return rows
