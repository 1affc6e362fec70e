"""One rule and one registry file as data (C12, C13, C16). The JSON Schema of the files is made from these models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)


class Action(str, Enum):
    """What a rule does. ``slow`` and ``tolerance`` add to the verdict of other rules, the rest are the verdict.

    ``run`` takes tests out of a wider rule: they are expected to pass.
    """

    RUN = "run"
    SKIP = "skip"
    XFAIL = "xfail"
    QUARANTINE = "quarantine"
    FLAKY = "flaky"
    SLOW = "slow"
    TOLERANCE = "tolerance"


class Reason(str, Enum):
    """Taxonomy of reasons (C13)."""

    UNSUPPORTED_OPERATOR = "unsupported-operator"
    UNSUPPORTED_DTYPE = "unsupported-dtype"
    UNSUPPORTED_FEATURE = "unsupported-feature"
    NUMERICS = "numerics"
    BACKEND_BUG = "backend-bug"
    UPSTREAM_BUG = "upstream-bug"
    UPSTREAM_DEVICE_ASSUMPTION = "upstream-device-assumption"
    VERSION_SKEW = "version-skew"
    ENVIRONMENT = "environment"
    CRASH = "crash"
    HANG = "hang"
    FLAKY = "flaky"
    SLOW = "slow"
    UNTRIAGED = "untriaged"
    SUPPORTED = "supported"


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return value


def _specifier(value: str) -> str:
    try:
        SpecifierSet(value)
    except InvalidSpecifier as error:
        raise ValueError(f"not a version range such as '>=2.14,<2.15': {error}") from error
    return value


_WORDS_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}

Globs = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Field(min_length=1), WithJsonSchema(_WORDS_SCHEMA)]
Regex = Annotated[str, AfterValidator(_regex)]


class Signature(BaseModel):
    """How an expected failure looks (C16). A field that is absent matches anything; at least one is given.

    Attributes:
        exception: class name without module, of the exception or of one of its bases (``RuntimeError``).
        message: regular expression searched in the exception's text.
        phase: ``setup``, ``call`` or ``teardown``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    exception: str | None = None
    message: Regex | None = None
    phase: Annotated[str, Field(pattern="^(setup|call|teardown)$")] = "call"

    @model_validator(mode="after")
    def _something(self) -> Signature:
        if self.exception is None and self.message is None:
            raise ValueError("give 'exception', 'message' or both: a signature without them matches every failure")
        return self

    def matches(self, phase: str, exceptions: tuple[str, ...], message: str) -> bool:
        """Whether a failure is the expected one.

        Args:
            phase: where it happened.
            exceptions: names of the exception's class and its bases.
            message: its text.
        """
        return (
            phase == self.phase
            and (self.exception is None or self.exception in exceptions)
            and (self.message is None or re.search(self.message, message) is not None)
        )


class When(BaseModel):
    """Conditions under which a rule counts; all that are given must hold.

    Attributes:
        torch, upstream: version ranges of the installed torch and of the checkout.
        platform: ``sys.platform``.
        min_devices, max_devices: how many devices the backend has.
        profile: names of profiles, or globs of them.
        environment: variable → glob that its value fits; one that is not set has the value ``""``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    torch: Annotated[str, AfterValidator(_specifier)] | None = None
    upstream: Annotated[str, AfterValidator(_specifier)] | None = None
    platform: str | None = None
    min_devices: int | None = Field(default=None, ge=0)
    max_devices: int | None = Field(default=None, ge=0)
    profile: Globs | None = None
    environment: dict[str, str] = {}

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


class Tolerance(BaseModel):
    """Floors for the test's absolute and relative tolerance."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    atol: float = Field(default=0.0, ge=0)
    rtol: float = Field(default=0.0, ge=0)


_KEYS = ("file", "cls", "test", "op", "dtype", "other")


class Rule(BaseModel):
    """One rule. All given selectors must match; each is a name, a glob or a list of them.

    Attributes:
        feature: name of a feature in the profile's capabilities; stands for that feature's selectors.
        file, class, test, op, dtype, other: parts of the test's id.
        reason: from the taxonomy; ``note`` says it in words. ``supported`` belongs to ``run``, ``untriaged`` to rules
            that were imported and that nobody has looked at.
        signature: needed by ``xfail``.
        factor: of ``slow``: multiplies the test's deadline.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    id: str = ""
    feature: str | None = None
    file: Globs | None = None
    cls: Globs | None = Field(default=None, alias="class")
    test: Globs | None = None
    op: Globs | None = None
    dtype: Globs | None = None
    other: Globs | None = None
    action: Action
    reason: Reason
    note: str = ""
    signature: Signature | None = None
    tolerance: Tolerance | None = None
    factor: float = Field(default=5.0, gt=1)
    issue: str = ""
    owner: str = ""
    expires: date | None = None
    when: When | None = None
    _where: str = PrivateAttr(default="")

    @model_validator(mode="after")
    def _complete(self) -> Rule:
        if self.feature is None and all(getattr(self, key) is None for key in _KEYS):
            raise ValueError("names no test: give at least one of feature, file, class, test, op, dtype, other")
        if self.action is Action.XFAIL and self.signature is None:
            raise ValueError(
                "xfail needs a signature (exception, message, phase), so that another failure is still seen"
            )
        if self.action is not Action.XFAIL and self.signature is not None:
            raise ValueError(f"signature belongs to xfail, not to {self.action.value}")
        if (self.action is Action.TOLERANCE) != (self.tolerance is not None):
            raise ValueError("action tolerance and the key tolerance (atol, rtol) belong together")
        return self

    @property
    def where(self) -> str:
        """``file:line`` of the rule."""
        return self._where

    @property
    def name(self) -> str:
        """Its id, or where it stands."""
        return self.id or self._where

    @property
    def text(self) -> str:
        """Reason and note in one line."""
        return f"{self.reason.value}: {self.note}" if self.note else self.reason.value

    def applies(self, **facts: Any) -> bool:
        """Whether conditions and expiry let the rule count (C13). An unknown version satisfies no range."""
        return not self.idle(**facts)

    def idle(
        self,
        *,
        torch: str,
        upstream: str,
        platform: str,
        devices: int,
        today: date,
        profile: str = "",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Why the rule does not count, ``""`` where it does.

        Args:
            torch, upstream: versions of the installed torch and of the checkout, ``""`` unknown.
            platform: ``sys.platform``.
            devices: how many the backend has.
            today: rules end with the day that they expire on.
            profile: name of the run's profile.
            environment: of its workers.
        """
        when = self.when or When()
        if self.expires is not None and today > self.expires:
            return f"expired on {self.expires}"
        if not _in_range(when.torch, torch):
            return f"torch {torch or 'of unknown version'} is not {when.torch}"
        if not _in_range(when.upstream, upstream):
            return f"the checkout's version {upstream or '(unknown)'} is not {when.upstream}"
        if when.platform is not None and when.platform != platform:
            return f"the platform is {platform}, not {when.platform}"
        if when.min_devices is not None and devices < when.min_devices:
            return f"{devices} devices are fewer than {when.min_devices}"
        if when.max_devices is not None and devices > when.max_devices:
            return f"{devices} devices are more than {when.max_devices}"
        if when.profile is not None and not any(fnmatchcase(profile, word) for word in when.profile):
            return f"the profile is {profile or '(unknown)'}, not {' or '.join(when.profile)}"
        for name, glob in when.environment.items():
            if not fnmatchcase(environment.get(name, ""), glob):
                return f"{name} is {environment.get(name, '')!r}, not {glob!r}"
        return ""


@lru_cache(maxsize=1024)
def _in_range(specifier: str | None, version: str) -> bool:
    if specifier is None:
        return True
    if not version:
        return False
    return SpecifierSet(specifier).contains(Version(version).base_version, prereleases=True)


class RegistryFile(BaseModel):
    """A ``registry.yaml``."""

    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=1, le=1)]
    rules: Annotated[list[Rule], BeforeValidator(lambda value: [] if value is None else value)] = []


class FeatureSelector(BaseModel):
    """Tests that need a feature: all given parts must match."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    file: Globs | None = None
    cls: Globs | None = Field(default=None, alias="class")
    test: Globs | None = None
    op: Globs | None = None
    dtype: Globs | None = None

    @model_validator(mode="after")
    def _something(self) -> FeatureSelector:
        if all(value is None for value in (self.file, self.cls, self.test, self.op, self.dtype)):
            raise ValueError("names no test: give at least one of file, class, test, op, dtype")
        return self


class Feature(BaseModel):
    """A capability that tests need as a whole (``sparse``, ``complex``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    supported: bool
    note: str = ""
    tests: tuple[FeatureSelector, ...] = ()


class Operator(BaseModel):
    """What is declared of one operator.

    Attributes:
        supported: false: its tests are not run.
        dtypes: those it is declared for; absent: the device's.
        tolerances: by dtype, floors for its tests.
        note: why not, for example how it failed when it was tried.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    supported: bool = True
    dtypes: tuple[str, ...] | None = None
    tolerances: dict[str, Tolerance] = {}
    note: str = ""


class Capabilities(BaseModel):
    """A ``capabilities.yaml`` (C18).

    Attributes:
        dtypes: that the device holds; empty: all. A test over another one is skipped.
        operators: by ``OpInfo.full_name``; one that is not named is not declared, and its tests run.
        tolerances: by dtype, floors for all tests.
        features: what tests need as a whole.
    """

    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=1, le=1)]
    dtypes: tuple[str, ...] = ()
    operators: dict[str, Operator] = {}
    tolerances: dict[str, Tolerance] = {}
    features: dict[str, Feature] = {}

    def declares(self, op: str, dtype: str) -> bool:
        """Whether an operator is declared for a dtype (``""``: for any)."""
        operator = self.operators.get(op)
        if operator is None or not operator.supported:
            return False
        dtypes = self.dtypes if operator.dtypes is None else operator.dtypes
        return not dtype or not dtypes or dtype in dtypes

    def refuses(self, op: str, dtypes: str) -> str:
        """Why tests of an operator and of dtypes (``float32,int64``) are not run; ``""`` where they are."""
        operator = self.operators.get(op)
        if operator is not None and not operator.supported:
            return f"unsupported-operator: {op}" + (f": {operator.note}" if operator.note else "")
        allowed = operator.dtypes if operator is not None and operator.dtypes is not None else self.dtypes
        missing = [item for item in dtypes.split(",") if item and allowed and item not in allowed]
        return f"unsupported-dtype: {', '.join(missing)}" + (f" of {op}" if op else "") if missing else ""

    def tolerance(self, op: str, dtypes: str) -> tuple[float, float] | None:
        """``(atol, rtol)`` that tests of an operator and of dtypes get at least; ``None`` without any."""
        operator = self.operators.get(op)
        own = operator.tolerances if operator is not None else {}
        found = [own.get(item) or self.tolerances.get(item) for item in dtypes.split(",")]
        floors = [item for item in found if item is not None]
        return (max(f.atol for f in floors), max(f.rtol for f in floors)) if floors else None
