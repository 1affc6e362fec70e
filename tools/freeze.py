"""Write ``constraints.txt``: the versions that this virtual environment has of everything but torch and its wheels.

torch is chosen by ``make TORCH=…`` and brings its own accelerator libraries, so neither is pinned here.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

_OF_TORCH = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
_OURS_OR_PIP = {"spyre-conformance", "pip", "setuptools", "wheel"}


def main() -> None:
    """Rewrite the file in the root of the checkout."""
    pins = {
        re.sub(r"[-_.]+", "-", found.name).lower(): found.version for found in metadata.distributions() if found.name
    }
    lines = [
        f"{name}=={version}"
        for name, version in sorted(pins.items())
        if not _OF_TORCH.fullmatch(name) and name not in _OURS_OR_PIP
    ]
    header = "# Made by tools/freeze.py: what development and CI install. pyproject.toml has the lower bounds.\n"
    (Path(__file__).parent.parent / "constraints.txt").write_text(header + "\n".join(lines) + "\n")
    print(f"constraints.txt: {len(lines)} versions")


if __name__ == "__main__":
    main()
