"""Readers of the formats (torch-spyre's YAML, torch-xpu-ops' Python, torch-npu's and upstream's JSON)."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conformance.errors import ConformanceError
from conformance.importers.entry import Entry, Imported, Resolve, Treatment
from conformance.registry.document import Document
from conformance.registry.match import literal

_UNITTEST = re.compile(r"^(?P<test>\S+) \((?P<path>[\w.]+)\)$")
_ISSUE = re.compile(r"https?://\S+/(?:issues|pull)/\d+")
PLATFORMS = {"linux": "linux", "mac": "darwin", "macos": "darwin", "win": "win32", "windows": "win32"}


def _spelled(text: str) -> tuple[str, str, str] | None:
    """``test_x (nn.test_y.TestZ)`` → class, test, file (``""`` for ``__main__`` and modules outside of the tests)."""
    match = _UNITTEST.match(text)
    if match is None:
        return None
    *module, cls = match["path"].split(".")
    if module[-1:] == ["__main__"] or not module or not module[-1].startswith("test_"):
        return cls, match["test"], ""
    return cls, match["test"], f"test/{'/'.join(module).removeprefix('test/')}.py"


def _wanted(value: Any, kind: type, where: str) -> Any:
    """A value of the kind that a format has there, ``None`` for one that was left out.

    Raises:
        ConformanceError: it is another kind.
    """
    if value is not None and not isinstance(value, kind):
        words: dict[type, str] = {list: "a list", dict: "a mapping", str: "a text"}
        raise ConformanceError(f"{where}: expected {words[kind]}, found {words.get(type(value), repr(value))}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    return _wanted(value, list, where) or []


def _mapping(value: Any, where: str) -> dict[str, Any]:
    return _wanted(value, dict, where) or {}


def _text(value: Any, where: str, default: str = "") -> str:
    text = _wanted(value, str, where)
    return default if text is None else str(text)


def _texts(value: Any, where: str) -> list[str]:
    return [_text(item, f"{where}[{number}]") for number, item in enumerate(_list(value, where))]


def _json(path: Path, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f":{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConformanceError(f"{path}{where}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConformanceError(f"{path}: expected an object of test names, found {type(document).__name__}")
    return document


def disabled_tests(path: Path, text: str, resolve: Resolve) -> Imported:
    """Upstream's ``disabled-tests``: ``{"test_x (__main__.TestY)": [issue, url, [platforms]]}``.

    A test that is disabled on some platforms only becomes a rule for those which Python has a name for; the others
    (``rocm``, ``asan``, ``dynamo``, …) are configurations of upstream's CI.
    """
    found = Imported()
    for name, value in _json(path, text).items():
        found.lines += 1
        spelled = _spelled(name)
        if spelled is None or not isinstance(value, list) or len(value) < 2:
            raise ConformanceError(f'{path}: {name!r}: expected "test_x (__main__.TestY)": [issue, url, [platforms]]')
        where = f"{path}: {name!r}"
        issue = _text(value[1], f"{where}[1]")
        wanted = _texts(value[2], f"{where}[2]") if len(value) > 2 else []
        known = sorted({PLATFORMS[item] for item in wanted if item in PLATFORMS})
        if wanted and not known:
            found.skip("for configurations of upstream's CI only")
            continue
        for platform in known or [""]:
            treatment = Treatment(reason="upstream-bug", note="disabled upstream", issue=issue, platform=platform)
            found.name(treatment, resolve, *spelled)
    return found


def torch_npu(path: Path, text: str, resolve: Resolve) -> Imported:
    """torch-npu's ``unsupported_test_cases``: ``{"test_x_npu (__main__.TestYPRIVATEUSE1)": ["", ["A2"]]}``.

    The inner list names chips; a test that is skipped on some chips only is noted so and skipped on all.
    """
    found = Imported()
    for name, value in _json(path, text).items():
        found.lines += 1
        spelled = _spelled(name)
        if spelled is None or not isinstance(value, list):
            raise ConformanceError(f'{path}: {name!r}: expected "test_x (__main__.TestY)": [reason, [chips]]')
        where = f"{path}: {name!r}"
        chips = [chip for chip in (_texts(value[1], f"{where}[1]") if len(value) > 1 else []) if chip]
        words = [reason] if (reason := _text(value[0], f"{where}[0]") if value else "") else []
        words += [f"only on {', '.join(chips)}"] if chips else []
        note = "; ".join(words)
        found.name(Treatment(note=note), resolve, *spelled)
    return found


_NOT_WRITTEN_OUT = "names that only running the file would tell"


def torch_xpu_ops(path: Path, text: str, resolve: Resolve) -> Imported:
    """torch-xpu-ops' skip lists: Python files with ``skip_dict = {file: (name part, …) or None}``.

    Nothing of the file is executed. A name part counts wherever it stands in a test's generated name; the comments
    above it become the note, an issue link in them the issue.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise ConformanceError(f"{path}{f':{line}' if line else ''}: not Python: {error}") from error
    lines = text.splitlines()
    dictionaries = [
        node.value for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        and any(isinstance(target, ast.Name) and "skip" in target.id for target in node.targets)
    ]  # fmt: skip
    if not dictionaries:
        raise ConformanceError(f"{path}: has no `skip_dict = {{…}}` at the top of the file")
    found = Imported()
    for dictionary in dictionaries:
        for key, value in zip(dictionary.keys, dictionary.values, strict=True):
            strings = [n.value for n in ast.walk(key) if isinstance(n, ast.Constant)] if key is not None else []
            if not strings or not isinstance(strings[-1], str):
                found.skip("an entry whose file is not written out")
                continue
            file = "test/" + strings[-1].lstrip("/").replace("_xpu.py", ".py")
            if not isinstance(value, (ast.Tuple, ast.List, ast.Set)):
                # None: the file runs without skips.
                if not (isinstance(value, ast.Constant) and value.value is None):
                    found.skip(_NOT_WRITTEN_OUT)
                continue
            for item in value.elts:
                if isinstance(item, ast.Constant) and isinstance(item.value, str):
                    found.lines += 1
                    _xpu(found, resolve, file, item.value, _comments(lines, item.lineno))
                else:
                    found.skip(_NOT_WRITTEN_OUT)
    return found


def _comments(lines: list[str], line: int) -> str:
    """Comment lines directly above a line."""
    found: list[str] = []
    for text in reversed(lines[: line - 1]):
        if not text.strip().startswith("#"):
            break
        found.insert(0, text.strip().lstrip("# ").strip())
    return " ".join(found)


def _xpu(found: Imported, resolve: Resolve, file: str, name: str, comment: str) -> None:
    issue = _ISSUE.search(comment)
    treatment = Treatment(note=comment[:200], issue=issue.group() if issue else "")
    if name.startswith("test_") and resolve("", name, file):
        found.name(treatment, resolve, "", name, file)
        return
    part, file = literal(name.strip("_")), literal(file)
    found.entries.append(Entry(treatment, file, "", f"*{part}*"))
    if not name.startswith("test_"):
        # The part may stand in the operator's name too.
        found.entries.append(Entry(treatment, file, op=f"*{part}*"))
    found.skip("matched by a part of the name: compare with the tests that were meant")


_MODES = {"skip": "skip", "xfail": "xfail", "xfail_strict": "xfail", "mandatory_success": "run"}


def _treatment(mode: str, note: str, where: str) -> Treatment:
    if mode not in _MODES:
        raise ConformanceError(f"{where}: unknown mode {mode!r}; expected one of {', '.join(_MODES)}")
    action = _MODES[mode]
    return Treatment(
        action,
        "supported" if action == "run" else "untriaged",
        note,
        exception="Exception" if action == "xfail" else "",
    )


def torch_spyre(path: Path, text: str, resolve: Resolve) -> Imported:
    """torch-spyre's test configuration: ``test_suite_config`` with files, modes, edits and global capabilities.

    ``unlisted_test_mode`` becomes a rule for the file, each listed test one that is more specific. An xfail without a
    known failure gets the signature ``Exception``, which is to be narrowed.
    """
    document = Document(path, text).value
    config = document.get("test_suite_config") if isinstance(document, dict) else None
    if not isinstance(config, dict) or not isinstance(config.get("files"), list):
        raise ConformanceError(f"{path}: has no test_suite_config with a list 'files'")
    found = Imported()
    for number, item in enumerate(config["files"]):
        where = f"{path}: files[{number}]"
        entry = _mapping(item, where)
        raw = _text(entry.get("path"), f"{where}.path")
        if not raw:
            raise ConformanceError(f"{where}.path: is missing")
        if "TORCH_DEVICE_ROOT" in raw or "TORCH_SPYRE" in raw:
            found.skip("files of the backend's own")
            continue
        file = "test/" + raw.rpartition("/test/")[2].replace(".*py", "*.py").replace(".*", "*")
        mode = _text(entry.get("unlisted_test_mode"), f"{where}.unlisted_test_mode", "skip")
        found.lines += 1
        found.entries.append(Entry(_treatment(mode, "", where), file))
        for place, test in enumerate(_list(entry.get("tests"), f"{where}.tests")):
            at = f"{where}.tests[{place}]"
            _spyre_test(found, file, _mapping(test, at), at)
    capabilities = _mapping(config.get("global"), f"{path}: global")
    found.dtypes = tuple(_items(capabilities.get("supported_dtypes"), f"{path}: global.supported_dtypes"))
    where = f"{path}: global.supported_ops"
    for number, item in enumerate(_list(capabilities.get("supported_ops"), where)):
        at = f"{where}[{number}]"
        op = _item(item, at)
        found.operators[op] = tuple(_items(item.get("dtypes"), f"{at}.dtypes")) if isinstance(item, dict) else ()
        if isinstance(item, dict) and item.get("force_xfail"):
            found.entries.append(Entry(_treatment("xfail", "force_xfail", str(path)), op=literal(op)))
    return found


def _item(item: Any, where: str) -> str:
    """A name, or the name of a mapping that says more of it."""
    text = _text(item.get("name"), f"{where}.name") if isinstance(item, dict) else _text(item, where)
    if not text:
        raise ConformanceError(f"{where}: has no name")
    return text.removeprefix("torch.")


def _items(value: Any, where: str) -> list[str]:
    return [_item(item, f"{where}[{number}]") for number, item in enumerate(_list(value, where))]


def _pattern(text: str) -> str:
    """A name in which ``.*`` stands for anything, as a selector's word."""
    return "*".join(literal(part) for part in text.split(".*"))


def _spyre_test(found: Imported, file: str, test: Mapping[str, Any], where: str) -> None:
    edits = _mapping(test.get("edits"), f"{where}.edits")
    mode = _text(test.get("mode"), f"{where}.mode", "mandatory_success")
    for name in _texts(test.get("names"), f"{where}.names"):
        found.lines += 1
        cls, _, method = map(_pattern, name.rpartition("::"))
        found.entries.append(Entry(_treatment(mode, "", where), file, cls, method))
        for kind, key in (("ops", "op"), ("modules", "op"), ("dtypes", "dtype")):
            at = f"{where}.edits.{kind}"
            edit = _mapping(edits.get(kind), at)
            for number, item in enumerate(_list(edit.get("exclude"), f"{at}.exclude")):
                place = f"{at}.exclude[{number}]"
                note = _text(item.get("description"), f"{place}.description") if isinstance(item, dict) else ""
                words = {"op": "", "dtype": "", key: literal(_item(item, place))}
                found.entries.append(Entry(Treatment(note=note), file, cls, method, **words))
            if edit.get("include"):
                found.skip(f"edits.{kind}.include: upstream's tests run unmodified here")


FORMATS: dict[str, Callable[[Path, str, Resolve], Imported]] = {
    "torch-spyre": torch_spyre,
    "torch-xpu-ops": torch_xpu_ops,
    "torch-npu": torch_npu,
    "disabled-tests": disabled_tests,
}
