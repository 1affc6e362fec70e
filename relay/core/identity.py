"""Who is calling: decisions about an OIDC token (spec 1.5), given keys that somebody else fetched.

Trust comes from the operator's list of issuers only. Whatever a token says about where its key lives (``jku``, ``x5u``,
``jwk``) is a reason to refuse it.
"""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jwt
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

ALGORITHMS = ("RS256", "ES256")
LEEWAY_SECONDS = 30
"""How far the caller's clock may be from ours."""
MAX_TOKEN_BYTES = 16 * 1024
MAX_LIFETIME_SECONDS = 24 * 3600
"""No CI issues tokens that outlive its longest job; one that does is a mistake worth refusing."""

_KEY_TYPES = {"RS256": "RSA", "ES256": "EC"}
_POINTERS = ("jku", "jwk", "x5u", "x5c", "crit")


Step = Literal[
    "token",
    "algorithm",
    "header",
    "key id",
    "issuer",
    "key",
    "signature",
    "claims",
    "times",
    "audience",
    "lifetime",
    "identity",
    "required claims",
]
STEPS: tuple[Step, ...] = get_args(Step)
"""What a token has to pass, in this order; a refusal says at which step."""


class Refused(Exception):
    """The caller is not who it must be.

    Attributes:
        status: 401 (no proof) or 403 (proof of the wrong thing).
        step: the first of :data:`STEPS` that the token did not pass.
    """

    def __init__(self, status: int, reason: str, step: Step):
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.step: Step = step


class Pipeline(BaseModel):
    """A pipeline of a CI that does not know repositories by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repository: str = Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")
    required_claims: dict[str, list[str]] = {}

    @field_validator("required_claims", mode="before")
    @classmethod
    def _lists(cls, value: Any) -> Any:
        return _as_lists(value)


class Issuer(BaseModel):
    """One trust anchor.

    Attributes:
        issuer: exact ``iss``.
        jwks_url: where its public keys are.
        identity: claim that is the repository's name (``repository``), or claims that together name a pipeline
            (``[organization_id, pipeline_id]``, joined by ``/``).
        pipelines: pipeline name → repository, for identities that are no repository name.
        required_claims: claim → accepted values, for every token of this issuer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str = Field(min_length=1)
    jwks_url: str = Field(pattern=r"^https?://")
    identity: list[str] = Field(default=["repository"], min_length=1)
    pipelines: dict[str, Pipeline] | None = None
    required_claims: dict[str, list[str]] = {}

    @field_validator("identity", mode="before")
    @classmethod
    def _one_claim(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("required_claims", mode="before")
    @classmethod
    def _lists(cls, value: Any) -> Any:
        return _as_lists(value)

    @model_validator(mode="after")
    def _pipelines_for_pairs(self) -> Issuer:
        if len(self.identity) > 1 and self.pipelines is None:
            raise ValueError("an identity of several claims needs 'pipelines', which maps it to a repository")
        return self


def _as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item if isinstance(item, list) else [item] for key, item in value.items()}
    return value


GITHUB = Issuer(
    issuer="https://token.actions.githubusercontent.com",
    jwks_url="https://token.actions.githubusercontent.com/.well-known/jwks",
)
BUILDKITE = Issuer(
    issuer="https://agent.buildkite.com",
    jwks_url="https://agent.buildkite.com/.well-known/jwks",
    identity=["organization_id", "pipeline_id"],
    pipelines={},
)


def trust_anchors(configured: list[Issuer]) -> dict[str, Issuer]:
    """Built-in issuers and the operator's; an operator's entry of the same name replaces the built-in one."""
    return {anchor.issuer: anchor for anchor in (GITHUB, BUILDKITE, *configured)}


@dataclass(frozen=True)
class Unverified:
    """What a token claims about itself: only good for choosing the key to check it with, and for error texts."""

    issuer: Issuer
    algorithm: str
    key_id: str
    claims: dict[str, Any]


def bearer(header: str | None) -> str:
    """The token of an ``Authorization`` header.

    Raises:
        Refused: there is none.
    """
    if not header:
        raise Refused(401, "no Authorization header; send 'Authorization: Bearer <OIDC token>'", "token")
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Refused(401, "the Authorization header is not 'Bearer <OIDC token>'", "token")
    if len(token) > MAX_TOKEN_BYTES:
        raise Refused(401, f"the token is larger than {MAX_TOKEN_BYTES} bytes", "token")
    return token


def peek(token: str, anchors: dict[str, Issuer]) -> Unverified:
    """Choose the key for a token.

    Raises:
        Refused: not a JWT, another algorithm, no key id, an issuer that the operator does not trust.
    """
    try:
        if token.count(".") != 2:
            raise ValueError("it has not three parts (RFC 7515, section 7.1)")
        header, claims = map(_members, token.split(".")[:2])
    except (ValueError, RecursionError) as error:
        raise _no_jwt(error) from error
    algorithm = header.get("alg")
    if algorithm not in ALGORITHMS:
        raise Refused(
            401, f"algorithm {str(algorithm)[:20]!r} is not accepted; use {' or '.join(ALGORITHMS)}", "algorithm"
        )
    pointers = [name for name in _POINTERS if name in header]
    if pointers:
        raise Refused(
            401, f"the token's header carries {', '.join(pointers)}; keys come from the operator only", "header"
        )
    key_id = header.get("kid")
    if not isinstance(key_id, str) or not key_id:
        raise Refused(401, "the token's header has no key id (kid)", "key id")
    issuer = claims.get("iss")
    if not isinstance(issuer, str) or issuer not in anchors:
        raise Refused(401, f"issuer {str(issuer)[:200]!r} is not trusted by this relay", "issuer")
    return Unverified(issuer=anchors[issuer], algorithm=str(algorithm), key_id=key_id, claims=claims)


def _members(segment: str) -> dict[str, Any]:
    """The object in a segment. :func:`verify` reads the token again, strictly; reading it so twice costs much."""
    value = json.loads(base64.b64decode(segment + "=" * (-len(segment) % 4), altchars=b"-_", validate=True))
    if not isinstance(value, dict):
        raise ValueError("a part of it is no JSON object")
    return value


def _no_jwt(error: Exception) -> Refused:
    return Refused(401, f"the token is not a JWT: {str(error)[:200]}", "token")


def verify(
    token: str, unverified: Unverified, key: jwt.PyJWK, audience: str, now: float | None = None
) -> dict[str, Any]:
    """Check signature, issuer, audience and times.

    Args:
        key: the issuer's key with the token's key id.
        audience: the one value that ``aud`` must hold.
        now: seconds since the epoch, for error texts.

    Returns:
        The claims, which may now be believed.

    Raises:
        Refused: with 401 and a text that says which check failed.
    """
    if key.key_type != _KEY_TYPES[unverified.algorithm]:
        raise Refused(401, f"key {unverified.key_id[:80]!r} is no {unverified.algorithm} key", "key")
    if key.algorithm_name != unverified.algorithm:
        raise Refused(
            401, f"key {unverified.key_id[:80]!r} is for {key.algorithm_name}, not {unverified.algorithm}", "key"
        )
    moment = time.time() if now is None else now
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key=key.key,
            algorithms=[unverified.algorithm],
            audience=audience,
            issuer=unverified.issuer.issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iat", "iss", "aud"]},
        )
    except jwt.ExpiredSignatureError as error:
        expired = int(unverified.claims["exp"])
        raise Refused(401, f"the token expired {moment - expired:.0f} s ago", "times") from error
    except jwt.InvalidSignatureError as error:
        raise Refused(401, "the token's signature is wrong", "signature") from error
    except jwt.DecodeError as error:
        raise _no_jwt(error) from error
    except jwt.InvalidAudienceError as error:
        raise Refused(401, f"the token's audience is not {audience!r}", "audience") from error
    except jwt.InvalidIssuerError as error:
        raise Refused(401, "the token's issuer is wrong", "issuer") from error
    except jwt.ImmatureSignatureError as error:
        raise Refused(
            401, "the token is not valid yet (nbf or iat is in the future); check the clocks", "times"
        ) from error
    except jwt.MissingRequiredClaimError as error:
        raise Refused(401, f"the token has no {error.claim!r} claim", "claims") from error
    except (jwt.InvalidTokenError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Refused(401, f"the token is invalid: {str(error)[:200]}", "claims") from error
    if claims["exp"] - claims["iat"] > MAX_LIFETIME_SECONDS:
        raise Refused(401, f"the token lives longer than {MAX_LIFETIME_SECONDS // 3600} h", "lifetime")
    return claims


def repository(claims: dict[str, Any], issuer: Issuer) -> str:
    """The downstream repository that verified claims speak for.

    Raises:
        Refused: 401 without the identity claims, 403 for a pipeline that is not registered or a required claim that
            does not match.
    """
    parts = []
    for claim in issuer.identity:
        value = claims.get(claim)
        if not isinstance(value, str) or not value:
            raise Refused(
                401, f"the token has no {claim!r} claim, which names the caller for {issuer.issuer}", "identity"
            )
        parts.append(value)
    identity = "/".join(parts)
    if issuer.pipelines is None:
        if identity.count("/") != 1:
            raise Refused(401, f"{identity[:200]!r} is no repository name", "identity")
        _require(claims, issuer.required_claims)
        return identity
    pipeline = issuer.pipelines.get(identity)
    if pipeline is None:
        raise Refused(
            403, f"pipeline {identity[:200]!r} of {issuer.issuer} is not registered with this relay", "identity"
        )
    _require(claims, issuer.required_claims)
    _require(claims, pipeline.required_claims)
    return pipeline.repository


def _require(claims: dict[str, Any], required: dict[str, list[str]]) -> None:
    for claim, accepted in required.items():
        if claims.get(claim) not in accepted:
            raise Refused(
                403,
                f"claim {claim!r} is {str(claims.get(claim))[:200]!r}; this relay requires {' or '.join(accepted)}",
                "required claims",
            )
