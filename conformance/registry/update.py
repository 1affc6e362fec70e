"""Results → edits of a registry (C17): rules that are no longer needed go, failures without a rule get one.

The edits are made in the text of the file, whole rules at a time: every line that they do not concern stays to the
letter, comments included. What a program cannot decide is left to a person, and said.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.errors import ConformanceError
from conformance.ids import TestId, parse
from conformance.importers.cluster import PARTS, cluster, widen
from conformance.importers.entry import Entry, Treatment
from conformance.registry.document import Document, dump
from conformance.registry.load import validate
from conformance.registry.match import Registry, literal
from conformance.registry.model import Action, Capabilities, RegistryFile, Rule
from conformance.reports.accounts import BROKEN, Accounts
from conformance.reports.cause import constant_parts
from conformance.selection.decide import Candidate, Decision, Selection, decide

MESSAGE = 100
"""Characters of a failure's message that become its signature."""

_EXCEPTION = re.compile(r"([A-Za-z_]\w*): (.*)", re.DOTALL)


@dataclass
class Proposal:
    """What to change in a registry.

    Attributes:
        removed: places in the file of rules all of whose tests passed.
        added: new rules, as they stand in a file.
        left: what a person has to look at, as sentences.
    """

    removed: list[int] = field(default_factory=list)
    added: list[dict[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.removed or self.added)


def propose(
    accounts: Accounts,
    rules: Sequence[Rule],
    *,
    capabilities: Capabilities | None = None,
    in_force: Callable[[Rule], bool] = lambda _: True,
    ratchet: bool = False,
) -> Proposal:
    """Compares results with the rules that were in force.

    Args:
        accounts: of a whole run with these rules.
        rules: of the registry file, in its order.
        capabilities: what the backend declares; it decides where no rule does.
        in_force: whether a rule's conditions held in that run.
        ratchet: only remove: the list of what does not work may shrink and never grow.
    """
    proposal = Proposal()
    names = Counter(rule.name for rule in rules)
    ended: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in sorted(accounts.attempts):
        outcome = accounts.outcome(name)
        assert outcome is not None
        ended[accounts.planned[name].rule][outcome].append(name)
    for place, rule in enumerate(rules):
        outcomes = ended.get(rule.name)
        if rule.action is not Action.XFAIL or not outcomes or not outcomes["xpassed"]:
            continue
        passing = outcomes["xpassed"]
        if names[rule.name] > 1:
            proposal.left.append(f"{rule.where}: {names[rule.name]} rules are called {rule.name}: give each its own id")
        elif set(outcomes) & {"xfailed", "flaky", *BROKEN}:
            proposal.left.append(
                f"{rule.where}: {rule.name} expects too much: {len(passing)} of its tests pass, such as {passing[0]}"
            )
        else:
            proposal.removed.append(place)
    active = [(place, rule) for place, rule in enumerate(rules) if in_force(rule)]
    _keep_what_others_decide(proposal, rules, active, ended, capabilities)
    if not ratchet:
        kept = [rule for place, rule in active if place not in proposal.removed]
        _add(proposal, accounts, {rule.name: rule for rule in rules}, kept, capabilities)
    return proposal


def _keep_what_others_decide(
    proposal: Proposal,
    rules: Sequence[Rule],
    active: Sequence[tuple[int, Rule]],
    ended: dict[str, dict[str, list[str]]],
    capabilities: Capabilities | None,
) -> None:
    """Does not remove a rule whose tests a wider one would then take: they would no longer run, unseen."""
    registry = Registry([rule for place, rule in active if place not in proposal.removed], capabilities)
    for place in list(proposal.removed):
        rule = rules[place]
        for name in ended[rule.name]["xpassed"]:
            then = _decision(parse(name), registry)
            if then.action != "run":
                by = then.rule.where if then.rule is not None else "the capabilities"
                proposal.left.append(
                    f"{rule.where}: {rule.name} is not needed, but without it {by} makes {name} {then.action}: "
                    "let action: run take its place"
                )
                proposal.removed.remove(place)
                break


def _decision(test: TestId, registry: Registry) -> Decision:
    """What registry and capabilities say of a test that is selected."""
    return decide(Candidate(test, "any"), Selection(frozenset({"any"})), registry)


def _add(
    proposal: Proposal,
    accounts: Accounts,
    rules: dict[str, Rule],
    kept: Sequence[Rule],
    capabilities: Capabilities | None,
) -> None:
    """Makes rules for failures that no rule speaks of.

    Args:
        rules: of the file, by name.
        kept: those in force that stay.
    """
    entries: dict[str, Entry] = {}
    for name, rows in sorted(accounts.attempts.items()):
        outcome = accounts.outcome(name)
        if outcome not in BROKEN and outcome != "flaky":
            continue
        test, last = parse(name), rows[-1]
        rule = rules.get(accounts.planned[name].rule)
        if not test.test:
            proposal.left.append(f"{name}: {outcome}: a file is not a test: {_first_line(last.message or last.reason)}")
        elif rule is not None:
            proposal.left.append(f"{name}: {outcome}, but {rule.where} expects: {rule.text}")
        else:
            broken = next((row for row in rows if row.outcome in BROKEN), last)
            treatment = _treatment(outcome, broken.phase, broken.message)
            if treatment is None:
                proposal.left.append(f"{name}: {outcome}: no exception to expect: {_first_line(broken.message)}")
            else:
                entries[name] = Entry(treatment, test.file, test.cls, test.test, test.op, test.dtype, test.other)
    found = widen(entries.values(), [parse(name) for name in accounts.attempts])
    made = [item.rule() for item in cluster(map(_literal, found))]
    added = [Rule.model_validate(rule) for rule in made]
    registry = Registry([*kept, *added], capabilities)
    winners = {name: _decision(parse(name), registry).rule for name in entries}
    for name, winner in winners.items():
        if winner is not None and all(winner is not rule for rule in added):
            proposal.left.append(f"{name}: {accounts.outcome(name)}, and {winner.where} outweighs a rule that says so")
    deciding = {id(winner) for winner in winners.values()}
    proposal.added += [words for words, rule in zip(made, added, strict=True) if id(rule) in deciding]


def _literal(entry: Entry) -> Entry:
    """The entry with names that mean themselves: a test's name may hold what a rule takes for a pattern."""
    return Entry(entry.treatment, *(literal(getattr(entry, part)) for part in PARTS))


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
    parts = [re.escape(part).replace(r"\ ", " ") for part in constant_parts(line)]
    return ".*".join(parts).removesuffix(".*").removeprefix(".*").strip()


def edit(path: Path, text: str, proposal: Proposal) -> str:
    """The registry's text with the proposal in it.

    Args:
        path: of the file, for messages.
        text: its content, with its own ends of lines.
        proposal: made from the rules of this very text.

    Raises:
        ConformanceError: the rules are not one item a line, or the outcome is not what was meant.
    """
    end_of_line = "\r\n" if "\r\n" in text else "\n"
    # The lines that YAML counts in any file that people write; str.splitlines knows more of them.
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += end_of_line
    starts = [line - 1 for line in Document(path, text).lines("rules")]
    if any(not re.match(r"\s*- ", lines[start]) for start in starts) or len(set(starts)) < len(starts):
        raise ConformanceError(
            f"{path}: rules in [...] cannot be edited line by line: write each as an item of its own"
        )
    stops = [*starts[1:], _end_of_list(lines, starts[-1])] if starts else []
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
    at = ends[-1] if ends else _head(path, lines, end_of_line)
    edited = [line for number, line in enumerate(lines[:at]) if number not in gone]
    edited += (line.replace("\n", end_of_line) for line in _added(lines, starts, proposal.added))
    edited += (line for number, line in enumerate(lines[at:], at) if number not in gone)
    _check(path, text, "".join(edited), proposal)
    return "".join(edited)


def _end(lines: list[str], start: int, stop: int) -> int:
    """Where a rule ends: comments and blank lines before the next one are not its own."""
    while stop > start + 1 and (not lines[stop - 1].strip() or lines[stop - 1].lstrip().startswith("#")):
        stop -= 1
    return stop


def _end_of_list(lines: list[str], last: int) -> int:
    """Where the list ends whose last item starts at a line: at the next key, or with the file."""
    indent = len(lines[last]) - len(lines[last].lstrip())
    for number in range(last + 1, len(lines)):
        line = lines[number]
        if line.strip() and not line.lstrip().startswith("#") and len(line) - len(line.lstrip()) <= indent:
            return number
    return len(lines)


def _head(path: Path, lines: list[str], end_of_line: str) -> int:
    """Makes room for the first rule; the line after the key ``rules``."""
    for number, line in enumerate(lines):
        if match := re.match(r"rules:\s*(?:\[\s*\]|~|null)?\s*(#.*)?$", line):
            lines[number] = f"rules:{'  ' + match[1].rstrip() if match[1] else ''}{end_of_line}"
            return number + 1
    if any(line.startswith(("{", "rules")) for line in lines):
        raise ConformanceError(f"{path}: rules in this style cannot be edited line by line: write 'rules:' on a line")
    lines.append(f"rules:{end_of_line}")
    return len(lines)


def _added(lines: list[str], starts: list[int], rules: list[dict[str, Any]]) -> list[str]:
    indent = lines[starts[0]].partition("-")[0] if starts else "  "
    apart = len(starts) < 2 or any(not lines[start - 1].strip() for start in starts[1:])
    added: list[str] = []
    for rule in rules:
        if apart and (starts or added):
            added.append("\n")
        added += [indent + line for line in dump([rule]).splitlines(keepends=True)]
    return added


def _check(path: Path, before: str, after: str, proposal: Proposal) -> None:
    """The edited text means what was meant, whatever style the file has."""
    old = validate(Document(path, before), RegistryFile).rules
    meant = [rule for place, rule in enumerate(old) if place not in proposal.removed]
    meant += [Rule.model_validate(rule) for rule in proposal.added]
    try:
        new = validate(Document(path, after), RegistryFile).rules
    except ConformanceError:
        new = []
    if [rule.model_dump() for rule in new] != [rule.model_dump() for rule in meant]:
        raise ConformanceError(f"{path}: this file's style does not let a program edit it: make the change by hand")
