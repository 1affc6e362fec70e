"""Results → edits of a registry (C17): rules that are no longer needed go, failures without a rule get one.

The edits are made in the text of the file, whole rules at a time: every line that they do not concern stays to the
letter, comments included. What a program cannot decide is left to a person, and said.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.errors import ConformanceError
from conformance.ids import TestId, parse
from conformance.importers.cluster import cluster, widen
from conformance.importers.entry import Entry, Treatment
from conformance.registry.document import Document, dump
from conformance.registry.load import validate
from conformance.registry.model import Action, RegistryFile, Rule
from conformance.reports.accounts import BROKEN, Accounts

MESSAGE = 100
"""Characters of a failure's message that become its signature."""

_CHANGING = re.compile(r"0x[0-9a-fA-F]+|[-+]?\d[\d.]*(?:e[-+]?\d+)?|(?:/[\w.+-]+){2,}")
"""What differs between two failures of one cause: addresses, numbers, paths."""

_EXCEPTION = re.compile(r"([A-Za-z_]\w*): (.*)", re.DOTALL)


@dataclass
class Proposal:
    """What to change in a registry.

    Attributes:
        removed: rules all of whose tests passed, by place in the file, with the number of those tests.
        added: new rules, as they stand in a file.
        left: what a person has to look at, as sentences.
    """

    removed: dict[int, int] = field(default_factory=dict)
    added: list[dict[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.removed or self.added)


def propose(accounts: Accounts, rules: Sequence[Rule], *, ratchet: bool = False) -> Proposal:
    """Compares results with the rules that were in force.

    Args:
        accounts: of a whole run with these rules.
        rules: of the registry file, in its order.
        ratchet: only remove: the list of what does not work may shrink and never grow.
    """
    proposal = Proposal()
    ended: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in sorted(accounts.attempts):
        outcome = accounts.outcome(name)
        assert outcome is not None
        ended[accounts.planned[name].rule][outcome].append(name)
    for place, rule in enumerate(rules):
        outcomes = ended.get(rule.name)
        if rule.action is not Action.XFAIL or not outcomes or not outcomes["xpassed"]:
            continue
        if set(outcomes) & {"xfailed", "flaky", *BROKEN}:
            proposal.left.append(
                f"{rule.where}: {rule.name} expects too much: {len(outcomes['xpassed'])} of its tests pass, "
                f"for example {outcomes['xpassed'][0]}"
            )
        else:
            proposal.removed[place] = len(outcomes["xpassed"])
    if not ratchet:
        _add(proposal, accounts, {rule.name: rule for rule in rules})
    return proposal


def _add(proposal: Proposal, accounts: Accounts, rules: dict[str, Rule]) -> None:
    entries = []
    for name, rows in sorted(accounts.attempts.items()):
        outcome = accounts.outcome(name)
        if outcome not in BROKEN and outcome != "flaky":
            continue
        test, last = parse(name), rows[-1]
        rule = rules.get(accounts.planned[name].rule)
        if not test.test:
            proposal.left.append(f"{name}: {outcome}: a file is not a test: {_first_line(last.message or last.reason)}")
        elif rule is not None and rule.action is not Action.RUN:
            proposal.left.append(f"{name}: {outcome}, but {rule.where} expects: {rule.text}")
        else:
            broken = next((row for row in rows if row.outcome in BROKEN), last)
            treatment = _treatment(outcome, broken.phase, broken.message)
            if treatment is None:
                proposal.left.append(f"{name}: {outcome}: no exception to expect: {_first_line(broken.message)}")
            else:
                entries.append(_entry(test, treatment))
    everything = [parse(name) for name in accounts.attempts]
    proposal.added += [item.rule() for item in cluster(widen(entries, everything))]


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:200]


def _treatment(outcome: str, phase: str, message: str) -> Treatment | None:
    """The rule's part that tells what happens; ``None`` where a signature cannot be made."""
    if outcome == "flaky":
        return Treatment("flaky", "flaky", _first_line(message))
    if outcome == "crashed":
        # An xfail would run it again and lose the process again.
        return Treatment("quarantine", "crash", _first_line(message))
    if outcome == "timed_out":
        return Treatment("quarantine", "hang")
    match = _EXCEPTION.match(message)
    if match is None or phase not in ("setup", "call", "teardown"):
        return None
    return Treatment("xfail", exception=match[1], message=pattern(match[2]), phase="" if phase == "call" else phase)


def pattern(message: str) -> str:
    """A regular expression that finds failures of this message's kind: its first line, with any numbers and paths."""
    line = _first_line(message)[:MESSAGE] if message.strip() else ""
    parts = [re.escape(part).replace(r"\ ", " ") for part in _CHANGING.split(line)]
    return ".*".join(parts).removesuffix(".*").removeprefix(".*").strip()


def _entry(test: TestId, treatment: Treatment) -> Entry:
    return Entry(treatment, test.file, test.cls, test.test, test.op, test.dtype, test.other)


def edit(path: Path, text: str, proposal: Proposal) -> str:
    """The registry's text with the proposal in it.

    Args:
        path: of the file, for messages.
        text: its content.
        proposal: made from the rules of this very text.

    Raises:
        ConformanceError: the rules are not one item a line, or the outcome is not what was meant.
    """
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    starts = [line - 1 for line in Document(path, text).lines("rules")]
    if any(not re.match(r"\s*- ", lines[start]) for start in starts) or len(set(starts)) < len(starts):
        raise ConformanceError(
            f"{path}: rules in [...] cannot be edited line by line: write each as an item of its own"
        )
    stops = [*starts[1:], len(lines)] if starts else []
    ends = [_end(lines, start, stop) for start, stop in zip(starts, stops, strict=True)]
    gone: set[int] = set()
    for place in proposal.removed:
        start, end = starts[place], ends[place]
        # One of the blank lines around it goes with the rule.
        if end < len(lines) and not lines[end].strip():
            end += 1
        elif start and not lines[start - 1].strip():
            start -= 1
        gone |= set(range(start, end))
    at = ends[-1] if ends else len(lines)
    added = _added(lines, starts, proposal.added)
    edited = "".join(
        [*(line for number, line in enumerate(lines[:at]) if number not in gone), *added,
         *(line for number, line in enumerate(lines[at:], at) if number not in gone)]
    )  # fmt: skip
    _check(path, text, edited, proposal)
    return edited


def _end(lines: list[str], start: int, stop: int) -> int:
    """Where a rule ends: comments and blank lines before the next one are not its own."""
    while stop > start + 1 and (not lines[stop - 1].strip() or lines[stop - 1].lstrip().startswith("#")):
        stop -= 1
    return stop


def _added(lines: list[str], starts: list[int], rules: list[dict[str, Any]]) -> list[str]:
    indent = re.match(r" *", lines[starts[0]])[0] if starts else "  "  # type: ignore[index]
    apart = len(starts) < 2 or any(not lines[start - 1].strip() for start in starts[1:])
    added: list[str] = [] if starts or any(line.startswith("rules:") for line in lines) else ["rules:\n"]
    for rule in rules:
        if apart:
            added.append("\n")
        added += [indent + line for line in dump([rule]).splitlines(keepends=True)]
    return added if rules else []


def _check(path: Path, before: str, after: str, proposal: Proposal) -> None:
    """The edited text means what was meant, whatever style the file has."""
    old, new = (validate(Document(path, text), RegistryFile).rules for text in (before, after))
    meant = [rule for place, rule in enumerate(old) if place not in proposal.removed]
    meant += [Rule.model_validate(rule) for rule in proposal.added]
    if [rule.model_dump() for rule in new] != [rule.model_dump() for rule in meant]:
        raise ConformanceError(f"{path}: the edit would not mean what it should; edit the file by hand")
