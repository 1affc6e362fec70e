"""C18, C19: what a backend declares, how it is found out, what follows from it, whether it is true."""

import json
from pathlib import Path

import pytest

from conformance.capabilities.audit import audit, settings
from conformance.ids import TestId
from conformance.registry.document import Document
from conformance.registry.match import Registry
from conformance.registry.model import Capabilities, Rule
from conformance.registry.names import Names
from conformance.selection.decide import Candidate, Selection, decide

HERE = Path(__file__).parent

DECLARED = Capabilities.model_validate(
    {
        "version": 1,
        "dtypes": ["float32", "int64"],
        "tolerances": {"float32": {"atol": 0.1}},
        "operators": {
            "add": {},
            "mul": {"dtypes": ["float32"], "tolerances": {"float32": {"atol": 0.5, "rtol": 0.25}}},
            "svd": {"supported": False, "note": "no kernel"},
            "gone_from_torch": {},
        },
    }
)
NAMES = Names(
    {}, ("float32", "int64", "bool"),
    dict.fromkeys(("add", "mul", "svd", "sub"), ("float32", "int64", "bool")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("op", "dtype", "action", "reason"),
    [
        ("add", "int64", "run", ""),
        ("add", "bool", "skip", "unsupported-dtype: bool of add"),
        ("mul", "int64", "skip", "unsupported-dtype: int64 of mul"),
        ("svd", "float32", "skip", "unsupported-operator: svd: no kernel"),
        ("sub", "float32", "run", ""),
        ("", "float32,bool", "skip", "unsupported-dtype: bool"),
        ("", "", "run", ""),
    ],
)
def test_C18_skips_follow_from_the_declaration(op, dtype, action, reason):
    candidate = Candidate(TestId("test/test_x.py", "TestX", "test_x", op, dtype, device="mine"), "ACCELERATOR")
    decision = decide(candidate, Selection(frozenset({"ACCELERATOR"})), Registry((), DECLARED))
    assert (decision.action, decision.reason) == (action, reason)


def test_C18_a_rule_decides_before_the_declaration():
    rule = Rule.model_validate({"op": "svd", "action": "run", "reason": "supported"})
    candidate = Candidate(TestId("test/test_x.py", "TestX", "test_x", "svd", "float32"), "ACCELERATOR")
    assert decide(candidate, Selection(frozenset({"ACCELERATOR"})), Registry([rule], DECLARED)).action == "run"


def test_C18_tolerances_follow_from_the_declaration():
    registry = Registry((), DECLARED)
    assert registry.tolerance(TestId("f.py", "C", "t", "mul", "float32"), ()) == (0.5, 0.25)
    assert registry.tolerance(TestId("f.py", "C", "t", "add", "float32"), ()) == (0.1, 0.0)
    assert registry.tolerance(TestId("f.py", "C", "t", "add", "int64"), ()) is None


def test_C18_settings_name_only_operators_that_torch_has():
    found = settings(DECLARED, NAMES)
    assert found["op_allowlist"] == ["add", "mul"]
    assert found["op_overrides"]["add"]["skip_dtypes"] == ["bool"]
    assert found["op_overrides"]["mul"]["tolerances"] == {"float32": {"atol": 0.5, "rtol": 0.25}}
    assert settings(Capabilities(version=1), NAMES)["op_allowlist"] is None


def line(op, dtype, outcome, fallback=False):
    return {
        "id": f"{op}{dtype}{outcome}", "op": op, "dtype": dtype, "outcome": outcome, "device": "mine",
        "fallback": fallback,
    }  # fmt: skip


def test_C19_audit_of_a_run():
    found = audit(
        DECLARED,
        [
            line("add", "float32", "passed"),
            line("add", "int64", "passed", fallback=True),
            line("mul", "float32", "failed"),
            line("svd", "float32", "passed"),
            line("sub", "float32", "passed"),
            line("nn.Linear", "float32", "passed"),
        ],
        NAMES,
    )
    assert found.untested == ("gone_from_torch[float32]", "gone_from_torch[int64]")
    assert found.undeclared == ("sub[float32]", "svd[float32]")
    assert found.fallback == ("add[int64]",)
    assert found.failing == ("mul[float32]",)
    assert not found.clean


BACKEND = """
import os, time
import torch
from torch.testing._internal import common_methods_invocations as databases
def wrong(*arguments, **keywords):
    raise NotImplementedError("no kernel")
for op in databases.op_db:
    if op.full_name == "sinh":
        op.op = wrong
    elif op.full_name == "sinc":
        op.op = lambda *_, **__: os.abort()
    elif op.full_name == "sin":
        op.op = lambda *_, **__: time.sleep(600)
"""


def test_C18_probe_tries_every_operator_whatever_it_does(conformance, tmp_path):
    (tmp_path / "unruly_backend.py").write_text(BACKEND)
    (tmp_path / "profile.yaml").write_text("name: unruly\nmodule: unruly_backend\ndevice: cpu\n")
    out = tmp_path / "capabilities.yaml"
    done = conformance(
        "capabilities", "probe", "--profile", tmp_path, "--ops", "sin*", "--timeout", "5", "--output", out,
        PYTHONPATH=f"{tmp_path}:{HERE.parents[1]}", TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = Document(out, out.read_text()).value["operators"]
    assert found["sinh"] == {"supported": False, "note": "NotImplementedError: no kernel"}
    assert found["sinc"]["supported"] is False and "ended with status -6" in found["sinc"]["note"]
    assert found["sin"]["supported"] is False and "took too long" in found["sin"]["note"]
    assert set(found) == {"sin", "sinc", "sinh"}
    assert "0 of 3 operators run" in done.stderr
    (tmp_path / "profile.yaml").write_text("name: t\ndevice: cpu\ncapabilities: capabilities.yaml\n")
    answer = conformance("capabilities", "settings", "--profile", tmp_path)
    assert json.loads(answer.stdout)["op_allowlist"] == []


def test_C18_probe_of_a_backend_that_does_not_work(conformance, tmp_path):
    (tmp_path / "profile.yaml").write_text("name: none\nmodule: no_such_backend\ndevice: cpu\n")
    done = conformance("capabilities", "probe", "--profile", tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 2
    assert "no_such_backend" in done.stderr


def test_C18_probe_looks_at_its_output_before_the_first_operator(conformance, tmp_path):
    (tmp_path / "profile.yaml").write_text("name: none\nmodule: no_such_backend\ndevice: cpu\n")
    (tmp_path / "file").write_text("mine")
    for output, what in (
        ("nowhere/x.yaml", "there is no folder"),
        ("file/x", "there is no folder"),
        ("file", "exists"),
    ):
        done = conformance("capabilities", "probe", "--profile", tmp_path, "--output", tmp_path / output)
        assert done.returncode == 2
        assert what in " ".join(done.stderr.split()) and "no_such_backend" not in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


DECLARATION = "version: 1\noperators: {add: {dtypes: [float32]}}\n"


@pytest.fixture
def audited(conformance, tmp_path):
    """Audits a run of one test, made of what it is said to be."""
    from conformance.reports.accounts import Accounts, Attempt, Planned
    from conformance.reports.write import write_results

    def call(test="test_x[add][float32]@mine", declared=DECLARATION, ran_with="mine", outcome="passed", folder=True):
        (tmp_path / "profile.yaml").write_text("name: mine\ndevice: mine\ncapabilities: capabilities.yaml\n")
        (tmp_path / "capabilities.yaml").write_text(declared)
        accounts = Accounts()
        if test:
            name = f"test/test_x.py::TestX::{test}"
            accounts.plan(Planned(name, "ACCELERATOR"))
            accounts.record(Attempt(name, outcome, 1, 0.1, "call", "", "", "", False))
        if not folder:
            accounts.profile = ran_with
        (tmp_path / "out").mkdir()
        write_results(accounts, tmp_path / "out" / "results.jsonl")
        summary = {
            "planned": len(accounts.planned), "balanced": True, "unexpected": [], "seconds": 1, "torch": "2",
            "upstream": "", "profile": ran_with, "expectations": "", "devices": 1, "shard": "", "interrupted": "",
            "narrowed": [], "notes": [],
        }  # fmt: skip
        (tmp_path / "out" / "summary.json").write_text(json.dumps(summary))
        path = tmp_path / "out" if folder else tmp_path / "out" / "results.jsonl"
        done = conformance("capabilities", "audit", path, "--profile", tmp_path)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    return call


@pytest.mark.parametrize(
    ("run", "code", "said"),
    [
        ({}, 0, "the declaration holds"),
        ({"outcome": "failed"}, 2, "the declaration does not hold"),
        ({"test": "test_x[sub][float32]@mine"}, 2, "the declaration does not hold"),
        ({"ran_with": "spyre"}, 2, "of profile spyre, not of mine"),
        ({"test": "test_x[add][float32]@other"}, 2, "ran on other; profile mine is for mine"),
        ({"ran_with": "spyre", "folder": False}, 2, "of profile spyre, not of mine"),
        ({"test": ""}, 3, "holds"),
        ({"test": "test_x@mine", "folder": False}, 3, "no test of an operator ran on mine"),
        ({"outcome": "skipped"}, 3, "no test of an operator ran on mine"),
        ({"declared": "version: 1\n"}, 2, "declares no operator, so there is nothing to audit"),
    ],
)
def test_C19_audit_says_only_what_a_run_shows(audited, run, code, said):
    found, text = audited(**run)
    assert found == code, text
    assert said in text
    assert ("the declaration holds" in text) == (code == 0)
