"""Per-test results as they arrive: conformance's JSON lines (spec/conformance.md 6) and JUnit XML."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from operator import itemgetter
from typing import Annotated, Any, NamedTuple, cast

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field, ValidationError
from pydantic_core import from_json

from hud.core.outcomes import CODE, FAILING, NOT_THERE, Outcome, combine
from hud.core.snapshot import Entry, Note
from hud.core.text import clean, clean_tree, cut

MAX_MESSAGE_BYTES = 1024
MAX_TRACE_BYTES = 4096
MAX_NAME_BYTES = 10_240
MAX_LINE_BYTES = 1 << 20
MAX_WORD_BYTES = 256
_MAX_NOTE_BYTES = 512


class LineError(ValueError):
    """A line that is no result; the text names the line and the field."""


class TestLine(NamedTuple):
    """One attempt of one test, as a line says it; a text that is absent is empty, an impossible duration unknown."""

    id: str
    outcome: Outcome
    file: str = ""
    cls: str = ""
    test: str = ""
    op: str = ""
    dtype: str = ""
    device: str = ""
    attempt: int = 1
    duration: float | None = None
    phase: str = ""
    message: str = ""
    trace: str = ""
    rule: str = ""
    reason: str = ""
    issue: str = ""
    expires: str = ""
    profile: str = ""
    cpu_outcome: str = ""
    fallback: bool = False


def _text(value: object) -> object:
    return "" if value is None else str(value) if isinstance(value, (int, float)) else value


def _possible(seconds: float | None) -> float | None:
    return seconds if seconds is not None and math.isfinite(seconds) and seconds >= 0 else None


Text = Annotated[str, BeforeValidator(_text)]
Seconds = Annotated[float | None, AfterValidator(_possible)]


class _Line(BaseModel):
    """What a line must be. Fields that are not named here are ignored."""

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
    expires: Text = ""
    profile: Text = ""
    cpu_outcome: Text = ""
    fallback: Any = None

    def line(self) -> TestLine:
        return TestLine(**{**dict(self), "fallback": bool(self.fallback)})


# The order of TestLine's texts, which its constructor takes by place.
_IDENTITY = ("file", "class", "test", "op", "dtype", "device")
_WORDS = ("phase", "message", "trace", "rule", "reason", "issue", "expires", "profile", "cpu_outcome")
_get_identity, _get_words = itemgetter(*_IDENTITY), itemgetter(*_WORDS)
_ABSENT = dict.fromkeys((*_IDENTITY, *_WORDS, "duration", "fallback"))
_TEXTS = frozenset({str, type(None)})


class Failure(NamedTuple):
    """What is kept of a test that failed, beside its outcome.

    ``cpu_outcome`` is what became of it when it was repeated on the CPU: an outcome, ``not_there``, or empty.
    """

    outcome: Outcome
    seconds: float | None
    phase: str
    message: str
    trace: str
    cpu_outcome: str = ""


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
        said = from_json(line)
    except ValueError:
        # The fast parser refuses some lines that are JSON: those with a lone surrogate in a message.
        try:
            said = clean_tree(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise LineError(f"line {number}: not JSON: {error}") from error
    return _usual(said) or _validated(said, number)


def _usual(said: Any) -> TestLine | None:
    """The line, if it is as conformance writes it; nothing has to be converted then, which is much faster.

    Returns:
        ``None`` where :class:`_Line` has to decide.
    """
    if type(said) is not dict or "cls" in said:
        return None
    name, outcome, attempt = said.get("id"), said.get("outcome"), said.get("attempt", 1)
    if type(name) is not str or not name or type(outcome) is not str or outcome not in CODE:
        return None
    said = {**_ABSENT, **said}
    identity, words, seconds = _get_identity(said), _get_words(said), said["duration"]
    if type(attempt) is not int or attempt < 1 or not _TEXTS.issuperset(map(type, identity + words)):
        return None
    if seconds is not None and (type(seconds) is not float or not 0 <= seconds < math.inf):
        return None
    file, cls, test, op, dtype, device = identity
    phase, message, trace, rule, reason, issue, expires, profile, cpu_outcome = words
    return TestLine(
        name,
        cast(Outcome, outcome),
        file or "",
        cls or "",
        test or "",
        op or "",
        dtype or "",
        device or "",
        attempt,
        seconds,
        phase or "",
        message or "",
        trace or "",
        rule or "",
        reason or "",
        issue or "",
        expires or "",
        profile or "",
        cpu_outcome or "",
        bool(said["fallback"]),
    )


def _validated(said: Any, number: int) -> TestLine:
    try:
        return _Line.model_validate(said).line()
    except ValidationError as error:
        raise _line_error(error, number) from error


def _line_error(error: ValidationError, number: int) -> LineError:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "line"
    return LineError(f"line {number}: {where}: {first['msg']}")


def parse_junit(document: bytes | bytearray) -> Iterator[TestLine]:
    """Read the test cases of a JUnit XML document, in the forms that pytest, Maven and gtest write.

    Only the parser of the standard library sees the document, after a look for a DOCTYPE: entities cannot be declared.
    Cases of one name, in one suite or several, are no attempts of each other: each tells what the worst of them told.

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
    worst: dict[str, TestLine] = {}
    names = []
    for case in root.iter("testcase"):
        line = _from_case(case)
        names.append(line.id)
        held = worst.setdefault(line.id, line)
        if _WEIGHT[line.outcome] > _WEIGHT[held.outcome]:
            worst[line.id] = line
    for name in names:
        yield worst[name]


_WEIGHT: dict[Outcome, int] = {"skipped": 0, "xfailed": 1, "passed": 2, "failed": 3, "error": 4}
"""Of what JUnit XML can say about one test: what ran tells more than what did not, a failure more than a success."""


def _from_case(case: ET.Element) -> TestLine:
    name, cls, file = case.get("name") or "(no name)", case.get("classname") or "", case.get("file") or ""
    outcome: Outcome = "passed"
    message, trace, reason = "", "", ""
    for element in case:
        if element.tag in ("failure", "error"):
            outcome = "failed" if element.tag == "failure" else "error"
            message, trace = element.get("message") or "", element.text or ""
        elif element.tag == "skipped" and outcome not in FAILING:
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
        duration=_possible(seconds),
        message=message,
        trace=trace,
        reason=reason,
    )


class _Attempts:
    """Several attempts of one test, of which those are kept that the result is made of, however many there are.

    Attributes:
        last: the attempt with the highest number; of equal ones, the later line.
        failing: the last of those that failed.
        outcomes: every outcome that there was.
    """

    __slots__ = ("failing", "last", "outcomes")

    def __init__(self, first: TestLine) -> None:
        self.last = first
        self.failing: TestLine | None = None
        self.outcomes = {first.outcome}
        self.add(first)

    def add(self, attempt: TestLine) -> None:
        if attempt.attempt >= self.last.attempt:
            self.last = attempt
        if attempt.outcome in FAILING and (self.failing is None or attempt.attempt >= self.failing.attempt):
            self.failing = attempt
        self.outcomes.add(attempt.outcome)

    def outcome(self) -> Outcome:
        return combine((*self.outcomes, self.last.outcome))


class Collector:
    """Turns the lines of one upload into entries by test, whatever the number of attempts.

    Attributes:
        device: the backend's device; taken from the first line that has one, unless known before.
        profile: what ``conformance run --profile`` was given, from the first line that says it.
        cuts: what was shortened or left out, by kind, with counts.
        lines: how many lines were taken.
    """

    def __init__(self, device: str | None) -> None:
        self.device = device
        self.profile = ""
        self.cuts: dict[str, int] = {}
        self.lines = 0
        # Most tests have one line: only those with more get an object of their own.
        self._seen: dict[str, TestLine | _Attempts] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, line: TestLine) -> None:
        """Take one line."""
        self.lines += 1
        if self.device is None and line.device:
            self.device = clean(line.device)
        if not self.profile and line.profile:
            self.profile = cut(clean(line.profile), _MAX_NOTE_BYTES)[0]
        name = self._limited(line.id, MAX_NAME_BYTES, "name")
        if self.device and name.endswith(f"@{self.device}"):
            name = name[: -len(self.device)]
        line = _bounded(line)
        seen = self._seen.setdefault(name, line)
        if seen is line:
            return
        if not isinstance(seen, _Attempts):
            seen = self._seen[name] = _Attempts(seen)
        seen.add(line)

    def finish(self) -> None:
        """Say that every line was taken.

        Raises:
            LineError: there was none. That is a job that went wrong, not a run in which nothing failed.
        """
        if not self.lines:
            raise LineError("body: there are no results in it")

    def outcomes(self) -> Iterator[Outcome]:
        """The final outcome of every test."""
        for seen in self._seen.values():
            yield seen.outcome() if isinstance(seen, _Attempts) else seen.outcome

    def results(self) -> Iterator[tuple[str, Entry, Failure | None]]:
        """Every test once, with its final outcome and, where an attempt failed, the last failing attempt's words.

        A test is given by its name; :meth:`identity` knows the rest, which is needed for tests that are new.
        """
        for name, seen in self._seen.items():
            if isinstance(seen, _Attempts):
                last, outcome, words = seen.last, seen.outcome(), seen.failing
            else:
                last, outcome, words = seen, seen.outcome, seen if seen.outcome in FAILING else None
            if words is None and outcome in ("flaky", "xpassed"):
                words = last
            entry = Entry(outcome, self._note(last, outcome), last.duration, last.fallback)
            yield name, entry, None if words is None else self._failure(words, outcome, last.cpu_outcome)

    def identity(self, name: str) -> Identity:
        """Everything that names a test, as its last attempt said it."""
        seen = self._seen[name]
        line = seen.last if isinstance(seen, _Attempts) else seen
        long, short = (line.file, line.cls, line.test), (line.op, line.dtype)
        return Identity(
            name,
            *(self._limited(part, MAX_NAME_BYTES, "name") for part in long),
            *(self._limited(part, MAX_WORD_BYTES, "name") for part in short),
        )

    def _note(self, last: TestLine, outcome: Outcome) -> Note | None:
        reason = last.reason or (last.message if outcome in ("skipped", "not_applicable", "xfailed") else "")
        if not (last.rule or reason or last.issue or last.expires):
            return None
        said = (last.rule, reason, last.issue, last.expires)
        return Note(*(self._limited(part, _MAX_NOTE_BYTES, "reason") for part in said))

    def _failure(self, words: TestLine, outcome: Outcome, there: str) -> Failure:
        return Failure(
            outcome,
            words.duration,
            clean(words.phase),
            self._limited(words.message, MAX_MESSAGE_BYTES, "message"),
            self._limited(words.trace, MAX_TRACE_BYTES, "trace"),
            there if there in CODE or there == NOT_THERE else "",
        )

    def _limited(self, text: str, limit: int, kind: str) -> str:
        if len(text) < limit // 4 and text.isascii() and "\0" not in text:
            return text
        short, was_cut = cut(clean(text), limit)
        if was_cut:
            self.cuts[kind] = self.cuts.get(kind, 0) + 1
        return short


def _bounded(line: TestLine) -> TestLine:
    """The line with texts that are not much longer than what will be stored of them.

    One character more than the limit in bytes stays, so that the cut at the end still sees that there was more.
    """
    said = line.message or line.trace or line.phase or line.rule or line.reason or line.issue or line.expires
    named = (
        len(line.profile)
        + len(line.cpu_outcome)
        + len(line.id)
        + len(line.file)
        + len(line.cls)
        + len(line.test)
        + len(line.op)
        + len(line.dtype)
    )
    if not said and named <= MAX_WORD_BYTES:
        return line
    return line._replace(
        id="",
        file=line.file[: MAX_NAME_BYTES + 1],
        cls=line.cls[: MAX_NAME_BYTES + 1],
        test=line.test[: MAX_NAME_BYTES + 1],
        op=line.op[: MAX_WORD_BYTES + 1],
        dtype=line.dtype[: MAX_WORD_BYTES + 1],
        device="",
        profile="",
        phase=line.phase[:64],
        message=line.message[: MAX_MESSAGE_BYTES + 1] if line.outcome != "passed" else "",
        trace=line.trace[: MAX_TRACE_BYTES + 1] if line.outcome in FAILING or line.outcome == "flaky" else "",
        rule=line.rule[: _MAX_NOTE_BYTES + 1],
        reason=line.reason[: _MAX_NOTE_BYTES + 1],
        issue=line.issue[: _MAX_NOTE_BYTES + 1],
        expires=line.expires[: _MAX_NOTE_BYTES + 1],
        cpu_outcome=line.cpu_outcome[:MAX_WORD_BYTES],
    )


def display_name(name: str, device: str | None) -> str:
    """The id as the backend gave it: the stored name with the run's device put back."""
    return name + device if name.endswith("@") and device else name
