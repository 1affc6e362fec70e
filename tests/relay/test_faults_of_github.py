"""Spec 2: the faults of GitHub, made by the local GitHub over real connections; a relay process lives with them."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from typing import Any

import httpx
from relay_site import TRUST, WEBHOOK_SECRET, Site, pull_request, wait_for

from relay.core.signature import sign

FAULTS: dict[str, dict[str, Any]] = {
    "500": {"status": 500},
    "502": {"status": 502},
    "reset": {"reset": True},
    "reset-after": {"reset": True, "when": "after"},
    "timeout": {"delay": 4, "status": 500},
    "timeout-after": {"delay": 4},
    "slow-body": {"status": 503, "slow_body": 2},
    "limit-with-retry-after": {"status": 403, "headers": {"Retry-After": "1"}, "body": {"message": "secondary limit"}},
    "refused": {"status": 422},
    "fine": {},
}
"""What happens to the first dispatch to each repository; the name is the repository's owner."""


def tasks(site: Site) -> dict[str, sqlite3.Row]:
    """Tasks of the first delivery by owner."""
    store = sqlite3.connect(site.database_url.removeprefix("sqlite:///"))
    store.row_factory = sqlite3.Row
    rows = store.execute("SELECT * FROM tasks WHERE delivery_id = 'delivery-1'").fetchall()
    store.close()
    return {row["repo"].partition("/")[0]: row for row in rows}


def announce(relay_url: str, delivery: str) -> None:
    body = json.dumps(pull_request()).encode()
    headers = {
        "X-GitHub-Event": "pull_request",
        "X-GitHub-Delivery": delivery,
        "X-Hub-Signature-256": sign(body, WEBHOOK_SECRET),
    }
    assert httpx.post(f"{relay_url}/github/webhook", content=body, headers=headers, verify=TRUST).status_code == 202


def test_2_every_fault_of_github_at_once() -> None:
    repos = [f"{owner}/backend" for owner in FAULTS]
    with Site("L2:\n" + "".join(f"  - {repo}\n" for repo in repos), repos) as site:
        site.start_github()
        for owner, fault in FAULTS.items():
            if fault:
                site.fault(path=f"/repos/{owner}/backend/dispatches", count=1, **fault)
        relay = site.start_relay("serve", request_timeout_seconds=2, poll_interval_seconds=0.1)
        announce(relay.url, "delivery-1")
        wait_for(
            lambda: Counter(task["state"] for task in tasks(site).values()) == {"done": len(repos) - 1, "dead": 1},
            120,
            "every dispatch ended",
        )

        def asked() -> Counter[str]:
            calls = site.ledger("/repos/*/dispatches", method="POST")
            return Counter(call["repository"].partition("/")[0] for call in calls)

        wanted = {owner: 1 if owner in {"fine", "refused"} else 2 for owner in FAULTS}
        wait_for(lambda: asked() == wanted, 30, "the late answers are given, too")
        answered = Counter(call["repository"].partition("/")[0] for call in site.dispatches())
        assert answered == {owner: 1 for owner in FAULTS if owner != "refused"}, "never again once GitHub answered"
        assert {call["body"]["client_payload"]["delivery_id"] for call in site.dispatches()} == {"delivery-1"}
        found = tasks(site)
        assert "422" in found["refused"]["error"]


def test_2_a_secondary_limit_without_retry_after_waits_a_minute_and_holds_all_dispatches_back() -> None:
    """GitHub's best practices: at least a minute. It concerns every request, so the lane rests, not only the task."""
    repos = ["limited/backend", "other/backend"]
    with Site("L2: [limited/backend, other/backend]\n", repos) as site:
        site.start_github()
        limit = {"status": 403, "body": {"message": "You have exceeded a secondary rate limit."}}
        site.fault(path="/repos/limited/backend/dispatches", count=1, **limit)
        relay = site.start_relay("serve", poll_interval_seconds=0.1)
        announce(relay.url, "delivery-1")
        task = wait_for(lambda: (one := tasks(site)["limited"])["error"] and one, 60, "the limit is met")
        assert (task["state"], task["not_before"] - time.time() > 40) == ("ready", True)
        announce(relay.url, "delivery-2")
        time.sleep(1)
        assert "delivery-2" not in {call["body"]["client_payload"]["delivery_id"] for call in site.dispatches()}
        assert httpx.get(f"{relay.url}/healthz", verify=TRUST).status_code == 200
