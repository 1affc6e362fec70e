"""``relay config check`` looks at what this machine knows; ``relay doctor`` also asks everyone the relay talks to."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import make_url

from relay.adapters.allowlist_source import AllowlistUnavailable, is_url
from relay.adapters.github import GitHubError
from relay.adapters.http import HttpClient, NoAnswer
from relay.adapters.jwks import KeyServerUnavailable
from relay.app.findings import Finding
from relay.app.service import Service
from relay.app.settings import Settings, unknown_variables
from relay.core import github_app
from relay.core.allowlist import lint
from relay.core.identity import GITHUB
from relay.store import tasks as outbox
from relay.store.database import NoStoreOfRelay, StoreUnavailable, check_url

_LOW_DISK_BYTES = 512 * 1024 * 1024
_CLOCK_SECONDS = 20
"""GitHub refuses an App's token made by a clock that is a minute ahead; warn well before."""
_AT_ONCE = 8
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def configuration(settings: Settings, environment: Mapping[str, str]) -> list[Finding]:
    """Look at settings that are valid one by one, without asking anyone.

    Args:
        environment: the process environment, for names that are almost settings.
    """
    return [
        *(
            Finding(name, "warning", "no such setting; it is ignored (docs/relay.md lists them)")
            for name in unknown_variables(environment)
        ),
        _database(settings.database_url),
        _allowlist_file(settings.allowlist),
        Finding("RELAY_HUD_URL", "ok", settings.hud_url)
        if settings.hud_url is not None
        else Finding("RELAY_HUD_URL", "warning", "not set: results are accepted and go nowhere"),
        *_plain_http(settings),
        *_times(settings),
    ]


def _database(url: str) -> Finding:
    try:
        check_url(url)
        parsed = make_url(url)
    except ValueError as error:
        return Finding("RELAY_DATABASE_URL", "failed", str(error))
    if parsed.get_backend_name() == "sqlite":
        directory = Path(str(parsed.database)).absolute().parent
        if not directory.is_dir():
            return Finding("RELAY_DATABASE_URL", "failed", f"there is no directory {directory}")
    return Finding("RELAY_DATABASE_URL", "ok", parsed.render_as_string(hide_password=True))


def _allowlist_file(source: str) -> Finding:
    if is_url(source):
        return Finding("RELAY_ALLOWLIST", "skipped", f"{source} is read by 'relay doctor'")
    try:
        allowlist, findings = lint(Path(source).read_text(encoding="utf-8"), source)
    except (OSError, UnicodeDecodeError) as error:
        return Finding("RELAY_ALLOWLIST", "failed", f"cannot read {source}: {error}")
    if findings:
        return Finding("RELAY_ALLOWLIST", "failed", "; ".join(map(str, findings)))
    return Finding("RELAY_ALLOWLIST", "ok", f"{source}: {len(allowlist)} repositories")


def _plain_http(settings: Settings) -> list[Finding]:
    """Keys, credentials and reports that a network in between could read or replace."""
    addresses = {
        "RELAY_GITHUB_API_URL": settings.github_api_url,
        "RELAY_HUD_URL": settings.hud_url or "",
        "RELAY_ALLOWLIST": settings.allowlist,
        **{f"RELAY_OIDC_ISSUERS: {issuer.issuer}": issuer.jwks_url for issuer in settings.oidc_issuers},
    }
    return [
        Finding(name, "warning", f"{address} is not https: whoever is on the way can read and change what passes")
        for name, address in addresses.items()
        if urlsplit(address).scheme == "http" and urlsplit(address).hostname not in _LOOPBACK
    ]


def _times(settings: Settings) -> list[Finding]:
    found = []
    if settings.request_timeout_seconds > settings.lease_seconds * 0.8:
        text = "longer than most of RELAY_LEASE_SECONDS: a slow request would be cut off by the end of its lease"
        found.append(Finding("RELAY_REQUEST_TIMEOUT_SECONDS", "warning", text))
    if settings.job_timeout_seconds > settings.retention_seconds:
        text = "longer than RELAY_RETENTION_SECONDS: the dispatch of a slow job is forgotten before it reports"
        found.append(Finding("RELAY_JOB_TIMEOUT_SECONDS", "warning", text))
    return found


async def surroundings(service: Service) -> AsyncIterator[Finding]:
    """Ask the store, the allowlist's source, GitHub, the key servers and HUD. Nothing is changed anywhere."""
    for look in (_store, _allowlist, _github, _keys, _hud):
        for finding in await look(service):
            yield finding


async def _store(service: Service) -> list[Finding]:
    database = service.database
    found = []
    file = database.file
    if file is not None and not file.exists():
        return [Finding("store", "warning", f"there is no {file} yet; 'relay serve' will make it")]
    try:
        await asyncio.to_thread(database.ping)
        await asyncio.to_thread(database.check_owner)
        have, want = await asyncio.to_thread(database.revisions)
    except StoreUnavailable as error:
        return [Finding("store", "failed", f"does not answer: {error}")]
    except NoStoreOfRelay as error:
        return [Finding("store", "failed", str(error))]
    if have != want:
        found.append(Finding("store", "warning", f"schema {have or 'none'}; 'relay serve' will make it {want}"))
    else:
        found.append(Finding("store", "ok", f"answers, schema {have}"))
        owed = await database.run(outbox.counts)
        dead = sum(number for (_, state), number in owed.items() if state == "dead")
        oldest = await database.run(outbox.oldest_due)
        if dead:
            found.append(Finding("dead letters", "warning", f"{dead}; 'relay tasks list --state dead' says why"))
        if oldest is not None and time.time() - oldest > 2 * service.settings.lease_seconds:
            late = f"a task has been due for {time.time() - oldest:.0f} s"
            found.append(Finding("workers", "failed", f"{late}: no worker is running, or they cannot keep up"))
        else:
            found.append(Finding("workers", "ok", "nothing is overdue"))
    if file is not None:
        free = shutil.disk_usage(file.absolute().parent).free
        text = f"{free / 1e9:.1f} GB free where the store is"
        found.append(Finding("disk", "ok" if free >= _LOW_DISK_BYTES else "warning", text))
    return found


async def _allowlist(service: Service) -> list[Finding]:
    try:
        allowlist = await service.allowlist.current()
    except AllowlistUnavailable as error:
        return [Finding("allowlist", "failed", str(error))]
    if service.allowlist.error is not None:
        return [Finding("allowlist", "failed", f"an older version serves: {service.allowlist.error}")]
    return [Finding("allowlist", "ok", f"{service.settings.allowlist}: {len(allowlist)} repositories")]


async def _github(service: Service) -> list[Finding]:
    settings = service.settings
    try:
        app, date = await service.github.app()
    except GitHubError as error:
        hint = " (RELAY_GITHUB_APP_ID or RELAY_GITHUB_PRIVATE_KEY is another App's)" if error.status == 401 else ""
        return [Finding("GitHub App", "failed", f"{error}{hint}")]
    found = [Finding("GitHub App", "ok", f"{app.get('name')} on {settings.github_api_url}")]
    permissions, events = app.get("permissions"), app.get("events")
    lacking = github_app.missing_permissions(permissions if isinstance(permissions, dict) else {})
    if lacking:
        found.append(Finding("GitHub App", "failed", f"lacks permissions: {', '.join(lacking)}"))
    unheard = github_app.missing_events(events if isinstance(events, list) else [])
    if unheard:
        found.append(Finding("GitHub App", "failed", f"does not subscribe to events: {', '.join(unheard)}"))
    found += _clock(date)
    found += await _installations(service)
    return found


def _clock(date: str | None) -> list[Finding]:
    try:
        ahead = time.time() - parsedate_to_datetime(str(date)).timestamp()
    except (ValueError, TypeError):
        return []
    if abs(ahead) > _CLOCK_SECONDS:
        side = "ahead of" if ahead > 0 else "behind"
        return [Finding("clock", "failed", f"{abs(ahead):.0f} s {side} GitHub's: its tokens will not be accepted")]
    return [Finding("clock", "ok", "agrees with GitHub's")]


async def _installations(service: Service) -> list[Finding]:
    repositories = [service.settings.upstream_repo]
    with contextlib.suppress(AllowlistUnavailable):
        repositories += [target.repo for target in await service.allowlist.current()]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def look(repo: str) -> Finding | None:
        async with gate:
            try:
                lacking = github_app.missing_permissions(await service.github.permissions(repo))
            except GitHubError as error:
                return Finding(repo, "failed", str(error))
        text = f"its installation has not accepted: {', '.join(lacking)}; the owner must approve them"
        return Finding(repo, "failed", text) if lacking else None

    problems = [finding for finding in await asyncio.gather(*map(look, repositories)) if finding is not None]
    good = len(repositories) - len(problems)
    return [Finding("installations", "ok", f"{good} of {len(repositories)} repositories"), *problems]


async def _keys(service: Service) -> list[Finding]:
    async def look(issuer: str) -> Finding:
        anchor = service.anchors[issuer]
        try:
            number = await service.keys.number(anchor)
        except KeyServerUnavailable as error:
            # A relay behind a wall may have no use for the issuers that are built in.
            wanted = anchor in service.settings.oidc_issuers or (
                anchor == GITHUB and service.settings.web_url == "https://github.com"
            )
            text = f"{anchor.jwks_url}: {error}; its callers would be answered 503"
            return Finding(issuer, "failed" if wanted else "warning", text)
        return Finding(issuer, "ok", f"{number} keys at {anchor.jwks_url}")

    return list(await asyncio.gather(*map(look, service.anchors)))


async def _hud(service: Service) -> list[Finding]:
    url = service.settings.hud_url
    if url is None:
        return [Finding("HUD", "skipped", "none is configured")]
    try:
        async with HttpClient() as client:
            response = await client.get(url)
    except NoAnswer as error:
        return [Finding("HUD", "failed", f"{url}: {error}; reports wait until it answers")]
    if response.status >= 500:
        return [Finding("HUD", "failed", f"{url} answers {response.status}; reports wait until it does not")]
    return [Finding("HUD", "ok", f"{url} answers; its key is tested by the first report")]
