"""Tests as they are written, looked up by name; generated names taken apart (C2).

``instantiate_device_type_tests`` makes ``TestFooPRIVATEUSE1.test_bar_add_npu_float32`` of the class ``TestFoo``, its
method ``test_bar``, the operator ``add``, the device and the dtype. Where only such a name is known (lists of skipped
tests, reports), the written parts are found by comparing with the tree and with torch's own names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from conformance.ids import TestId
from conformance.inventory.model import ClassRow, FileRow, MethodRow

DEVICE_WORDS = ("privateuse1", "cpu", "cuda", "mps", "xpu", "npu", "hpu", "meta", "mtia", "lazy", "xla", "openreg")
"""Device parts of generated names that people's lists contain, beside the profile's own device."""

_PARAMETRIZED = ("ops", "modules", "optims")


@dataclass(frozen=True, slots=True)
class WrittenClass:
    """A class with the tests that it has, its own and those of ancestors in the tree."""

    file: str
    row: ClassRow
    tests: Mapping[str, MethodRow]
    instantiated: bool


class Written:
    """All written tests of a tree.

    Attributes:
        files: paths of the files that hold tests, with their rows.
        classes: by name; a name may stand in several files.
        places: method name → ``(file, class)`` pairs that have it; functions have the class ``""``.
    """

    def __init__(self, files: Mapping[str, FileRow]) -> None:
        self.files = {path: row for path, row in files.items() if row.is_test_file or path.startswith("wheel/")}
        self.classes: dict[str, list[WrittenClass]] = defaultdict(list)
        self.places: dict[str, set[tuple[str, str]]] = defaultdict(set)
        rows = {(path, cls.name): cls for path, row in files.items() for cls in row.classes}
        for path, row in self.files.items():
            calls = {call.cls for call in row.instantiations}
            for cls in row.classes:
                tests = {method.name: method for method in cls.tests}
                for where in cls.mro:
                    parent = rows.get(_pair(where))
                    for method in parent.tests if parent else ():
                        tests.setdefault(method.name, method)
                self.classes[cls.name].append(WrittenClass(path, cls, tests, cls.name in calls))
                for name in tests:
                    self.places[name].add((path, cls.name))
            for method in row.functions:
                self.places[method.name].add((path, ""))

    def find_class(self, name: str) -> list[WrittenClass]:
        """Classes of that name, or those whose device variant has it."""
        if name in self.classes:
            return self.classes[name]
        end = len(name.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"))
        for cut in range(end, len(name)):
            if found := [item for item in self.classes.get(name[:cut], ()) if item.instantiated]:
                return found
        return []


def _pair(where: str) -> tuple[str, str]:
    path, _, name = where.partition("::")
    return path, name


class Variants:
    """Takes generated names apart."""

    def __init__(
        self, written: Written, infos: Mapping[str, str], dtypes: Iterable[str], devices: Iterable[str] = ()
    ) -> None:
        """Prepares.

        Args:
            written: tests of the tree.
            infos: operator, module or optimizer → its spelling in generated names.
            dtypes: names of torch's dtypes.
            devices: device words beside :data:`DEVICE_WORDS`.
        """
        self.written = written
        self._infos = {formatted: name for name, formatted in infos.items()}
        kinds = "|".join(sorted(dtypes, key=len, reverse=True))
        words = "|".join(map(re.escape, dict.fromkeys([*devices, *DEVICE_WORDS])))
        self._tail = re.compile(rf"_(?:{words})(?P<dtypes>(?:_(?:{kinds}))*)$")
        self._kind = re.compile(rf"_({kinds})(?=_|$)")

    def resolve(self, cls: str, test: str, file: str = "") -> list[TestId]:
        """Written tests that a generated name can mean: none, one, or one per file that has such a class.

        Args:
            cls: class as reported, variant or not; ``""`` for any.
            test: method as reported.
            file: as in ids; ``""`` for any.
        """
        classes = self.written.find_class(cls) if cls else self._having(test, file)
        found: list[TestId] = []
        for item in classes:
            if not file or item.file == file:
                found += self._method(item, test)
        return found

    def _having(self, test: str, file: str) -> list[WrittenClass]:
        """Classes with a method that the name begins with, the longest such method's."""
        best: dict[tuple[str, str], WrittenClass] = {}
        for cut in range(len(test), 5, -1):
            for path, cls in self.written.places.get(test[:cut], ()):
                for item in self.written.classes.get(cls, ()):
                    if item.file == path and file in ("", path):
                        best.setdefault((path, cls), item)
            if best:
                break
        return list(best.values())

    def _method(self, cls: WrittenClass, test: str) -> Iterator[TestId]:
        for cut in range(len(test), 3, -1):
            method = cls.tests.get(test[:cut])
            if method is None or (cut < len(test) and test[cut] != "_"):
                continue
            if parts := self._parts(cls, method, test[cut:]):
                yield TestId(cls.file, cls.row.name, method.name, *parts)
                return

    def _parts(self, cls: WrittenClass, method: MethodRow, rest: str) -> tuple[str, str, str] | None:
        """Operator, dtypes and further parameters of what follows the written name."""
        dtypes = ""
        if cls.instantiated and (tail := self._tail.search(rest)):
            dtypes = ",".join(self._kind.findall(tail["dtypes"]))
            rest = rest[: tail.start()]
        middle = rest.removeprefix("_")
        if not middle:
            return "", dtypes, ""
        if any(item.rpartition(".")[2] in _PARAMETRIZED for item in method.decorators):
            words = middle.split("_")
            for length in range(len(words), 0, -1):
                for start in range(len(words) - length + 1):
                    name = self._infos.get("_".join(words[start : start + length]))
                    if name is not None:
                        other = "_".join([*words[:start], *words[start + length :]])
                        return name, dtypes, other
        elif not cls.instantiated and not method.decorators:
            return None  # Nothing makes variants of it, so it is another test.
        return "", dtypes, middle
