"""How fast the relay acknowledges, fans out and takes callbacks, next to a bare FastAPI endpoint on the same machine.

Relays, the local GitHub and what stands for HUD are processes of their own; this process is the load. Bodies have
25 KB. Prints one JSON object. Figures are of a machine that also runs the load and all the others: a lower bound.

Goals are absolute, for two quiet cores on which a bare FastAPI endpoint answers 5,150 requests a second, so throughput
is held against the endpoint of the same run. Processor time of the relay's processes hardly depends on who else uses
the machine.

    python benchmarks/relay/speed.py                       # everything
    python benchmarks/relay/speed.py callbacks_sqlite      # one of: acknowledgement fan_out callbacks_sqlite
                                                           #   callbacks_postgresql callbacks_during_fan_out memory
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from postgres_cluster import PostgresCluster
from relay_site import WEBHOOK_SECRET, Process, Site, free_port, pull_request, report, wait_for

from relay.core.signature import sign

BODY_BYTES = 25_000
GITHUB_LATENCY = 0.05
CONNECTIONS = 16
BARE_PER_SECOND = 5150
"""Of the bare endpoint on the machine that the goals were set for."""

BARE = """
import json, sys, uvicorn
from fastapi import FastAPI, Request
app = FastAPI()
@app.get("/healthz")
async def healthz(): return {}
@app.post("/")
async def take(request: Request): return {"ok": bool(json.loads(await request.body()))}
uvicorn.run(app, port=int(sys.argv[-1]), log_config=None, access_log=False)
"""
SINK = """
import asyncio, sys
OK = b'HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: 11\\r\\n\\r\\n{"ok":true}'
class Sink(asyncio.Protocol):
    def connection_made(self, transport): self.transport, self.held, self.wanted = transport, 0, None
    def data_received(self, data):
        if self.wanted is None:
            head, _, data = data.partition(b'\\r\\n\\r\\n')
            lines = dict(line.lower().split(b': ', 1) for line in head.split(b'\\r\\n')[1:])
            self.wanted, self.held = int(lines.get(b'content-length', 0)), 0
        self.held += len(data)
        if self.held >= self.wanted:
            self.wanted = None
            self.transport.write(OK)
async def main():
    server = await asyncio.get_running_loop().create_server(Sink, '127.0.0.1', int(sys.argv[-1]))
    await server.serve_forever()
asyncio.run(main())
"""


Ratios = dict[str, tuple[float, str]]
"""What is measured → its ratio, and the goal, ``""`` where there is none."""
Measured = tuple[dict[str, Any], Ratios]


# --- load -----------------------------------------------------------------------------------------------------------


@dataclass
class Answers:
    """What a load got: seconds per request, and how many of each status."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    took: float = 0.0

    def summary(self) -> dict[str, Any]:
        ordered = sorted(self.seconds)
        return {
            "requests": len(ordered),
            "statuses": dict(self.statuses),
            "per_second": round(len(ordered) / self.took, 1),
            "p50_ms": round(1000 * statistics.median(ordered), 2),
            "p99_ms": round(1000 * ordered[int(len(ordered) * 0.99)], 2),
            "max_ms": round(1000 * ordered[-1], 2),
        }


def request(path: str, body: bytes, **headers: str) -> bytes:
    fields = {"Host": "relay", "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    return (
        f"POST {path} HTTP/1.1\r\n{''.join(f'{k}: {v}' + chr(13) + chr(10) for k, v in fields.items())}\r\n".encode()
        + body
    )


class Connection:
    """One keep-alive connection; as little work per request as Python allows: the relay is to be measured."""

    def __init__(self, url: str):
        self._url = urlsplit(url)

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._url.hostname, self._url.port)

    async def ask(self, data: bytes) -> int:
        if self._reader.at_eof():  # a server may close what was idle for some seconds
            self.close()
            await self.open()
        self._writer.write(data)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
        await self._reader.readexactly(length)
        return int(head[9:12])

    def close(self) -> None:
        self._writer.close()


async def as_fast_as_possible(
    urls: Sequence[str], requests: Iterable[bytes], connections: int = CONNECTIONS
) -> Answers:
    """Closed loop: every connection sends its next request when the last one was answered."""
    answers, todo = Answers(), iter(requests)
    opened = [Connection(urls[number % len(urls)]) for number in range(connections)]

    async def work(connection: Connection) -> None:
        for data in todo:
            started = time.perf_counter()
            answers.statuses[await connection.ask(data)] += 1
            answers.seconds.append(time.perf_counter() - started)

    await asyncio.gather(*(connection.open() for connection in opened))
    started = time.perf_counter()
    await asyncio.gather(*map(work, opened))
    answers.took = time.perf_counter() - started
    for connection in opened:
        connection.close()
    return answers


async def at_a_rate(url: str, requests: Sequence[bytes], per_second: float) -> Answers:
    """Open loop: requests start on time whether the last one was answered or not; waiting counts from that time."""
    answers = Answers()
    free: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
    for _ in range(CONNECTIONS):
        connection = Connection(url)
        await connection.open()
        free.put_nowait(connection)

    async def one(data: bytes, due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        connection = await free.get()
        answers.statuses[await connection.ask(data)] += 1
        answers.seconds.append(time.perf_counter() - due)
        free.put_nowait(connection)

    started = time.perf_counter()
    await asyncio.gather(*(one(data, started + number / per_second) for number, data in enumerate(requests)))
    answers.took = time.perf_counter() - started
    return answers


def webhook(number: int, delivery: str, *, label: bool = False) -> bytes:
    labels = ("ciflow/crcr/spyre",) if label else ()
    event = pull_request("opened", number, f"{number:040x}", labels, filler=BODY_BYTES - 600)
    body = json.dumps(event).encode()
    headers = {"X-GitHub-Event": "pull_request", "X-GitHub-Delivery": delivery}
    return request("/github/webhook", body, **headers, **{"X-Hub-Signature-256": sign(body, WEBHOOK_SECRET)})


def callbacks(payload: dict[str, Any], token: str, jobs: int, first: int = 0) -> Iterable[bytes]:
    """Both reports of so many jobs: every job's start, then its end a few hundred requests later."""
    behind = 200
    for number in range(first, first + jobs + behind):
        for status, job in (("in_progress", number), ("completed", number - behind)):
            if first <= job < first + jobs:
                body = json.dumps(report(payload, status, run_id=str(job))).encode()
                yield request("/github/callback", body, Authorization=f"Bearer {token}")


# --- surroundings ---------------------------------------------------------------------------------------------------


def script(site: Site, code: str) -> Process:
    port = free_port()
    log = site.directory / f"script-{port}.log"
    popen = subprocess.Popen([sys.executable, "-c", code, str(port)], stderr=log.open("wb"))
    process = Process(popen, f"http://127.0.0.1:{port}", log)
    site.processes.append(process)

    def up() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_for(up, 30, "the script listens")
    return process


def levels(count: int) -> tuple[str, list[str]]:
    """An allowlist: ``count`` repositories at L2, one each at L3 and L4."""
    repos = [f"org{number}/backend" for number in range(count)]
    text = "L2:\n" + "".join(f"  - {repo}\n" for repo in repos)
    return f"{text}L3:\n  spyre:\n    third/backend: [oncall]\nL4:\n  - fourth/backend\n", [
        *repos,
        "third/backend",
        "fourth/backend",
    ]


def surroundings(repositories: int, database_url: str = "") -> Site:
    allowlist, repos = levels(repositories)
    return Site(allowlist, repos, database_url)


def ready(site: Site, latency: float = 0.0) -> Site:
    site.start_github()
    site.hud_url = script(site, SINK).url
    if latency:
        site.fault(path="/repos/*", delay=latency)
        site.fault(path="/app/*", delay=latency)
    return site


def settle(site: Site, deliveries: int, repositories: int) -> None:
    wait_for(lambda: len(site.dispatches()) >= deliveries * repositories, 600, "every dispatch is sent", pause=0.5)


def payload_of(site: Site, relay: Process, repo: str, number: int = 1) -> dict[str, Any]:
    """Announce a labelled pull request and take what a repository got."""
    name = f"for-{repo.partition('/')[0]}-{number}"
    announced = asyncio.run(as_fast_as_possible([relay.url], [webhook(number, name, label=True)], 1))
    assert announced.statuses == {202: 1}, announced.statuses

    def find() -> Any:
        for call in site.dispatches():
            if call["repository"] == repo and call["body"]["client_payload"]["delivery_id"] == name:
                return call["body"]["client_payload"]
        return None

    found: dict[str, Any] = wait_for(find, 60, f"{repo} gets its dispatch")
    return found


# --- what is measured -----------------------------------------------------------------------------------------------


def bare() -> dict[str, Any]:
    """A FastAPI endpoint that reads the body and answers: what the framework costs."""
    with surroundings(1) as site:
        server = script(site, BARE)
        body = json.dumps(pull_request(filler=BODY_BYTES - 600)).encode()
        asyncio.run(as_fast_as_possible([server.url], [request("/", body)] * 1000))  # warm
        before, number = server.cpu(), 10_000
        answers = asyncio.run(as_fast_as_possible([server.url], [request("/", body)] * number))
        return {**answers.summary(), "cpu_ms": round(1000 * (server.cpu() - before) / number, 3)}


def acknowledgement(given: argparse.Namespace) -> Measured:
    """Time to answer a webhook at 50/s, by number of repositories, with the workers in one process and in two."""
    found: dict[str, Any] = {}
    for how in ("serve", "serve --api-only and worker"):
        for repositories in (1, 10, 100):
            with surroundings(repositories) as site:
                ready(site, GITHUB_LATENCY)
                relay = site.start_relay(*how.split(" and ")[0].split())
                if "worker" in how:
                    site.start_relay("worker")
                asyncio.run(as_fast_as_possible([relay.url], [webhook(1, "first")], 1))
                todo = [webhook(number + 2, f"d-{number}") for number in range(50 * given.seconds)]
                found[f"{how}, {repositories} repositories"] = asyncio.run(at_a_rate(relay.url, todo, 50)).summary()
    return found, {
        f"p99, of 25 ms ({how})": (found[f"{how}, 100 repositories"]["p99_ms"] / 25, "<= 1")
        for how in ("serve", "serve --api-only and worker")
    }


def fan_out(_: argparse.Namespace) -> Measured:
    """From the webhook to the last dispatch, 50 ms latency of GitHub, first without and then with known tokens."""
    found = {}
    for repositories in (1, 10, 100):
        with surroundings(repositories) as site:
            ready(site, GITHUB_LATENCY)
            relay = site.start_relay("serve")
            for number, name in enumerate(("cold", "warm")):
                started = time.time()
                asyncio.run(as_fast_as_possible([relay.url], [webhook(number + 1, name)], 1))
                answered = time.time() - started
                settle(site, number + 1, repositories + 2)
                calls = [call for call in site.dispatches() if call["body"]["client_payload"]["delivery_id"] == name]
                last = max(call["time"] + call["duration_ms"] / 1000 for call in calls)
                found[f"{repositories} repositories, {name}"] = {
                    "answered_ms": round(1000 * answered, 1),
                    "all_dispatched_s": round(last - started, 3),
                }
    return found, {
        f"to 100 repositories, of 2 s ({how})": (found[f"100 repositories, {how}"]["all_dispatched_s"] / 2, "<= 1")
        for how in ("cold", "warm")
    }


def _callbacks(site: Site, relays: list[Process], jobs: int) -> dict[str, Any]:
    urls = [relay.url for relay in relays]
    found: dict[str, Any] = {"bare": bare()}
    for number, (level, repo) in enumerate(
        {"L2": "org0/backend", "L3": "third/backend", "L4": "fourth/backend"}.items()
    ):
        payload, token = payload_of(site, relays[0], repo, number + 1), site.token(repo, 7200)
        asyncio.run(as_fast_as_possible(urls, list(callbacks(payload, token, 50, first=10**6))))  # warm
        todo = list(callbacks(payload, token, jobs))
        busy = [process.cpu() for process in site.processes]
        found[level] = asyncio.run(as_fast_as_possible(urls, todo)).summary()
        spent = {process.url: process.cpu() - before for process, before in zip(site.processes, busy, strict=True)}
        found[level]["cpu_ms"] = round(1000 * sum(spent[url] for url in urls) / len(todo), 2)
    return found


def _callback_ratios(found: dict[str, Any], goal: int) -> Ratios:
    """Against the bare endpoint; the goal is of callbacks per second, for all processes together."""
    per_second, bare_per_second = found["L2"]["per_second"], found["bare"]["per_second"]
    return {
        "callbacks per second, of a bare endpoint's": (
            per_second / bare_per_second,
            f">= {goal / BARE_PER_SECOND:.3f}",
        ),
        "callbacks at L3, of those at L2": (found["L3"]["per_second"] / per_second, ">= 0.9"),
        "callbacks at L4, of those at L2": (found["L4"]["per_second"] / per_second, ">= 0.9"),
        "processor time of a callback, in bare requests": (found["L2"]["cpu_ms"] / found["bare"]["cpu_ms"], ""),
    }


def callbacks_sqlite(given: argparse.Namespace) -> Measured:
    """Callbacks per second, one process on SQLite."""
    with surroundings(1) as site:
        relay = ready(site).start_relay("serve", log_level="warning")
        found = _callbacks(site, [relay], given.jobs)
        return found, _callback_ratios(found, 600)


def callbacks_postgresql(given: argparse.Namespace) -> Measured:
    """Callbacks per second, two processes on PostgreSQL."""
    with PostgresCluster() as cluster, cluster.database() as url, surroundings(1, url) as site:
        ready(site)
        found = _callbacks(site, [site.start_relay("serve", log_level="warning") for _ in range(2)], given.jobs)
        return found, _callback_ratios(found, 900)


def callbacks_during_fan_out(given: argparse.Namespace) -> Measured:
    """Callbacks at 100/s while pull requests fan out to 100 repositories, one every second."""
    with surroundings(100) as site:
        ready(site, GITHUB_LATENCY)
        relay = site.start_relay("serve")
        payload, token = payload_of(site, relay, "org0/backend"), site.token("org0/backend", 7200)
        settle(site, 1, 102)
        todo = list(callbacks(payload, token, 50 * given.seconds))

        async def both() -> tuple[Answers, Answers]:
            hooks = [webhook(number + 10, f"during-{number}") for number in range(given.seconds)]
            return await asyncio.gather(at_a_rate(relay.url, todo, 100), at_a_rate(relay.url, hooks, 1))

        quiet = asyncio.run(at_a_rate(relay.url, list(callbacks(payload, token, 500, first=10**6)), 100))
        during, hooks = asyncio.run(both())
        found = {"quiet": quiet.summary(), "during": during.summary(), "webhooks": hooks.summary()}
        return found, {"p99, of 50 ms": (found["during"]["p99_ms"] / 50, "<= 1")}


def memory(given: argparse.Namespace) -> Measured:
    """Resident memory over 100,000 callbacks."""
    with surroundings(1) as site:
        relay = ready(site).start_relay("serve", log_level="warning")
        payload, token = payload_of(site, relay, "org0/backend"), site.token("org0/backend", 7200)
        found = []
        for step in range(10):
            asyncio.run(as_fast_as_possible([relay.url], callbacks(payload, token, given.memory // 20, step * 10**6)))
            found.append(round(relay.memory(), 1))
        grown = {"at the end, of that after a fifth": (found[-1] / found[1], "<= 1.1")}
        return {"callbacks": given.memory, "rss_mib_after_each_tenth": found}, grown


MEASURES: dict[str, Callable[[argparse.Namespace], Measured]] = {
    measure.__name__: measure
    for measure in (
        acknowledgement,
        fan_out,
        callbacks_sqlite,
        callbacks_postgresql,
        callbacks_during_fan_out,
        memory,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measures", nargs="*", choices=[*MEASURES, []], help="default: all")
    parser.add_argument("--seconds", type=int, default=10, help="of each load at a rate")
    parser.add_argument("--jobs", type=int, default=2000, help="of each level, two callbacks each")
    parser.add_argument("--memory", type=int, default=100_000, help="callbacks of the long run")
    given = parser.parse_args()
    found: dict[str, Any] = {"ratios": {}}
    for name in given.measures or MEASURES:
        load = round(os.getloadavg()[0], 1)
        measured, ratios = MEASURES[name](given)
        found[name] = {"load_before": load, **measured}
        for what, (ratio, goal) in ratios.items():
            one = {"ratio": round(ratio, 3), **({"goal": goal} if goal else {})}
            found["ratios"][f"{name}: {what}"] = one
        print(f"{name}: {json.dumps(found[name])}", file=sys.stderr, flush=True)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
