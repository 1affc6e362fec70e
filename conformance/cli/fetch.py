"""``conformance fetch``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from conformance.cli.app import app
from conformance.cli.options import JsonOption
from conformance.errors import ConformanceError
from conformance.fetch import debian, git
from conformance.fetch.store import Tree, keep, stored, tree_folder


def _from_git(repository: str, ref: str) -> Tree:
    """A tag's commit is asked for each time, because tags move; a full commit id needs no question."""
    commit = git.resolve(repository, ref)
    return keep(f"git-{commit}", lambda folder: git.bring(repository, commit, folder, _say), _say)


def _say(text: str) -> None:
    typer.echo(text, err=True)


@app.command()
def fetch(
    ref: Annotated[
        str, typer.Option("--ref", metavar="TAG|SHA", help="Tag, branch or full commit id; needs --repository.")
    ] = "",
    repository: Annotated[
        str,
        typer.Option(
            "--repository", metavar="URL", help="git repository to take it from.", envvar="CONFORMANCE_REPOSITORY"
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Bring an upstream PyTorch tree, keep it in the user's cache, print its path.

    With --repository, git brings the tag or commit. Without it (or, when no --ref was given, where the repository
    cannot be reached) the Debian source package of PyTorch is taken through the machine's own package sources. A tree
    is in the cache whole or not at all.
    """
    if ref and not repository:
        raise ConformanceError(
            "--ref needs --repository URL (or CONFORMANCE_REPOSITORY): a tag or commit is looked up there"
        )
    problems = []
    tree = None
    if repository:
        try:
            tree = _from_git(repository, ref or "HEAD")
        except git.UnreachableError as error:
            if ref:
                raise ConformanceError(f"{repository} cannot be reached for {ref}: {error}") from error
            problems.append(f"{repository}: {error}")
    if tree is None:
        key = f"debian-{debian.SUITE}"
        try:
            tree = stored(tree_folder(key)) or keep(key, lambda folder: debian.bring(folder, _say), _say)
        except git.UnreachableError as error:
            problems.append(f"Debian source package: {error}")
            raise ConformanceError(
                "no upstream tree can be had from here:\n  "
                + "\n  ".join(problems)
                + "\nGive --repository URL of a clone that "
                "this machine can reach, or use the wheel suite, which needs no tree."
            ) from error
    if as_json:
        typer.echo(json.dumps(asdict(tree)))
    else:
        typer.echo(f"{tree.path}\n{tree.source}, version {tree.version}")
