"""``relay token verify``: the checks of a callback's token one by one, by the functions that the endpoint uses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from relay.adapters.allowlist_source import READ_ERRORS, read
from relay.adapters.http import HttpClient
from relay.adapters.jwks import KeyCache, KeyServerUnavailable
from relay.app.findings import Finding
from relay.app.settings import TrustSettings
from relay.core import identity
from relay.core.allowlist import Allowlist, parse


@dataclass(frozen=True)
class Examination:
    """How a token fared.

    Attributes:
        steps: every step of :data:`relay.core.identity.STEPS`, then the allowlist where there is one.
        repository: whom the token speaks for, ``None`` if it is refused.
        claims: what the token says, to be believed only if it is accepted.
    """

    steps: list[Finding]
    repository: str | None
    claims: dict[str, Any]

    @property
    def accepted(self) -> bool:
        """Whether a callback with this token gets past its authentication."""
        return self.repository is not None


class NoAllowlist(Exception):
    """The allowlist that was named cannot be read."""


async def with_network(token: str, settings: TrustSettings, allowlist: str | None) -> Examination:
    """:func:`examine` with keys and allowlist read anew.

    Args:
        allowlist: path or URL, if one is configured.

    Raises:
        NoAllowlist: it cannot be read.
    """
    async with HttpClient() as client:
        listed = None
        if allowlist is not None:
            try:
                listed = parse(await read(allowlist, client), allowlist)
            except READ_ERRORS as error:
                raise NoAllowlist(f"{allowlist}: {error}") from error
        return await examine(token, settings, KeyCache(client), listed)


async def examine(token: str, settings: TrustSettings, keys: KeyCache, allowlist: Allowlist | None) -> Examination:
    """Check a token as the callback endpoint does.

    Args:
        token: the token, or the whole ``Authorization`` header's value.
        keys: where the issuers' keys come from.
        allowlist: to say what the repository's level is; it plays no part in whether the token is accepted.
    """
    claims: dict[str, Any] = {}
    passed: dict[identity.Step, str] = {}
    try:
        header = token if token.lower().startswith("bearer ") else f"Bearer {token}"
        bare = identity.bearer(header)
        passed["token"] = f"a signed token of {len(bare)} bytes"
        unverified = identity.peek(bare, identity.trust_anchors(settings.oidc_issuers))
        claims = unverified.claims
        passed |= {
            "algorithm": unverified.algorithm,
            "header": "names no key address of its own",
            "key id": unverified.key_id,
            "issuer": unverified.issuer.issuer,
        }
        key = await keys.key(unverified.issuer, unverified.key_id)
        passed["key"] = f"published at {unverified.issuer.jwks_url}"
        identity.verify(bare, unverified, key, settings.oidc_audience)
        passed |= {
            "times": f"issued {_moment(claims['iat'])}, expires {_moment(claims['exp'])}",
            "audience": settings.oidc_audience,
            "lifetime": f"{claims['exp'] - claims['iat']:.0f} s",
        }
        repository = identity.repository(claims, unverified.issuer)
        passed["identity"] = f"{' + '.join(unverified.issuer.identity)} → {repository}"
    except identity.Refused as refusal:
        return Examination(_steps(passed, refusal.step, refusal.reason), None, claims)
    except KeyServerUnavailable as error:
        return Examination(_steps(passed, "key", f"{error}; a callback would be answered 503"), None, claims)
    steps = [Finding(step, "ok", passed.get(step, "as it must be")) for step in identity.STEPS]
    if allowlist is not None:
        target = allowlist.get(repository)
        steps.append(
            Finding("allowlist", "warning", f"{repository} is not on it: its callbacks are answered as ignored")
            if target is None
            else Finding("allowlist", "ok", f"{target.repo} is at level {target.level}")
        )
    return Examination(steps, repository, claims)


def _steps(passed: dict[identity.Step, str], at: identity.Step, reason: str) -> list[Finding]:
    where = identity.STEPS.index(at)
    return [
        Finding(step, "ok", passed.get(step, "as it must be"))
        if number < where
        else Finding(step, "failed", reason)
        if number == where
        else Finding(step, "skipped", "not looked at")
        for number, step in enumerate(identity.STEPS)
    ]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")
