"""GitHub's webhook signature (GitHub Docs, "Validating webhook deliveries")."""

from __future__ import annotations

import hashlib
import hmac

HEADER = "x-hub-signature-256"
_PREFIX = "sha256="


def sign(body: bytes, secret: str) -> str:
    """Value of ``X-Hub-Signature-256`` for ``body``."""
    return _PREFIX + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def verify(body: bytes, header: str, secret: str) -> bool:
    """Whether ``header`` signs ``body``; the time taken does not depend on how much of it is right."""
    return hmac.compare_digest(sign(body, secret).encode(), header.encode("utf-8", "replace"))
