"""Settings: environment (``RELAY_*``), then the TOML file that ``RELAY_CONFIG_FILE`` names, then defaults.

Any setting may come from a file of its own: ``RELAY_HUD_KEY_FILE=/run/secrets/hud`` (or ``hud_key_file`` in the TOML
file) sets ``hud_key`` to that file's text.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload
from urllib.parse import urlsplit

import yaml
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from relay.core.callback_token import derive_secret
from relay.core.identity import Issuer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

PREFIX = "RELAY_"
CONFIG_VARIABLE = PREFIX + "CONFIG_FILE"
_OF_JOBS = ("RELAY_CALLBACK_URL", "RELAY_CLIENT_PAYLOAD", "RELAY_OIDC_TOKEN", "RELAY_CHECK_RUN_ID")


class ConfigurationError(Exception):
    """The settings cannot be used; the text lists every error."""


@dataclass(frozen=True)
class _Unreadable:
    """Stands for the value of a setting whose file cannot be read, so that it is reported with everything else."""

    reason: str


class _Environment(EnvSettingsSource):
    """Variables. A list that is no JSON stays a text, so that it is reported with everything else."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


class _FileSource(PydanticBaseSettingsSource):
    """Values of one mapping, where ``NAME_file`` stands for the text of a file."""

    def __init__(self, settings_cls: type[BaseSettings], values: dict[str, Any], *, closed: bool):
        super().__init__(settings_cls)
        self._values = values
        self._closed = closed

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        path = self._values.get(f"{field_name}_file")
        if not path:
            return self._values.get(field_name), field_name, False
        try:
            return Path(str(path)).expanduser().read_text(encoding="utf-8").strip(), field_name, False
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            return _Unreadable(f"cannot read {path}: {reason}"), field_name, False

    def __call__(self) -> dict[str, Any]:
        found = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        if self._closed:
            found |= {name: value for name, value in self._values.items() if not _is_known(name)}
        return {name: value for name, value in found.items() if value is not None}


class _Unread(_FileSource):
    """Files that cannot be read, and nothing of the others: said even where something else gives the value."""

    def __call__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__call__().items() if isinstance(value, _Unreadable)}


def _is_known(name: str) -> bool:
    return name in Settings.model_fields or name.removesuffix("_file") in Settings.model_fields


def _environment_files() -> dict[str, Any]:
    return {
        name[len(PREFIX) :].lower(): value
        for name, value in os.environ.items()
        if name.startswith(PREFIX) and name.endswith("_FILE") and name != CONFIG_VARIABLE
    }


def _toml() -> dict[str, Any]:
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        return {}
    try:
        values: dict[str, Any] = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{CONFIG_VARIABLE}={path}: {error}") from error
    return values


class _Sources(BaseSettings):
    """Where settings come from. What an operator's command needs is a subclass, so that no command asks for more."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *args: PydanticBaseSettingsSource, **kwargs: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order: arguments, environment, files named in the environment, TOML file."""
        return (
            kwargs["init_settings"],
            _Unread(settings_cls, _environment_files(), closed=False),
            _Environment(settings_cls),
            _FileSource(settings_cls, _environment_files(), closed=False),
            _FileSource(settings_cls, _toml(), closed=True),
        )

    @field_validator("*", mode="before")
    @classmethod
    def _file_was_readable(cls, value: Any) -> Any:
        if isinstance(value, _Unreadable):
            raise PydanticCustomError("unreadable_file", "{reason}", {"reason": value.reason})
        return value


class StoreSettings(_Sources):
    """What the commands need that only read and change the store."""

    database_url: str = Field(
        default="sqlite:///relay.db", description="sqlite:///FILE or postgresql://user:password@host/name"
    )
    retention_seconds: float = Field(default=3 * 86400, gt=0, description="how long records are kept")
    dispatch_retry_seconds: float = Field(default=6 * 3600, gt=0, description="then a failing dispatch is dead")
    log_format: str = Field(default="json", pattern="^(json|text)$", description="json or text")
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$", description="least level logged")


class TrustSettings(_Sources):
    """Whose tokens are believed."""

    oidc_audience: str = Field(default="pytorch-cross-repo-ci-relay", min_length=1, description="accepted audience")
    oidc_issuers: list[Issuer] = Field(
        default=[], description="further issuers, YAML or JSON; GitHub Actions and Buildkite are built in"
    )

    @field_validator("oidc_issuers", mode="before")
    @classmethod
    def _issuers_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = yaml.safe_load(value) or []
            except yaml.YAMLError as error:
                raise PydanticCustomError("not_yaml", "not YAML or JSON: {error}", {"error": str(error)}) from error
        if not isinstance(value, (list, tuple, _Unreadable)):
            raise PydanticCustomError("no_list", "expected a YAML or JSON list of issuers with issuer and jwks_url")
        return value


class Settings(StoreSettings, TrustSettings):
    """Everything an operator can choose. Names in the environment carry the prefix ``RELAY_``."""

    upstream_repo: str = Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$", description="owner/name")
    webhook_secret: SecretStr = Field(min_length=1, description="the App's webhook secret")
    github_api_url: str = Field(default="https://api.github.com", pattern=r"^https?://", description="REST API base")
    github_web_url: str | None = Field(
        default=None, pattern=r"^https?://", description="where run pages are; follows from the API's URL if not set"
    )
    github_app_id: str = Field(min_length=1, description="the App's id or client id")
    github_private_key: SecretStr = Field(description="the App's private key, PEM")
    allowlist: str = Field(min_length=1, description="path or URL of the allowlist")
    allowlist_ttl_seconds: float = Field(default=300, ge=0, description="time between two readings of the allowlist")
    push_refs: tuple[str, ...] = Field(
        default=("main", "release/*"), description="branches whose pushes are dispatched, shell patterns"
    )
    hud_url: str | None = Field(default=None, pattern=r"^https?://", description="HUD base URL")
    hud_public_url: str | None = Field(
        default=None, pattern=r"^https?://", description="HUD base URL as jobs reach it, if it is another one"
    )
    hud_key: SecretStr | None = Field(default=None, validate_default=True, description="HUD ingest key")
    hud_wait_seconds: float = Field(
        default=2, ge=0, le=30, description="how long a callback waits to pass on HUD's refusal"
    )
    require_callback_token: bool = Field(default=False, description="refuse callbacks without a callback token")
    callback_token_secret: SecretStr | None = Field(
        default=None, min_length=16, description="signs callback tokens; follows from the webhook secret if not set"
    )
    rate_burst: float = Field(default=120, ge=1, description="callbacks of one repository at once")
    rate_per_minute: float = Field(default=120, gt=0, description="callbacks of one repository per minute, steadily")
    client_rate_burst: float = Field(default=300, ge=1, description="requests of one address at once")
    client_rate_per_minute: float = Field(default=600, gt=0, description="requests of one address per minute, steadily")
    job_timeout_seconds: float = Field(default=6 * 3600, gt=0, description="then an unfinished job is timed out")
    sweep_interval_seconds: float = Field(default=60, gt=0, description="time between two looks for overdue jobs")
    lease_seconds: float = Field(default=120, ge=5, description="then another worker takes a task over")
    worker_concurrency: int = Field(
        default=20, ge=1, le=500, description="dispatches at a time, and reports to HUD at a time"
    )
    poll_interval_seconds: float = Field(default=1, gt=0, description="time between two looks for due tasks")
    request_timeout_seconds: float = Field(default=30, gt=0, description="for requests to GitHub and HUD")
    check_writes_per_minute: float = Field(
        default=180, ge=10, description="check runs that one worker writes per minute; GitHub takes 180"
    )
    cancel_closed: bool = Field(default=False, description="cancel downstream runs of a closed pull request")
    webhook_max_bytes: int = Field(default=25 * 1024 * 1024, ge=1024, description="cap of a webhook's body")
    callback_max_bytes: int = Field(default=1024 * 1024, ge=1024, description="cap of a callback's body")
    forwarded_allow_ips: str = Field(
        default="127.0.0.1", description="proxies whose X-Forwarded-For is believed, comma separated"
    )

    @field_validator("push_refs", mode="before")
    @classmethod
    def _push_refs_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = json.loads(value)
        if not isinstance(value, (list, tuple, _Unreadable)):
            raise PydanticCustomError("no_list", 'expected a JSON list of patterns, such as ["main", "release/*"]')
        return value

    @field_validator("github_private_key")
    @classmethod
    def _is_a_key(cls, value: SecretStr) -> SecretStr:
        try:
            key = load_pem_private_key(value.get_secret_value().encode(), password=None)
        except (ValueError, TypeError) as error:
            raise PydanticCustomError("no_key", "not an unencrypted PEM private key") from error
        if not isinstance(key, RSAPrivateKey):
            raise PydanticCustomError("no_rsa_key", "not an RSA key; GitHub Apps use RSA")
        return value

    @field_validator("hud_key")
    @classmethod
    def _hud_needs_a_key(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if info.data.get("hud_url") is not None and (value is None or not value.get_secret_value()):
            raise PydanticCustomError("no_hud_key", "needed with RELAY_HUD_URL (or RELAY_HUD_KEY_FILE)")
        return value

    @property
    def callback_secret(self) -> str:
        """Key that signs callback tokens."""
        if self.callback_token_secret is not None:
            return self.callback_token_secret.get_secret_value()
        return derive_secret(self.webhook_secret.get_secret_value())

    @property
    def other_concurrency(self) -> int:
        """Check runs leased at a time, and re-runs and cancellations at a time."""
        return max(4, self.worker_concurrency // 2)

    @property
    def web_url(self) -> str:
        """Base of GitHub's pages: github.com, ``https://HOST`` of GitHub Enterprise, else the API's own base."""
        if self.github_web_url is not None:
            return self.github_web_url.rstrip("/")
        parts = urlsplit(self.github_api_url)
        if parts.netloc == "api.github.com":
            return "https://github.com"
        return re.sub(r"/api/v3/?$", "", self.github_api_url).rstrip("/")


S = TypeVar("S", bound=BaseSettings)


@overload
def load(**values: Any) -> Settings: ...


@overload
def load(kind: type[S], /, **values: Any) -> S: ...


def load(kind: Any = Settings, /, **values: Any) -> Any:
    """Read and check the settings.

    Args:
        kind: all of them, or the part that a command needs.
        values: override every other source.

    Raises:
        ConfigurationError: with every error at once.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False, include_input=False, include_context=False):
            place = [str(part) for part in item["loc"]]
            if item["type"] == "extra_forbidden":
                where = os.environ.get(CONFIG_VARIABLE, "arguments")
                lines.append(f"  {where}: unknown setting {'.'.join(place)!r}")
                continue
            variable = f"{PREFIX}{place[0].upper()}: " if place else ""
            lines.append(f"  {variable}{item['msg']}" + (f" (at {'.'.join(place)})" if len(place) > 1 else ""))
        raise ConfigurationError("the settings are not usable:\n" + "\n".join(lines)) from error


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables that look like settings but are none: a misspelt name would otherwise be ignored without a word."""
    return sorted(
        name
        for name in environment
        if name.startswith(PREFIX)
        and name not in {CONFIG_VARIABLE, *_OF_JOBS}
        and not _is_known(name[len(PREFIX) :].lower())
    )
