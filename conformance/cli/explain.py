"""``conformance explain``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import options as o
from conformance.cli.app import app
from conformance.errors import ConformanceError
from conformance.ids import TestId, normalise, parse
from conformance.inventory import Inventory, load_inventory
from conformance.inventory.wheel import wheel_rows
from conformance.inventory.written import Variants, Written
from conformance.near import near
from conformance.profile import Profile, load_profile
from conformance.registry.facts import rule_facts
from conformance.registry.names import installed_names
from conformance.runner.units import resolve_targets
from conformance.selection.decide import POLICIES, Selection
from conformance.selection.explain import Explanation
from conformance.selection.explain import explain as explain_test
from conformance.selection.labels import parse_labels


def _check_variant(text: str, test: TestId, profile: Profile) -> None:
    """Refuses variants that this profile cannot have.

    Raises:
        ConformanceError: another device, or an operator or dtype that the installed torch does not have.
    """
    if test.device and test.device != profile.device:
        raise ConformanceError(f"{text}: is a test on {test.device}; profile {profile.name} is for {profile.device}")
    if not (test.op or test.dtype):
        return
    names = installed_names()
    for kind, words, known in (("operator", [test.op], names.infos), ("dtype", test.dtype.split(","), names.dtypes)):
        for word in words:
            if word and word not in known:
                raise ConformanceError(f"{text}: the installed torch has no {kind} {word!r}{near(word, known)}")


def _find(text: str, inventory: Inventory, upstream: Path | None, profile: Profile) -> list[TestId]:
    """Tests that a person's spelling means; a generated name is taken apart with torch's own names."""
    spelled = normalise(text)
    exact = parse(spelled) if any(char in spelled for char in "[@") else None
    if exact is not None:
        _check_variant(text, exact, profile)
    written = Written(inventory.files)
    found: list[TestId] = []
    for target in resolve_targets([text], inventory.files, upstream, Path.cwd()):
        for cls, test in target.names:
            if exact is not None:
                # A test that is made at import has an id and does not stand in the file.
                made = inventory.files[target.path].generates and not target.path.startswith("wheel/")
                if made or (target.path, exact.cls) in written.places.get(exact.test, ()):
                    found.append(replace(exact, file=target.path))
            elif (target.path, cls) in written.places.get(test, ()):
                found.append(TestId(target.path, cls, test))
            elif test:
                names = installed_names()
                found += Variants(written, names.infos, names.dtypes, [profile.device]).resolve(cls, test, target.path)
    return [test for test in found if test.test]


def _print(found: Explanation) -> None:
    candidate, decision = found.candidate, found.decision
    typer.secho(str(candidate.id), bold=True)
    where = f"{candidate.id.file}:{found.line}" if found.line else f"{candidate.id.file} (not in the static tree)"
    typer.echo(f"  written    {where}")
    if decision.label_source == "hw_classification":
        typer.echo(f"  label      {decision.label}: hw_classification, {found.label_from}")
    elif candidate.inferred and not candidate.error:
        typer.echo(
            f"  label      none; inferred {candidate.inferred} "
            f"({candidate.confidence:.2f}: {'; '.join(candidate.evidence)})"
        )
    wanted = ", ".join(sorted(found.selection.labels))
    typer.echo(f"  selection  labels {wanted}; classes without a label: {found.selection.unclassified}")
    if candidate.restrictions:
        typer.echo(f"  upstream   {', '.join(candidate.restrictions)}")
    for item in found.considered:
        rule = item.rule
        mark = "wins" if item.wins else f"idle: {item.idle}" if item.idle else "counts"
        typer.echo(f"  rule       {rule.name} ({rule.where}): {rule.action.value}, weight {item.weight:g}, {mark}")
        typer.echo(f"             {rule.text}" + (f" {rule.issue}" if rule.issue else ""))
    if not found.considered:
        typer.echo("  rules      none names it")
    typer.echo(f"  → {decision.action}" + (f": {decision.reason}" if decision.reason else ""))


@app.command()
def explain(
    test: Annotated[str, typer.Argument(metavar="TEST", help="Any spelling of a test's name.")],
    profile: o.ProfileOption = None,
    upstream: o.UpstreamOption = None,
    labels: o.LabelsOption = None,
    unclassified: o.UnclassifiedOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Say what a run would do with one test, and every step that led there, without importing it.

    Shows the label and its origin, upstream's restrictions, and every rule that names the test: its weight, whether it
    counts now and which one wins. A name that stands in several files is explained for each.
    """
    loaded = load_profile(profile)
    if unclassified is not None and unclassified not in POLICIES:
        raise ConformanceError(f"--unclassified {unclassified}: expected one of {', '.join(POLICIES)}")
    wheel = wheel_rows()
    inventory = load_inventory(upstream) if upstream is not None else Inventory("", "", "", {})
    inventory.files |= wheel
    found = _find(test, inventory, upstream, loaded)
    if not found:
        raise ConformanceError(
            f"{test}: names no single test; expected FILE::CLASS::TEST, for example "
            "test/test_view_ops.py::TestViewOps::test_view_copy"
        )
    selection = Selection(
        parse_labels(labels) if labels else frozenset(loaded.policy.labels),
        unclassified or loaded.policy.unclassified,
    )
    answers = [
        explain_test(
            item, inventory.files[item.file], inventory, device=loaded.device, custom=loaded.custom,
            selection=selection, rules=loaded.rules(), capabilities=loaded.declared(),
            facts=rule_facts(inventory.version, profile=loaded.name, environment=loaded.environment),
        )
        for item in found
    ]  # fmt: skip
    if as_json:
        o.print_json([answer.row() for answer in answers])
    else:
        for answer in answers:
            _print(answer)
