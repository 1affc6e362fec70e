"""Remembering reports that were refused, so that an operator can see them on ``/health``."""

from __future__ import annotations

import sqlalchemy as sa

from hud.core.text import clean, cut
from hud.store.engine import Store
from hud.store.tables import refusal

_KEPT = 1000
_MAX_TEXT_BYTES = 1024


def record_refusal(store: Store, repo: str | None, status: int, text: str, now: float) -> None:
    """Keep a refusal; the oldest go when there are more than a thousand."""
    with store.write() as connection:
        said = cut(clean(text), _MAX_TEXT_BYTES)[0]
        row = {"repo": clean(repo) if repo else None, "status": status, "text": said, "at": now}
        number = connection.execute(refusal.insert().values(row).returning(refusal.c.id)).scalar_one()
        connection.execute(sa.delete(refusal).where(refusal.c.id <= number - _KEPT))
