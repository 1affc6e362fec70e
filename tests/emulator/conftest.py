"""A real emulator in a process of its own, git repositories for it, and a server that takes its webhooks."""

import contextlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

ROOT = Path(__file__).parents[2]
UPSTREAM = "pytorch/pytorch"
DOWNSTREAM = "acme/backend"
SECRET = "hook-secret"


class Clone:
    """The author's clone of a repository."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.path),
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
               for what, value in (("NAME", "Dev"), ("EMAIL", "dev@example.org"))},
        }  # fmt: skip
        command = ["git", "-C", str(self.path), *arguments]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, files: dict[str, str | None], message: str = "change") -> str:
        for name, text in files.items():
            file = self.path / name
            if text is None:
                file.unlink()
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(textwrap.dedent(text))
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def copy(self, path: Path) -> "Clone":
        shutil.copytree(self.path, path)
        copied = object.__new__(Clone)
        copied.path = path
        return copied

    def branch(self, name: str, files: dict[str, str | None], base: str = "main") -> str:
        self.git("checkout", "--quiet", "-B", name, base)
        sha = self.commit(files, f"{name}: change")
        self.git("checkout", "--quiet", "main")
        return sha


class Hook:
    """Takes webhooks; ``answer`` decides the status."""

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.answer: Callable[[], int] = lambda: 202
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
                answer = b'{"ok": true}'
                self.send_response(outer.answer())
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/github/webhook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def events(self, name: str) -> list[dict]:
        return [json.loads(body) for headers, body in list(self.received) if headers["x-github-event"] == name]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Emulator:
    """A running emulator and what a test does with it."""

    def __init__(self, folder: Path, settings: str, key: rsa.RSAPrivateKey, hook: Hook) -> None:
        self.folder, self.key, self.hook = folder, key, hook
        file = folder / "emulator.toml"
        file.write_text(settings)
        self.log = (folder / "server.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "relay.emulator.cli", "serve", "--settings", str(file), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SERVER_SECRET": "do-not-leak"},
        )
        line = self.process.stdout.readline()
        assert line.startswith("emulated GitHub on "), (line, (folder / "server.log").read_text())
        self.url = line.split()[-1]
        self.client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.eventually(self._up)

    def _up(self) -> bool:
        assert self.process.poll() is None, (self.folder / "server.log").read_text()
        with contextlib.suppress(httpx.TransportError):
            return self.client.get("/_emulator/healthz").status_code == 200
        return False

    @staticmethod
    def eventually(condition: Callable[[], object], seconds: float = 60) -> object:
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, "did not happen in time"
            time.sleep(0.02)
        return value

    def app_jwt(self, **claims: object) -> str:
        now = int(time.time())
        return jwt.encode({"iat": now - 30, "exp": now + 300, "iss": "7", **claims}, self.key, algorithm="RS256")

    def as_app(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.app_jwt()}"}

    def as_installation(self, repository: str = DOWNSTREAM, **body: object) -> dict[str, str]:
        found = self.client.get(f"/repos/{repository}/installation", headers=self.as_app()).json()
        path = f"/app/installations/{found['id']}/access_tokens"
        token = self.client.post(path, headers=self.as_app(), json=body).json()["token"]
        return {"Authorization": f"token {token}"}

    def control(self, route: str, /, **body: object) -> dict:
        response = self.client.post(f"/_emulator{route}", json=body)
        assert response.is_success, response.text
        return response.json()

    def idle(self) -> None:
        assert self.client.post("/_emulator/wait", params={"seconds": 90}, timeout=120).status_code == 200

    def dispatch(
        self, event_type: str = "pull_request", payload: dict | None = None, repository: str = DOWNSTREAM
    ) -> None:
        body = {"event_type": event_type, "client_payload": payload or {}}
        response = self.client.post(
            f"/repos/{repository}/dispatches", headers=self.as_installation(repository), json=body
        )
        assert response.status_code == 204, response.text

    def runs(self) -> list[dict]:
        return self.client.get("/_emulator/runs").json()

    def logs(self, run: dict) -> str:
        return self.client.get(f"/{run['repository']}/actions/runs/{run['id']}/logs").text

    def run_of(self, event_type: str = "pull_request", payload: dict | None = None) -> tuple[dict, str]:
        """Dispatch, wait for the end, give the run and its logs."""
        self.dispatch(event_type, payload)
        self.idle()
        run = self.runs()[-1]
        return run, self.logs(run)

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        self.client.close()
        self.process.stdout.close()
        self.log.close()
        return status


class Lab:
    """One repository of the shared emulator, for one test."""

    def __init__(self, emulator: Emulator, name: str, clone: Clone) -> None:
        self.emulator, self.name, self.clone = emulator, name, clone
        self.client, self.logs, self.eventually, self.idle = (
            emulator.client, emulator.logs, emulator.eventually, emulator.idle,
        )  # fmt: skip

    def commit(self, files: dict[str, str | None]) -> str:
        """Commit to main and push."""
        self.clone.commit(files)
        return str(self.emulator.control("/push", repository=self.name, ref="main")["sha"])

    def as_installation(self) -> dict[str, str]:
        return self.emulator.as_installation(self.name)

    def dispatch(self, event_type: str = "pull_request", payload: dict | None = None) -> None:
        self.emulator.dispatch(event_type, payload, self.name)

    def runs(self) -> list[dict]:
        return [run for run in self.emulator.runs() if run["repository"] == self.name]

    def run_of(self, event_type: str = "pull_request", payload: dict | None = None) -> tuple[dict, str]:
        self.dispatch(event_type, payload)
        self.idle()
        run = self.runs()[-1]
        return run, self.logs(run)


LABS = 60


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, app_key: rsa.RSAPrivateKey) -> Iterator[Iterator[Lab]]:
    """One emulator for the tests that need no settings of their own, with a repository for each of them."""
    folder, hook = tmp_path_factory.mktemp("shared"), Hook()
    first = Clone(folder / "lab0")
    first.commit({"README.md": "lab\n"}, "first")
    clones = {"acme/lab0": first}
    for number in range(1, LABS):
        clones[f"acme/lab{number}"] = first.copy(folder / f"lab{number}")
    repositories = ""
    for name, clone in clones.items():
        repositories += f"""
            [[repositories]]
            name = "{name}"
            path = "{clone.path.name}"
            variables = {{ GREETING = "hello" }}
            secrets = {{ DEPLOY_KEY = "s3cr3t-value" }}
            """
    settings = write_settings(
        folder, app_key, hook, "acme/lab0", "concurrency = 5\ncancel_grace_seconds = 0.3", repositories
    )
    emulator = Emulator(folder, settings, app_key, hook)
    yield (Lab(emulator, name, clone) for name, clone in clones.items())
    emulator.stop()
    hook.close()


@pytest.fixture
def lab(shared: Iterator[Lab]) -> Lab:
    return next(shared)


def write_settings(
    folder: Path, key: rsa.RSAPrivateKey, hook: Hook, upstream: str, runner: str, repositories: str
) -> str:
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "app.pem").write_bytes(public)
    text = f"""
        data_dir = "github"
        upstream = "{upstream}"
        [app]
        id = 7
        public_key_file = "app.pem"
        webhook_url = "{hook.url}"
        webhook_secret = "{SECRET}"
        [runner]
        path = ["{Path(sys.executable).parent}"]
        python = "{sys.executable}"
        """
    return textwrap.dedent(text) + runner + "\n" + textwrap.dedent(repositories)


@pytest.fixture(scope="session")
def app_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def hook() -> Iterator[Hook]:
    held = Hook()
    yield held
    held.close()


@pytest.fixture
def upstream(tmp_path: Path) -> Clone:
    clone = Clone(tmp_path / "upstream")
    clone.commit({"README.md": "upstream\n", "test/test_ops.py": "a = 1\n"}, "first")
    return clone


@pytest.fixture
def downstream(tmp_path: Path) -> Clone:
    clone = Clone(tmp_path / "downstream")
    clone.commit({"README.md": "downstream\n"}, "first")
    return clone


StartEmulator = Callable[..., Emulator]


@pytest.fixture
def start(
    tmp_path: Path, app_key: rsa.RSAPrivateKey, hook: Hook, upstream: Clone, downstream: Clone
) -> Iterator[StartEmulator]:
    """Starts an emulator on the two clones; ``extra`` is further TOML, ``runner`` the body of its [runner]."""
    running: list[Emulator] = []

    def begin(extra: str = "", runner: str = "cancel_grace_seconds = 1") -> Emulator:
        repositories = f"""
            [[repositories]]
            name = "{UPSTREAM}"
            path = "upstream"
            [[repositories]]
            name = "{DOWNSTREAM}"
            path = "downstream"
            """
        settings = write_settings(tmp_path, app_key, hook, UPSTREAM, runner, repositories)
        emulator = Emulator(tmp_path, settings + textwrap.dedent(extra), app_key, hook)
        running.append(emulator)
        return emulator

    yield begin
    for emulator in running:
        emulator.stop()
