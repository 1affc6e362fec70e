"""``conformance lint``."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import options as o
from conformance.cli.app import app
from conformance.errors import ConformanceError, Exit
from conformance.inventory import load_inventory
from conformance.inventory.wheel import wheel_rows
from conformance.inventory.written import Written
from conformance.profile import load_profile
from conformance.registry.document import read_document
from conformance.registry.facts import rule_facts
from conformance.registry.lint import Linter
from conformance.registry.load import load_registry
from conformance.registry.match import Registry
from conformance.registry.names import installed_names
from conformance.registry.tests import read_tests


@app.command()
def lint(
    profile: o.ProfileOption = None,
    upstream: o.UpstreamOption = None,
    registry: Annotated[
        Path | None, typer.Option("--registry", metavar="FILE", help="Rules to check (default: the profile's).")
    ] = None,
    tests: Annotated[
        Path | None,
        typer.Option(
            "--tests",
            metavar="FILE",
            help="Every test there is, as `plan --json` writes it: also finds rules that match or decide nothing.",
        ),
    ] = None,
    as_json: o.JsonOption = False,
) -> None:
    """Check the rules of a registry: expired, duplicate, contradicting, matching nothing, unknown names.

    Files, classes and tests are looked up in the checkout of --upstream and in the wheel suite, operators and dtypes,
    those of the capabilities too, in the installed torch, variants in the list of --tests. Exit codes: 0 no error
    (warnings do not count), 2 errors.
    """
    loaded = load_profile(profile)
    path = registry or (loaded.folder / loaded.registry if loaded.registry else None)
    if path is None:
        raise ConformanceError(f"profile {loaded.name} has no registry; give --registry FILE")
    rules, document = load_registry(path)
    capabilities = loaded.declared()
    linter = Linter(path, rules, capabilities, document.position)
    linter.rules_alone(date.today(), loaded.policy.require)
    if any(rule.op or rule.dtype for rule in rules):
        linter.vocabulary(installed_names())
    if loaded.capabilities:
        linter.declared(installed_names(), read_document(loaded.folder / loaded.capabilities))
    version = ""
    if upstream is not None:
        inventory = load_inventory(upstream)
        version = inventory.version
        linter.tree(Written(inventory.files | wheel_rows()))
    if tests is not None:
        facts = rule_facts(version, profile=loaded.name, environment=loaded.environment)
        linter.tests(Registry([rule for rule in rules if rule.applies(**facts)], capabilities), read_tests(tests))
    found = sorted(linter.findings, key=lambda finding: (finding.line, finding.column, finding.code))
    errors = sum(finding.severity == "error" for finding in found)
    if as_json:
        o.print_json(
            {
                "rules": len(rules),
                "errors": errors,
                "warnings": len(found) - errors,
                "findings": [finding.row() for finding in found],
            }
        )
    else:
        for finding in found:
            typer.echo(str(finding))
        checked = [name for name, given in (("the checkout", upstream), ("the list of tests", tests)) if given]
        typer.echo(
            f"{len(rules)} rules: {errors} errors, {len(found) - errors} warnings"
            + (f"; compared with {' and '.join(checked)}" if checked else "; give --upstream to look up test names")
        )
    raise typer.Exit(Exit.USAGE if errors else Exit.AS_EXPECTED)
