"""The decision on one test: run, skip, not applicable, deselected, and why.

One function for ``plan``, ``run`` and ``explain``, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from conformance.ids import TestId
from conformance.inventory.model import Instantiation
from conformance.registry.match import Registry
from conformance.registry.model import Action, Rule

Policy = str
POLICIES: tuple[Policy, ...] = ("exclude", "include", "infer")


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the collecting side knows of one test.

    Attributes:
        label: of ``hw_classification``, ``""`` when unclassified.
        inferred: label that inference gives, ``""`` without inference.
        evidence: facts behind ``inferred``.
        restrictions: upstream's device limits as written (``onlyCUDA``, ``only_for=['cuda']``) that exclude the device.
        error: why its class cannot be selected by label; upstream's filter raises there.
    """

    id: TestId
    label: str = ""
    inferred: str = ""
    evidence: tuple[str, ...] = ()
    confidence: float = 0.0
    restrictions: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """What was asked for.

    Attributes:
        labels: wanted labels.
        unclassified: what happens to classes without one (C7).
    """

    labels: frozenset[str]
    unclassified: Policy = "infer"


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to a test, and the chain that led there.

    Attributes:
        action: ``run``, ``xfail``, ``flaky`` (executed) or ``skip``, ``quarantine``, ``not_applicable``,
            ``deselected``, ``error`` (not).
        label, label_source: ``hw_classification``, ``inferred`` or ``unclassified``.
        reason: of a test that is not simply run.
        rule: id of the registry rule that won, ``""`` without one.
        rules: every rule that matched, most specific first.
    """

    action: str
    label: str
    label_source: str
    reason: str = ""
    rule: Rule | None = None
    rules: tuple[Rule, ...] = field(default=())

    @property
    def executes(self) -> bool:
        """Whether the test's code runs."""
        return self.action in ("run", "xfail", "flaky")


_ACTIONS = {
    Action.RUN: "run",
    Action.SKIP: "skip",
    Action.QUARANTINE: "quarantine",
    Action.XFAIL: "xfail",
    Action.FLAKY: "flaky",
}


def label_of(candidate: Candidate, policy: Policy) -> tuple[str, str]:
    """Label and where it comes from."""
    if candidate.label:
        return candidate.label, "hw_classification"
    if policy == "infer" and candidate.inferred:
        return candidate.inferred, "inferred"
    return "", "unclassified"


def decide(candidate: Candidate, selection: Selection, registry: Registry) -> Decision:
    """Applies label, then upstream's restrictions, then the registry, then what the backend declares.

    The first two equal upstream's own behaviour: ``--hw-classification`` filters whole classes by label, and a
    restricted test raises ``SkipTest`` when it runs.
    """
    if candidate.error:
        return Decision("error", "", "unclassified", candidate.error)
    label, source = label_of(candidate, selection.unclassified)
    if source == "unclassified":
        if selection.unclassified != "include":
            return Decision("deselected", label, source, "unclassified class")
    elif label not in selection.labels:
        evidence = f" ({'; '.join(candidate.evidence)})" if source == "inferred" and candidate.evidence else ""
        return Decision("deselected", label, source, f"label {label}{evidence}")
    if candidate.restrictions:
        return Decision("not_applicable", label, source, f"blocked upstream by {', '.join(candidate.restrictions)}")
    rules = registry.matching(candidate.id)
    winner = next((rule for rule in rules if rule.action in _ACTIONS), None)
    if winner is None:
        refused = registry.capabilities.refuses(candidate.id.op, candidate.id.dtype)
        return Decision("skip" if refused else "run", label, source, refused, rules=rules)
    return Decision(_ACTIONS[winner.action], label, source, winner.text, winner, rules)


def restrictions_for(decorators: Sequence[str], device: str) -> tuple[str, ...]:
    """Names of ``@only*`` decorators that make a test raise ``SkipTest`` on ``device``.

    ``@onlyNativeDeviceTypes`` is not among them: upstream counts the PrivateUse1 backend's name as native.

    Args:
        decorators: dotted names as in the inventory.
        device: device type under test.
    """
    single = {"onlyCPU": "cpu", "onlyCUDA": "cuda", "onlyMPS": "mps", "onlyXPU": "xpu", "onlyHPU": "hpu"}
    names = (item.rpartition(".")[2] for item in decorators)
    return tuple(f"@{name}" for name in names if name in single and device != single[name])


def excluded_by(call: Instantiation, device: str, custom: bool) -> str:
    """What of a call of ``instantiate_device_type_tests`` leaves a device out (``filter_desired_device_types``).

    Args:
        call: as written.
        device: device type under test.
        custom: it is a PrivateUse1 backend, which upstream also calls ``privateuse1``.

    Returns:
        ``only_for=['cuda']`` or ``except_for=…``; ``""`` where the device is let in, or where a value that is computed
        at import decides.
    """
    names = {device, "privateuse1"} if custom else {device}
    if call.except_for and names & set(call.except_for):
        return f"except_for={call.except_for}"
    if call.only_for and call.only_for != ["?"] and not names & set(call.only_for):
        return f"only_for={call.only_for}"
    return ""
