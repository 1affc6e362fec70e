"""``conformance drift``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.cli import options as o
from conformance.cli.app import app
from conformance.errors import Exit
from conformance.inventory import load_inventory
from conformance.profile import load_profile
from conformance.selection.drift import broken_rules, compare

_TITLES = {
    "files_added": "files added", "files_removed": "files removed",
    "classes_added": "classes added", "classes_removed": "classes removed",
    "classes_renamed": "classes renamed or moved", "classes_split": "classes split",
    "tests_added": "tests added", "tests_removed": "tests removed", "tests_renamed": "tests renamed",
    "tests_perhaps_renamed": "tests that others are like (a guess)",
    "relabelled": "labels changed", "unreadable": "files that cannot be read",
}  # fmt: skip


@app.command()
def drift(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="PyTorch checkout that the rules were written for.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="PyTorch checkout to go to.")],
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME|FILE", help="Also say which of its rules break.")
    ] = None,
    as_json: o.JsonOption = False,
) -> None:
    """Say which tests two checkouts do not share, what was renamed, split or relabelled, and which rules break.

    Nothing is imported. A broken rule comes with the words that say the same in the new checkout, where that can be
    told. Exit codes: 0 no rule breaks, 2 rules break.
    """
    before, after = load_inventory(old), load_inventory(new)
    found = compare(before, after)
    broken = broken_rules(load_profile(profile).rules(), found, before, after) if profile is not None else []
    row = found.row()
    if as_json:
        o.print_json({**row, "broken_rules": [item.row() for item in broken]})
    else:
        for key, title in _TITLES.items():
            _print(title, row[key])
        for item in broken:
            typer.secho(f"{item.rule.where}: {item.rule.name} loses {', '.join(item.lost)}", fg=typer.colors.RED)
            for key, words in item.rewrite.items():
                typer.echo(f"    {key}: [{', '.join(words)}]")
            if item.guesses:
                typer.echo(f"    perhaps, a guess: {', '.join(item.guesses)}")
            elif not item.rewrite:
                typer.echo("    nothing to put in its place: the new checkout has no successor")
        if profile is not None:
            typer.echo(f"{len(broken)} rules break")
    raise typer.Exit(Exit.USAGE if broken else Exit.AS_EXPECTED)


def _print(title: str, value: Any) -> None:
    if not value:
        return
    typer.secho(f"{len(value)} {title}", bold=True)
    for item in value:
        if not isinstance(value, dict):
            typer.echo(f"  {item}")
            continue
        now = value[item]
        text = (
            f"{now['old']} → {now['new']}"
            if isinstance(now, dict)
            else ", ".join(now)
            if isinstance(now, list)
            else now
        )
        typer.echo(f"  {item} → {text}" if not isinstance(now, dict) else f"  {item}: {text}")
