"""Git's smart HTTP protocol, read only: a bridge to ``git http-backend`` (CGI, RFC 3875)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from relay.emulator.api.common import Repo
from relay.emulator.git import environment

router = APIRouter()
_MAX_REQUEST = 16 * 1024 * 1024


@router.get("/{owner}/{name}/info/refs", include_in_schema=False)
async def refs(repository: Repo, request: Request, service: str = "") -> Response:
    """The first request of a fetch or clone."""
    if service != "git-upload-pack":
        return PlainTextResponse("This server is read only: use the smart protocol's git-upload-pack.\n", 403)
    return await _backend(repository, request, "/info/refs")


@router.post("/{owner}/{name}/git-upload-pack", include_in_schema=False)
async def upload_pack(repository: Repo, request: Request) -> Response:
    """Negotiation and pack."""
    return await _backend(repository, request, "/git-upload-pack")


async def _backend(repository: Repo, request: Request, path: str) -> Response:
    if repository.git is None:
        return PlainTextResponse("Repository not found.\n", 404)
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_REQUEST:
            return PlainTextResponse("The request is too large.\n", 413)
    headers = request.headers
    env = {
        **environment(),
        "GIT_PROJECT_ROOT": str(repository.git),
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_PROTOCOL": headers.get("git-protocol", ""),
        "PATH_INFO": path,
        "REQUEST_METHOD": request.method,
        "QUERY_STRING": request.url.query,
        "CONTENT_TYPE": headers.get("content-type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
        "REMOTE_ADDR": request.client.host if request.client else "",
    }
    process = await asyncio.create_subprocess_exec(
        "git",
        "http-backend",
        env=env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=256 * 1024,
    )
    assert process.stdin is not None and process.stdout is not None
    writer = asyncio.create_task(_feed(process.stdin, body))
    status, fields = 200, {}
    while line := (await process.stdout.readline()).strip().decode("latin-1"):
        key, _, value = line.partition(":")
        if key.lower() == "status":
            status = int(value.split()[0])
        else:
            fields[key] = value.strip()
    return StreamingResponse(_output(process, writer), status, fields)


async def _feed(stream: asyncio.StreamWriter, body: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        stream.write(body)
        await stream.drain()
    stream.close()


async def _output(process: asyncio.subprocess.Process, writer: asyncio.Task[None]) -> AsyncIterator[bytes]:
    assert process.stdout is not None
    try:
        while data := await process.stdout.read(256 * 1024):
            yield data
    finally:
        writer.cancel()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
