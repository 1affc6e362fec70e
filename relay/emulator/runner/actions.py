"""The remote actions that jobs can use here. Each does what its documentation promises, with the inputs listed.

| Action | Emulated inputs | Here |
|---|---|---|
| ``actions/checkout`` | repository, ref, path, fetch-depth, … | clones from this server over HTTP |
| ``actions/setup-python`` | python-version, cache | puts the runner's configured Python in front of ``PATH`` |
| ``actions/download-artifact`` | name, path | copies an artifact of the same run |
| ``actions/upload-artifact`` | name, path, if-no-files-found, overwrite, … | stores the files with the run |

Every version of an action (``@v4``, ``@<sha>``) is the same here. Another action, or another input, is an error when
the workflow is loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from relay.emulator.runner.globs import find_files

EMULATED_INPUTS: dict[str, frozenset[str]] = {
    "actions/checkout": frozenset(
        {"repository", "ref", "path", "fetch-depth", "persist-credentials", "token", "clean"}
    ),
    "actions/download-artifact": frozenset({"name", "path"}),
    "actions/setup-python": frozenset({"python-version", "cache", "cache-dependency-path", "check-latest"}),
    "actions/upload-artifact": frozenset(
        {
            "name", "path", "if-no-files-found", "retention-days", "compression-level", "overwrite",
            "include-hidden-files",
        }
    ),
}  # fmt: skip
"""By action, the inputs that this emulation knows."""


class ActionError(Exception):
    """The action fails, and its step with it; the text goes to the log."""


class Host(Protocol):
    """What an action may use of the job that runs it."""

    github: dict[str, Any]
    workspace: Path
    python: Path

    async def command(self, arguments: list[str], directory: Path) -> int:
        """Run a process whose output goes to the log; its exit status."""

    async def capture(self, arguments: list[str], directory: Path) -> str:
        """Run a process and give back what it wrote."""

    def log(self, text: str) -> None:
        """Write to the job's log."""

    def add_path(self, directory: Path) -> None:
        """Put a directory in front of ``PATH`` for the following steps."""

    def set_env(self, name: str, value: str) -> None:
        """Set a variable for the following steps."""

    async def store_artifact(self, name: str, files: Mapping[str, Path], overwrite: bool) -> tuple[int, str, str]:
        """Keep files by their name inside the artifact; gives its id, URL and SHA-256."""

    async def fetch_artifact(self, name: str, directory: Path) -> int | None:
        """Copy an artifact of this run into a folder; the number of its files, ``None`` if there is none."""


Outputs = dict[str, str]


async def _checkout(inputs: Mapping[str, str], host: Host) -> Outputs:
    repository = inputs.get("repository") or host.github["repository"]
    if not re.fullmatch(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+", repository):
        raise ActionError(f"repository {repository!r} is not owner/name")
    target = (host.workspace / (inputs.get("path") or ".")).resolve()
    if not target.is_relative_to(host.workspace.resolve()):
        raise ActionError(f"path {inputs.get('path')!r} is outside of the workspace")
    own = repository.lower() == host.github["repository"].lower()
    reference = inputs.get("ref") or (host.github["sha"] if own else "HEAD")
    if reference.startswith("-") or re.search(r"[\s\x00-\x1f~^:?*\[\\]", reference):
        raise ActionError(f"ref {reference!r} is not a ref name")
    depth = inputs.get("fetch-depth", "1") or "1"
    if not depth.isdigit():
        raise ActionError(f"fetch-depth {depth!r} is not a number")
    target.mkdir(parents=True, exist_ok=True)
    url = f"{host.github['server_url']}/{repository}"
    fetch = ["git", "fetch", "--quiet", "--no-tags", "--no-recurse-submodules"]
    if int(depth) > 0:
        fetch.append(f"--depth={int(depth)}")
        fetch += ["origin", reference]
    else:
        fetch += ["origin", "+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*", reference]
    host.log(f"Checking out {repository} at {reference} from {url}")
    for arguments in (
        ["git", "init", "--quiet"],
        ["git", "config", "remote.origin.url", url],
        fetch,
        ["git", "rev-parse", "--verify", "--quiet", "FETCH_HEAD"] if int(depth) > 0 else None,
    ):
        if arguments is not None and await host.command(arguments, target):
            raise ActionError(f"{' '.join(arguments[:2])} failed; is {reference!r} in {repository}?")
    wanted = "FETCH_HEAD" if int(depth) > 0 or not re.fullmatch(r"[0-9a-f]{40}", reference) else reference
    if await host.command(["git", "checkout", "--quiet", "--force", "--detach", wanted], target):
        raise ActionError("git checkout failed")
    commit = (await host.capture(["git", "rev-parse", "HEAD"], target)).strip()
    host.log(commit)
    return {"ref": reference, "commit": commit}


async def _setup_python(inputs: Mapping[str, str], host: Host) -> Outputs:
    script = "import platform, sys; print(platform.python_version()); print(sys.prefix)"
    version, prefix = (await host.capture([str(host.python), "-c", script], host.workspace)).split("\n")[:2]
    wanted = inputs.get("python-version", "").strip()
    if wanted and not version.startswith(f"{wanted.removesuffix('.x')}.") and version != wanted:
        host.log(f"##[warning]python-version {wanted} is asked for; this runner provides {version}")
    host.add_path(host.python.parent)
    host.set_env("pythonLocation", prefix)
    host.log(f"Using Python {version} of the runner")
    return {"python-version": version, "python-path": str(host.python), "cache-hit": "false"}


async def _upload_artifact(inputs: Mapping[str, str], host: Host) -> Outputs:
    name = inputs.get("name") or "artifact"
    if re.search(r'["<>|*?:\r\n\\/]', name):
        raise ActionError(f"artifact name {name!r} holds a character that GitHub refuses")
    hidden = inputs.get("include-hidden-files", "false").lower() == "true"
    found = find_files(inputs.get("path", "").splitlines(), host.workspace, hidden)
    if not found.files:
        text = f"No files were found with the provided path: {inputs.get('path', '').strip()}"
        match inputs.get("if-no-files-found") or "warn":
            case "error":
                raise ActionError(text)
            case "ignore":
                host.log(text)
            case _:
                host.log(f"##[warning]{text}")
        return {}
    # Names are relative to the deepest folder that all patterns share, as the action documents.
    root = Path(os.path.commonpath(found.roots))
    if root.is_file():
        root = root.parent
    files = {str(file.relative_to(root)): file for file in found.files}
    number, url, digest = await host.store_artifact(name, files, inputs.get("overwrite", "false").lower() == "true")
    host.log(f"Artifact {name} has been stored with {len(files)} file(s): {url}")
    return {"artifact-id": str(number), "artifact-url": url, "artifact-digest": digest}


async def _download_artifact(inputs: Mapping[str, str], host: Host) -> Outputs:
    name = inputs.get("name", "")
    if not name:
        raise ActionError("downloading every artifact of a run (no 'name') is not emulated")
    target = host.workspace / Path(inputs.get("path") or ".").expanduser()
    count = await host.fetch_artifact(name, target)
    if count is None:
        raise ActionError(f"Unable to download artifact(s): Artifact not found for name: {name}")
    host.log(f"Artifact {name} has been downloaded to {target}: {count} file(s)")
    return {"download-path": str(target)}


EMULATED: dict[str, Callable[[Mapping[str, str], Host], Awaitable[Outputs]]] = {
    "actions/checkout": _checkout,
    "actions/download-artifact": _download_artifact,
    "actions/setup-python": _setup_python,
    "actions/upload-artifact": _upload_artifact,
}
"""By action, what it does: its inputs and the job in, its outputs out. Raises :class:`ActionError`."""
