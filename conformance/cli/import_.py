"""``conformance import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import options as o
from conformance.cli.app import app
from conformance.errors import ConformanceError, NothingSelectedError
from conformance.importers.cluster import cluster, widen
from conformance.importers.entry import Imported
from conformance.importers.formats import FORMATS
from conformance.inventory import load_inventory
from conformance.inventory.written import Variants, Written
from conformance.registry.document import dump
from conformance.registry.names import installed_names
from conformance.registry.tests import read_tests

_HEADER = """\
# Imported from {source} ({format}): {lines} lines became {rules} rules. Give each a reason, and say how an expected
# failure looks; `conformance lint` finds what names nothing.
"""


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Lists of one format.")],
    format_: Annotated[str, typer.Option("--format", metavar="|".join(FORMATS), help="What the lists are.")],
    upstream: Annotated[
        Path | None,
        typer.Option("--upstream", metavar="DIR", help="Checkout in which generated names are looked up."),
    ] = None,
    tests: Annotated[
        Path | None,
        typer.Option(
            "--tests", metavar="PLAN", help="Every test there is (`plan --json`): variants become wider rules."
        ),
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option("--device", metavar="WORD", help="Device word inside of the list's names.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Registry file to write.")] = None,
    as_json: o.JsonOption = False,
) -> None:
    """Turn a list of skipped tests that another project keeps into rules that say the same.

    Names such as `test_out_add_npu_float32 (__main__.TestCommonPRIVATEUSE1)` are taken apart into test, operator
    and dtype with the checkout and the installed torch; equal treatment of many variants becomes one rule. Without
    --output the file is printed.
    """
    if format_ not in FORMATS:
        raise ConformanceError(f"--format {format_}: expected one of {', '.join(FORMATS)}")
    if output is not None:
        o.check_new(output, "rules that were edited are not replaced")
    names = installed_names()
    written = Written(load_inventory(upstream).files) if upstream is not None else Written({})
    resolve = Variants(written, names.infos, names.dtypes, device or ()).resolve
    whole = Imported()
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConformanceError(f"{path}: cannot be read: {error}") from error
        found = FORMATS[format_](path, text, resolve)
        if upstream is not None:
            found.look_up(written)
        whole.entries += found.entries
        whole.unresolved += found.unresolved
        whole.lines += found.lines
        whole.dtypes += found.dtypes
        whole.operators |= found.operators
        for reason, count in found.left_out.items():
            whole.left_out[reason] = whole.left_out.get(reason, 0) + count
    if not whole.entries:
        raise NothingSelectedError(f"{', '.join(map(str, files))}: nothing in it becomes a rule")
    entries = widen(whole.entries, read_tests(tests)) if tests is not None else whole.entries
    rules = [item.rule() for item in cluster(entries)]
    header = _HEADER.format(
        source=", ".join(path.name for path in files), format=format_, lines=whole.lines, rules=len(rules)
    )
    text = header + dump({"version": 1, "rules": rules})
    if output is not None:
        o.write_new(output, text)
    report = {
        "lines": whole.lines, "rules": len(rules), "unresolved": whole.unresolved, "left_out": whole.left_out,
        "dtypes": list(whole.dtypes), "operators": {name: list(kinds) for name, kinds in whole.operators.items()},
    }  # fmt: skip
    if as_json:
        o.print_json(report if output is not None else {**report, "registry": text})
        return
    if output is None:
        typer.echo(text, nl=False)
    typer.echo(f"{whole.lines} lines became {len(rules)} rules" + (f" in {output}" if output else ""), err=True)
    for reason, count in whole.left_out.items():
        typer.echo(f"{count} × {reason}", err=True)
    if whole.unresolved:
        shown = ", ".join(whole.unresolved[:5])
        typer.echo(
            f"{len(whole.unresolved)} names are not in the checkout and stay as they are: {shown}"
            + (", …" if len(whole.unresolved) > 5 else ""),
            err=True,
        )
