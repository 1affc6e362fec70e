"""What comes in: reports of the relay, and per-test results of jobs (spec/hud.md 4)."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool

from hud.app.security import same
from hud.app.state import Hud, HudOf
from hud.core.lines import Collector, LineError, check_length, parse_junit, parse_line
from hud.core.reports import Conflict, ReportError, key_of
from hud.core.text import clean_tree
from hud.store.refusals import record_refusal
from hud.store.reports import record_report
from hud.store.results import Part, UnknownRun, announce, record_results
from relay.wire import HudReport
from relay.wire.ticket import Ticket, TicketError, verify_ticket

router = APIRouter(tags=["ingest"])
_log = structlog.get_logger()

_MAX_JUNIT_BYTES = 256 * 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_PIECE = 1 << 20


class Refusal(Exception):
    """An answer that is not a success."""

    def __init__(self, status: int, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.field = field

    def answer(self) -> JSONResponse:
        """The refusal as JSON."""
        body: dict[str, Any] = {"ok": False, "error": str(self)}
        if self.field is not None:
            body["field"] = self.field
        return JSONResponse(body, self.status)


@router.post("/api/crcr/results")
async def take_report(request: Request, hud: HudOf) -> JSONResponse:
    """Store the relay's report about one job."""
    try:
        if not same(request.headers.get("x-hud-internal-bot", ""), hud.settings.ingest_key):
            raise Refusal(401, "the header x-hud-internal-bot does not carry this HUD's ingest key")
        body = await _body(request, hud.settings.max_report_bytes)
        return await run_in_threadpool(_take_report, hud, body)
    except Refusal as refusal:
        return refusal.answer()


def _take_report(hud: Hud, body: bytes) -> JSONResponse:
    try:
        report, key = _parse_report(body)
        stored = record_report(hud.store, report, key, hud.clock())
    except Refusal as refusal:
        record_refusal(hud.store, _claimed_repo(body), refusal.status, str(refusal), hud.clock())
        raise
    except ReportError as error:
        record_refusal(hud.store, _claimed_repo(body), 422, str(error), hud.clock())
        raise Refusal(422, str(error), error.field) from error
    except Conflict as error:
        record_refusal(hud.store, _claimed_repo(body), 409, str(error), hud.clock())
        raise Refusal(409, str(error)) from error
    _log.info("report", repo=report.trusted.verified_repo, key=stored.key, status=stored.status, merge=stored.merge)
    return JSONResponse({"ok": True, "status": stored.status, "key": stored.key})


def _parse_report(body: bytes) -> tuple[HudReport, str]:
    """The report with storable text, and the key of its run, which is made from the text as it was sent."""
    try:
        document = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
        cleaned = clean_tree(document)
    except RecursionError as error:
        raise Refusal(422, "body: nested too deeply", "body") from error
    except ValueError as error:
        raise Refusal(422, f"body: not JSON: {error}", "body") from error
    try:
        report = HudReport.model_validate(cleaned)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "body"
        raise Refusal(422, f"{field}: {first['msg']}", field) from error
    return report, key_of(report, document["untrusted"]["callback_payload"])


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is too large")
    return number


def _claimed_repo(body: bytes) -> str | None:
    """The backend that a refused report is about, as far as it can be read."""
    try:
        return str(json.loads(body)["trusted"]["verified_repo"])[:201]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


@router.post("/api/v1/runs/{key}/tests")
async def take_results(
    request: Request,
    hud: HudOf,
    key: str,
    part: Annotated[int, Query(ge=1, le=10_000, description="which part this is, from 1")] = 1,
    parts: Annotated[int, Query(ge=1, le=10_000, description="how many parts there are")] = 1,
) -> JSONResponse:
    """Store per-test results: JSON lines or JUnit XML, plain or gzip, streamed, in one part or several.

    A part is stored whole or not at all; one that broke off, or whose answer was lost, is simply sent again.
    """
    try:
        if part > parts:
            raise Refusal(422, f"part: there is no part {part} of {parts}", "part")
        ticket = _admit(request, hud, key)
        device = await run_in_threadpool(announce, hud.store, key, ticket, hud.clock())
        collected = Collector(device)
        await _collect(request, hud, collected)
        accepted = await run_in_threadpool(record_results, hud.store, key, collected, Part(part, parts), hud.clock())
    except Refusal as refusal:
        return refusal.answer()
    except LineError as error:
        return Refusal(422, str(error), "body").answer()
    except UnknownRun as error:
        return Refusal(404, str(error.args[0])).answer()
    _log.info("results", key=key, tests=accepted.tests, results=accepted.results)
    return JSONResponse(
        {
            "ok": True,
            "key": key,
            "tests": accepted.tests,
            "results": accepted.results,
            "parts": accepted.parts,
            "cut": accepted.cuts,
        }
    )


def _admit(request: Request, hud: Hud, key: str) -> Ticket | None:
    """The ticket that the request carries, ``None`` for the ingest key itself."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if same(request.headers.get("x-hud-internal-bot", ""), hud.settings.ingest_key):
        return None
    if kind.lower() != "bearer" or hud.settings.ingest_key is None:
        raise Refusal(401, "send the ticket of the relay's answer as 'Authorization: Bearer …'")
    if same(given.strip(), hud.settings.ingest_key):
        return None
    try:
        ticket = verify_ticket(given.strip(), hud.settings.ingest_key.get_secret_value())
    except TicketError as error:
        raise Refusal(401, f"the ticket is not good: {error}") from error
    if ticket.key != key:
        raise Refusal(401, f"the ticket is good for the run {ticket.key}, not for {key}")
    return ticket


async def _body(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise Refusal(413, f"the report has {declared} bytes; at most {limit} are taken")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise Refusal(413, f"the report is larger than {limit} bytes")
    return bytes(body)


async def _collect(request: Request, hud: Hud, collected: Collector) -> None:
    rest, number, junit = bytearray(), 0, None
    async for piece in _plain(request, hud.settings.max_upload_bytes):
        if junit is None and (start := piece.lstrip(b"\xef\xbb\xbf \t\r\n")):
            junit = start.startswith(b"<")
        if junit:
            rest += piece
            if len(rest) > _MAX_JUNIT_BYTES:
                raise Refusal(413, f"JUnit XML is taken up to {_MAX_JUNIT_BYTES} bytes; send JSON lines instead")
            continue
        end = piece.rfind(b"\n")
        if end >= 0:
            lines = (rest + piece[:end]).split(b"\n")
            await run_in_threadpool(_take_lines, hud, collected, lines, number)
            number += len(lines)
            rest.clear()
        rest += piece[end + 1 :]
        check_length(rest, number + 1)
    if junit:
        await run_in_threadpool(_take_junit, hud, collected, rest)
    else:
        await run_in_threadpool(_take_lines, hud, collected, [rest], number)
    collected.finish()


def _take_lines(hud: Hud, collected: Collector, lines: list[bytearray], before: int) -> None:
    for number, line in enumerate(lines, start=before + 1):
        if line.strip():
            collected.add(parse_line(bytes(line), number))
            _check_count(hud, collected)


def _take_junit(hud: Hud, collected: Collector, document: bytearray) -> None:
    for line in parse_junit(document):
        collected.add(line)
        _check_count(hud, collected)


def _check_count(hud: Hud, collected: Collector) -> None:
    if collected.lines > hud.settings.max_result_entries:
        raise Refusal(413, f"more than {hud.settings.max_result_entries} results in one upload")


async def _plain(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body's bytes, decompressed where it is gzip, in pieces of a bounded size."""
    unpack = _Gunzip() if "gzip" in request.headers.get("content-encoding", "").lower() else None
    received, size, head = 0, 0, b""
    async for chunk in _with_head(request.stream(), 2):
        received += len(chunk)
        # Members of nothing have no size when unpacked; they still take time.
        if received > limit:
            raise Refusal(413, f"the results are larger than {limit} bytes")
        if not head:
            head = chunk[:2]
            if unpack is None and head == b"\x1f\x8b":
                unpack = _Gunzip()
        async for piece in iterate_in_threadpool(unpack.pieces(chunk) if unpack else iter((chunk,))):
            size += len(piece)
            if size > limit:
                raise Refusal(413, f"the results are larger than {limit} bytes")
            yield piece
    if unpack is not None and not unpack.complete:
        raise Refusal(422, "body: the gzip stream ends too early; send this part again", "body")


async def _with_head(chunks: AsyncIterator[bytes], size: int) -> AsyncIterator[bytes]:
    """The chunks that are not empty, of which the first has at least ``size`` bytes unless all of them have fewer."""
    head: bytes | None = b""
    async for chunk in chunks:
        if head is None:
            if chunk:
                yield chunk
        elif len(head := head + chunk) >= size:
            yield head
            head = None
    if head:
        yield head


class _Gunzip:
    """Unpacks gzip: one member or several, one after another (RFC 1952, section 2.2).

    Attributes:
        complete: whether what came so far ends with the end of a member.
    """

    def __init__(self) -> None:
        self.complete = False
        self._member = zlib.decompressobj(_GZIP)

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Decompress without letting a small chunk become a huge one at once."""
        try:
            while chunk:
                if self._member.eof:
                    self._member = zlib.decompressobj(_GZIP)
                if piece := self._member.decompress(chunk, _PIECE):
                    yield piece
                chunk = self._member.unused_data or self._member.unconsumed_tail
        except zlib.error as error:
            raise Refusal(422, f"body: not gzip: {error}", "body") from error
        self.complete = self._member.eof
