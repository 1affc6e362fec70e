"""The emulator's settings file (TOML): which App, which repositories, how jobs run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from relay.core import github_app

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

REPOSITORY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")


class SettingsError(Exception):
    """The settings file cannot be used; the text lists every problem with its field."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AppSettings(_Section):
    """The GitHub App whose server receives the webhooks."""

    id: int = Field(default=1, ge=1)
    slug: str = "conformance-relay"
    public_key_file: Path = Field(description="PEM; verifies the App's JWTs. GitHub keeps only this half, too")
    webhook_url: str | None = None
    webhook_secret: str = Field(min_length=1)
    permissions: dict[str, str] = Field(default_factory=lambda: dict(github_app.PERMISSIONS))
    events: list[str] = Field(default_factory=lambda: list(github_app.EVENTS))


class RepositorySettings(_Section):
    """One repository.

    ``path`` is a git repository on this machine that stands for the author's clone: the emulator copies it when it
    starts, and fetches single refs again when the control API says that they were pushed. A repository without a path
    takes dispatches and check runs but has no commits.
    """

    name: str
    path: Path | None = None
    default_branch: str = "main"
    installed: bool = Field(default=True, description="the App is installed on it")
    variables: dict[str, str] = Field(default_factory=dict, description="configuration variables: the `vars` context")
    secrets: dict[str, str] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _is_full_name(cls, name: str) -> str:
        if not REPOSITORY_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not owner/name")
        return name


class RunnerSettings(_Section):
    """How jobs run on this machine. They inherit nothing of the server's environment but what stands here."""

    concurrency: int = Field(default=2, ge=0, le=64, description="jobs at once; 0 leaves every job queued")
    path: list[Path] = Field(default_factory=list, description="directories in front of the system's PATH")
    python: Path = Field(default=Path(sys.executable), description="what actions/setup-python provides")
    env: dict[str, str] = Field(default_factory=dict)
    cancel_grace_seconds: float = Field(default=7.5, ge=0, description="SIGINT to SIGTERM; a third of it to SIGKILL")
    max_log_bytes: int = Field(default=64 * 1024 * 1024, ge=1024, description="of one job; what follows is dropped")


class Settings(_Section):
    """The whole file."""

    data_dir: Path
    base_url: str | None = Field(default=None, description="how clients reach the server; default http://HOST:PORT")
    upstream: str = Field(description="the repository that the control API acts on unless it is told another")
    app: AppSettings
    repositories: list[RepositorySettings] = Field(min_length=1)
    runner: RunnerSettings = RunnerSettings()

    @model_validator(mode="after")
    def _names(self) -> Settings:
        names = [repository.name.lower() for repository in self.repositories]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"repository {name!r} stands twice")
        if self.upstream.lower() not in names:
            raise ValueError(f"upstream {self.upstream!r} is not among the repositories")
        return self


def load_settings(path: Path) -> Settings:
    """Read and check a settings file. Relative paths in it are relative to its folder.

    Raises:
        SettingsError: unreadable, not TOML, or wrong fields; every problem is listed.
    """
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error
    _absolute(data, path.resolve().parent)
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        lines = [
            f"{path}: {'.'.join(str(part) for part in item['loc']) or 'file'}: {item['msg']}" for item in error.errors()
        ]
        raise SettingsError("\n".join(lines)) from error


def _absolute(data: dict[str, Any], base: Path) -> None:
    def fix(table: object, key: str) -> None:
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = str(base / table[key])

    fix(data, "data_dir")
    fix(data.get("app"), "public_key_file")
    fix(data.get("runner"), "python")
    repositories = data.get("repositories")
    for repository in repositories if isinstance(repositories, list) else []:
        fix(repository, "path")
    runner = data.get("runner")
    if isinstance(runner, dict) and isinstance(runner.get("path"), list):
        runner["path"] = [str(base / item) if isinstance(item, str) else item for item in runner["path"]]
