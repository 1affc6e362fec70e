"""Settings: environment (``RELAY_*``), then the TOML file that ``RELAY_CONFIG_FILE`` names, then defaults.

Any setting may come from a file of its own: ``RELAY_HUD_KEY_FILE=/run/secrets/hud`` (or ``hud_key_file`` in the TOML
file) sets ``hud_key`` to that file's text.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from relay.core.callback_token import derive_secret
from relay.core.identity import Issuer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

PREFIX = "RELAY_"
CONFIG_VARIABLE = PREFIX + "CONFIG_FILE"


class ConfigurationError(Exception):
    """The settings cannot be used; the text lists every error."""


class _FileSource(PydanticBaseSettingsSource):
    """Values of one mapping, where ``NAME_file`` stands for the text of a file."""

    def __init__(self, settings_cls: type[BaseSettings], values: dict[str, Any], where: str):
        super().__init__(settings_cls)
        self._values = values
        self._where = where

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        path = self._values.get(f"{field_name}_file")
        if path:
            try:
                return Path(str(path)).expanduser().read_text(encoding="utf-8").strip(), field_name, False
            except (OSError, UnicodeDecodeError) as error:
                name = f"{field_name}_file" if self._where else f"{PREFIX}{field_name}_FILE".upper()
                raise ConfigurationError(
                    f"{self._where or 'environment'}: {name}: cannot read {path}: {error}"
                ) from error
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        found = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in found.items() if value is not None}


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
    known = set(Settings.model_fields)
    unknown = sorted(name for name in values if name not in known and name.removesuffix("_file") not in known)
    if unknown:
        raise ConfigurationError(f"{path}: unknown settings: {', '.join(unknown)}")
    return values


class Settings(BaseSettings):
    """Everything an operator can choose. Names in the environment carry the prefix ``RELAY_``."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    database_url: str = Field(
        default="sqlite:///relay.db", description="sqlite:///FILE or postgresql://user:password@host/name"
    )
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
    oidc_audience: str = Field(default="pytorch-cross-repo-ci-relay", min_length=1, description="accepted audience")
    oidc_issuers: list[Issuer] = Field(
        default=[], description="further issuers, YAML or JSON; GitHub Actions and Buildkite are built in"
    )
    hud_url: str | None = Field(default=None, pattern=r"^https?://", description="HUD base URL")
    hud_public_url: str | None = Field(
        default=None, pattern=r"^https?://", description="HUD base URL as jobs reach it, if it is another one"
    )
    hud_key: SecretStr | None = Field(default=None, description="HUD ingest key")
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
    retention_seconds: float = Field(default=3 * 86400, gt=0, description="how long records are kept")
    dispatch_retry_seconds: float = Field(default=6 * 3600, gt=0, description="then a failing dispatch is dead")
    lease_seconds: float = Field(default=120, ge=5, description="then another worker takes a task over")
    worker_concurrency: int = Field(default=20, ge=1, le=500, description="dispatches at a time")
    poll_interval_seconds: float = Field(default=1, gt=0, description="time between two looks for due tasks")
    request_timeout_seconds: float = Field(default=30, gt=0, description="for requests to GitHub and HUD")
    cancel_closed: bool = Field(default=False, description="cancel downstream runs of a closed pull request")
    webhook_max_bytes: int = Field(default=25 * 1024 * 1024, ge=1024, description="cap of a webhook's body")
    callback_max_bytes: int = Field(default=1024 * 1024, ge=1024, description="cap of a callback's body")
    forwarded_allow_ips: str = Field(
        default="127.0.0.1", description="proxies whose X-Forwarded-For is believed, comma separated"
    )
    log_format: str = Field(default="json", pattern="^(json|text)$", description="json or text")
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$", description="least level logged")

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *args: PydanticBaseSettingsSource, **kwargs: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order: arguments, environment, files named in the environment, TOML file."""
        return (
            kwargs["init_settings"],
            kwargs["env_settings"],
            _FileSource(settings_cls, _environment_files(), ""),
            _FileSource(settings_cls, _toml(), os.environ.get(CONFIG_VARIABLE, "")),
        )

    @field_validator("oidc_issuers", mode="before")
    @classmethod
    def _issuers_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = yaml.safe_load(value) or []
            except yaml.YAMLError as error:
                raise ValueError(f"not YAML or JSON: {error}") from error
        return value

    @field_validator("github_private_key")
    @classmethod
    def _is_a_key(cls, value: SecretStr) -> SecretStr:
        try:
            key = load_pem_private_key(value.get_secret_value().encode(), password=None)
        except (ValueError, TypeError) as error:
            raise ValueError("not an unencrypted PEM private key") from error
        if not isinstance(key, RSAPrivateKey):
            raise ValueError("not an RSA key; GitHub Apps use RSA")
        return value

    @model_validator(mode="after")
    def _hud_needs_a_key(self) -> Settings:
        if self.hud_url is not None and (self.hud_key is None or not self.hud_key.get_secret_value()):
            raise ValueError("hud_url needs hud_key (RELAY_HUD_KEY or RELAY_HUD_KEY_FILE)")
        return self

    @property
    def callback_secret(self) -> str:
        """Key that signs callback tokens."""
        if self.callback_token_secret is not None:
            return self.callback_token_secret.get_secret_value()
        return derive_secret(self.webhook_secret.get_secret_value())

    @property
    def web_url(self) -> str:
        """Base of GitHub's pages: github.com, ``https://HOST`` of GitHub Enterprise, else the API's own base."""
        if self.github_web_url is not None:
            return self.github_web_url.rstrip("/")
        parts = urlsplit(self.github_api_url)
        if parts.netloc == "api.github.com":
            return "https://github.com"
        return re.sub(r"/api/v3/?$", "", self.github_api_url).rstrip("/")


def load(**values: Any) -> Settings:
    """Read and check the settings.

    Args:
        values: override every other source.

    Raises:
        ConfigurationError: with every error at once.
    """
    try:
        return Settings(**values)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False, include_input=False, include_context=False):
            name = ".".join(str(part) for part in item["loc"])
            variable = PREFIX + str(item["loc"][0]).upper() + ": " if name else ""
            lines.append(f"  {variable}{item['msg']}" + (f" (at {name})" if "." in name else ""))
        raise ConfigurationError("the settings are not usable:\n" + "\n".join(lines)) from error
