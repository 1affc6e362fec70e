"""Public keys of OIDC issuers (RFC 7517), cached so that a key server's outage is not ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import jwt
import structlog
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from relay.adapters.http import HttpClient, NoAnswer
from relay.core.identity import ALGORITHMS, Issuer, Refused

_log = structlog.get_logger(__name__)
_MAX_BYTES = 1024 * 1024
_MIN_RSA_BITS = 2048


class KeyServerUnavailable(Exception):
    """No key and no way to get one: the caller may try again."""


@dataclass
class _Keys:
    by_id: dict[str, jwt.PyJWK] = field(default_factory=dict)
    fetched_at: float | None = None
    tried_at: float | None = None
    error: str | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class KeyCache:
    """Keys by issuer.

    Keys are refreshed when they are older than ``ttl``, and once when an unknown key id appears (a rotation), but never
    more often than every ``interval`` seconds whatever callers send. While the key server fails, old keys serve.

    Args:
        client: used for every fetch; it is not closed here.
        ttl: seconds.
        interval: seconds between two fetches of one issuer.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        client: HttpClient,
        *,
        ttl: float = 3600,
        interval: float = 30,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._client = client
        self._ttl = ttl
        self._interval = interval
        self._clock = clock
        self._issuers: dict[str, _Keys] = {}

    async def key(self, issuer: Issuer, key_id: str) -> jwt.PyJWK:
        """The issuer's key of that id.

        Raises:
            Refused: the issuer has no such key.
            KeyServerUnavailable: nobody can tell, because the key server does not answer.
        """
        keys = self._issuers.setdefault(issuer.issuer, _Keys())
        fresh = keys.fetched_at is not None and self._clock() - keys.fetched_at < self._ttl
        if key_id in keys.by_id and fresh:
            return keys.by_id[key_id]
        async with keys.lock:
            now = self._clock()
            if keys.tried_at is None or now - keys.tried_at >= self._interval:
                await self._fetch(issuer, keys)
        if key_id in keys.by_id:
            return keys.by_id[key_id]
        if keys.error is not None:
            raise KeyServerUnavailable(f"the keys of {issuer.issuer} cannot be read: {keys.error}")
        raise Refused(401, f"{issuer.issuer} has no key {key_id[:80]!r}", "key")

    async def number(self, issuer: Issuer) -> int:
        """How many usable keys the issuer publishes now.

        Raises:
            KeyServerUnavailable: the key server does not answer with a key set.
        """
        keys = self._issuers.setdefault(issuer.issuer, _Keys())
        async with keys.lock:
            await self._fetch(issuer, keys)
        if keys.error is not None:
            raise KeyServerUnavailable(keys.error)
        return len(keys.by_id)

    async def _fetch(self, issuer: Issuer, keys: _Keys) -> None:
        keys.tried_at = self._clock()
        try:
            response = await self._client.get(issuer.jwks_url, headers={"Accept": "application/json"})
            response.expect(200)
            if len(response.content) > _MAX_BYTES:
                raise ValueError(f"the key set is larger than {_MAX_BYTES} bytes")
            found = _usable(response.json())
        except (NoAnswer, ValueError, RecursionError) as error:
            keys.error = str(error) or repr(error)
            _log.warning("key_server_failed", issuer=issuer.issuer, error=keys.error, cached_keys=len(keys.by_id))
            return
        keys.by_id, keys.fetched_at, keys.error = found, self._clock(), None


def _usable(document: object) -> dict[str, jwt.PyJWK]:
    """Signing keys with an id and an algorithm of ours; others in the set are none of our business."""
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("the key set has no list 'keys'")
    found: dict[str, jwt.PyJWK] = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str) or entry.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK.from_dict(entry)
        except jwt.PyJWTError:
            continue
        strong = isinstance(key.key, EllipticCurvePublicKey) or (
            isinstance(key.key, RSAPublicKey) and key.key.key_size >= _MIN_RSA_BITS
        )
        if key.algorithm_name in ALGORITHMS and strong:
            found[entry["kid"]] = key
    if not found:
        raise ValueError("the key set has no usable signing key")
    return found
