"""The pytest plugin of a worker: names the tests, applies the decisions, journals every start and end."""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.ids import TestId
from conformance.inventory.model import Inventory
from conformance.registry.match import Registry
from conformance.runner.identity import generic_class, identify
from conformance.runner.journal import JournalWriter
from conformance.runner.spec import WorkerSpec, bucket
from conformance.selection.candidate import Imported, candidate_of
from conformance.selection.decide import Candidate, Decision, decide, excluded_by
from conformance.selection.infer import all_tests
from conformance.selection.labels import canonical

_REPRODUCE = "\nTo execute this test, run the following from the base repo dir:"
"""Begins what upstream's ``TestCase`` adds to a message: the test's name in it would make every failure another."""

MESSAGE_LIMIT = 4_000
TRACE_LIMIT = 32_000

_BLOCKED = re.compile(r"^(Only runs on |only\w+( .*)?: ?doesn't run on )")
"""What upstream's device decorators (``onlyOn`` and relatives in ``common_device_type``) say when they skip."""

_UNEXPECTED_SUCCESS = "Unexpected success"


def clip(text: str, limit: int) -> str:
    """Shortens to ``limit`` characters, keeping both ends: the beginning says where, the end says what."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - limit} characters left out …\n{text[-half:]}"


class WorkerPlugin:
    """One pytest session of one unit.

    Attributes:
        decisions: by pytest item, for those that execute.
    """

    def __init__(self, spec: WorkerSpec, journal: JournalWriter) -> None:
        self.spec = spec
        self.journal = journal
        self.registry = Registry(spec.setup.rules, spec.setup.capabilities)
        self.targets = {target.path: target for target in spec.unit.targets}
        self.inventory = Inventory("", "", "", spec.inventory)
        self.decisions: dict[pytest.Item, tuple[TestId, Decision]] = {}
        self._names: dict[pytest.Item, TestId] = {}
        self._seen: dict[TestId, int] = {}
        self._unreadable: set[str] = set()
        self._classes: dict[type, Imported] = {}
        self._reports: list[dict[str, Any]] = []
        self._fallbacks = self._counter(spec.setup.fallbacks)

    @staticmethod
    def _counter(where: str) -> Callable[[], int] | None:
        if not where:
            return None
        module, _, name = where.partition(":")
        function: Callable[[], int] = getattr(importlib.import_module(module), name)
        return function

    def pytest_configure(self, config: pytest.Config) -> None:
        """Chooses how tracebacks look."""
        # The option belongs to the terminal plugin, which a worker does without.
        config.option.tbstyle = "native"

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """A test file that calls ``sys.exit`` while it is imported ends pytest; say that it was the file."""
        if isinstance(excinfo.value, SystemExit):
            self.journal.write("exited", status=str(excinfo.value.code))

    # Collection

    def _file(self, path: Path) -> str:
        root = self.spec.unit.root
        try:
            return root.prefix + path.relative_to(root.folder).as_posix()
        except ValueError:
            return path.as_posix()

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Journals which file is about to be imported."""
        if isinstance(collector, pytest.Module):
            self.journal.write("collecting", path=self._file(collector.path))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported, or skips itself, is a result of that file (C28)."""
        if report.outcome == "passed":
            return
        name, _, inner = report.nodeid.partition("::")
        root = self.spec.unit.root
        path = name if name.startswith(root.prefix) else root.prefix + name
        text = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        last = next((line for line in reversed(text.splitlines()) if line.strip()), text)
        self._unreadable.add(path)
        self.journal.write(
            "file",
            id=str(TestId(path, inner.replace("::", "."))),
            outcome="skipped" if report.outcome == "skipped" else "error",
            message=clip(last.removeprefix("E ").strip(), MESSAGE_LIMIT),
            trace=clip(text, TRACE_LIMIT) if report.outcome == "failed" else "",
        )

    def _name(self, item: pytest.Item) -> TestId:
        if item in self._names:
            return self._names[item]
        cls = getattr(item, "cls", None)
        attribute = getattr(item, "originalname", None) or item.name
        callspec = getattr(getattr(item, "callspec", None), "id", "")
        file = self._file(item.path)
        test = identify(file, cls, attribute, self.spec.setup.device, self.spec.inventory.get(file), callspec)
        # Two tests of one name can only come from a file that defines a class or a method twice.
        count = self._seen[test] = self._seen.get(test, 0) + 1
        if count > 1:
            test = replace(test, other=f"{test.other}~{count}")
        self._names[item] = test
        return test

    def _class_facts(self, cls: type) -> Imported:
        """What importing has shown of a class."""
        if cls not in self._classes:
            value = getattr(cls, "hw_classification", None)
            enum = getattr(sys.modules.get("torch.testing._internal.common_utils"), "HardwareClassification", None)
            label = canonical(value.name) if value is not None and enum is not None and isinstance(value, enum) else ""
            self._classes[cls] = Imported(
                label=label,
                wrong_label=value is not None and not label,
                instantiated=generic_class(cls)[1],
                unrestricted=bool(getattr(cls, "bypass_device_restrictions", False)),
            )
        return self._classes[cls]

    def _candidate(self, test: TestId, cls: type | None) -> Candidate:
        setup = self.spec.setup
        return candidate_of(
            test, self.spec.inventory.get(test.file), self.inventory, device=setup.device, custom=setup.custom,
            imported=self._class_facts(cls) if cls is not None else None,
        )  # fmt: skip

    def _wanted(self, test: TestId, spellings: tuple[str, ...], variant: str) -> bool:
        """Whether the unit was asked for this test; what is another unit's or nobody's is not counted here.

        Args:
            spellings: by which the test can be asked for, besides its id and its written name.
            variant: name of the class that upstream made.
        """
        target = self.targets.get(test.file)
        text = str(test)
        if target is None:
            return False
        if self.spec.unit.only is not None:
            return text in self.spec.unit.only
        if not target.low <= bucket(text) < target.high:
            return False
        return not target.names or any(
            (not cls or cls in (test.cls, variant)) and (not name or name in (test.test, text, *spellings))
            for cls, name in target.names
        )

    def _plan(self, item: pytest.Item, keyword: bool) -> Decision | None:
        """Journals one test and its decision.

        Args:
            keyword: false when ``-k`` left it out.

        Returns:
            The decision, ``None`` when the test is not this unit's or has a result.
        """
        test = self._name(item)
        attribute = getattr(item, "originalname", None) or item.name
        if not self._wanted(test, (attribute, item.name), getattr(getattr(item, "cls", None), "__name__", "")):
            return None
        cls = getattr(item, "cls", None)
        return self._enter(self._candidate(test, cls), keyword, item.nodeid)

    def _enter(self, candidate: Candidate, keyword: bool, node: str) -> Decision | None:
        """Decides and journals; see :meth:`_plan`."""
        decision = decide(candidate, self.spec.setup.selection, self.registry)
        if not keyword:
            decision = Decision("deselected", decision.label, decision.label_source, f"-k {self.spec.setup.keyword}")
        name = str(candidate.id)
        if name in self.spec.done:
            return None
        self.journal.write(
            "item", id=name, label=decision.label, source=decision.label_source, action=decision.action,
            reason=decision.reason, rule=decision.rule.name if decision.rule else "", node=node,
            factor=Registry.deadline_factor(decision.rules),
        )  # fmt: skip
        if decision.action == "error" or not (decision.executes or self.spec.setup.collect_only):
            outcome = {"skip": "skipped", "quarantine": "skipped"}.get(decision.action, decision.action)
            self.journal.write("result", id=name, outcome=outcome, reason=decision.reason)
        return decision

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Accounts for what ``-k`` leaves out."""
        for item in items:
            self._plan(item, keyword=False)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Journals every test with its decision and keeps those that execute."""
        kept = []
        for item in items:
            decision = self._plan(item, keyword=True)
            if decision is not None and decision.executes:
                self.decisions[item] = (self._names[item], decision)
                kept.append(item)
        self._plan_absent()
        items[:] = [] if self.spec.setup.collect_only else kept
        self.journal.write("collected")

    def _plan_absent(self) -> None:
        """Accounts for classes that upstream makes no variant of for this device (``only_for``, ``except_for``).

        pytest never sees them; they are planned as they are written, without operators and dtypes.
        """
        setup = self.spec.setup
        present = {(test.file, test.cls) for test in self._names.values()}
        for path in self.targets:
            row = self.spec.inventory.get(path)
            if row is None or row.error or path in self._unreadable:
                continue
            for cls in row.classes:
                call = row.instantiation_of(cls.name)
                left_out = excluded_by(call, setup.device, setup.custom) if call is not None else ""
                if not left_out or (path, cls.name) in present:
                    continue
                for method in all_tests(row, cls, self.inventory):
                    test = TestId(path, cls.name, method.name, device=setup.device)
                    if self._wanted(test, (), ""):
                        self._enter(self._candidate(test, None), not setup.keyword, path)

    # Execution

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Start and end of a test, with setup and teardown of its class inside."""
        test, decision = self.decisions[item]
        self._reports = []
        self.journal.write("start", id=str(test))
        before = self._fallbacks() if self._fallbacks else 0
        started = time.perf_counter()
        result = yield
        duration = time.perf_counter() - started
        fallback = bool(self._fallbacks() - before) if self._fallbacks else None
        self.journal.write(
            "end", id=str(test), duration=round(duration, 6), fallback=fallback, **self._verdict(decision)
        )
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Applies a ``tolerance`` rule; upstream's ``TestCase`` reads both from the instance."""
        test, decision = self.decisions[item]
        floors = self.registry.tolerance(test, decision.rules)
        instance = getattr(item, "instance", None)
        if floors is None or instance is None or not hasattr(instance, "precision"):
            return (yield)
        kept = instance.precision, instance.rel_tol
        instance.precision, instance.rel_tol = max(kept[0], floors[0]), max(kept[1], floors[1])
        try:
            return (yield)
        finally:
            instance.precision, instance.rel_tol = kept

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Notes a phase together with the exception object, which the report alone does not have."""
        report = yield
        self._note(report, call.excinfo.value if call.excinfo is not None else None)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes failed subtests, whose reports come only this way."""
        if type(report) is not pytest.TestReport and report.failed:
            self._note(report, None)

    def _note(self, report: pytest.TestReport, error: BaseException | None) -> None:
        if report.passed and not hasattr(report, "wasxfail"):
            return
        reason = ""
        if isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        exceptions = [c.__name__ for c in type(error).__mro__] if error is not None else []
        text = report.longreprtext if report.failed else ""
        if error is None and text:
            last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
            message = last.removeprefix("E ").strip()
        else:
            message = str(error) if error is not None else ""
        self._reports.append(
            {
                "phase": report.when or "call",
                "outcome": report.outcome,
                "xfail": hasattr(report, "wasxfail"),
                "reason": str(getattr(report, "wasxfail", "")) or reason,
                "exceptions": exceptions,
                "message": (f"{exceptions[0]}: {message}" if exceptions else message).partition(_REPRODUCE)[0].rstrip(),
                "bare": message,
                "trace": text,
            }
        )

    def _verdict(self, decision: Decision) -> dict[str, Any]:
        """Outcome of an executed test from its reports (C16)."""
        failed = next((r for r in self._reports if r["outcome"] == "failed"), None)
        rule = decision.rule
        if failed is not None:
            if failed["bare"].startswith(_UNEXPECTED_SUCCESS):
                return {"outcome": "xpassed", "phase": "call", "reason": "upstream expects a failure (expectedFailure)"}
            verdict = {
                "outcome": "failed" if failed["phase"] == "call" else "error",
                "phase": failed["phase"],
                "message": clip(failed["message"], MESSAGE_LIMIT),
                "trace": clip(failed["trace"], TRACE_LIMIT),
            }
            if rule is not None and decision.action == "xfail" and rule.signature is not None:
                if rule.signature.matches(failed["phase"], tuple(failed["exceptions"]), failed["bare"]):
                    return {**verdict, "outcome": "xfailed", "reason": rule.text}
                verdict["reason"] = f"not the failure that {rule.where} expects ({_describe(rule.signature)})"
            return verdict
        skipped = next((r for r in self._reports if r["outcome"] == "skipped"), None)
        if skipped is not None:
            if skipped["xfail"]:
                return {"outcome": "xfailed", "phase": skipped["phase"], "reason": f"upstream: {skipped['reason']}"}
            blocked = _BLOCKED.match(skipped["reason"])
            return {
                "outcome": "not_applicable" if blocked else "skipped",
                "phase": skipped["phase"],
                "reason": ("blocked upstream: " if blocked else "") + clip(skipped["reason"], MESSAGE_LIMIT),
            }
        if decision.action == "xfail" and rule is not None:
            return {"outcome": "xpassed", "phase": "call", "reason": f"passes, but {rule.where} expects: {rule.text}"}
        return {"outcome": "passed", "phase": "call"}


def _describe(signature: Any) -> str:
    parts = [signature.exception or "any exception", f"in {signature.phase}"]
    if signature.message:
        parts.append(f"matching {signature.message!r}")
    return " ".join(parts)
