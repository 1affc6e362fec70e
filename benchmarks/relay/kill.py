"""kill -9 of API and worker processes at random moments while deliveries and callbacks pass: is anything lost?

GitHub is the emulator, HUD the real one, the relays are processes of their own. A thread delivers webhooks until each
is accepted, others report every dispatch back (in_progress, completed) until each callback is answered, as GitHub's
operators and jobs do. Prints one JSON object; exit code 1 if a promise was broken.

    python benchmarks/relay/kill.py                        # 300 deliveries to 20 repositories, on both databases
    python benchmarks/relay/kill.py --deliveries 30 --database sqlite
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from postgres_cluster import PostgresCluster
from relay_site import TRUST, WEBHOOK_SECRET, Process, Site, pull_request, report, wait_for

from relay.core.signature import sign

LEASE_SECONDS = 5
CONCURRENCY = 20
CREW = {"sqlite": {"api": 1, "worker": 1}, "postgresql": {"api": 2, "worker": 2}}
"""SQLite is for one host; two processes on one file are the most that is asked of it."""
API = ("serve", "--api-only")


class Play:
    """One run of the play.

    Attributes:
        relays: name (``api-0``, ``worker-1``) → process of the moment.
        accepted: deliveries answered 202.
        reported: (delivery, repository) whose ``completed`` was answered 200.
    """

    def __init__(self, site: Site, crew: dict[str, int], deliveries: int, seed: int):
        self.site = site
        self.chance = random.Random(seed)
        self.deliveries = [f"delivery-{number}" for number in range(deliveries)]
        self.names = [f"{kind}-{number}" for kind, many in crew.items() for number in range(many)]
        self.relays: dict[str, Process] = {}
        self.accepted: set[str] = set()
        self.reported: set[tuple[str, str]] = set()
        self.killed: list[tuple[str, float]] = []
        self.refused: Counter[int] = Counter()
        self._known: set[tuple[str, str]] = set()
        self._to_report: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self._over = threading.Event()
        self._tokens = {repo: site.token(repo, 6 * 3600) for repo in site.repositories}

    @property
    def wanted(self) -> set[tuple[str, str]]:
        """Every dispatch that has to happen."""
        return {(delivery, repo) for delivery in self.deliveries for repo in self.site.repositories}

    def start(self, name: str) -> None:
        command = API if name.startswith("api") else ("worker",)
        self.relays[name] = self.site.start_relay(
            *command,
            lease_seconds=LEASE_SECONDS,
            request_timeout_seconds=3,
            worker_concurrency=CONCURRENCY,
            poll_interval_seconds=0.1,
            hud_wait_seconds=0,
        )

    def api(self) -> str:
        """Address of an API process, as a load balancer would choose it."""
        return self.relays[self.chance.choice([name for name in self.names if name.startswith("api")])].url

    def deliver(self) -> None:
        """GitHub: one delivery after the other, each until it is accepted (an operator's "redeliver")."""
        with httpx.Client(timeout=10, verify=TRUST) as http:
            for number, delivery in enumerate(self.deliveries, 1):
                body = json.dumps(pull_request("opened", number, f"{number:040x}", filler=2000)).encode()
                headers = {
                    "X-GitHub-Event": "pull_request",
                    "X-GitHub-Delivery": delivery,
                    "X-Hub-Signature-256": sign(body, WEBHOOK_SECRET),
                }
                while not self._over.is_set():
                    with contextlib.suppress(httpx.HTTPError):
                        answer = http.post(f"{self.api()}/github/webhook", content=body, headers=headers)
                        self.refused[answer.status_code] += answer.status_code != 202
                        if answer.status_code == 202:
                            self.accepted.add(delivery)
                            break
                    time.sleep(0.1)

    def watch(self) -> None:
        """Find dispatches that GitHub got, and start a "job" for each."""
        after = 0
        while not self._over.wait(0.3):
            for call in self.site.dispatches(after):
                after, repo, payload = call["id"], call["repository"], call["body"]["client_payload"]
                if (payload["delivery_id"], repo) not in self._known:
                    self._known.add((payload["delivery_id"], repo))
                    self._to_report.put((repo, payload))

    def job(self) -> None:
        """Jobs: both reports of one dispatch after the other, each until it is answered."""
        with httpx.Client(timeout=10, verify=TRUST) as http:
            while not self._over.is_set():
                try:
                    repo, payload = self._to_report.get(timeout=0.2)
                except queue.Empty:
                    continue
                for status in ("in_progress", "completed"):
                    self._say(http, repo, report(payload, status))
                self.reported.add((payload["delivery_id"], repo))

    def _say(self, http: httpx.Client, repo: str, body: dict[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {self._tokens[repo]}"}
        while not self._over.is_set():
            with contextlib.suppress(httpx.HTTPError):
                answer = http.post(f"{self.api()}/github/callback", json=body, headers=headers)
                self.refused[answer.status_code] += answer.status_code != 200
                if answer.status_code == 200:
                    return
            time.sleep(0.1)

    def run(self, kills: int, seconds: float) -> None:
        """Play until everything was reported; the kills are spread over the dispatches."""
        for name in self.names:
            self.start(name)
        threads = [threading.Thread(target=what, daemon=True) for what in (self.deliver, self.watch, *[self.job] * 4)]
        for thread in threads:
            thread.start()
        try:
            for number in range(kills):
                due = (number + 1) * len(self.wanted) // (kills + 1)
                wait_for(lambda due=due: len(self._known) >= due, seconds, f"{due} dispatches, before kill {number}")
                time.sleep(self.chance.random() / 2)
                name = (
                    self.names[number % len(self.names)] if number < len(self.names) else self.chance.choice(self.names)
                )
                self.relays[name].kill()
                self.killed.append((name, time.time()))
                time.sleep(self.chance.random())
                self.start(name)
            wait_for(lambda: self.reported == self.wanted, seconds, "every dispatch is reported")
            wait_for(lambda: not self.tasks("ready", "leased"), seconds, "nothing is owed", pause=1)
        finally:
            self._over.set()
            for thread in threads:
                thread.join(15)

    def tasks(self, *states: str) -> list[dict[str, Any]]:
        """Tasks in one of the states."""
        command = [sys.executable, "-m", "relay", "tasks", "list", "--json", "--limit", "100000"]
        env = {"RELAY_DATABASE_URL": self.site.database_url}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120)
        return [task for task in json.loads(done.stdout) if task["state"] in states]

    def accounts(self) -> dict[str, Any]:
        """What became of everything."""
        times = defaultdict(list)
        for call in self.site.dispatches():
            times[(call["body"]["client_payload"]["delivery_id"], call["repository"])].append(call["time"])
        hud = sqlite3.connect(f"file:{self.site.directory / 'hud.db'}?mode=ro", uri=True)
        rows = hud.execute(
            "SELECT delivery_id, repo, status, conclusion FROM run JOIN backend ON backend.id = run.backend_id"
        ).fetchall()
        hud.close()
        finished = Counter((delivery, repo) for delivery, repo, *state in rows if state == ["completed", "success"])
        kills = [moment for name, moment in self.killed if name.startswith("worker")]
        unexplained = [
            key
            for key, (first, *more) in times.items()
            if more and not any(first - 1 <= moment <= more[-1] for moment in kills)
        ]
        return {
            "deliveries": len(self.deliveries),
            "repositories": len(self.site.repositories),
            "kills": dict(Counter(name.partition("-")[0] for name, _ in self.killed)),
            "refused": {status: number for status, number in self.refused.items() if number},
            "dispatches": {
                "wanted": len(self.wanted),
                "lost": len(self.wanted - times.keys()),
                "doubled": sum(len(found) - 1 for found in times.values()),
                "doubled_without_a_kill_between": len(unexplained),
                "may_be_doubled": len(kills) * CONCURRENCY,
            },
            "callbacks": {"answered": 2 * len(self.reported), "lost": 2 * len(self.wanted - self.reported)},
            "dead_letters": len(self.tasks("dead")),
            "hud_rows": {
                "completed": len(finished),
                "lost": len(self.wanted - finished.keys()),
                "doubled": sum(number - 1 for number in finished.values()),
                "not_completed": len(rows) - finished.total(),
            },
        }


def kept(accounts: dict[str, Any]) -> bool:
    """Whether every promise was kept."""
    dispatches, callbacks, rows = (accounts[name] for name in ("dispatches", "callbacks", "hud_rows"))
    return (
        not any(
            (
                accounts["dead_letters"],
                dispatches["lost"],
                dispatches["doubled_without_a_kill_between"],
                callbacks["lost"],
            )
        )
        and dispatches["doubled"] <= dispatches["may_be_doubled"]
        and not any((rows["lost"], rows["doubled"], rows["not_completed"]))
        and not accounts["refused"].keys() - {503}
    )


def ratios(accounts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What must be nothing, of what was to happen."""
    dispatches, callbacks, rows = (accounts[name] for name in ("dispatches", "callbacks", "hud_rows"))
    wanted = dispatches["wanted"]
    broken = {
        "dispatches lost": dispatches["lost"],
        "dispatches doubled that no kill explains": dispatches["doubled_without_a_kill_between"],
        "callbacks lost": callbacks["lost"],
        "HUD rows lost or doubled": rows["lost"] + rows["doubled"] + rows["not_completed"],
    }
    return {f"{what}, of {wanted}": {"ratio": number / wanted, "goal": "<= 0"} for what, number in broken.items()}


def play(
    database_url: str, kind: str, *, deliveries: int, repositories: int, kills: int, seed: int = 1, seconds: float = 300
) -> dict[str, Any]:
    """Play once.

    Args:
        database_url: of the relays; empty for a new SQLite file.
        kind: ``sqlite`` or ``postgresql``, chooses the processes.
        seconds: patience for each step.

    Returns:
        The accounts; :func:`kept` judges them.
    """
    repos = [f"org{number}/backend" for number in range(repositories)]
    allowlist = "L2:\n" + "".join(f"  - {repo}\n" for repo in repos)
    with Site(allowlist, repos, database_url) as site:
        site.start_github()
        site.start_hud()
        one = Play(site, CREW[kind], deliveries, seed)
        started = time.monotonic()
        one.run(kills, seconds)
        return {**one.accounts(), "database": kind, "seconds": round(time.monotonic() - started, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deliveries", type=int, default=300)
    parser.add_argument("--repositories", type=int, default=20)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1800, help="patience for each step")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], help="default: both")
    given = parser.parse_args()
    size = {"deliveries": given.deliveries, "repositories": given.repositories, "kills": given.kills}
    found: dict[str, Any] = {"ratios": {}}
    for kind in [given.database] if given.database else CREW:
        with contextlib.ExitStack() as stack:
            url = ""
            if kind == "postgresql":
                url = stack.enter_context(stack.enter_context(PostgresCluster()).database())
            found[kind] = play(url, kind, seed=given.seed, seconds=given.seconds, **size)
        found["ratios"] |= {f"{kind}: {what}": one for what, one in ratios(found[kind]).items()}
        print(f"{kind}: {json.dumps(found[kind])}", file=sys.stderr, flush=True)
    print(json.dumps(found, indent=2))
    return 0 if all(kept(found[kind]) for kind in CREW if kind in found) else 1


if __name__ == "__main__":
    sys.exit(main())
