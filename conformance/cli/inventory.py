"""``conformance inventory``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.cli.app import app
from conformance.cli.options import JsonOption, print_json
from conformance.errors import Exit, NothingSelectedError
from conformance.inventory import load_inventory
from conformance.selection.infer import infer


@app.command()
def inventory(
    upstream: Annotated[Path, typer.Option("--upstream", metavar="DIR", help="PyTorch checkout; it is only read.")],
    as_json: JsonOption = False,
    classes: Annotated[
        bool,
        typer.Option("--classes", help="Also list every class with its label, or the inferred one and its evidence."),
    ] = False,
    cache: Annotated[bool, typer.Option(help="Reuse the scan of unchanged files.")] = True,
) -> None:
    """Count test files, classes, tests and labels of a checkout without importing any of it.

    Files that cannot be read as Python are rows of the answer, not a failure of the command.
    """
    found = load_inventory(upstream, use_cache=cache)
    summary = found.summary()
    if not summary["files"]:
        raise NothingSelectedError(f"{upstream} has no test_*.py file below its folder 'test'")
    rows: list[dict[str, Any]] = []
    if classes:
        for row in found.test_files:
            for cls in row.classes:
                if cls.tests:
                    guess = infer(row, cls, found)
                    rows.append(
                        {
                            "class": f"{row.path}::{cls.name}", "line": cls.line, "tests": len(cls.tests),
                            "label": cls.label,
                            "label_from": cls.label_from, "inferred": guess.label, "confidence": guess.confidence,
                            "evidence": list(guess.evidence),
                        }
                    )  # fmt: skip
    if as_json:
        print_json({**summary, **({"class_rows": rows} if classes else {})})
        raise typer.Exit(Exit.AS_EXPECTED)
    typer.echo(
        f"{found.root} ({found.version or 'unknown version'}): {summary['files']} files, {summary['classes']} classes, "
        f"{summary['tests']} tests" + (" (cached)" if found.cached else f" ({found.scanned} files scanned)")
    )
    for label, count in summary["labels"].items():
        typer.echo(f"{count:>8}  {label}")
    for error in summary["errors"]:
        typer.secho(f"{error['file']}: {error['error']}", fg=typer.colors.RED)
    for item in rows:
        guess_text = f" → {item['inferred']} ({item['confidence']:.2f}: {'; '.join(item['evidence'])})"
        typer.echo(f"{item['class']}: {item['label']}" + ("" if item["label_from"] else guess_text))
