"""Spec 2: units of work that wait share a transaction, and none of them pays for another."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from relay_parts import Minter, Peer, Running, dispatch_of
from relay_site import TRUST, pull_request, report, wait_for
from sqlalchemy import Connection, event, text

from relay.store.database import Batches, Database, StoreUnavailable


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    made.call(
        lambda connection: connection.execute(text("CREATE TABLE numbers (n INTEGER PRIMARY KEY CHECK (n < 99))"))
    )
    yield made
    made.close()


def add(connection: Connection, numbers: list[int]) -> list[int]:
    """Store numbers in one statement; gives how many came together."""
    connection.execute(text("INSERT INTO numbers VALUES (:n)"), [{"n": number} for number in numbers])
    return [len(numbers)] * len(numbers)


def stored(database: Database) -> list[int]:
    return database.call(lambda connection: list(connection.scalars(text("SELECT n FROM numbers ORDER BY n"))))


async def together(batches: Batches[int, int], numbers: list[int]) -> list[int | BaseException]:
    return await asyncio.gather(*map(batches.run, numbers), return_exceptions=True)


def test_units_that_wait_share_a_transaction(database: Database) -> None:
    sizes = asyncio.run(together(Batches(database, add), list(range(50))))
    assert sizes == [50] * 50
    assert stored(database) == list(range(50))


def test_a_unit_that_the_database_cannot_take_does_not_take_the_others_along(database: Database) -> None:
    first, refused, last = asyncio.run(together(Batches(database, add), [1, 100, 2]))
    assert (first, last) == (1, 1)
    assert isinstance(refused, StoreUnavailable)
    assert stored(database) == [1, 2]


def test_units_of_one_key_see_each_other_in_order(database: Database) -> None:
    batches = Batches(database, add, key=lambda number: number % 2)
    assert asyncio.run(together(batches, [1, 2, 3, 4, 5])) == [2, 2, 2, 2, 1]


def test_an_outage_is_tried_once_for_all(database: Database) -> None:
    tries = []

    def fail(connection: Connection, numbers: list[int]) -> list[int]:
        tries.append(len(numbers))
        raise StoreUnavailable("away")

    answers = asyncio.run(together(Batches(database, fail), list(range(5))))
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 5
    assert tries == [5], "a caller waits for one time-out, not for everybody's"


def test_callbacks_at_once_are_decided_one_by_one(relay: Running, peer: Peer, mint: Minter) -> None:
    """Accepted, repeated and refused ones in the same batches; the statements are far fewer than the callbacks."""
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org2/repo2")
    token = mint.token("org2/repo2")
    good = [report(payload, "completed", job_name=str(number)) for number in range(60)]
    again = good[:20]
    bad = [report({**payload, "delivery_id": f"other-{number}"}, "completed") for number in range(20)]
    statements: list[str] = []
    event.listen(relay.database.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))

    async def all_of_them() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(verify=TRUST, timeout=30, limits=httpx.Limits(max_connections=None)) as http:

            async def say(body: dict[str, Any]) -> dict[str, Any]:
                headers = {"Authorization": f"Bearer {token}"}
                answer = await http.post(f"{relay.url}/github/callback", content=json.dumps(body), headers=headers)
                return {"code": answer.status_code, **answer.json()}

            return await asyncio.gather(*map(say, [*good, *again, *bad]))

    answers = asyncio.run(all_of_them())
    accepted, repeated, refused = answers[:60], answers[60:80], answers[80:]
    assert {answer["code"] for answer in refused} == {400}
    assert {answer["code"] for answer in accepted + repeated} == {200}
    # Of a job's two equal reports either may be first.
    assert Counter(answer["status"] for answer in accepted + repeated) == {"completed": 60, "duplicate": 20}
    wait_for(lambda: len(peer.hud_rows) == 60)
    looked_up = [statement for statement in statements if "FROM dispatches" in statement]
    assert len(looked_up) < 50, "100 callbacks share their statements"
