"""One file → one row. Text and AST only."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from bisect import bisect_left, bisect_right
from pathlib import Path

from conformance.inventory.model import ClassRow, FileRow, Instantiation, MethodRow

MAX_BYTES = 20_000_000
"""A larger file is reported, not parsed: the parser needs about a hundred times its size."""

_DEVICE_TYPES = "cuda|mps|xpu|hpu|mtia|cpu|meta"
_DEVICE_TEXT = re.compile(
    rf"""["'](?P<literal>{_DEVICE_TYPES})(?::\d+)?["']|\.(?P<call>cuda|xpu|cpu)\(|torch\.(?P<module>cuda|mps|xpu)\."""
)
_GENERATES = re.compile(r"\bsetattr\(|\btype\([^()]*,|\bcopy_tests\(|\bglobals\(\)\[|\bmake_\w*cls\w*\(")
"""Calls by which upstream's files add tests and classes while they are imported."""

_CLASSIFICATION = "hw_classification"


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of a name, attribute or call; ``""`` for anything else."""
    if isinstance(node, ast.Call):
        return dotted(node.func)
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def _strings(node: ast.expr | None) -> list[str] | None:
    """Device types of an ``only_for`` or ``except_for`` argument as upstream reads it."""
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        values = [item.value for item in node.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        return values if len(values) == len(node.elts) else ["?"]
    return ["?"]


class _Scanner:
    def __init__(self, row: FileRow, text: str) -> None:
        self.row = row
        row.generates = _GENERATES.search(text) is not None
        starts = [0, *(match.end() for match in re.finditer("\n", text))]
        found = list(_DEVICE_TEXT.finditer(text))
        self.constants: dict[str, ast.expr] = {}
        self.device_lines = [bisect_right(starts, match.start()) for match in found]
        self.devices = [match["literal"] or match["call"] or match["module"] for match in found]
        self.package = row.path.rsplit("/", 1)[0].split("/") if "/" in row.path else []

    def module(self, tree: ast.Module) -> None:
        assigned = [
            (target.id, node.value)
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        ]
        names = [name for name, _ in assigned]
        self.constants = {name: value for name, value in assigned if names.count(name) == 1}
        self._body(tree.body, prefix="", cls=None, top=True)

    def _body(
        self, body: list[ast.stmt], prefix: str, cls: ClassRow | None, top: bool, conditional: bool = False
    ) -> None:
        """Walks statements, not expressions: definitions, imports and calls that matter are statements."""
        for node in body:
            if isinstance(node, ast.ClassDef):
                self._class(node, prefix)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if node.name.startswith("test") and (cls is not None or top):
                    (self.row.functions if cls is None else cls.tests).append(self._method(node, conditional))
                self._body(node.body, f"{prefix}{node.name}.<locals>.", None, False)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node, top)
            elif isinstance(node, ast.Expr):
                if isinstance(node.value, ast.Call):
                    self._call(node.value)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                if cls is not None:
                    self._assignment(node, cls)
            else:
                for name in ("body", "orelse", "finalbody"):
                    if inner := getattr(node, name, None):
                        self._body(inner, prefix, cls, top, True)
                for handler in getattr(node, "handlers", ()):
                    self._body(handler.body, prefix, cls, top, True)

    def _class(self, node: ast.ClassDef, prefix: str) -> None:
        row = ClassRow(
            name=prefix + node.name,
            line=node.lineno,
            bases=[name for base in node.bases if (name := dotted(base))],
            decorators=[name for item in node.decorator_list if (name := dotted(item))],
        )
        self.row.classes.append(row)
        self._body(node.body, f"{prefix}{node.name}.", row, False)

    def _method(self, node: ast.FunctionDef | ast.AsyncFunctionDef, conditional: bool) -> MethodRow:
        arguments = node.args
        names = {arg.arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        first = bisect_left(self.device_lines, node.lineno)
        devices = set(self.devices[first : bisect_right(self.device_lines, node.end_lineno or node.lineno)])
        row = MethodRow(node.name, node.lineno, bool(names & {"device", "devices"}), conditional=conditional)
        row.devices = sorted(devices)
        for item in node.decorator_list:
            name = dotted(item)
            if name:
                row.decorators.append(name)
            if name.rpartition(".")[2] == "requires_capabilities" and isinstance(item, ast.Call):
                row.capabilities += [
                    a.value for a in item.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
                ]
        return row

    def _import(self, node: ast.Import | ast.ImportFrom, top: bool) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.row.imports.append(alias.name)
                if top:
                    self.row.names[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
            return
        module = node.module or ""
        if node.level:
            module = ".".join([*self.package[: len(self.package) - node.level + 1], *([module] if module else [])])
        self.row.imports.append(module)
        for alias in node.names:
            if alias.name == "*":
                if top:
                    self.row.names[f"*{module}"] = module
                continue
            self.row.imports.append(f"{module}.{alias.name}")
            if top:
                self.row.names[alias.asname or alias.name] = f"{module}.{alias.name}"

    def _call(self, node: ast.Call) -> None:
        if dotted(node.func).rpartition(".")[2] != "instantiate_device_type_tests" or not node.args:
            return
        # Positional order of upstream's signature: generic_test_class, scope, except_for, only_for.
        keywords: dict[str | None, ast.expr] = {item.arg: item.value for item in node.keywords}
        positional = dict(zip(("class", "scope", "except_for", "only_for"), node.args, strict=False))
        self.row.instantiations.append(
            Instantiation(
                dotted(node.args[0]),
                node.lineno,
                only_for=self._devices(keywords.get("only_for", positional.get("only_for"))),
                except_for=self._devices(keywords.get("except_for", positional.get("except_for"))),
            )
        )

    def _devices(self, node: ast.expr | None) -> list[str] | None:
        """An argument that names a constant of the module means the constant."""
        return _strings(self.constants.get(node.id, node) if isinstance(node, ast.Name) else node)

    def _assignment(self, node: ast.Assign | ast.AnnAssign, cls: ClassRow) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if not any(isinstance(target, ast.Name) and target.id == _CLASSIFICATION for target in targets):
            return
        value = node.value
        if value is None:
            return
        cls.own_label, cls.label_error = "", ""
        name = dotted(value)
        owner, _, member = name.rpartition(".")
        if isinstance(value, ast.Constant) and value.value is None:
            cls.own_label = "NONE"
        elif not isinstance(value, ast.Call) and owner.rpartition(".")[2] == "HardwareClassification":
            cls.own_label = member
        else:
            cls.label_error = (
                f"hw_classification is {ast.unparse(value)[:60]}, but must be a member of HardwareClassification"
            )


def scan_source(row: FileRow, content: bytes) -> None:
    """Fills a row from what its file holds.

    Args:
        row: with path, size and time.
        content: of the file; what is not valid Python leaves ``error`` and nothing else.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = io.TextIOWrapper(io.BytesIO(content), encoding).read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
            _Scanner(row, text).module(tree)
    except UnicodeDecodeError as error:
        row.error = f"not {error.encoding.upper()} at byte {error.start}"
    except SyntaxError as error:
        # Without a line it is tokenize's: the first two lines are not what the file, or PEP 263, says they are.
        row.error = (
            f"line {error.lineno}: {error.msg}" if error.lineno else "not UTF-8, and no encoding declaration fits"
        )
    except (ValueError, RecursionError, MemoryError) as error:
        row.error = f"{type(error).__name__}: {error}"


def read_content(row: FileRow, root: Path) -> bytes | None:
    """What the file holds; ``None``, with ``error`` in the row, where it cannot be read or is too large."""
    if row.size > MAX_BYTES:
        row.error = f"{row.size} bytes; files over {MAX_BYTES} bytes are not read"
        return None
    try:
        return (root / row.path).read_bytes()
    except OSError as error:
        row.error = f"{type(error).__name__}: {error}"
        return None


def scan_file(root: Path, path: str, size: int, mtime_ns: int) -> FileRow:
    """Reads one file.

    Args:
        root: the checkout.
        path: from ``root``, with ``/``.
        size, mtime_ns: from its directory entry; they become part of the row.

    Returns:
        A row; a file that is not valid Python gives one with ``error`` set and nothing else.
    """
    row = FileRow(path, size, mtime_ns)
    content = read_content(row, root)
    if content is not None:
        scan_source(row, content)
    return row
