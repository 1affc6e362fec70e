"""``conformance capabilities probe | settings | audit``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.capabilities import audit as auditing
from conformance.capabilities.probe import declaration, probe_operators
from conformance.cli import options as o
from conformance.cli.app import app
from conformance.errors import AccountsError, ConformanceError, Exit
from conformance.profile import Profile, load_profile
from conformance.registry.document import dump
from conformance.registry.names import Names, installed_names
from conformance.reports.read import read_results, read_run

capabilities = typer.Typer(
    no_args_is_help=True, help="What a backend declares: found out, turned into settings, audited."
)
app.add_typer(capabilities, name="capabilities")


@capabilities.command()
def probe(
    profile: o.ProfileOption = None,
    ops: Annotated[str, typer.Option("--ops", metavar="GLOB", help="Only operators named like this.")] = "*",
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Per operator.")] = 60.0,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Capabilities file to write.")] = None,
) -> None:
    """Try every operator of the installed torch's database on the device and write a first declaration.

    An operator is declared for the dtypes whose first sample ran; one that crashes or hangs costs itself only. Without
    --output the file is printed.
    """
    loaded = load_profile(profile)
    if output is not None:
        o.check_new(output, "a declaration that was edited is not replaced")

    def progress(done: int, total: int) -> None:
        if done % 25 == 0 or done == total:
            typer.echo(f"{done} of {total} operators tried", err=True)

    tried = probe_operators(loaded, ops, timeout, progress)
    works = sum(bool(item.works) for item in tried)
    text = f"# What ran on {loaded.device} when every operator was tried once; edit it.\n" + dump(declaration(tried))
    if output is None:
        typer.echo(text, nl=False)
    else:
        o.write_new(output, text)
    lost = [f"{item.op} ({item.lost})" for item in tried if item.lost]
    typer.echo(f"{works} of {len(tried)} operators run" + (f"; lost: {', '.join(lost)}" if lost else ""), err=True)


@capabilities.command()
def settings(profile: o.ProfileOption = None) -> None:
    """Print what the declaration means for upstream's own test base, as JSON.

    `op_allowlist` and `op_overrides` are arguments of DeviceTypeTestBase.set_test_configs, for those who run upstream's
    tests with upstream's own runner.
    """
    o.print_json(auditing.settings(load_profile(profile).declared(), installed_names()))


@capabilities.command()
def audit(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="results.jsonl of a run, or its folder.")],
    profile: o.ProfileOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Compare the declaration with a run: never tested, passing but undeclared, passing by fallback, failing.

    Exit codes: 0 the declaration holds (what was not tested is listed), 2 it does not, or it cannot be compared with
    this run (another profile's, an interrupted one's), 3 the run tested no operator on the device.
    """
    loaded = load_profile(profile)
    declared = loaded.declared()
    if not declared.operators:
        raise ConformanceError(
            f"profile {loaded.name} declares no operator, so there is nothing to audit; "
            "`conformance capabilities probe` writes a first declaration"
        )
    names = installed_names()
    found = auditing.audit(declared, _results(results, loaded, names), names)
    if as_json:
        o.print_json(found.row())
    else:
        for title, names in found.row().items():
            if names:
                shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
                typer.echo(f"{len(names)} {title}: {shown}")
        typer.echo("the declaration holds" if found.clean else "the declaration does not hold")
    raise typer.Exit(Exit.AS_EXPECTED if found.clean else Exit.USAGE)


def _results(path: Path, profile: Profile, names: Names) -> list[dict[str, Any]]:
    """Lines of a run that are about operators on the profile's device.

    Raises:
        ConformanceError: the run is another profile's or device's, or its files cannot be read.
        AccountsError: no operator was tested.
    """
    if path.is_dir():
        run = read_run(path)
        accounts, ran_with = run.accounts, run.summary["profile"]
    else:
        accounts = read_results(path)
        ran_with = ""
        with contextlib.suppress(ConformanceError):  # The file may have come from another machine.
            ran_with = load_profile(accounts.profile).name if accounts.profile else ""
    if ran_with and ran_with != profile.name:
        raise ConformanceError(f"{path}: this run is of profile {ran_with}, not of {profile.name}")
    lines = list(accounts.lines())
    devices = {line["device"] for line in lines} - {""}
    if devices and profile.device not in devices:
        raise ConformanceError(
            f"{path}: these tests ran on {', '.join(sorted(devices))}; profile {profile.name} is for {profile.device}"
        )
    found = [
        line for line in lines
        if line["device"] == profile.device and line["op"] in names.cpu_dtypes and line["outcome"] in auditing.RAN
    ]  # fmt: skip
    if not found:
        raise AccountsError(f"{path}: no test of an operator ran on {profile.device}: nothing shows what holds")
    return found
