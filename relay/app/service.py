"""What a relay process holds: settings, store, adapters, metrics; made once, closed once."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta

import structlog

from relay.adapters.allowlist_source import AllowlistSource
from relay.adapters.github import GitHubApp
from relay.adapters.http import HttpClient
from relay.adapters.hud import Hud
from relay.adapters.jwks import KeyCache
from relay.app.limits import RepositoryLimits
from relay.app.metrics import Metrics
from relay.app.settings import Settings
from relay.core import callback_token, identity
from relay.core.allowlist import Target
from relay.core.body import dump
from relay.core.ratelimit import Rate, TokenBuckets
from relay.store import jobs as job_store
from relay.store.database import Database, NoStoreOfRelay, StoreUnavailable
from relay.store.deliveries import Dispatch
from relay.wire import Callback, Level, ResultsUpload, Trusted
from relay.wire.report import CiMetrics
from relay.wire.ticket import Ticket, sign_ticket

_log = structlog.get_logger(__name__)
_TICKET_LIFETIME = timedelta(hours=6)


@dataclass
class Service:
    """The parts of one process.

    Attributes:
        owner: names this process in leases.
        hud: ``None`` where the operator configured none; results are then kept but go nowhere.
    """

    settings: Settings
    database: Database
    metrics: Metrics
    github: GitHubApp
    hud: Hud | None
    keys: KeyCache
    allowlist: AllowlistSource
    anchors: dict[str, identity.Issuer]
    limits: RepositoryLimits
    client_buckets: TokenBuckets
    owner: str
    clients: list[HttpClient]

    @classmethod
    def create(cls, settings: Settings, *, looking: bool = False) -> Service:
        """Wire the parts. Nothing is contacted yet.

        Args:
            looking: nothing is kept in the store, and none is made where there is none.

        Raises:
            ValueError: the database URL names a kind that is not supported.
        """
        database = Database(settings.database_url)
        # As many connections as tasks at a time.
        github_client = HttpClient(
            connections=settings.worker_concurrency + settings.other_concurrency,
            seconds=settings.request_timeout_seconds,
        )
        hud_client = HttpClient(connections=settings.worker_concurrency, seconds=settings.request_timeout_seconds)
        # Callers wait for these; a slow key server must not hold them for long.
        quick_client = HttpClient(seconds=10, connect_seconds=5)

        async def remembered() -> str | None:
            try:
                if looking:
                    await asyncio.to_thread(database.check_made)
                return await database.run(
                    lambda connection: job_store.document(connection, "allowlist", settings.allowlist)
                )
            except (NoStoreOfRelay, StoreUnavailable):
                return None

        async def remember(text: str) -> None:
            if looking:
                return
            try:
                await database.run(
                    lambda connection: job_store.keep_document(
                        connection, "allowlist", settings.allowlist, text, now=time.time()
                    )
                )
            except StoreUnavailable as error:
                _log.warning("allowlist_not_remembered", error=str(error))

        hud = None
        if settings.hud_url is not None and settings.hud_key is not None:
            hud = Hud(hud_client, settings.hud_url, settings.hud_key.get_secret_value())
        return cls(
            settings=settings,
            database=database,
            metrics=Metrics(),
            github=GitHubApp(
                github_client,
                settings.github_api_url,
                settings.github_app_id,
                settings.github_private_key.get_secret_value(),
            ),
            hud=hud,
            keys=KeyCache(quick_client),
            allowlist=AllowlistSource(
                settings.allowlist,
                quick_client,
                ttl=settings.allowlist_ttl_seconds,
                remembered=remembered,
                remember=remember,
            ),
            anchors=identity.trust_anchors(settings.oidc_issuers),
            limits=RepositoryLimits(database),
            client_buckets=TokenBuckets(),
            owner=f"{socket.gethostname()[:40]}:{os.getpid()}:{uuid.uuid4().hex[:8]}",
            clients=[github_client, hud_client, quick_client],
        )

    async def close(self) -> None:
        """Close connections; what is owed stays in the store."""
        for client in self.clients:
            await client.close()
        self.database.close()

    def keep_until(self, now: float) -> float:
        """When the trying of an effect that must not be lost ends: with the record it belongs to."""
        return now + self.settings.retention_seconds

    def rate(self, target: Target | None) -> Rate:
        """How fast a repository may report."""
        return Rate(
            burst=target.rate_burst if target and target.rate_burst else self.settings.rate_burst,
            per_minute=target.rate_per_minute if target and target.rate_per_minute else self.settings.rate_per_minute,
        )

    def client_payload(self, message: str, dispatch: Dispatch) -> str:
        """``client_payload`` of one dispatch, with its callback token, as JSON.

        Args:
            message: as stored, a JSON object that is not empty; the token becomes its last member.
        """
        token = callback_token.sign(token_for(dispatch), self.settings.callback_secret, self.token_expires(dispatch))
        return f'{message[:-1]},"callback_token":{dump(token)}}}'

    def token_expires(self, dispatch: Dispatch) -> float:
        """When the callback token of a dispatch expires: with the record."""
        return dispatch.created_at + self.settings.retention_seconds

    def results_upload(self, repo: str, level: Level, callback: Callback, key: str) -> ResultsUpload | None:
        """Where a job's per-test results go, and its ticket; ``None`` without a HUD."""
        if self.settings.hud_key is None or self.settings.hud_url is None:
            return None
        workflow = callback.workflow
        ticket = Ticket(
            repo=repo,
            level=level,
            delivery_id=callback.delivery_id,
            run_id=workflow.run_id,
            run_attempt=workflow.run_attempt,
            job_name=workflow.job_name,
        )
        token, expires = sign_ticket(ticket, self.settings.hud_key.get_secret_value(), _TICKET_LIFETIME)
        base = (self.settings.hud_public_url or self.settings.hud_url).rstrip("/")
        return ResultsUpload(url=f"{base}/api/v1/runs/{key}/tests", token=token, expires=expires)


def token_for(dispatch: Dispatch) -> callback_token.CallbackToken:
    """What the callback token of a dispatch says."""
    return callback_token.CallbackToken(
        delivery_id=dispatch.delivery_id, repo=dispatch.repo, pr_number=dispatch.pr_number, head_sha=dispatch.head_sha
    )


def hud_report(callback: Callback, repo: str, level: Level, metrics: CiMetrics) -> str:
    """JSON of a :class:`~relay.wire.HudReport`. The callback token is between us and the job, so it stays here."""
    trusted = Trusted(ci_metrics=metrics, verified_repo=repo, downstream_repo_level=level)
    # pydantic writes it several times faster, but what is not ASCII needs the slow way: see relay.store.schema.
    payload = callback.model_dump_json(exclude_unset=True, exclude={"callback_token"})
    if not payload.isascii():
        payload = dump(callback.model_dump(mode="json", exclude_unset=True, exclude={"callback_token"}))
    return f'{{"trusted":{trusted.model_dump_json()},"untrusted":{{"callback_payload":{payload}}}}}'
