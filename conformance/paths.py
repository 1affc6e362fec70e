"""Where things are kept."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_root() -> Path:
    """Where everything that can be made again is kept (``CONFORMANCE_CACHE_DIR`` moves it)."""
    return Path(os.environ.get("CONFORMANCE_CACHE_DIR") or platformdirs.user_cache_dir("spyre-conformance"))
