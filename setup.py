"""Packaging: pyproject.toml declares it; here the C++ extension is compiled where torch can be imported."""

import importlib.util
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def load_build():
    """``spyre_backend/build.py`` as a module, without importing the package (which is not installed yet)."""
    spec = importlib.util.spec_from_file_location("spyre_backend_build", ROOT / "spyre_backend" / "build.py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and annotations look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class BuildWithExtension(build_py):
    """Compiles the extension next to its package first, so that wheels and editable installs both find it.

    Without torch (a relay or HUD host, or an isolated build) the install goes on without the extension, and
    ``python -m spyre_backend.build`` compiles it later. With torch present a failure to compile fails the install.
    """

    def run(self):
        """Compiles, then copies the package as usual."""
        if importlib.util.find_spec("torch") is None:
            print("spyre_backend: torch can't be imported here, so the extension is not compiled", file=sys.stderr)
        else:
            build = load_build()
            try:
                build.build()
            except build.BuildError as error:
                raise SystemExit(f"spyre_backend: {error}") from None
        super().run()


setup(cmdclass={"build_py": BuildWithExtension})
