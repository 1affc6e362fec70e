"""Made-up reports that show every verdict once: ``hud seed-demo``, and the pictures in the documentation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from hud.core.lines import Collector, parse_line
from hud.core.reports import key_of
from hud.store import Store
from hud.store.reports import record_report
from hud.store.results import Part, announce, record_results
from relay.wire import HudReport, run_key
from relay.wire.ticket import Ticket

UPSTREAM = "pytorch/pytorch"
PULL = 183512
_OPS = (
    *("add", "sub", "mul", "div", "matmul", "bmm", "conv2d", "relu", "gelu", "softmax", "layer_norm", "cumsum"),
    *("sort", "topk", "where", "gather", "scatter", "index_select", "cat", "stack", "mean", "var", "exp", "erf"),
)
_DTYPES = ("float32", "float16", "bfloat16", "int64", "complex64")
_HOUR = 3600.0

BACKENDS = {
    "example/breaks": ("L3", "alpha"),
    "example/unknown-base": ("L2", "beta"),
    "example/known-failures": ("L2", "gamma"),
    "example/flickers": ("L2", "delta"),
    "example/times-out": ("L2", "epsilon"),
    "example/is-running": ("L2", "zeta"),
    "example/is-silent": ("L2", "eta"),
    "example/passes": ("L4", "theta"),
}
"""Repositories with their level and device; one for each verdict."""


def seed(store: Store, now: float) -> list[str]:
    """Fill a store: two weeks of the base branch, one pull request of three pushes, one that passes.

    Args:
        store: where.
        now: seconds since the epoch; the story ends there.

    Returns:
        Addresses worth opening.
    """
    commits = [commit(f"main {number}") for number in range(14)]
    for repo, (level, device) in BACKENDS.items():
        if repo == "example/unknown-base":
            continue
        for number, name in enumerate(commits):
            at = now - (14 - number) * 24 * _HOUR
            before = commits[number - 1] if number else commit("main before")
            send(store, at, repo, level, push(name, before, at), f"push-{number}", run_id=str(1000 + number))
            failing = {f"test_ops.py::TestOps::test_forward[sort][bfloat16]@{device}"} if number >= 9 else set()
            if repo != "example/known-failures":
                failing = set()
            upload(store, at + 1800, repo, level, f"push-{number}", str(1000 + number), results(device, failing))
            finish(
                store,
                at + 1800,
                repo,
                level,
                push(name, before, at),
                f"push-{number}",
                str(1000 + number),
                "failure" if failing else "success",
                execution_time=1500.0 + 40 * (number % 5),
            )
    for number, at in enumerate((now - 30 * _HOUR, now - 20 * _HOUR, now - 2 * _HOUR), start=1):
        _pull_request(store, at, number, commits[-1])
    _harmless(store, now - 4 * _HOUR, commits[-1])
    return [
        "/",
        f"/pr/{PULL}",
        f"/pr/{PULL + 1}",
        "/backend/example/known-failures",
        "/matrix/example/passes",
        "/health",
    ]


def commit(words: str) -> str:
    """A commit's name, made from words."""
    return hashlib.sha1(words.encode()).hexdigest()


def push(after: str, before: str, at: float) -> dict[str, Any]:
    """What matters of a push event's payload."""
    repository = {"full_name": UPSTREAM, "pushed_at": int(at)}
    return {"ref": "refs/heads/main", "before": before, "after": after, "commits": [], "repository": repository}


def pull_request(
    number: int, head: str, base: str, title: str, at: float, action: str = "synchronize"
) -> dict[str, Any]:
    """What matters of a pull_request event's payload."""
    return {
        "action": action,
        "number": number,
        "repository": {"full_name": UPSTREAM},
        "pull_request": {
            "number": number,
            "title": title,
            "state": "open",
            "user": {"login": "contributor"},
            "updated_at": datetime.fromtimestamp(at, timezone.utc).isoformat(),
            "head": {"sha": head, "ref": "topic"},
            "base": {"sha": base, "ref": "main"},
        },
    }


def results(device: str, failing: Iterable[str] = (), flaky: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
    """Result lines of a small suite; bfloat16 complex functions are expected to fail."""
    failing, flaky = set(failing), set(flaky)
    for test in ("test_forward", "test_gradient"):
        for op in _OPS:
            for dtype in _DTYPES:
                name = f"test_ops.py::TestOps::{test}[{op}][{dtype}]@{device}"
                line: dict[str, Any] = {
                    "id": name,
                    "file": "test_ops.py",
                    "class": "TestOps",
                    "test": test,
                    "op": op,
                    "dtype": dtype,
                    "device": device,
                    "outcome": "passed",
                    "attempt": 1,
                    "duration": 0.02 + 0.01 * len(op),
                }
                if dtype == "complex64" and op in ("relu", "gelu", "sort", "topk"):
                    line.update(outcome="xfailed", rule="ops.yaml:12", reason="complex numbers are not supported")
                if dtype == "int64" and test == "test_gradient":
                    line.update(outcome="skipped", reason="integers have no gradient")
                if name in failing or name in flaky:
                    yield {**line, **_failed(op, dtype)}
                    line["attempt"] = 2
                    if name in failing:
                        continue
                yield line


def _failed(op: str, dtype: str) -> dict[str, str]:
    return {
        "outcome": "failed",
        "cpu_outcome": "failed" if op == "sort" else "passed",
        "phase": "call",
        "message": f"AssertionError: Tensor-likes are not close! {op} in {dtype}: 12 of 1024 elements differ",
        "trace": f"test_ops.py:118: in test_forward\n    self.assertEqual(actual, expected)\nE   {op} {dtype}",
    }


def send(
    store: Store,
    at: float,
    repo: str,
    level: str,
    payload: dict[str, Any],
    delivery: str,
    run_id: str,
    attempt: int = 1,
    **workflow: Any,
) -> None:
    """One report, in progress unless ``workflow`` says otherwise."""
    times = {"queue_time": workflow.pop("queue_time", 90.0), "execution_time": workflow.pop("execution_time", None)}
    report = {
        "trusted": {"verified_repo": repo, "downstream_repo_level": level, "ci_metrics": times},
        "untrusted": {
            "callback_payload": {
                "event_type": "pull_request" if "pull_request" in payload else "push",
                "delivery_id": delivery,
                "payload": payload,
                "workflow": {
                    "status": "in_progress",
                    "name": "upstream-conformance",
                    "job_name": "conformance",
                    "run_id": run_id,
                    "run_attempt": attempt,
                    "url": f"https://github.com/{repo}/actions/runs/{run_id}",
                    **workflow,
                },
            }
        },
    }
    parsed = HudReport.model_validate(report)
    record_report(store, parsed, key_of(parsed), at)


def finish(
    store: Store,
    at: float,
    repo: str,
    level: str,
    payload: dict[str, Any],
    delivery: str,
    run_id: str,
    conclusion: str,
    attempt: int = 1,
    **more: Any,
) -> None:
    """The report that ends a job."""
    send(store, at, repo, level, payload, delivery, run_id, attempt, status="completed", conclusion=conclusion, **more)


def upload(
    store: Store,
    at: float,
    repo: str,
    level: str,
    delivery: str,
    run_id: str,
    lines: Iterable[dict[str, Any]],
    attempt: int = 1,
) -> None:
    """Per-test results of a job."""
    named = {"delivery_id": delivery, "run_id": run_id, "run_attempt": attempt, "job_name": "conformance"}
    ticket = Ticket.model_validate({"repo": repo, "level": level, **named})
    key = run_key(repo, delivery, run_id, attempt, "conformance")
    collected = Collector(announce(store, key, ticket, at))
    for number, line in enumerate(lines, start=1):
        collected.add(parse_line(json.dumps(line).encode(), number))
    record_results(store, key, collected, Part(), at)


def _pull_request(store: Store, at: float, number: int, base: str) -> None:
    head, delivery, run_id = commit(f"pull {number}"), f"pull-{number}", str(5000 + number)
    title = "Improve conv2d backward for channels-last inputs"
    payload = pull_request(PULL, head, base, title, at, "opened" if number == 1 else "synchronize")
    for repo, (level, device) in BACKENDS.items():
        if repo == "example/is-silent":
            continue
        send(store, at, repo, level, payload, delivery, run_id)
        if repo == "example/is-running" and number == 3:
            continue
        failing, flaky = set[str](), set[str]()
        if repo in ("example/breaks", "example/unknown-base") and number == 3:
            failing = {f"test_ops.py::TestOps::test_forward[conv2d][{dtype}]@{device}" for dtype in _DTYPES[1:3]}
        elif repo == "example/known-failures":
            failing = {f"test_ops.py::TestOps::test_forward[sort][bfloat16]@{device}"}
        elif repo == "example/flickers":
            flaky = {f"test_ops.py::TestOps::test_gradient[cumsum][float16]@{device}"}
        if repo == "example/times-out":
            finish(store, at + 1800, repo, level, payload, delivery, run_id, "timed_out", execution_time=1800.0)
            continue
        conclusion = "failure" if failing else "success"
        finish(store, at + 1500, repo, level, payload, delivery, run_id, conclusion, execution_time=1410.0)
        upload(store, at + 1500, repo, level, delivery, run_id, results(device, failing, flaky))


def _harmless(store: Store, at: float, base: str) -> None:
    payload = pull_request(PULL + 1, commit("harmless"), base, "Fix a typo in the documentation", at, "opened")
    for repo, (level, device) in BACKENDS.items():
        send(store, at, repo, level, payload, "harmless", "6000")
        finish(store, at + 1500, repo, level, payload, "harmless", "6000", "success", execution_time=1400.0)
        upload(store, at + 1500, repo, level, "harmless", "6000", results(device))
