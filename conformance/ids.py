"""Stable test names (C1, C2): ``file::GenericClass::method[op][dtype][other]@device``.

Empty brackets at the end are left out (``test_a@cpu``, ``test_b[add]@cpu``, ``test_c[][float32]@cpu``); a test that
was not instantiated for a device has no ``@device``. Names may hold anything that Python's ``setattr`` accepts, so the
characters of the grammar are percent-encoded inside a part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

_RESERVED = re.compile(r"[%\[\]@\x00-\x1f\x7f]|::|:$|^:")
_ID = re.compile(
    r"^(?P<file>[^@\[\]]+?)(?:::(?P<rest>.*?))?"
    r"(?:\[(?P<op>[^\[\]]*)\])?(?:\[(?P<dtype>[^\[\]]*)\])?(?:\[(?P<other>[^\[\]]*)\])?(?:@(?P<device>[^@\[\]]+))?$",
    re.DOTALL,
)
_UNITTEST = re.compile(r"^(?P<test>\S+) \((?P<path>[\w.]+)\)$")


def _escape(part: str) -> str:
    return _RESERVED.sub(lambda m: "".join(f"%{byte:02X}" for byte in m.group().encode()), part)


@dataclass(frozen=True, order=True, slots=True)
class TestId:
    """One test.

    Attributes:
        file: path from the checkout's root with ``/`` (``test/nn/test_pooling.py``), or ``wheel/…`` for the wheel
            suite.
        cls: the *generic* class as written in the file, ``""`` for a test function or a whole file.
        test: the method as written in the file, ``""`` for a whole file.
        op: ``OpInfo.full_name`` (``div.floor_rounding``) or a module's or optimizer's name, ``""`` without one.
        dtype: ``float32``; several are joined by a comma.
        other: what upstream's naming adds for further parameters.
        device: the backend's name, ``""`` for a test that was not instantiated for a device.
    """

    __test__ = False

    file: str
    cls: str = ""
    test: str = ""
    op: str = ""
    dtype: str = ""
    other: str = ""
    device: str = ""

    def __str__(self) -> str:
        names = "::".join(_escape(part) for part in (self.cls, self.test) if part)
        brackets = [self.op, self.dtype, self.other]
        while brackets and not brackets[-1]:
            brackets.pop()
        text = _escape(self.file) + (f"::{names}" if names else "") + "".join(f"[{_escape(b)}]" for b in brackets)
        return f"{text}@{self.device}" if self.device else text

    @property
    def generic(self) -> str:
        """``file::Class::method``: all variants of one written test."""
        return str(TestId(self.file, self.cls, self.test))


def parse(text: str) -> TestId:
    """Inverse of ``str(TestId)``.

    Raises:
        ValueError: the text is not such an id.
    """
    match = _ID.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a test id; expected file::Class::method[op][dtype][other]@device")
    names = (match["rest"] or "").split("::") if match["rest"] else []
    if len(names) > 2:
        raise ValueError(f"{text!r} has {len(names) + 1} parts separated by '::'; expected file::Class::method")
    cls, test = (["", *names] if len(names) == 1 else names) or ("", "")
    op, dtype, other = (unquote(match[name] or "") for name in ("op", "dtype", "other"))
    return TestId(unquote(match["file"]), unquote(cls), unquote(test), op, dtype, other, match["device"] or "")


def normalise(text: str) -> str:
    """Turns a spelling that people paste into ``FILE[::CLASS[::TEST]]`` (C2).

    Accepts a pytest node id, a stable id, unittest's ``test_x (__main__.TestC)`` and ``test_x
    (pkg.module.TestC.test_x)``, and JUnit's ``classname.name`` written with dots. What names no file comes back as
    ``::CLASS::TEST`` and matches in every file.
    """
    text = text.strip()
    if match := _UNITTEST.match(text):
        path = match["path"].split(".")
        if path[-1] == match["test"]:
            path.pop()
        module, cls = path[:-1], path[-1]
        file = "" if module in ([], ["__main__"]) else "/".join(module) + ".py"
        return f"{file}::{cls}::{match['test']}"
    if "::" not in text and ".py" not in text and "/" not in text:
        parts = text.split(".")
        classes = [i for i, part in enumerate(parts) if part[:1].isupper()]
        if classes:
            at = classes[-1]
            file = "/".join(parts[:at]) + ".py" if at else ""
            return "::".join([file, parts[at], *([".".join(parts[at + 1 :])] if at + 1 < len(parts) else [])])
    return text
