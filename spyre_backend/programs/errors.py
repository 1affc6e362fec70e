"""What can be wrong with an artifact or with the making of one."""

from __future__ import annotations

from pathlib import Path


class ArtifactError(RuntimeError):
    """A directory is no usable artifact: damaged, incomplete, or made for something else.

    Attributes:
        directory: the artifact.
        reason: what is wrong.
        field: where in ``manifest.json`` the fault is, as in ``arguments[2].dtype``; empty when it is elsewhere.
    """

    def __init__(self, directory: Path, reason: str, field: str = "") -> None:
        self.directory = directory
        self.reason = reason
        self.field = field
        super().__init__(f"{directory}: manifest.json: {field}: {reason}" if field else f"{directory}: {reason}")


class BuildError(RuntimeError):
    """Something that a program can't express; the message says what."""
