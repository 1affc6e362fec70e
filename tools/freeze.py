"""Write ``constraints.txt``: the versions that this virtual environment has of everything but torch and its wheels.

torch is chosen by ``make TORCH=…`` and brings its own accelerator libraries, so neither is pinned here.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

_OF_TORCH = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
_OLDEST_MINOR = 10
_OURS_OR_PIP = {"spyre-conformance", "pip", "setuptools", "wheel"}


def pin(found: metadata.Distribution) -> str:
    """One line; a version that has left an interpreter behind which we still support binds only the newer ones."""
    name = re.sub(r"[-_.]+", "-", found.name).lower()
    minor = re.search(r">=\s*3\.(\d+)", str(found.metadata.json.get("requires_python", "")))
    marker = f'; python_version >= "3.{minor[1]}"' if minor and int(minor[1]) > _OLDEST_MINOR else ""
    return f"{name}=={found.version}{marker}"


def main() -> None:
    """Rewrite the file in the root of the checkout."""
    lines = sorted(
        {
            pin(found)
            for found in metadata.distributions()
            if not _OF_TORCH.fullmatch(found.name) and found.name.lower() not in _OURS_OR_PIP
        }
    )
    header = "# Made by tools/freeze.py: what development and CI install. pyproject.toml has the lower bounds.\n"
    (Path(__file__).parent.parent / "constraints.txt").write_text(header + "\n".join(lines) + "\n")
    print(f"constraints.txt: {len(lines)} versions")


if __name__ == "__main__":
    main()
