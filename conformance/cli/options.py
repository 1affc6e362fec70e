"""Options that several commands share."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.errors import ConformanceError

ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME|FILE", help="Backend profile (default: the installed backend's)."),
]
UpstreamOption = Annotated[
    Path | None,
    typer.Option("--upstream", metavar="DIR", help="PyTorch checkout or unpacked source; it is only read."),
]
SuiteOption = Annotated[
    str | None,
    typer.Option(
        "--suite", metavar="wheel", help="Tests over the installed torch's databases (default without --upstream)."
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option("--device", metavar="TYPE", help="Device type (default: the profile's); built-in types only."),
]
LabelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hw-classification", metavar="LABEL[,LABEL]", help="Labels to run (default: the profile's); may be repeated."
    ),
]
UnclassifiedOption = Annotated[
    str | None,
    typer.Option(
        "--unclassified", metavar="exclude|include|infer", help="Classes without a label (default: the profile's)."
    ),
]
KeywordOption = Annotated[str, typer.Option("-k", metavar="EXPR", help="pytest's keyword expression.")]
ChangedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--changed",
        metavar="FILE",
        help="Changed file of an upstream pull request, from the checkout's root; may be repeated, and '@LIST' "
        "reads one per line. Runs what the files can affect; what cannot be mapped runs everything.",
    ),
]
PullOption = Annotated[
    Path | None,
    typer.Option(
        "--pr",
        metavar="PAYLOAD.json",
        help="Like --changed, with the files of a pull request as GitHub lists them (GET …/pulls/N/files) or of a push "
        "event; an event without a list runs everything, and says so.",
    ),
]
ShardOption = Annotated[str, typer.Option("--shard", metavar="i/n", help="Part i of n.")]
JobsOption = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Worker processes (default: by cores and free memory).")
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=0.1,
        metavar="SECONDS",
        help="Per-test deadline (default: the profile's); what --times tells of a slow test makes it longer.",
    ),
]
TimesOption = Annotated[
    Path | None,
    typer.Option(
        "--times",
        metavar="FILE|DIR",
        help="times.json of an earlier run, or its folder: balances shards and workers, and gives slow tests their "
        "deadlines. All shards of a run need the same one.",
    ),
]
UnlockOption = Annotated[
    bool,
    typer.Option("--unlock", help="Run too what upstream's @onlyCUDA and relatives keep from every other device."),
]
TargetsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE[::CLASS[::TEST]]]...", help="Only these; any spelling of a test's name."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def check_new(output: Path, why: str) -> None:
    """Makes sure before the work begins that its result can be written.

    Args:
        output: file of ``--output``.
        why: a file that exists stays.

    Raises:
        ConformanceError: it exists, or its folder does not, or nothing can be written there.
    """
    if output.exists() or output.is_symlink():
        raise ConformanceError(f"--output {output}: exists; give a new file, {why}")
    if not output.parent.is_dir():
        raise ConformanceError(f"--output {output}: there is no folder {output.parent}")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise ConformanceError(f"--output {output}: nothing can be written to {output.parent}")


def write_new(output: Path, text: str) -> None:
    """Writes a file that does not exist; where that fails after all, the text is printed and not lost.

    Raises:
        ConformanceError: it could not be written.
    """
    try:
        with output.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        typer.echo(text, nl=False)
        raise ConformanceError(f"--output {output}: cannot be written: {error.strerror or error}") from error


def print_json(value: Any) -> None:
    """Prints what ``--json`` asks for."""
    json.dump(value, sys.stdout, indent=2)
    typer.echo()
