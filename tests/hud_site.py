"""A real HUD server on a store, and short ways to say what the relay and jobs send it."""

from __future__ import annotations

import contextlib
import gzip
import html
import json
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import httpx
import uvicorn

from hud.app import create_app
from hud.queries.scope import Memories
from hud.seed import pull_request, push
from hud.settings import Settings
from hud.store import Store
from hud.store.tables import metadata
from relay.wire import run_key
from relay.wire.ticket import Ticket, sign_ticket

KEY = "the ingest key"
REPO = "example/backend"
DEVICE = "spyre"


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now


class Site:
    """A HUD that listens on a port of its own, and what the relay and jobs send it."""

    def __init__(self, store: Store, **settings: Any) -> None:
        self.store = store
        self.clock = Clock()
        self._settings = settings
        self.app = create_app(Settings(_env_file=None, ingest_key=KEY, **settings), store, self.clock)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(self.app, log_level="warning", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.http = httpx.Client(base_url=self.url, timeout=60, follow_redirects=True)

    def reset(self) -> None:
        """Empty the store and forget everything: as good as a new server, and much faster."""
        with self.store.write() as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(table.delete())
        self.clock.now = Clock().now
        hud = self.app.state.hud
        hud.settings = Settings(_env_file=None, ingest_key=KEY, **self._settings)
        hud.memories = Memories()
        self.store.test_numbers = {}

    def close(self) -> None:
        self.http.close()
        self._server.should_exit = True
        self._thread.join()

    def get(self, path: str, **parameters: Any) -> Any:
        """A JSON document of the API."""
        answer = self.http.get(f"/api/v1{path}", params=parameters or None)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def page(self, path: str, **parameters: Any) -> str:
        answer = self.http.get(path, params=parameters or None)
        assert answer.status_code == 200, answer.text
        return answer.text

    def text(self, path: str, **parameters: Any) -> str:
        """What a page says, without its markup."""
        return " ".join(html.unescape(re.sub(r"<[^>]*>", "", self.page(path, **parameters))).split())

    def post(self, report: Any, key: str = KEY) -> httpx.Response:
        content = report if isinstance(report, bytes) else json.dumps(report).encode()
        return self.http.post("/api/crcr/results", content=content, headers={"x-hud-internal-bot": key})

    def report(self, payload: dict[str, Any], delivery: str, run_id: str = "100", **more: Any) -> str:
        """An accepted report; returns the run's key."""
        answer = self.post(report(payload, delivery, run_id, **more))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["key"])

    def upload(
        self,
        delivery: str,
        lines: Iterable[dict[str, Any]] | bytes,
        run_id: str = "100",
        *,
        repo: str = REPO,
        level: str = "L2",
        attempt: int = 1,
        job: str = "job",
        token: str | None = None,
        key: str | None = None,
        plain: bool = False,
        **parameters: Any,
    ) -> httpx.Response:
        """Per-test results, gzip unless ``plain``, with the ticket of the run unless another ``token`` is given."""
        body = lines if isinstance(lines, bytes) else json_lines(lines)
        token = token or ticket(delivery, run_id, repo=repo, level=level, attempt=attempt, job=job)
        headers = {"Authorization": f"Bearer {token}"} | ({} if plain else {"Content-Encoding": "gzip"})
        return self.http.post(
            f"/api/v1/runs/{key or run_key(repo, delivery, run_id, attempt, job)}/tests",
            content=body if plain else gzip.compress(body),
            headers=headers,
            params=parameters,
        )

    def run(
        self,
        payload: dict[str, Any],
        delivery: str,
        outcomes: dict[str, str] | None,
        run_id: str = "100",
        conclusion: str | None = None,
        **more: Any,
    ) -> str:
        """A whole job: started, finished, its results uploaded; ``outcomes`` by short test name."""
        named = {name: more[name] for name in ("repo", "level", "attempt", "job") if name in more}
        self.report(payload, delivery, run_id, **more)
        bad = any(outcome in ("failed", "error", "crashed", "timed_out") for outcome in (outcomes or {}).values())
        ended = conclusion or ("failure" if bad else "success")
        key = self.report(payload, delivery, run_id, status="completed", conclusion=ended, **more)
        if outcomes is not None:
            answer = self.upload(delivery, [line(name, outcome) for name, outcome in outcomes.items()], run_id, **named)
            assert answer.status_code == 200, answer.text
        return key


@contextlib.contextmanager
def served(store: Store, **settings: Any) -> Iterator[Site]:
    opened = Site(store, **settings)
    try:
        yield opened
    finally:
        opened.close()


def report(
    payload: dict[str, Any],
    delivery: str,
    run_id: str = "100",
    *,
    repo: str = REPO,
    level: str = "L2",
    attempt: int = 1,
    job: str = "job",
    workflow: str = "CI",
    status: str = "in_progress",
    event: str | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A report as the relay sends it."""
    metrics = {"queue_time": 12.5, "execution_time": 60.0 if status == "completed" else None}
    said = {"status": status, "name": workflow, "job_name": job, "run_id": run_id, "run_attempt": attempt, **fields}
    kind = event or ("pull_request" if "pull_request" in payload else "push")
    callback = {"event_type": kind, "delivery_id": delivery, "payload": payload, "workflow": said}
    return {
        "trusted": {"verified_repo": repo, "downstream_repo_level": level, "ci_metrics": metrics},
        "untrusted": {"callback_payload": callback},
    }


def ticket(
    delivery: str,
    run_id: str = "100",
    *,
    repo: str = REPO,
    level: str = "L2",
    attempt: int = 1,
    job: str = "job",
    key: str = KEY,
    lifetime: timedelta = timedelta(hours=1),
) -> str:
    named = {"repo": repo, "level": level, "delivery_id": delivery, "run_id": run_id}
    return sign_ticket(Ticket.model_validate({**named, "run_attempt": attempt, "job_name": job}), key, lifetime)[0]


def name_of(name: str, device: str = DEVICE) -> str:
    return f"test_ops.py::TestOps::test_{name}@{device}"


def line(name: str, outcome: str = "passed", **fields: Any) -> dict[str, Any]:
    """A result line; ``add[float32]`` is the test of an operator in a dtype."""
    op, _, rest = name.partition("[")
    return {
        "id": name_of(name),
        "file": "test_ops.py",
        "class": "TestOps",
        "test": f"test_{op}",
        "op": op,
        "dtype": rest.rstrip("]"),
        "device": DEVICE,
        "outcome": outcome,
        "attempt": 1,
        "duration": 0.25,
        "message": "it broke" if outcome in ("failed", "error", "crashed", "timed_out") else None,
        **fields,
    }


def json_lines(lines: Iterable[dict[str, Any]]) -> bytes:
    return "\n".join(json.dumps(found) for found in lines).encode()


def sha(letter: str) -> str:
    return letter * 40


def pushed(commit: str, before: str = "0", at: float = 1_700_000_000) -> dict[str, Any]:
    return push(sha(commit), sha(before), at)


def pulled(head: str, base: str = "b", number: int = 7, at: float = 1_700_000_000, **more: Any) -> dict[str, Any]:
    return pull_request(number, sha(head), sha(base), more.pop("title", "Change things"), at, **more)
