"""Command line of the demo: ``python -m demo``, which is what ``make demo`` runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from demo.loop import Loop, Places
from demo.services import DemoError, Services
from demo.upstream import Tree

_CHECKOUT = Path(__file__).resolve().parent.parent


def _raise_interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _say_since(started: float) -> Any:
    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {text}", flush=True)

    return say


def _conclude(summary: dict[str, Any], told: Path) -> None:
    """The lines that the demo is for."""
    print()
    for pull in summary["prs"]:
        line = f"PR #{pull['number']}: {pull['verdict']}"
        if pull["new_failures"]:
            count = len(pull["new_failures"])
            names = ", ".join(pull["new_failures"][:5]) + (", …" if count > 5 else "")
            line += f": {count} new failing test{'s' if count > 1 else ''}: {names}"
        print(line)
        print(f"    {pull['url']}")
    print(f"\n{summary['seconds']:.0f} s; everything is told in {told}")


def play(build: Path, *, once: bool, tree: Tree | None = None, variables: Mapping[str, str] | None = None) -> int:
    """Play the demo and keep the servers up until Ctrl-C.

    Args:
        build: folder of everything that it makes; ``demo`` in it is emptied first, ``upstream`` is kept.
        once: stop at the end instead.
        tree, variables: as for :class:`demo.loop.Loop`.

    Returns:
        0 done, 1 something failed, 2 another demo is running here, 130 interrupted.
    """
    places = Places(checkout=_CHECKOUT, work=build / "demo", cache=build / "upstream")
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _raise_interrupt)
    try:
        build.mkdir(exist_ok=True)
        lock = (build / "demo.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("demo: another demo is running in this checkout; stop it first (Ctrl-C there).", file=sys.stderr)
            return 2
        shutil.rmtree(places.work, ignore_errors=True)
        places.work.mkdir(parents=True)
        with Services() as services:
            try:
                _conclude(
                    Loop(places, _say_since(time.monotonic()), tree, variables).run(services),
                    places.work / "summary.json",
                )
            except httpx.HTTPError as error:
                services.check()
                raise DemoError(f"a server does not answer: {error}; its log is in {places.work}/logs.") from error
            if once:
                return 0
            print("The servers stay up; Ctrl-C stops them.", flush=True)
            while True:
                services.check()
                time.sleep(1)
    except KeyboardInterrupt:
        print("\ndemo: stopped.", file=sys.stderr)
        return 0 if (places.work / "summary.json").exists() else 130
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"demo: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(play(_CHECKOUT / "build", once=os.environ.get("DEMO_ONCE", "") not in ("", "0")))
