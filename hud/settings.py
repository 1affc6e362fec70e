"""Settings, from the environment (``HUD_…``) or a ``.env`` file in the working directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from hud.core.readiness import Criteria


class _Lenient(EnvSettingsSource):
    """Values that are no JSON stay texts, so that they are reported with everything else."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


class _LenientFile(_Lenient, DotEnvSettingsSource):
    """The same for the ``.env`` file."""


class Settings(BaseSettings):
    """What an operator can choose.

    Attributes:
        database_url: SQLAlchemy URL; SQLite in the working directory by default.
        ingest_key: shared with the relay (``RELAY_HUD_KEY``); without it nothing can be sent in.
        read_token: asked of readers when set (``Authorization: Bearer``, or any user name with it as password).
        allowlist: the relay's allowlist file; backends on it that did not report are shown as such.
        stuck_after_seconds: a job in progress for longer is stuck.
        max_report_bytes: cap of one report.
        max_result_entries: cap of test results in one upload.
        max_upload_bytes: cap of one upload after decompression.
        readiness: criteria for a backend's promotion (``HUD_READINESS__PASS_RATE`` and so on).
    """

    model_config = SettingsConfigDict(env_prefix="HUD_", env_file=".env", env_nested_delimiter="__", extra="ignore")

    database_url: str = "sqlite:///hud.db"
    ingest_key: SecretStr | None = None
    read_token: SecretStr | None = None
    allowlist: Path | None = None
    stuck_after_seconds: int = Field(default=6 * 3600, gt=0)
    max_report_bytes: int = Field(default=2 * 1024 * 1024, gt=0)
    max_result_entries: int = Field(default=2_000_000, gt=0)
    max_upload_bytes: int = Field(default=4 * 1024**3, gt=0)
    readiness: Criteria = Criteria()

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *args: PydanticBaseSettingsSource, **kwargs: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order: arguments, environment, ``.env`` file."""
        return kwargs["init_settings"], _Lenient(settings_cls), _LenientFile(settings_cls)

    @field_validator("readiness", mode="before")
    @classmethod
    def _readiness_is_an_object(cls, value: Any) -> Any:
        if not isinstance(value, (dict, Criteria)):
            raise PydanticCustomError("no_object", 'expected a JSON object, such as {"pass_rate": 0.98}')
        return value
