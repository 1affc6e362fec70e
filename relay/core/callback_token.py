"""The callback token: our signature on what was dispatched (spec 2).

It travels in ``client_payload`` and comes back with the callback, so a report cannot claim another delivery, another
repository, another PR or another commit than the one that was sent to it.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from functools import lru_cache

import jwt
from pydantic import BaseModel, ConfigDict, ValidationError

_AUDIENCE = "relay-callback"
_ALGORITHM = "HS256"


class CallbackTokenError(ValueError):
    """The token is forged, expired, or speaks of another dispatch; the text says which."""


class CallbackToken(BaseModel):
    """What one dispatch was about."""

    model_config = ConfigDict(frozen=True)

    delivery_id: str
    repo: str
    pr_number: int | None
    head_sha: str


def derive_secret(webhook_secret: str) -> str:
    """Signing key for operators who configured none: derived, so the webhook secret itself signs nothing else."""
    return hmac.new(webhook_secret.encode(), b"relay callback token", hashlib.sha256).hexdigest()


@lru_cache(maxsize=1024)
def sign(token: CallbackToken, secret: str, expires: float) -> str:
    """Sign; the same dispatch always gives the same text, so a retried dispatch is the same request.

    Args:
        expires: seconds since the epoch.
    """
    return jwt.encode({**token.model_dump(), "aud": _AUDIENCE, "exp": int(expires)}, secret, algorithm=_ALGORITHM)


def check(text: str, secret: str, expected: CallbackToken, expires: float) -> None:
    """Compare a returned token with our own record of the dispatch.

    Args:
        expires: as this dispatch's token would be signed now. One that is signed alike is genuine, and the jobs of a
            dispatch send it again and again; one that is not, because the retention was another, is read.

    Raises:
        CallbackTokenError: not genuine, too old, or for another dispatch.
    """
    if time.time() < int(expires) and hmac.compare_digest(text.encode(), sign(expected, secret, expires).encode()):
        return
    try:
        claims = jwt.decode(
            text, secret, algorithms=[_ALGORITHM], audience=_AUDIENCE, options={"require": ["exp", "aud"]}
        )
        token = CallbackToken.model_validate(claims)
    except jwt.ExpiredSignatureError as error:
        raise CallbackTokenError("callback_token has expired") from error
    except (jwt.InvalidTokenError, ValidationError, ValueError, RecursionError) as error:
        raise CallbackTokenError("callback_token is not one that this relay signed") from error
    for name in ("delivery_id", "repo", "pr_number", "head_sha"):
        if getattr(token, name) != getattr(expected, name):
            raise CallbackTokenError(f"callback_token belongs to another dispatch ({name} differs)")
