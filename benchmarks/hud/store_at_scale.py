"""How big a store gets, how fast pages are on it, and how long results take to come in.

Makes a store in which ``--backends`` backends ran ``--commits`` commits of the base branch and ``--pulls`` pull
requests, ``--tests`` tests each, of which 0.5 % change from one run to the next; serves it with ``hud serve`` and
measures over HTTP. A page is asked for at as many different addresses as there are samples, so that hardly any answer
was remembered. Prints one JSON object: each figure as a share of its limit in spec/hud.md 5, and the cost of a page
as so many bare requests of the same server; exits with 1 where a limit is not kept.

    python benchmarks/hud/store_at_scale.py                       # the size of the specification, 2 GB of disk
    python benchmarks/hud/store_at_scale.py --backends 5 --commits 10 --pulls 3 --tests 10000
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import sqlalchemy as sa

from hud.core.lines import Failure, Identity
from hud.core.outcomes import CODE
from hud.core.snapshot import Note, Roster, Snapshot, places
from hud.seed import commit, finish, pull_request, push
from hud.store import Store, open_store
from hud.store.history import enter
from hud.store.results import number_details, number_tests, put_results
from hud.store.tables import backend, run
from relay.wire import run_key
from relay.wire.ticket import Ticket, sign_ticket

CHURN = 0.005
LIMITS = {"page_p95_ms": 200.0, "test_p95_ms": 50.0, "ingest_seconds": 5.0, "bytes": 2e9}
KEY = "the ingest key of the benchmark"
DTYPES = ("float32", "float16", "bfloat16", "int64", "bool", "complex64", "float64", "int32", "uint8", "int8")
FAILED = CODE["failed"]
CODES = [CODE["passed"]] * 85 + [CODE["skipped"]] * 10 + [CODE["xfailed"]] * 4 + [FAILED]
PALETTE = tuple(Note(f"ops.yaml:{n}", f"reason {n}", f"https://example.org/{n}") for n in range(40))


def line(number: int, device: str, outcome: str = "passed") -> dict[str, Any]:
    op, dtype, kind = f"op{number // 100}", DTYPES[number % 10], number // 10 % 10
    return {
        "id": f"test_ops.py::TestOperators::test_kind_{kind}[{op}][{dtype}]@{device}",
        "file": "test_ops.py",
        "class": "TestOperators",
        "test": f"test_kind_{kind}",
        "op": op,
        "dtype": dtype,
        "device": device,
        "outcome": outcome,
        "attempt": 1,
        "duration": 0.004 * (1 + number % 7),
        "phase": "",
        "message": f"op{number // 100}: {number} of 1024 elements differ" if outcome == "failed" else "",
        "trace": "",
        "rule": "",
        "reason": "",
        "issue": "",
        "fallback": None,
    }


def words(number: int, device: str) -> Failure:
    """Of a failure: the same in every run of a backend, different for every test and backend."""
    told = [f'  File "torch/testing/_internal/common_utils.py", line {n * 7 + number}, in step_{n}' for n in range(12)]
    message = f"Tensor-likes are not close on {device}! Mismatched elements: {number} / 100000"
    return Failure("failed", 0.25, "call", message, "\n".join([*told, message]))


class Filler:
    """Fills a store with the runs of one backend after the other."""

    def __init__(self, store: Store, tests: int, now: float) -> None:
        self.store, self.tests, self.now = store, tests, now
        self.chance = random.Random(1)
        fields = ("file", "class", "test", "op", "dtype")
        lines = (line(number, "d") for number in range(tests))
        told = (Identity(row["id"].removesuffix("d"), *(row[name] for name in fields)) for row in lines)
        identities = {identity.name: identity for identity in told}
        self.roster = Roster(array("I", sorted(number_tests(store, list(identities), identities.__getitem__))))

    def churned(self, outcomes: bytes) -> bytes:
        """The outcomes of the next run: half a per cent of the tests have another one."""
        later = bytearray(outcomes)
        for place in self.chance.sample(range(self.tests), int(self.tests * CHURN)):
            while later[place] == outcomes[place]:
                later[place] = self.chance.choice(CODES)
        return bytes(later)

    def put(self, repo: str, device: str, payload: dict[str, Any], name: str, at: float, outcomes: bytes) -> None:
        finish(self.store, at, repo, "L2", payload, name, name, "failure", execution_time=900.0)
        durations = self.chance.randbytes(self.tests).translate(bytes(60 + value // 16 for value in range(256)))
        notes = array("H", map((0, 0, 0, 4, 5).__getitem__, outcomes))
        results = Snapshot(self.roster, outcomes, notes, durations, PALETTE)
        failures = {self.roster.ids[place]: words(place, device) for place in places(outcomes, [FAILED])}
        details = number_details(self.store, failures)
        with self.store.write() as connection:
            number = connection.execute(sa.select(run.c.id).where(run.c.key == key_of(repo, name))).scalar_one()
            put_results(connection, number, results, failures, details)
            values = {"results": "complete", "totals": results.totals(), "revision": 2}
            connection.execute(run.update().where(run.c.id == number).values(values))
            connection.execute(backend.update().where(backend.c.repo == repo).values(device=device))
            enter(connection, number)

    def backend(self, number: int, commits: int, pulls: int) -> None:
        repo, device = f"example/backend-{number}", f"dev{number}"
        outcomes = bytes(self.chance.choices(CODES, k=self.tests))
        for at in range(commits):
            outcomes = self.churned(outcomes)
            moment = self.now - (commits - at) * 3600.0
            self.put(repo, device, push(commit(f"c{at}"), commit(f"c{at - 1}"), moment), f"push-{at}", moment, outcomes)
        for at in range(pulls):
            moment = self.now - (pulls - at) * 60.0
            payload = pull_request(1000 + at, commit(f"p{at}"), commit(f"c{commits - 1}"), f"Change {at}", moment)
            self.put(repo, device, payload, f"pull-{at}", moment, self.churned(outcomes))


def key_of(repo: str, name: str) -> str:
    return run_key(repo, name, name, 1, "conformance")


@contextlib.contextmanager
def serving(file: Path) -> Iterator[tuple[str, psutil.Process]]:
    """``hud serve`` on a store; gives its address and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"HUD_DATABASE_URL": f"sqlite:///{file}", "HUD_INGEST_KEY": KEY}
    command = [sys.executable, "-m", "hud", "serve", "--port", str(port)]
    with subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL) as server:
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(600):
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(f"{address}/readyz").status_code == 200:
                        break
                time.sleep(0.1)
            yield address, psutil.Process(server.pid)
        finally:
            server.terminate()


def upload(http: httpx.Client, repo: str, name: str, body: bytes) -> httpx.Response:
    said = {
        "repo": repo,
        "level": "L2",
        "delivery_id": name,
        "run_id": name,
        "run_attempt": 1,
        "job_name": "conformance",
    }
    ticket = sign_ticket(Ticket.model_validate(said), KEY, timedelta(hours=1))[0]
    headers = {"Authorization": f"Bearer {ticket}", "Content-Encoding": "gzip"}
    return http.post(f"/api/v1/runs/{key_of(repo, name)}/tests", content=body, headers=headers)


def cpu_seconds(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def rest(process: psutil.Process) -> None:
    """Wait until a server that has just started has asked itself what it remembers from then on."""
    used = -1.0
    while cpu_seconds(process) - used > 0.1:
        used = cpu_seconds(process)
        time.sleep(2)


def timed(http: httpx.Client, process: psutil.Process, addresses: list[str]) -> dict[str, float]:
    """How long answers took, and what they cost: the cost does not depend on what else the machine does."""
    took, before = [], cpu_seconds(process)
    for address in addresses:
        start = time.perf_counter()
        answer = http.get(address)
        took.append(1000 * (time.perf_counter() - start))
        assert answer.status_code == 200, f"{address}: {answer.status_code}"
    took.sort()
    return {
        "cpu_ms": round(1000 * (cpu_seconds(process) - before) / len(took), 1),
        "p50_ms": round(statistics.median(took), 1),
        "p95_ms": round(took[math.ceil(0.95 * len(took)) - 1], 1),
        "max_ms": round(took[-1], 1),
    }


def addresses_of(options: argparse.Namespace) -> dict[str, list[str]]:
    """By kind of page, different addresses of it."""
    chance = random.Random(2)

    def repo() -> str:
        return f"example/backend-{chance.randrange(options.backends)}"

    def one_run() -> str:
        return key_of(repo(), f"push-{chance.randrange(options.commits)}")

    def name() -> str:
        return quote(str(line(chance.randrange(options.tests), "dev0")["id"]), safe="")

    def pull() -> int:
        return 1000 + chance.randrange(options.pulls)

    def two_runs() -> str:
        at, where = chance.randrange(1, options.commits), repo()
        return f"base={key_of(where, f'push-{at - 1}')}&head={key_of(where, f'push-{at}')}"

    kinds = {
        "home": lambda: "/",
        "pull requests": lambda: "/prs",
        "pull request": lambda: f"/pr/{pull()}",
        "pull request, JSON": lambda: f"/api/v1/pr/{pull()}",
        "backend": lambda: f"/backend/{repo()}",
        "run": lambda: f"/run/{one_run()}",
        "run of a pull request": lambda: f"/run/{key_of(repo(), f'pull-{chance.randrange(options.pulls)}')}",
        "run, one cell": lambda: f"/run/{one_run()}?outcome=ran&op=op{chance.randrange(options.tests // 100)}",
        "runs": lambda: f"/runs?page={1 + chance.randrange(options.backends)}",
        "run, searched": lambda: f"/run/{one_run()}?outcome=all&q=op{chance.randrange(options.tests // 100)}",
        "test": lambda: f"/test?name={name()}",
        "matrix": lambda: f"/matrix/{repo()}",
        "diff": lambda: f"/diff?{two_runs()}",
        "health": lambda: "/health",
        "feed": lambda: "/feed.atom",
        "badge": lambda: f"/badge/{repo()}.svg",
    }
    return {kind: [make() for _ in range(options.samples)] for kind, make in kinds.items()}


def crowd(address: str, pages: dict[str, list[str]], bodies: list[tuple[str, bytes]]) -> dict[str, Any]:
    """Fifty readers while ten runs are being ingested."""
    done, errors, took = threading.Event(), [], []

    def read(seed: int) -> None:
        chance = random.Random(seed)
        with httpx.Client(base_url=address, timeout=300) as http:
            while not done.is_set():
                start = time.perf_counter()
                try:
                    answer = http.get(chance.choice(chance.choice(list(pages.values()))))
                    if answer.status_code != 200:
                        errors.append(f"{answer.url}: {answer.status_code}")
                except httpx.HTTPError as error:
                    errors.append(repr(error))
                took.append(time.perf_counter() - start)

    def send(repo: str, body: bytes) -> None:
        with httpx.Client(base_url=address, timeout=600) as http:
            answer = upload(http, repo, f"crowd-{time.time()}", body)
            if answer.status_code != 200:
                errors.append(answer.text)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(50)]
    senders = [threading.Thread(target=send, args=body) for body in bodies]
    start = time.perf_counter()
    for thread in (*readers, *senders):
        thread.start()
    for thread in senders:
        thread.join()
    seconds = time.perf_counter() - start
    done.set()
    for thread in readers:
        thread.join()
    return {
        "senders": len(senders),
        "seconds": round(seconds, 1),
        "pages": len(took),
        "errors": len(errors),
        "first_error": errors[:1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", type=int, default=100)
    parser.add_argument("--commits", type=int, default=40)
    parser.add_argument("--pulls", type=int, default=10)
    parser.add_argument("--tests", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=40, help="addresses of each kind of page")
    parser.add_argument("--store", type=Path, help="SQLite file that is made, or gone on with, and kept")
    parser.add_argument(
        "--fill-seconds", type=float, default=1e9, help="stop filling after so long; go on another time"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = options.store or Path(folder) / "hud.db"
        if fill(file, options):
            report = measure(file, options)
            print(json.dumps(report, indent=1))
            sys.exit(1 if report["missed"] else 0)


def fill(file: Path, options: argparse.Namespace) -> bool:
    """Make the backends that are not there yet; says whether all are."""
    store = open_store(f"sqlite:///{file}")
    filler, start = Filler(store, options.tests, time.time()), time.perf_counter()
    with store.read() as connection:
        made = connection.execute(sa.select(sa.func.count()).select_from(backend)).scalar_one()
    while made < options.backends and time.perf_counter() - start < options.fill_seconds:
        filler.backend(made, options.commits, options.pulls)
        made += 1
        print(
            f"{made} of {options.backends} backends, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True
        )
    store.close()
    return bool(made >= options.backends)


def results(count: int, device: str) -> bytes:
    """An upload of a backend with this device: the names of other devices would be tests that are new to it."""
    return gzip.compress("\n".join(json.dumps(line(number, device)) for number in range(count)).encode(), 1)


def measure(file: Path, options: argparse.Namespace) -> dict[str, Any]:
    size = sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))
    count = options.tests
    bodies = [results(count, f"dev{number}") for number in range(min(10, options.backends))]
    pages = addresses_of(options)
    with serving(file) as (address, process), httpx.Client(base_url=address, timeout=300) as http:
        timed(http, process, ["/", "/prs", "/matrix/example/backend-0"])
        rest(process)
        bare = timed(http, process, ["/healthz"] * 200)
        told = {}
        for kind, listed in pages.items():
            told[kind] = timed(http, process, listed)
            print(f"{kind}: {told[kind]}", file=sys.stderr, flush=True)
        start, before = time.perf_counter(), cpu_seconds(process)
        answer = upload(http, "example/backend-0", f"ingest-{time.time()}", bodies[0])
        ingest, cost = time.perf_counter() - start, cpu_seconds(process) - before
        assert answer.json()["tests"] == count, answer.text
        print(f"ingest: {ingest:.2f} s, {cost:.2f} s of processor time", file=sys.stderr, flush=True)
        senders = [(f"example/backend-{number}", body) for number, body in enumerate(bodies)]
        together = crowd(address, pages, senders)
    shares = {f"{kind}: p95 of 200 ms": took["p95_ms"] / LIMITS["page_p95_ms"] for kind, took in told.items()}
    shares["history of a test: p95 of 50 ms"] = told["test"]["p95_ms"] / LIMITS["test_p95_ms"]
    shares["ingest: of 5 s for 100,000 results"] = ingest / LIMITS["ingest_seconds"] / (count / 100_000)
    shares["store: of 2 GB"] = size / LIMITS["bytes"]
    shares["50 readers while 10 runs come in: errors + 1"] = together["errors"] + 1
    print(f"crowd: {together}", file=sys.stderr, flush=True)
    runs = options.backends * (options.commits + options.pulls)
    return {
        "ratios": {
            **{name: {"ratio": round(share, 3), "goal": "<= 1"} for name, share in shares.items()},
            **{
                f"{kind}: processor time to a bare request's": {"ratio": round(took["cpu_ms"] / bare["cpu_ms"], 1)}
                for kind, took in told.items()
            },
        },
        "runs": runs,
        "tests": count,
        "bytes": size,
        "bytes_per_run": size // runs,
        "ingest_seconds": round(ingest, 2),
        "ingest_cpu_seconds": round(cost, 2),
        "bare_request": bare,
        "pages": told,
        "fifty_readers_ten_ingests": together,
        "missed": [name for name, share in shares.items() if share > 1],
    }


if __name__ == "__main__":
    main()
