"""Where the allowlist comes from: a file or a URL, cached, with the last good version behind it (spec 1.3, 2)."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import structlog

from relay.adapters.http import HttpClient, NoAnswer
from relay.core.allowlist import Allowlist, AllowlistError, parse

_log = structlog.get_logger(__name__)
_RETRY_SECONDS = 15
_MAX_BYTES = 4 * 1024 * 1024
READ_ERRORS = (AllowlistError, OSError, UnicodeDecodeError, NoAnswer, ValueError)
"""What can go wrong between a source and an :class:`~relay.core.allowlist.Allowlist`."""
_BLOB = re.compile(r"(/[^/]+/[^/]+)/blob/(.+)")


def raw_url(url: str) -> str:
    """The address of a file's text: a GitHub page that shows a file (``/blob/``) is turned into its raw form."""
    parts = urlsplit(url)
    match = _BLOB.fullmatch(parts.path)
    if match is None:
        return url
    if parts.netloc.lower() == "github.com":
        return urlunsplit(("https", "raw.githubusercontent.com", f"{match[1]}/{match[2]}", "", ""))
    return urlunsplit((parts.scheme, parts.netloc, f"{match[1]}/raw/{match[2]}", "", ""))


def is_url(source: str) -> bool:
    """Whether an allowlist's source is a URL rather than a path."""
    return source.startswith(("http://", "https://"))


async def read(source: str, client: HttpClient) -> str:
    """The text at a path or URL.

    Raises:
        OSError, UnicodeDecodeError, NoAnswer, ValueError: it cannot be read (part of :data:`READ_ERRORS`).
    """
    if not is_url(source):
        return await asyncio.to_thread(Path(source).read_text, "utf-8")
    response = (await client.get(raw_url(source), redirects=True)).expect(200)
    if len(response.content) > _MAX_BYTES:
        raise ValueError(f"the allowlist is larger than {_MAX_BYTES} bytes")
    return response.content.decode("utf-8")


class AllowlistUnavailable(Exception):
    """No version of the allowlist was ever good."""


class AllowlistSource:
    """The allowlist in force.

    Args:
        source: path or URL.
        client: for URLs; it is not closed here.
        ttl: seconds between two readings.
        remembered: gives the last good text of an earlier process, if any.
        remember: stores a good text.
        clock: monotonic seconds.

    Attributes:
        error: why the newest version is not in force, ``None`` if it is.
    """

    def __init__(
        self,
        source: str,
        client: HttpClient,
        *,
        ttl: float,
        remembered: Callable[[], Awaitable[str | None]],
        remember: Callable[[str], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.source = source
        self.error: str | None = None
        self._client = client
        self._ttl = ttl
        self._remembered = remembered
        self._remember = remember
        self._clock = clock
        self._text: str | None = None
        self._allowlist: Allowlist | None = None
        self._read_at: float | None = None
        self._lock = asyncio.Lock()
        self._is_url = is_url(source)
        self._background: asyncio.Task[None] | None = None

    async def current(self) -> Allowlist:
        """The newest good version. Nobody waits for a URL that was read before: it is read again in the background.

        Raises:
            AllowlistUnavailable: there is none; the text says what is wrong with the source.
        """
        if self._due():
            if self._allowlist is not None and self._is_url:
                if self._background is None or self._background.done():
                    self._background = asyncio.create_task(self._refresh_once())
            else:
                await self._refresh_once()
        if self._allowlist is None:
            raise AllowlistUnavailable(f"no allowlist: {self.error}")
        return self._allowlist

    def _due(self) -> bool:
        if self._read_at is None:
            return True
        wait = self._ttl if self.error is None else min(self._ttl, _RETRY_SECONDS)
        return self._clock() - self._read_at >= wait

    async def _refresh_once(self) -> None:
        async with self._lock:
            if self._due():
                await self._refresh()

    async def _refresh(self) -> None:
        try:
            text = await read(self.source, self._client)
            if text != self._text:
                allowlist = parse(text, self.source)
                self._text, self._allowlist = text, allowlist
                _log.info("allowlist_loaded", source=self.source, repositories=len(allowlist))
                await self._remember(text)
            self.error = None
        except READ_ERRORS as error:
            self.error = str(error) or repr(error)
            if self._allowlist is None:
                await self._restore()
            _log.error("allowlist_failed", source=self.source, error=self.error, serving=self._allowlist is not None)
        self._read_at = self._clock()

    async def _restore(self) -> None:
        text = await self._remembered()
        if text is not None:
            self._text, self._allowlist = text, parse(text, f"{self.source} (last good version)")
