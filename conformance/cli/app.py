"""The application: commands, exit codes, the border where errors become sentences."""

from __future__ import annotations

import importlib
import sys
import traceback

import typer

from conformance.errors import ConformanceError, Exit

app = typer.Typer(
    name="conformance",
    help="Select, run and account for upstream PyTorch tests on an out-of-tree device.\n\n"
    "Exit codes of every command: 0 as expected, 1 unexpected results, 2 usage or configuration, "
    "3 nothing selected, interrupted, or accounts that do not balance.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


COMMANDS = (
    "inventory", "plan", "run", "merge", "diff", "report", "update-expectations", "explain", "lint", "lint-labels",
    "drift", "import", "capabilities", "schema", "fetch",
)  # fmt: skip
"""In the order of ``--help``; each is a module of this package."""

KEYBOARD = 130
"""What typer makes of Ctrl-C inside a command: a shell's number for SIGINT, not one of our codes."""


@app.callback()
def _commands() -> None:
    """Keeps the name of a command necessary where only one is loaded."""


def load_commands(wanted: str = "") -> None:
    """Imports the module of one command, or all where ``wanted`` is none: the quick ones stay quick."""
    for name in (wanted,) if wanted in COMMANDS else COMMANDS:
        importlib.import_module(f"conformance.cli.{name.replace('-', '_').replace('import', 'import_')}")


def main() -> None:
    """Entry point of the console script.

    Exit code 1 says that a test had an unexpected result, so nothing else may end with it: neither a defect of this
    program, nor a disk that is full, nor a reader of the output that has gone.
    """
    try:
        load_commands(sys.argv[1] if len(sys.argv) > 1 else "")
        # Without standalone mode click returns the code of typer.Exit instead of raising it.
        code = app(standalone_mode=False)
    except ConformanceError as error:
        typer.echo(f"conformance: {error}", err=True)
        sys.exit(int(error.code))
    except (typer.Abort, KeyboardInterrupt):
        _interrupted()
    except SystemExit:
        # So click ends when nobody reads the output any more; it has silenced both streams.
        sys.exit(int(Exit.USAGE))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"conformance: {where}{error.strerror or error or type(error).__name__}", err=True)
        sys.exit(int(Exit.USAGE))
    except Exception as error:
        # click's usage errors know how to print themselves; anything else is a defect and keeps its traceback.
        show = getattr(error, "show", None)
        if show is None:
            traceback.print_exc()
        else:
            show()
        sys.exit(int(Exit.USAGE))
    if code == KEYBOARD:
        _interrupted()
    sys.exit(code if isinstance(code, int) else int(Exit.AS_EXPECTED))


def _interrupted() -> None:
    """Ctrl-C outside of the part of a run that saves what is known."""
    typer.echo("conformance: interrupted", err=True)
    sys.exit(int(Exit.ACCOUNTS))
