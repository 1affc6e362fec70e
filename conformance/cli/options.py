"""Options that several commands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from conformance.errors import ConformanceError
from conformance.profile import load_profile
from conformance.runner.run import Request
from conformance.runner.units import parse_shard
from conformance.selection.decide import POLICIES
from conformance.selection.labels import parse_labels

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
        "--unclassified", metavar="|".join(POLICIES), help="Classes without a label (default: the profile's)."
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
ShardOption = Annotated[str, typer.Option("--shard", metavar="i/n", help="Part i of n.")]
JobsOption = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Worker processes (default: by cores and free memory).")
]
TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Per-test deadline (default: the profile's)."),
]
TargetsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE[::CLASS[::TEST]]]...", help="Only these; any spelling of a test's name."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def changed_files(values: list[str] | None) -> tuple[str, ...] | None:
    """Expands ``@LIST`` entries and comma- or newline-free names.

    Raises:
        ConformanceError: a list file cannot be read or is no UTF-8 text.
    """
    if values is None or not values:
        return None
    names: list[str] = []
    for value in values:
        if value.startswith("@"):
            try:
                names += Path(value[1:]).read_text(encoding="utf-8").splitlines()
            except OSError as error:
                raise ConformanceError(f"--changed {value}: cannot be read: {error.strerror or error}") from error
            except UnicodeDecodeError as error:
                raise ConformanceError(
                    f"--changed {value}: is no UTF-8 text (byte {error.start}); expected one file name per line"
                ) from error
        else:
            names.append(value)
    return tuple(name.strip() for name in names if name.strip())


def build_request(
    *,
    profile: str | None,
    upstream: Path | None,
    suite: str | None,
    device: str | None,
    labels: list[str] | None,
    unclassified: str | None,
    keyword: str,
    changed: list[str] | None,
    shard: str,
    jobs: int | None,
    timeout: float | None,
    targets: list[str] | None,
    strict: bool | None = None,
    collect_only: bool = False,
) -> Request:
    """Options → request.

    Raises:
        ConformanceError: an option's value does not exist.
    """
    if suite not in (None, "wheel"):
        raise ConformanceError(f"--suite {suite}: there is only 'wheel'")
    if unclassified is not None and unclassified not in POLICIES:
        raise ConformanceError(f"--unclassified {unclassified}: expected one of {', '.join(POLICIES)}")
    if upstream is not None and not upstream.is_dir():
        raise ConformanceError(f"--upstream {upstream}: no such folder; `conformance fetch` brings a checkout")
    if keyword:
        _check_keyword(keyword)
    if shard:
        parse_shard(shard)
    if timeout is not None and not math.isfinite(timeout):
        raise ConformanceError(f"--timeout {timeout}: expected a number of seconds")
    loaded = load_profile(profile)
    if device is not None and device.split(":")[0] != loaded.device:
        raise ConformanceError(
            f"--device {device}: profile {loaded.name} is for {loaded.device}; another device needs another profile"
        )
    return Request(
        profile=loaded,
        upstream=upstream,
        wheel=suite == "wheel" or upstream is None or any(name.startswith("wheel/") for name in targets or ()),
        targets=tuple(targets or ()),
        labels=parse_labels(labels) if labels else None,
        unclassified=unclassified,
        keyword=keyword,
        changed=changed_files(changed),
        shard=shard,
        jobs=jobs,
        timeout=timeout,
        strict=strict,
        collect_only=collect_only,
    )


def _check_keyword(text: str) -> None:
    """A wrong expression is a usage error of the command, not a failure inside every worker."""
    from _pytest.mark.expression import Expression

    try:
        Expression.compile(text)
    except SyntaxError as error:
        raise ConformanceError(f"-k {text!r}: {error}") from error
