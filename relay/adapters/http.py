"""The client behind every request that the relay makes.

aiohttp, because a callback waits for its report to reach HUD: with its parser in C a request with a body of 25 KB costs
0.1 ms of processor time where httpx costs 1.5 ms, which was a third of a callback.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.request import getproxies

import aiohttp


class NoAnswer(Exception):
    """Nobody answered, not in time, or not in HTTP. Whether the request had its effect is not known."""


@dataclass(frozen=True)
class Response:
    """An answer, read to its end.

    Attributes:
        request: method and path that it answers, for error texts.
        headers: names in any case.
    """

    request: str
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        """The body, as far as it is UTF-8."""
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body's value.

        Raises:
            ValueError: it is not JSON.
        """
        return json.loads(self.content)

    def expect(self, *statuses: int) -> Response:
        """This answer, if its status is one of these.

        Raises:
            NoAnswer: it is another.
        """
        if self.status not in statuses:
            raise NoAnswer(f"{self.request} was answered {self.status}")
        return self


class HttpClient:
    """Connections that are kept, and time limits; made inside of a running event loop.

    Args:
        connections: at most so many at a time; further requests wait.
        seconds: for a whole request, waiting included.
        connect_seconds: for the connection alone.
    """

    def __init__(self, *, connections: int = 20, seconds: float = 10, connect_seconds: float = 10):
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections),
            timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=connect_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=bool(getproxies()),  # proxies of the environment are looked up for every request
        )

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        parameters: Mapping[str, str] | None = None,
        redirects: bool = False,
    ) -> Response:
        """Send one request.

        Args:
            parameters: the query.
            redirects: follow them; only for documents that anybody may read.

        Raises:
            NoAnswer: see there.
            ValueError: the URL is none.
        """
        try:
            async with self._session.request(
                method,
                url,
                headers=headers,
                data=None if body is None else body.encode(),
                params=parameters,
                allow_redirects=redirects,
            ) as response:
                content = await response.read()
                return Response(f"{method} {response.url.path}", response.status, response.headers, content)
        except asyncio.TimeoutError as error:
            raise NoAnswer("timed out") from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswer(str(error) or repr(error)) from error

    async def get(self, url: str, *, headers: Mapping[str, str] | None = None, redirects: bool = False) -> Response:
        """``GET``, as :meth:`request`."""
        return await self.request("GET", url, headers=headers, redirects=redirects)

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
