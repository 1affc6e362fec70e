"""The whole chain of one test: label, selection, every rule and which won (C11)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from conformance.ids import TestId
from conformance.inventory.model import FileRow, Inventory
from conformance.registry.facts import Facts
from conformance.registry.match import Registry
from conformance.registry.model import Capabilities, Rule
from conformance.selection.candidate import candidate_of
from conformance.selection.decide import Candidate, Decision, Selection, decide
from conformance.selection.infer import all_tests


@dataclass(frozen=True, slots=True)
class Considered:
    """A rule that names the test.

    Attributes:
        weight: specificity; the higher one wins.
        idle: why it does not count now, ``""`` where it does.
        wins: it is the verdict.
    """

    rule: Rule
    weight: float
    idle: str
    wins: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """What happens to a test and why.

    Attributes:
        label_from: where the label of the class comes from.
        decision: as a run would take it.
        considered: rules that name the test, most specific first.
        line: of the written test, 0 where the static tree does not have it.
    """

    candidate: Candidate
    label_from: str
    line: int
    selection: Selection
    decision: Decision
    considered: tuple[Considered, ...]

    def row(self) -> dict[str, Any]:
        """For ``--json``."""
        decision = self.decision
        return {
            "id": str(self.candidate.id),
            "line": self.line,
            "label": decision.label,
            "label_source": decision.label_source,
            "label_from": self.label_from,
            "evidence": list(self.candidate.evidence),
            "confidence": self.candidate.confidence,
            "wanted_labels": sorted(self.selection.labels),
            "unclassified": self.selection.unclassified,
            "restrictions": list(self.candidate.restrictions),
            "action": decision.action,
            "reason": decision.reason,
            "rule": decision.rule.name if decision.rule else "",
            "rules": [
                {
                    "rule": item.rule.name, "where": item.rule.where, "action": item.rule.action.value,
                    "reason": item.rule.text, "issue": item.rule.issue, "weight": item.weight, "idle": item.idle,
                    "wins": item.wins,
                }
                for item in self.considered
            ],
        }  # fmt: skip


def explain(
    test: TestId,
    file: FileRow,
    inventory: Inventory,
    *,
    device: str,
    custom: bool,
    selection: Selection,
    rules: list[Rule],
    capabilities: Capabilities,
    facts: Facts,
) -> Explanation:
    """Explains one test with the functions that a run decides with.

    Args:
        test: as in ids; without ``@device`` it is given where upstream makes device variants of the class.
        file: row of its file.
        inventory: the tree.
        device, custom: of the profile.
        selection: labels and policy.
        rules: of the registry, those that do not count now too.
        facts: that conditions are compared with.
    """
    cls = next((row for row in file.classes if row.name == test.cls), None)
    if cls is not None and not test.device and file.instantiation_of(cls.name) is not None:
        test = replace(test, device=device)
    candidate = candidate_of(test, file, inventory, device=device, custom=custom)
    methods = all_tests(file, cls, inventory) if cls is not None else file.functions
    line = next((method.line for method in methods if method.name == test.test), 0)
    active = Registry([rule for rule in rules if rule.applies(**facts)], capabilities)
    decision = decide(candidate, selection, active)
    everything = Registry(rules, capabilities)
    considered = tuple(
        Considered(rule, everything.weight(rule), rule.idle(**facts), rule is decision.rule)
        for rule in everything.matching(test)
    )
    return Explanation(candidate, cls.label_from if cls is not None else "", line, selection, decision, considered)
