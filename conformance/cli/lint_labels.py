"""``conformance lint-labels``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import options as o
from conformance.cli.app import app
from conformance.errors import ConformanceError, Exit
from conformance.inventory import load_inventory
from conformance.selection.classification import compare, offences


def read_allowlist(path: Path) -> list[str]:
    """Entries of an allowlist; ``#`` begins a comment.

    Raises:
        ConformanceError: it cannot be read, or a line is no entry.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConformanceError(f"--allowlist {path}: cannot be read: {error}") from error
    entries = []
    for number, line in enumerate(lines, 1):
        if text := line.partition("#")[0].strip():
            if len(text.split()) != 2 or "::" not in text:
                raise ConformanceError(f"{path}:{number}: {text!r} is no entry; expected FILE::CLASS code")
            entries.append(text)
    return entries


@app.command("lint-labels")
def lint_labels(
    upstream: Annotated[Path, typer.Option("--upstream", metavar="DIR", help="PyTorch checkout; it is only read.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Only these files, from the checkout's root.")
    ] = None,
    allowlist: Annotated[
        Path | None,
        typer.Option("--allowlist", metavar="FILE", help="Offenders that are known, one `FILE::CLASS code` per line."),
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write-allowlist", help="Make --allowlist when there is none; else only take out stale entries."
        ),
    ] = False,
    as_json: o.JsonOption = False,
) -> None:
    """Check that every test class declares its hw_classification and is built as the label says.

    GENERIC: no device parameter, not instantiated. ACCELERATOR: instantiated, tests take a device, no only_for and no
    @only* but @onlyAccelerator. A device label: instantiated for exactly that device. Exit codes: 0 nothing new,
    2 new offenders, or entries of the allowlist that no longer offend.
    """
    if write and allowlist is None:
        raise ConformanceError("--write-allowlist needs --allowlist FILE")
    inventory = load_inventory(upstream)
    if files and (unknown := [name for name in files if name not in inventory.files]):
        raise ConformanceError(f"the checkout has no file {', '.join(unknown)}; give paths from its root (test/…)")
    found = offences(inventory, files or None)
    if write and allowlist is not None and not allowlist.exists():
        allowlist.write_text("".join(f"{entry}\n" for entry in sorted({o.entry for o in found})), encoding="utf-8")
    entries = read_allowlist(allowlist) if allowlist is not None else []
    if files:
        entries = [entry for entry in entries if entry.partition("::")[0] in files]
    verdict = compare(found, entries)
    stale = verdict.stale
    if write and allowlist is not None and stale:
        gone = set(stale)
        kept = [
            line for line in allowlist.read_text(encoding="utf-8").splitlines(keepends=True)
            if line.partition("#")[0].strip() not in gone
        ]  # fmt: skip
        allowlist.write_text("".join(kept), encoding="utf-8")
        stale = ()
    if as_json:
        o.print_json(
            {"new": [offence.row() for offence in verdict.new], "allowed": verdict.allowed, "stale": list(stale)}
        )
    else:
        for offence in verdict.new:
            typer.echo(str(offence))
        for entry in stale:
            typer.echo(f"{allowlist}: {entry} no longer offends: take it out (--write-allowlist does)")
        typer.echo(f"{len(verdict.new)} new offences, {verdict.allowed} allowed, {len(stale)} stale entries")
    raise typer.Exit(Exit.USAGE if verdict.new or stale else Exit.AS_EXPECTED)
