"""docs/operators.md: what it says is in its data, and its data is what the device does."""

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest
import torch

from conformance.profile import load_profile

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "operators.py"
DATA = json.loads((ROOT / "docs" / "operators.json").read_text())
SAMPLE = 12
"""Operators that are compared again; a hash chooses them."""

of_this_torch = pytest.mark.skipif(
    torch.__version__.partition("+")[0] != DATA["torch"], reason="the table is of another torch's operators"
)


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("operators", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_document_is_made_of_the_table(tool):
    capabilities = load_profile("spyre").declared()
    assert tool.DOCUMENT.read_text() == tool.document(DATA["torch"], DATA["operators"], capabilities)


@of_this_torch
def test_the_table_has_every_operator_of_the_installed_torch(tool):
    assert set(DATA["operators"]) == set(tool.tasks_of("*"))


def test_at_least_95_percent_run_on_the_device_without_fallback():
    table = DATA["operators"].values()
    assert sum("samples" in line and not {"copies", "faults"} & line.keys() for line in table) >= 0.95 * len(table)


@of_this_torch
def test_the_table_is_what_the_device_does(tool, tmp_path):
    """What differs between processors, bits and messages, is left out."""
    table = DATA["operators"]
    plain = sorted(
        (op for op, line in table.items() if line.get("samples", 0) < 500),
        key=lambda op: hashlib.sha256(op.encode()).hexdigest(),
    )
    chosen = {*plain[:SAMPLE], *(op for op, line in table.items() if "copies" in line or op == "to_sparse")}
    groups = {op: tasks for op, tasks in tool.tasks_of("*").items() if op in chosen}
    journal = tool.Journal(tmp_path / "journal", {})
    tool.compare(groups.values(), "spyre_backend", 1, 300.0, journal)
    found = tool.tabulated(groups, journal.rows)

    def stable(line):
        return {key: line.get(key) for key in ("dtypes", "samples", "launched", "idle", "gradients", "copies")} | {
            "faults": list(line.get("faults", {}))
        }

    assert {op: stable(line) for op, line in found.items()} == {op: stable(table[op]) for op in found}


UNRULY = """
import os, time
import torch
from torch.testing._internal.common_methods_invocations import op_db

def crash_or_hang(x):
    if x.dtype == torch.float32:
        os.abort()
    time.sleep(600)

def on_the_host(x):
    return torch.sinc(x.cpu()).to(x.device)

def wrong(x):
    return torch.sinh(x) + (x.device.type == "spyre")

for op in op_db:
    op.op = {"sin": crash_or_hang, "sinc": on_the_host, "sinh": wrong}.get(op.full_name, op.op)
"""


def test_a_crash_a_hang_a_difference_and_a_copy_to_the_host_are_found(tool, tmp_path, monkeypatch):
    (tmp_path / "unruly.py").write_text(UNRULY)
    monkeypatch.syspath_prepend(str(tmp_path))
    tasks = [("sin", "float32"), ("sinc", "float32"), ("sin", "float64"), ("sinh", "float32"), ("tan", "float32")]
    groups = {op: [(op, dtype, "forward") for name, dtype in tasks if name == op] for op, _ in tasks}
    path, of = tmp_path / "journal", {"of": "this"}
    tool.compare(groups.values(), "unruly", 1, 10.0, tool.Journal(path, of))
    journal = tool.Journal(path, of)
    table = tool.tabulated(groups, journal.rows)
    assert "status -6" in table["sin"]["faults"]["f32"][1]
    assert "took too long" in table["sin"]["faults"]["f64"][1]
    assert table["sinc"]["copies"]["f32"] == table["sinc"]["samples"] - 1  # the last sample is empty
    assert table["sinc"]["exact"] == table["sinc"]["samples"]
    assert "not close" in table["sinh"]["faults"]["f32"][1]
    assert not {"faults", "copies"} & table["tan"].keys()
    capabilities = load_profile("spyre").declared()
    for op in ("sin", "sinc", "sinh"):
        with pytest.raises(tool.Undeclared, match=f"{op}, f32"):
            tool.reason(op, table[op], capabilities)
    tool.compare(groups.values(), "no_such_module", 1, 10.0, journal)  # everything has a result
    del journal.rows["tan", "float32", "forward"]
    with pytest.raises(RuntimeError, match="no_such_module"):
        tool.compare(groups.values(), "no_such_module", 1, 10.0, journal)
    assert not tool.Journal(path, {"of": "another"}).rows
