"""Per-test results as they arrive: conformance's JSON lines (spec/conformance.md 6) and JUnit XML."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from hud.core.outcomes import FAILING, OUTCOMES, Outcome, combine
from hud.core.snapshot import Entry, Note
from hud.core.text import clean, clean_tree, cut

MAX_MESSAGE_BYTES = 1024
MAX_TRACE_BYTES = 4096
MAX_NAME_BYTES = 10_240
MAX_LINE_BYTES = 1 << 20
_MAX_NOTE_BYTES = 512


class LineError(ValueError):
    """A line that is no result; the text names the line and the field."""


def _text(value: object) -> object:
    return "" if value is None else str(value) if isinstance(value, (int, float)) else value


def _possible(seconds: float | None) -> float | None:
    return seconds if seconds is not None and math.isfinite(seconds) and seconds >= 0 else None


Text = Annotated[str, BeforeValidator(_text)]
Seconds = Annotated[float | None, AfterValidator(_possible)]


class TestLine(BaseModel):
    """One attempt of one test. Fields that are not named here are ignored, an impossible duration is an unknown one."""

    __test__ = False  # not a pytest class

    id: str = Field(min_length=1)
    outcome: Outcome
    file: Text = ""
    cls: Text = Field(default="", validation_alias=AliasChoices("class", "cls"))
    test: Text = ""
    op: Text = ""
    dtype: Text = ""
    device: Text = ""
    attempt: int = Field(default=1, ge=1)
    duration: Seconds = None
    phase: Text = ""
    message: Text = ""
    trace: Text = ""
    rule: Text = ""
    reason: Text = ""
    issue: Text = ""
    fallback: Any = None


_LINE = TypeAdapter(TestLine)
# Shared by the many tests that have one outcome only.
_ALONE: dict[Outcome, frozenset[Outcome]] = {outcome: frozenset((outcome,)) for outcome in OUTCOMES}


class Failure(NamedTuple):
    """What is kept of a test that failed, beside its outcome."""

    outcome: Outcome
    seconds: float | None
    phase: str
    message: str
    trace: str


class Identity(NamedTuple):
    """A test, independent of run and backend; ``name`` ends in a bare ``@`` where the backend's own device stands."""

    name: str
    file: str
    cls: str
    test: str
    op: str
    dtype: str


def check_length(line: bytes | bytearray, number: int) -> None:
    """Refuse a line that is too long, also one whose end has not come yet.

    Raises:
        LineError: it is.
    """
    if len(line) > MAX_LINE_BYTES:
        raise LineError(f"line {number}: longer than {MAX_LINE_BYTES} bytes")


def parse_line(line: bytes, number: int) -> TestLine:
    """Read one line of ``results.jsonl``.

    Raises:
        LineError: not JSON, a missing or mistyped field, or too long.
    """
    check_length(line, number)
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        if error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid":
            return _parse_odd_line(line, number)
        raise _line_error(error, number) from error


def _parse_odd_line(line: bytes, number: int) -> TestLine:
    """The slow way, for lines that the fast parser refuses although they are JSON: a lone surrogate in a message."""
    try:
        return _LINE.validate_python(clean_tree(json.loads(line)))
    except ValidationError as error:
        raise _line_error(error, number) from error
    except (ValueError, RecursionError) as error:
        raise LineError(f"line {number}: not JSON: {error}") from error


def _line_error(error: ValidationError, number: int) -> LineError:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "line"
    return LineError(f"line {number}: {where}: {first['msg']}")


def parse_junit(document: bytes | bytearray) -> Iterator[TestLine]:
    """Read the test cases of a JUnit XML document, in the forms that pytest, Maven and gtest write.

    Only the parser of the standard library sees the document, after a look for a DOCTYPE: entities cannot be declared.

    Raises:
        LineError: not XML, or XML with a DOCTYPE.
    """
    if b"<!DOCTYPE" in document[:4096] or b"<!ENTITY" in document:
        raise LineError("JUnit XML with a DOCTYPE is not accepted")
    try:
        root = ET.fromstring(document)
    except ET.ParseError as error:
        raise LineError(f"not JUnit XML: {error}") from error
    if root.tag not in ("testsuites", "testsuite"):
        raise LineError(f"not JUnit XML: the root element is <{root.tag}>, not <testsuites> or <testsuite>")
    for case in root.iter("testcase"):
        yield _from_case(case)


def _from_case(case: ET.Element) -> TestLine:
    name, cls, file = case.get("name") or "(no name)", case.get("classname") or "", case.get("file") or ""
    outcome: Outcome = "passed"
    message, trace, reason = "", "", ""
    for element in case:
        if element.tag in ("failure", "error"):
            outcome = "failed" if element.tag == "failure" else "error"
            message, trace = element.get("message") or "", element.text or ""
        elif element.tag == "skipped":
            outcome = "xfailed" if element.get("type") == "pytest.xfail" else "skipped"
            reason = element.get("message") or element.text or ""
    try:
        seconds: float | None = float(case.get("time") or "nan")
    except ValueError:
        seconds = None
    return TestLine(
        id="::".join(part for part in (file, cls, name) if part),
        outcome=outcome,
        file=file,
        cls=cls,
        test=name,
        duration=seconds,
        message=message,
        trace=trace,
        reason=reason,
    )


class _Attempt(NamedTuple):
    """What is needed of one line, with texts that are not much longer than what will be stored of them."""

    number: int
    outcome: Outcome
    seconds: float | None
    fallback: bool
    phase: str
    message: str
    trace: str
    rule: str
    reason: str
    issue: str


class _Attempts:
    """The attempts of one test, of which only those are kept that the result is made of, however many there are.

    Attributes:
        last: the attempt with the highest number; of equal ones, the later line.
        failing: the last of those that failed.
        outcomes: every outcome that there was.
    """

    __slots__ = ("failing", "last", "outcomes")

    def __init__(self, first: _Attempt) -> None:
        self.last = first
        self.failing: _Attempt | None = None
        self.outcomes = _ALONE[first.outcome]
        self.add(first)

    def add(self, attempt: _Attempt) -> None:
        if attempt.number >= self.last.number:
            self.last = attempt
        if attempt.outcome in FAILING and (self.failing is None or attempt.number >= self.failing.number):
            self.failing = attempt
        if attempt.outcome not in self.outcomes:
            self.outcomes |= _ALONE[attempt.outcome]

    def outcome(self) -> Outcome:
        return combine((*self.outcomes, self.last.outcome))


class Collector:
    """Turns the lines of one upload into entries by test, whatever the number of attempts.

    Attributes:
        device: the backend's device; taken from the first line that has one, unless known before.
        cuts: what was shortened or left out, by kind, with counts.
        lines: how many lines were taken.
    """

    def __init__(self, device: str | None) -> None:
        self.device = device
        self.cuts: dict[str, int] = {}
        self.lines = 0
        self._seen: dict[Identity, _Attempts] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, line: TestLine) -> None:
        """Take one line."""
        self.lines += 1
        if self.device is None and line.device:
            self.device = clean(line.device)
        identity, attempt = self._identify(line), _attempt(line)
        seen = self._seen.get(identity)
        if seen is None:
            self._seen[identity] = _Attempts(attempt)
        else:
            seen.add(attempt)

    def finish(self) -> None:
        """Say that every line was taken.

        Raises:
            LineError: there was none. That is a job that went wrong, not a run in which nothing failed.
        """
        if not self.lines:
            raise LineError("body: there are no results in it")

    def results(self) -> Iterator[tuple[Identity, Entry, Failure | None]]:
        """Every test once, with its final outcome and, where an attempt failed, the last failing attempt's words."""
        for identity, attempts in self._seen.items():
            outcome, last, words = attempts.outcome(), attempts.last, attempts.failing
            if words is None and outcome in ("flaky", "xpassed"):
                words = last
            entry = Entry(outcome, self._note(last, outcome), last.seconds, last.fallback)
            yield identity, entry, self._failure(words, outcome) if words is not None else None

    def _identify(self, line: TestLine) -> Identity:
        name = self._limited(line.id, MAX_NAME_BYTES, "name")
        if self.device and name.endswith(f"@{self.device}"):
            name = name[: -len(self.device)]
        file, cls, test = (self._limited(part, MAX_NAME_BYTES, "name") for part in (line.file, line.cls, line.test))
        return Identity(name, file, cls, test, clean(line.op)[:256], clean(line.dtype)[:256])

    def _note(self, last: _Attempt, outcome: Outcome) -> Note | None:
        reason = last.reason or (last.message if outcome in ("skipped", "not_applicable", "xfailed") else "")
        if not (last.rule or reason or last.issue):
            return None
        return Note(*(self._limited(part, _MAX_NOTE_BYTES, "reason") for part in (last.rule, reason, last.issue)))

    def _failure(self, words: _Attempt, outcome: Outcome) -> Failure:
        return Failure(
            outcome,
            words.seconds,
            clean(words.phase),
            self._limited(words.message, MAX_MESSAGE_BYTES, "message"),
            self._limited(words.trace, MAX_TRACE_BYTES, "trace"),
        )

    def _limited(self, text: str, limit: int, kind: str) -> str:
        if len(text) < limit // 4 and text.isascii() and "\0" not in text:
            return text
        short, was_cut = cut(clean(text), limit)
        if was_cut:
            self.cuts[kind] = self.cuts.get(kind, 0) + 1
        return short


def _attempt(line: TestLine) -> _Attempt:
    # One character more than the limit in bytes stays, so that the cut at the end still sees that there was more.
    return _Attempt(
        line.attempt,
        line.outcome,
        line.duration,
        bool(line.fallback),
        line.phase[:64],
        line.message[: MAX_MESSAGE_BYTES + 1] if line.outcome != "passed" else "",
        line.trace[: MAX_TRACE_BYTES + 1] if line.outcome in FAILING or line.outcome == "flaky" else "",
        line.rule[: _MAX_NOTE_BYTES + 1],
        line.reason[: _MAX_NOTE_BYTES + 1],
        line.issue[: _MAX_NOTE_BYTES + 1],
    )


def display_name(name: str, device: str | None) -> str:
    """The id as the backend gave it: the stored name with the run's device put back."""
    return name + device if name.endswith("@") and device else name
