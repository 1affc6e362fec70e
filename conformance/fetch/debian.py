"""The Debian source package of PyTorch through the machine's own package sources.

The machine's sources are read, never changed: the stanza of its Debian archive is copied with ``deb-src`` and another
suite into a state folder of our own, and ``apt-get`` works with that folder only. Signatures are checked by the same
keyring.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.fetch.git import UnreachableError

SUITE = "trixie"
PACKAGE = "pytorch"
_SOURCES = Path("/etc/apt")


def _stanzas(folder: Path) -> list[dict[str, str]]:
    """Sources of the machine in deb822's terms, whichever of apt's two formats they are written in."""
    stanzas: list[dict[str, str]] = []
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        for block in re.split(r"\n\s*\n", path.read_text(errors="replace")):
            fields: dict[str, str] = {}
            last = ""
            for line in block.splitlines():
                if line.startswith("#"):
                    continue
                if line[:1] in " \t" and last:
                    fields[last] += "\n" + line
                elif ":" in line:
                    last, _, value = line.partition(":")
                    fields[last] = value.strip()
            if fields:
                stanzas.append(fields)
    lists = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    for path in lists:
        if not path.is_file():
            continue
        for line in path.read_text(errors="replace").splitlines():
            match = re.match(
                r"^\s*deb(?:-src)?\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<rest>.+)$", line
            )
            if match:
                options = dict(item.split("=", 1) for item in (match["options"] or "").split() if "=" in item)
                stanza = {"URIs": match["uri"], "Suites": match["suite"], "Components": match["rest"]}
                if "signed-by" in options:
                    stanza["Signed-By"] = options["signed-by"]
                stanzas.append(stanza)
    return stanzas


def archive_stanza(folder: Path = _SOURCES) -> str:
    """The deb822 text for sources of :data:`SUITE`.

    Args:
        folder: apt's configuration folder.

    Raises:
        UnreachableError: the machine has no Debian archive among its sources.
    """
    for fields in _stanzas(folder):
        if fields.get("Enabled", "yes").lower() in ("no", "false"):
            continue
        suites = fields.get("Suites", "").split()
        uris = [uri for uri in fields.get("URIs", "").split() if uri.rstrip("/").endswith("/debian")]
        # A suite with a dash is a security, updates or backports archive; "/" ends a flat repository.
        if not uris or not any("-" not in suite and not suite.endswith("/") for suite in suites):
            continue
        lines = ["Types: deb-src", f"URIs: {uris[0]}", f"Suites: {SUITE}", "Components: main"]
        if "Signed-By" in fields:
            lines.append(f"Signed-By: {fields['Signed-By']}")
        return "\n".join(lines) + "\n"
    raise UnreachableError(f"the package sources in {folder} name no Debian archive")


def _apt(work: Path, *arguments: str) -> None:
    options = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": work / "parts",
        "Dir::State": work / "state",
        "Dir::State::Lists": work / "state" / "lists",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": work / "cache",
        "Acquire::Retries": "2",
        # Stay one user; the sandbox user cannot write into a folder of ours.
        "APT::Sandbox::User": "root" if os.getuid() == 0 else "",
    }
    command = ["apt-get", "-q", "-y", *(part for key, value in options.items() for part in ("-o", f"{key}={value}"))]
    try:
        done = subprocess.run(
            [*command, *arguments], cwd=work / "download", capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
    except FileNotFoundError:
        raise UnreachableError("apt-get is not installed") from None
    failed = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("E:", "Err:", "W: Failed"))]
    if done.returncode or (arguments[0] == "update" and failed):
        raise UnreachableError(f"apt-get {arguments[0]}: {failed[0] if failed else f'exit status {done.returncode}'}")


def bring(folder: Path, say: Callable[[str], None]) -> tuple[str, str]:
    """Downloads and unpacks the source package into an empty folder.

    Returns:
        Version and source.

    Raises:
        UnreachableError: no apt, no Debian archive, no answer.
        ConformanceError: what came is not one tar archive.
    """
    stanza = archive_stanza()
    if shutil.which("apt-get") is None:
        raise UnreachableError("apt-get is not installed")
    with tempfile.TemporaryDirectory(prefix=".debian-", dir=folder.parent) as temporary:
        work = Path(temporary)
        for name in ("parts", "state/lists/partial", "cache/archives/partial", "download"):
            (work / name).mkdir(parents=True)
        (work / "parts" / "debian.sources").write_text(stanza)
        say(f"apt: reading the list of source packages of {SUITE}")
        _apt(work, "update")
        say(f"apt: downloading the source package {PACKAGE} (about 27 MB)")
        _apt(work, "--download-only", "source", f"{PACKAGE}/{SUITE}")
        archives = sorted((work / "download").glob(f"{PACKAGE}_*.orig.tar.*"))
        archives = [path for path in archives if path.suffix != ".asc"]
        if len(archives) != 1:
            raise ConformanceError(f"apt brought {len(archives)} source archives of {PACKAGE}, expected one")
        version = archives[0].name.removeprefix(f"{PACKAGE}_").partition(".orig.")[0]
        say(f"unpacking {archives[0].name}")
        _unpack(archives[0], folder)
    return version.partition("+")[0], f"Debian source package {PACKAGE} {version}"


def _unpack(archive: Path, folder: Path) -> None:
    """Unpacks without the archive's single top folder."""
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder.parent) as temporary:
        inside = Path(temporary)
        try:
            with tarfile.open(archive) as tar:
                if hasattr(tarfile, "data_filter"):
                    tar.extractall(inside, filter=_relative_links)
                else:
                    raise ConformanceError(
                        "this Python's tarfile cannot unpack safely; a patch release that can is needed"
                    )
        except (tarfile.TarError, EOFError) as error:
            raise ConformanceError(f"{archive.name} cannot be unpacked: {error}") from error
        tops = list(inside.iterdir())
        source = tops[0] if len(tops) == 1 and tops[0].is_dir() else inside
        for entry in source.iterdir():
            entry.rename(folder / entry.name)


def _relative_links(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """Leaves out links that point outside of the tree, takes everything else as ``data_filter`` does."""
    try:
        return tarfile.data_filter(member, path)
    except (tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError):
        return None
