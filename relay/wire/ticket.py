"""The ticket that admits one job's per-test results to HUD without giving the job HUD's key.

The relay signs it, the job carries it, HUD verifies it. Both ends derive the signing key from the ingest key that
they share anyway, so there is nothing more to configure and the ingest key itself never signs anything that leaves
the two services.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime, timedelta, timezone

import jwt
from pydantic import BaseModel, ConfigDict

from relay.wire.report import Level, run_key

_AUDIENCE = "hud-results"
_ALGORITHM = "HS256"


class TicketError(Exception):
    """The ticket is not genuine, not for this use, or too old; the text says which."""


class Ticket(BaseModel):
    """Whose results these are."""

    model_config = ConfigDict(frozen=True)

    repo: str
    level: Level
    delivery_id: str
    run_id: str
    run_attempt: int
    job_name: str

    @property
    def key(self) -> str:
        """The run that this ticket is good for."""
        return run_key(self.repo, self.delivery_id, self.run_id, self.run_attempt, self.job_name)


def _signing_key(ingest_key: str) -> bytes:
    return hmac.new(ingest_key.encode(), b"spyre-conformance results ticket", hashlib.sha256).digest()


def sign_ticket(ticket: Ticket, ingest_key: str, lifetime: timedelta) -> tuple[str, datetime]:
    """Sign a ticket that is good from now for ``lifetime``.

    Returns:
        The compact JWT (RFC 7519) and the moment it expires.
    """
    expires = datetime.now(timezone.utc).replace(microsecond=0) + lifetime
    claims = {**ticket.model_dump(), "aud": _AUDIENCE, "exp": expires}
    return jwt.encode(claims, _signing_key(ingest_key), algorithm=_ALGORITHM), expires


def verify_ticket(token: str, ingest_key: str) -> Ticket:
    """Give back the ticket that ``token`` carries.

    Raises:
        TicketError: forged, expired, for another use, or not a ticket at all.
    """
    try:
        claims = jwt.decode(
            token,
            _signing_key(ingest_key),
            algorithms=[_ALGORITHM],
            audience=_AUDIENCE,
            options={"require": ["exp", "aud"]},
        )
        return Ticket.model_validate(claims)
    except (jwt.InvalidTokenError, ValueError) as error:
        raise TicketError(str(error)) from error
