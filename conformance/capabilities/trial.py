"""Processes that try things which may end them, and say before each what it is."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def events(
    command: Sequence[str], environment: Mapping[str, str], first: float, deadline: float
) -> Iterator[dict[str, Any]]:
    """Runs a process that says one JSON object a line on its standard output; the key ``e`` holds its kind.

    Args:
        command: program and arguments.
        environment: added to this process's.
        first: seconds until the first line.
        deadline: seconds between two lines.

    Yields:
        What it says. The last event is its ``done``, or ``lost`` with ``how`` it ended and the last line that it
        ``said`` on its standard error. The process is killed at a missed deadline and when the iteration is given up.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, **environment, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    pipes = [process.stdout.fileno(), process.stderr.fileno()]
    text, said = b"", b""
    limit = time.monotonic() + first
    how = ""
    try:
        while pipes:
            ready, _, _ = select.select(pipes, [], [], max(0.0, limit - time.monotonic()))
            if not ready:
                how = "took too long"
                break
            for pipe in ready:
                data = os.read(pipe, 65_536)
                if not data:
                    pipes.remove(pipe)
                elif pipe == process.stderr.fileno():
                    said = (said + data)[-4096:]
                else:
                    text += data
            *lines, text = text.split(b"\n")
            for line in lines:
                event = json.loads(line)
                limit = time.monotonic() + deadline
                yield event
                if event["e"] == "done":
                    return
    finally:
        process.kill()
        process.communicate()
    last = said.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
    yield {"e": "lost", "how": how or f"the process ended with status {process.returncode}", "said": last[0]}
