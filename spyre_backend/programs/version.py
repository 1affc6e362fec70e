"""What an artifact depends on besides its content."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import torch

PACKAGE = Path(__file__).resolve().parent.parent


def torch_version() -> str:
    """PyTorch's version: operators and dtypes may mean something else in another one."""
    return str(torch.__version__)


@functools.cache
def compiler_version() -> str:
    """A hash of all that turns a graph into an artifact: a changed compiler finds nothing of an old one."""
    digest = hashlib.sha256()
    for folder in ("programs", "compiler"):
        for file in sorted((PACKAGE / folder).rglob("*.py")):
            digest.update(file.relative_to(PACKAGE).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
