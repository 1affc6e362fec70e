"""What a backend needs, as data: module, device, environment, files, policy. Nothing in the code knows a backend."""

from __future__ import annotations

import hashlib
import os
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr

from conformance.errors import ConformanceError
from conformance.registry.load import load_capabilities, load_rules, load_yaml
from conformance.registry.model import Capabilities, Rule

BUILTIN = Path(__file__).parent / "profiles"
TORCH_DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "meta", "lazy", "xla")
"""Device types that PyTorch itself names; every other one is a PrivateUse1 backend's."""

LONGEST = 604_800.0
"""Seconds of a week; longer deadlines are slips of the keyboard, and the system's timers refuse some of them."""


def _variable(name: str) -> str:
    if not name or "=" in name:
        raise ValueError("the name of an environment variable is not empty and has no '='")
    return _system_text(name)


def _system_text(text: str) -> str:
    """What a process can be given in its environment."""
    if "\0" in text:
        raise ValueError("a NUL character cannot stand in the environment of a process")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which no process can be given") from None
    return text


Seconds = Annotated[float, Field(gt=0, le=LONGEST)]


class Policy(BaseModel):
    """How a run of this profile behaves unless the command line says otherwise.

    Attributes:
        labels: ``hw_classification`` labels that are run.
        unclassified: what happens to classes without a label (C7).
        timeout: seconds, per-test deadline.
        import_timeout: seconds for starting a worker and for importing one file.
        jobs: worker processes; 0: as many as cores and memory allow.
        strict: an unexpected pass makes the run fail (C16).
        rerun: how often an unexpected result is tried again (C23).
        files_per_process: test files that share one worker process.
        start_method: ``fork``: workers are copies of a process that has imported torch, its test library and the
            backend; ``spawn``: each imports them itself. A backend that does not survive the copy is found out.
        require: keys that ``lint`` asks of every rule of the registry (C13).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    labels: tuple[str, ...] = ("ACCELERATOR",)
    unclassified: Literal["exclude", "include", "infer"] = "infer"
    timeout: Seconds = 60.0
    import_timeout: Seconds = 300.0
    jobs: int = Field(default=0, ge=0)
    strict: bool = False
    rerun: int = Field(default=1, ge=0, le=5)
    files_per_process: int = Field(default=1, ge=1)
    start_method: Literal["fork", "spawn"] = "fork"
    require: tuple[Literal["issue", "owner", "expires", "note"], ...] = ()


class Profile(BaseModel):
    """A ``profile.yaml``.

    Attributes:
        name: shown in reports; the command line's ``--profile`` finds ``profiles/<name>``.
        module: imported before torch's test library; ``""``: nothing to import.
        device: device type under test.
        environment: set in every worker before Python starts.
        fallbacks: ``module:function`` returning how many operator calls have fallen back to the CPU so far.
        upstream_files: ``FILE[::CLASS[::TEST]]`` below ``test/`` that a run without FILE arguments takes; empty: all.
        wheel_files: of the wheel suite; empty: all.
        registry, capabilities: file names beside this one.
    """

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    module: Annotated[str, Field(pattern=r"^(|\w+(\.\w+)*)$")] = ""
    device: Annotated[str, Field(pattern=r"^\w+$")]
    description: str = ""
    environment: dict[Annotated[str, AfterValidator(_variable)], Annotated[str, AfterValidator(_system_text)]] = {}
    fallbacks: Annotated[str, Field(pattern=r"^(|[\w.]+:[\w.]+)$")] = ""
    upstream_files: tuple[str, ...] = ()
    wheel_files: tuple[str, ...] = ()
    registry: str = ""
    capabilities: str = ""
    policy: Policy = Policy()
    _path: Path = PrivateAttr(default=Path())

    @property
    def folder(self) -> Path:
        """Where the profile lies."""
        return self._path.parent

    @property
    def argument(self) -> str:
        """What ``--profile`` takes to find this profile again: its name where it ships, else its path from here."""
        usual = self._path.name == "profile.yaml"
        if usual and self.folder.parent == BUILTIN.resolve():
            return self.folder.name
        place = self.folder if usual else self._path
        return f"./{place.relative_to(Path.cwd())}" if place.is_relative_to(Path.cwd()) else str(place)

    @property
    def custom(self) -> bool:
        """Whether the device is a PrivateUse1 backend."""
        return self.device not in TORCH_DEVICES

    def fingerprint(self) -> str:
        """Hash over everything that decides about tests: this profile, its registry and its capabilities.

        Raises:
            OSError: a file cannot be read.
        """
        parts = [self.model_dump_json().encode()]
        parts += [(self.folder / name).read_bytes() if name else b"" for name in (self.registry, self.capabilities)]
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()

    def rules(self) -> list[Rule]:
        """Rules of the registry file."""
        return load_rules(self.folder / self.registry) if self.registry else []

    def declared(self) -> Capabilities:
        """The capabilities file."""
        return load_capabilities(self.folder / self.capabilities) if self.capabilities else Capabilities(version=1)


def available() -> list[str]:
    """Names of the profiles that ship with the package."""
    return sorted(path.parent.name for path in BUILTIN.glob("*/profile.yaml"))


def _default_name() -> str:
    """The profile named like an installed ``torch.backends`` entry point, if exactly one is."""
    names = {entry.name for entry in metadata.entry_points(group="torch.backends")} & set(available())
    if len(names) == 1:
        return names.pop()
    found = (
        f"several installed backends have one ({', '.join(sorted(names))})" if names else "no installed backend has one"
    )
    raise ConformanceError(
        f"which profile? {found}; give --profile NAME (one of {', '.join(available())}) or the path of a profile.yaml"
    )


def load_profile(name: str | None) -> Profile:
    """Finds and reads a profile.

    Args:
        name: of a profile that ships, the path of a ``profile.yaml`` or of its folder; ``None``: the installed
            backend's.

    Raises:
        ConformanceError: none or several fit, or a file is not valid.
    """
    name = name or _default_name()
    path = Path(name)
    if path.is_dir() and (path / "profile.yaml").is_file():
        path = path / "profile.yaml"
    elif not path.is_file():
        if os.sep in name or name.endswith((".yaml", ".yml")):
            raise ConformanceError(f"{name}: no such profile file")
        path = BUILTIN / name / "profile.yaml"
        if not path.is_file():
            raise ConformanceError(
                f"unknown profile {name!r}; there are {', '.join(available())}, or give the path of a profile.yaml"
            )
    profile = load_yaml(path, Profile)
    profile._path = path.resolve()
    for kind in ("registry", "capabilities"):
        value = getattr(profile, kind)
        if value and not (path.parent / value).is_file():
            raise ConformanceError(f"{path}: {kind}: {path.parent / value} does not exist")
    return profile
