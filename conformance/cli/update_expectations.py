"""``conformance update-expectations``."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import options as o
from conformance.cli.app import app
from conformance.errors import AccountsError, ConformanceError, Exit
from conformance.profile import Profile, load_profile
from conformance.registry.facts import rule_facts
from conformance.registry.load import load_registry
from conformance.registry.update import edit, propose
from conformance.reports.read import FinishedRun, read_run
from conformance.reports.write import replace


def _whole(run: FinishedRun, profile: Profile) -> None:
    """Refuses a run that says nothing about tests which rules speak of.

    Raises:
        ConformanceError: it is of another profile or registry, or of a part.
        AccountsError: its accounts do not balance.
    """
    if run.summary["profile"] != profile.name:
        raise ConformanceError(f"{run.folder}: a run of profile {run.summary['profile']}, not of {profile.name}")
    if run.summary["expectations"] != profile.fingerprint():
        raise ConformanceError(f"{run.folder}: {profile.name}'s profile or registry was edited since; run again")
    if run.summary["shard"]:
        raise ConformanceError(f"{run.folder}: shard {run.summary['shard']} of a run; merge all shards first")
    if run.summary["narrowed"]:
        options = ", ".join(run.summary["narrowed"])
        raise ConformanceError(
            f"{run.folder}: a part of the tests ({options}): rules also speak of the others; run without these options"
        )
    if not run.summary["balanced"]:
        raise AccountsError(f"{run.folder}: the accounts of this run do not balance")


@app.command("update-expectations")
def update_expectations(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of a whole run, or of merged ones.")],
    profile: o.ProfileOption = None,
    ratchet: Annotated[bool, typer.Option("--ratchet", help="Only remove rules, never add one.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Change the registry instead of printing a diff.")] = False,
    as_json: o.JsonOption = False,
) -> None:
    """Bring the registry up to what a run has shown, with as few edits as say it.

    Rules whose tests all pass are removed. Failures without a rule get one, clustered by cause, with an exception and
    a message to expect; crashes and hangs are quarantined; a person replaces `untriaged` by the reason. Comments and
    all other lines stay as they are. Without --write the change is printed as a diff.

    Exit codes: 0 nothing to change or changed, 1 there is something to change or a person has to look, 2 usage or a
    run of a part, 3 accounts that do not balance.
    """
    backend = load_profile(profile)
    if not backend.registry:
        raise ConformanceError(f"profile {backend.name} names no registry: add 'registry: registry.yaml' to it")
    found = read_run(run)
    _whole(found, backend)
    path = backend.folder / backend.registry
    rules, _ = load_registry(path)
    facts = rule_facts(
        found.summary["upstream"], found.summary["torch"], found.summary["devices"],
        profile=backend.name, environment=backend.environment,
    )  # fmt: skip
    proposal = propose(
        found.accounts, rules, capabilities=backend.declared(), in_force=lambda rule: rule.applies(**facts),
        ratchet=ratchet,
    )  # fmt: skip
    # To the letter, with its ends of lines and its byte order mark.
    text = path.read_bytes().decode("utf-8")
    edited = edit(path, text, proposal) if proposal else text
    if write and proposal:
        replace(path, edited)
    removed = [rules[place].name for place in proposal.removed]
    if as_json:
        answer = {"removed": removed, "added": proposal.added, "left": proposal.left, "written": write}
        o.print_json(answer)
    else:
        if not write:
            typer.echo("".join(difflib.unified_diff(
                text.splitlines(keepends=True), edited.splitlines(keepends=True), f"a/{path.name}", f"b/{path.name}"
            )), nl=False)  # fmt: skip
        for sentence in proposal.left:
            typer.echo(f"look at: {sentence}", err=True)
        typer.echo(
            f"{len(removed)} rules {'removed' if write else 'to remove'}, "
            f"{len(proposal.added)} {'added' if write else 'to add'}, {len(proposal.left)} to look at", err=True,
        )  # fmt: skip
    open_ends = bool(proposal.left) or (bool(proposal) and not write)
    raise typer.Exit(Exit.UNEXPECTED if open_ends else Exit.AS_EXPECTED)
