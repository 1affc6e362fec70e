"""HUD's ingest address (spec 1.8)."""

from __future__ import annotations

import time
from dataclasses import dataclass

from relay.adapters.http import HttpClient, NoAnswer
from relay.core import retry

INGEST_PATH = "/api/crcr/results"
_KEY_HEADER = "x-hud-internal-bot"


class HudUnavailable(Exception):
    """HUD does not have the report yet. ``after`` is the wait it asked for in seconds."""

    def __init__(self, message: str, after: float | None = None):
        super().__init__(message)
        self.after = after


@dataclass(frozen=True)
class Rejected:
    """HUD refuses the report itself; its author must see the answer."""

    status: int
    text: str


class Hud:
    """A HUD server.

    Args:
        client: used for every request; it is not closed here.
        base_url: ``/api/crcr/results`` is appended.
        key: the shared ingest key.
    """

    def __init__(self, client: HttpClient, base_url: str, key: str):
        self._client = client
        self._url = base_url.rstrip("/") + INGEST_PATH
        self._headers = {_KEY_HEADER: key, "Content-Type": "application/json"}

    async def send(self, report: str) -> Rejected | None:
        """Deliver one report, JSON of :class:`relay.wire.HudReport`. HUD takes an identical repeat as the first one.

        Returns:
            ``None`` when HUD has it.

        Raises:
            HudUnavailable: try again.
        """
        try:
            response = await self._client.request("POST", self._url, body=report, headers=self._headers)
        except NoAnswer as error:
            raise HudUnavailable(f"no answer from HUD ({error})") from error
        if 200 <= response.status < 300:
            return None
        verdict = retry.hud(response.status, response.headers, time.time())
        if isinstance(verdict, retry.Never) and 400 <= response.status < 500:
            return Rejected(response.status, response.text[:4000])
        after = verdict.after if isinstance(verdict, retry.Again) else None
        raise HudUnavailable(f"HUD answered {response.status}: {response.text[:300]}", after)
