"""Per-test results as they arrive: conformance's JSON lines (spec/conformance.md 6) and JUnit XML."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from hud.core.outcomes import FAILING, Outcome, combine
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


def parse_line(line: bytes, number: int) -> TestLine:
    """Read one line of ``results.jsonl``.

    Raises:
        LineError: not JSON, a missing or mistyped field, or too long.
    """
    if len(line) > MAX_LINE_BYTES:
        raise LineError(f"line {number}: longer than {MAX_LINE_BYTES} bytes")
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


def parse_junit(document: bytes) -> Iterator[TestLine]:
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


class Collector:
    """Turns the lines of one upload into entries by test, whatever the number of attempts.

    Attributes:
        device: the backend's device; taken from the first line that has one, unless known before.
        cuts: what was shortened or left out, by kind, with counts.
    """

    def __init__(self, device: str | None) -> None:
        self.device = device
        self.cuts: dict[str, int] = {}
        self._seen: dict[Identity, list[tuple[int, TestLine]]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, line: TestLine) -> None:
        """Take one line."""
        if self.device is None and line.device:
            self.device = clean(line.device)
        light = line if line.outcome in FAILING or line.outcome == "flaky" else line.model_copy(update={"trace": ""})
        self._seen.setdefault(self._identify(line), []).append((line.attempt, light))

    def results(self) -> Iterator[tuple[Identity, Entry, Failure | None]]:
        """Every test once, with its final outcome and, where an attempt failed, the last failing attempt's words."""
        for identity, attempts in self._seen.items():
            lines = [line for _, line in sorted(attempts, key=lambda item: item[0])]
            outcome = combine(line.outcome for line in lines)
            last = lines[-1]
            words = next((line for line in reversed(lines) if line.outcome in FAILING), None)
            if words is None and outcome in ("flaky", "xpassed"):
                words = last
            entry = Entry(outcome, self._note(last, outcome), last.duration, bool(last.fallback))
            yield identity, entry, self._failure(words, outcome) if words is not None else None

    def _identify(self, line: TestLine) -> Identity:
        name = self._limited(line.id, MAX_NAME_BYTES, "name")
        if self.device and name.endswith(f"@{self.device}"):
            name = name[: -len(self.device)]
        file, cls, test = (self._limited(part, MAX_NAME_BYTES, "name") for part in (line.file, line.cls, line.test))
        return Identity(name, file, cls, test, clean(line.op)[:256], clean(line.dtype)[:256])

    def _note(self, line: TestLine, outcome: Outcome) -> Note | None:
        reason = line.reason or (line.message if outcome in ("skipped", "not_applicable", "xfailed") else "")
        if not (line.rule or reason or line.issue):
            return None
        return Note(*(self._limited(part, _MAX_NOTE_BYTES, "reason") for part in (line.rule, reason, line.issue)))

    def _failure(self, line: TestLine, outcome: Outcome) -> Failure:
        return Failure(
            outcome,
            line.duration,
            clean(line.phase)[:64],
            self._limited(line.message, MAX_MESSAGE_BYTES, "message"),
            self._limited(line.trace, MAX_TRACE_BYTES, "trace"),
        )

    def _limited(self, text: str, limit: int, kind: str) -> str:
        if len(text) < limit // 4 and text.isascii() and "\0" not in text:
            return text
        short, was_cut = cut(clean(text), limit)
        if was_cut:
            self.cuts[kind] = self.cuts.get(kind, 0) + 1
        return short


def display_name(name: str, device: str | None) -> str:
    """The id as the backend gave it: the stored name with the run's device put back."""
    return name + device if name.endswith("@") and device else name
