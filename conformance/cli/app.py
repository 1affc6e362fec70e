"""The application: commands, exit codes, the border where errors become sentences."""

from __future__ import annotations

import sys

import typer

from conformance.errors import ConformanceError, Exit

app = typer.Typer(
    name="conformance",
    help="Select, run and account for upstream PyTorch tests on an out-of-tree device.\n\n"
    "Exit codes of every command: 0 as expected, 1 unexpected results, 2 usage or configuration, "
    "3 nothing selected or accounts do not balance.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the console script."""
    from conformance.cli import fetch, inventory, plan, run  # noqa: F401

    try:
        # Without standalone mode click returns the code of typer.Exit instead of raising it.
        code = app(standalone_mode=False)
    except ConformanceError as error:
        typer.echo(f"conformance: {error}", err=True)
        sys.exit(int(error.code))
    except typer.Abort:
        sys.exit(int(Exit.USAGE))
    except Exception as error:
        # click's usage errors know how to print themselves; anything else is a defect and keeps its traceback.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(int(Exit.USAGE))
    sys.exit(code if isinstance(code, int) else int(Exit.AS_EXPECTED))
