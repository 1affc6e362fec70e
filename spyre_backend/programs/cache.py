"""Artifacts on disk, by content: the same program is written once, by whichever process comes first."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from spyre_backend.programs.errors import ArtifactError
from spyre_backend.programs.manifest import FILE

DIRECTORY = "SPYRE_CACHE_DIR"


def default_root() -> Path:
    """``SPYRE_CACHE_DIR``, else ``spyre_backend`` in the user's cache folder (XDG base directory specification)."""
    if chosen := os.environ.get(DIRECTORY):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spyre_backend"


class ArtifactCache:
    """A folder of artifacts.

    An artifact's folder appears complete or not at all; processes that write the same one wait for each other. Keys are
    hashes of content, so nothing in it is ever out of date; what is damaged is made again.

    Args:
        root: the folder; made when it is first needed.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()

    def path(self, key: str) -> Path:
        """Where the artifact of a key is, or would be."""
        return self.root / key[:2] / key

    def store(self, manifest: str, files: Mapping[str, bytes]) -> Path:
        """Writes an artifact unless it is there.

        Args:
            manifest: the text of ``manifest.json``; it holds the hashes of the files, so it is the content.
            files: the other files, by name.

        Returns:
            Its folder.

        Raises:
            ArtifactError: it can't be written.
        """
        key = hashlib.sha256(manifest.encode()).hexdigest()
        final = self.path(key)
        if not _holds(final, manifest, files):
            try:
                with self.lock(key):
                    if not _holds(final, manifest, files):
                        self._write(final, manifest, files)
            except OSError as error:
                reason = f"can't be written ({error}): choose another cache with {DIRECTORY}"
                raise ArtifactError(final, reason) from error
        return final

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Holds a key: others that want to write it wait."""
        folder = self.path(key).parent
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{key}.lock"):
            yield

    def _write(self, final: Path, manifest: str, files: Mapping[str, bytes]) -> None:
        # Damaged, or left by a process that was killed while it wrote: nobody else has the lock.
        for remains in (final, *final.parent.glob(f"{final.name}.*.partial")):
            shutil.rmtree(remains, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{final.name}.", suffix=".partial", dir=final.parent))
        try:
            for name, data in files.items():
                (partial / name).write_bytes(data)
            (partial / FILE).write_text(manifest)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def _holds(directory: Path, manifest: str, files: Mapping[str, bytes]) -> bool:
    """Whether an artifact is there, whole."""
    try:
        return (directory / FILE).read_text() == manifest and all(
            (directory / name).read_bytes() == data for name, data in files.items()
        )
    except (OSError, UnicodeDecodeError):
        return False
