"""Start and end: bad settings, ports and folders in use, and that no process of a job survives the server."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from relay.emulator.settings import SettingsError, load_settings

SLOW = """
on: repository_dispatch
jobs:
  one:
    runs-on: ubuntu-latest
    steps:
      - run: |
          setsid sleep {0}1 & sleep {0}2 & sh -c 'trap "" INT TERM; sleep {0}3' &
          echo ready
          sleep {0}4
"""


def alive(text: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:1] == [b"sleep"] and words[1].decode().startswith(text):
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("number", "mark", "status"), [(signal.SIGTERM, "881", 0), (signal.SIGINT, "882", 0), (signal.SIGKILL, "883", -9)]
)
def test_no_process_survives_the_server(start, downstream, number: int, mark: str, status: int) -> None:
    downstream.commit({".github/workflows/w.yml": SLOW.format(mark)})
    emulator = start(runner="cancel_grace_seconds = 30")
    emulator.dispatch()
    emulator.eventually(lambda: any("Z ready" in emulator.logs(run) for run in emulator.runs()))
    emulator.eventually(lambda: len(alive(mark)) == 4)
    assert emulator.stop(number) == status
    emulator.eventually(lambda: not alive(mark), seconds=20)
    if number != signal.SIGKILL:
        run = next((emulator.folder / "github" / "runs").glob("*/run.json")).read_text()
        assert '"conclusion": "cancelled"' in run
    assert not list((emulator.folder / "github").rglob("*.tmp"))


def test_data_dir_in_use_and_port_in_use(start, tmp_path: Path) -> None:
    emulator = start()
    command = [
        sys.executable,
        "-m",
        "relay.emulator.cli",
        "serve",
        "--settings",
        str(emulator.folder / "emulator.toml"),
    ]
    done = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and "in use by another emulator" in done.stderr and "Traceback" not in done.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run([*command, "--port", port], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and f"127.0.0.1:{port}" in done.stderr and "choose another --port" in done.stderr


GOOD = """
data_dir = "d"
upstream = "a/b"
[app]
public_key_file = "k.pem"
webhook_secret = "s"
[[repositories]]
name = "a/b"
path = "clone"
"""


def test_settings_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(GOOD)
    settings = load_settings(tmp_path / "s.toml")
    assert settings.data_dir == tmp_path / "d"
    assert settings.app.public_key_file == tmp_path / "k.pem"
    assert settings.repositories[0].path == tmp_path / "clone"


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('data_dir = "d"', "", "data_dir: Field required"),
        ('upstream = "a/b"', 'upstream = "x/y"', "'x/y' is not among the repositories"),
        ('name = "a/b"', 'name = "ab"', "repositories.0.name"),
        ('name = "a/b"', 'name = "a/b"\nnmae = "x"', "repositories.0.nmae: Extra inputs"),
        ("[app]", "[app]\nid = 0", "app.id"),
        ("[[repositories]]", '[[repositories]]\nname = "A/B"\n[[repositories]]', "stands twice"),
        ("[app]", "[app", "not TOML"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, old: str, new: str, part: str) -> None:
    (tmp_path / "s.toml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(SettingsError) as error:
        load_settings(tmp_path / "s.toml")
    assert part in str(error.value) and str(tmp_path / "s.toml") in str(error.value)


def test_serve_names_what_it_cannot_use(tmp_path: Path) -> None:
    def serve() -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "relay.emulator.cli",
            "serve",
            "--settings",
            str(tmp_path / "s.toml"),
            "--port",
            "0",
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    done = serve()
    assert done.returncode == 2 and "cannot be read" in done.stderr
    (tmp_path / "s.toml").write_text(GOOD)
    done = serve()
    assert done.returncode == 2 and "app.public_key_file" in done.stderr
    (tmp_path / "k.pem").write_text("not a key")
    assert "not a public key" in serve().stderr
