"""Delivery of webhooks to the App, as GitHub does it: signed, once, with ten seconds to answer.

GitHub does not repeat a failed delivery by itself; a person (or the API) asks for a redelivery, which carries the same
``X-GitHub-Delivery``. Source: GitHub's "Webhooks" documentation.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
import uuid
from typing import Any

import httpx

from relay.emulator.state import Delivery, Repository, State

TIMEOUT_SECONDS = 10.0
_KEEP = 5_000
_log = logging.getLogger("relay.emulator")


def signature(secret: str, body: bytes) -> str:
    """``X-Hub-Signature-256`` of a body."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


class Webhooks:
    """Sends deliveries in the background and keeps what came back."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._client = httpx.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False)
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, repository: Repository, event: str, payload: dict[str, Any]) -> Delivery | None:
        """Deliver an event, if the App is installed there and subscribes to it.

        Returns:
            The delivery, still pending; ``None`` if GitHub would send nothing.
        """
        app = self._state.settings.app
        if app.webhook_url is None or not repository.settings.installed or event not in app.events:
            return None
        return self._queue(
            Delivery(
                id=self._state.new_id(),
                guid=str(uuid.uuid4()),
                event=event,
                action=payload.get("action"),
                repository=repository.full_name,
                repository_id=repository.id,
                payload=payload,
            )
        )

    def redeliver(self, old: Delivery) -> Delivery:
        """Deliver again: a new attempt with the same delivery GUID."""
        return self._queue(
            Delivery(
                id=self._state.new_id(),
                guid=old.guid,
                event=old.event,
                action=old.action,
                repository=old.repository,
                repository_id=old.repository_id,
                payload=old.payload,
                redelivery=True,
            )
        )

    def _queue(self, delivery: Delivery) -> Delivery:
        deliveries = self._state.deliveries
        deliveries[delivery.id] = delivery
        while len(deliveries) > _KEEP:
            del deliveries[next(iter(deliveries))]
        task = asyncio.create_task(self._deliver(delivery))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return delivery

    async def _deliver(self, delivery: Delivery) -> None:
        app = self._state.settings.app
        assert app.webhook_url is not None
        body = json.dumps(delivery.payload, separators=(",", ":"), ensure_ascii=False).encode()
        delivery.request_headers = {
            "Accept": "*/*",
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/emulator",
            "X-GitHub-Delivery": delivery.guid,
            "X-GitHub-Event": delivery.event,
            "X-GitHub-Hook-ID": str(app.id),
            "X-GitHub-Hook-Installation-Target-ID": str(app.id),
            "X-GitHub-Hook-Installation-Target-Type": "integration",
            "X-Hub-Signature-256": signature(app.webhook_secret, body),
        }
        started = time.monotonic()
        try:
            # httpx bounds each read; GitHub bounds the whole answer.
            response = await asyncio.wait_for(
                self._client.post(app.webhook_url, content=body, headers=delivery.request_headers), TIMEOUT_SECONDS
            )
            delivery.status_code = response.status_code
            delivery.status = "OK" if response.is_success else response.reason_phrase or "failed"
            delivery.response_headers = dict(response.headers)
            delivery.response_body = response.text[:64_000]
        except (asyncio.TimeoutError, TimeoutError, httpx.TimeoutException):
            delivery.status = "timed out"
        except httpx.HTTPError as error:
            delivery.status = f"failed to connect to host: {error}"
        except asyncio.CancelledError:
            delivery.status = "the server was stopped"
            raise
        finally:
            delivery.duration = round(time.monotonic() - started, 3)
            self._state.save_delivery(delivery)
        if delivery.status_code == 0 or delivery.status_code >= 400:
            _log.warning(
                "delivery %s (%s): %s %s", delivery.guid, delivery.event, delivery.status_code, delivery.status
            )

    @property
    def busy(self) -> bool:
        """Whether a delivery is under way."""
        return bool(self._tasks)

    async def stop(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()
