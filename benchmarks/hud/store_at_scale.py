"""How big a store gets, how fast pages are on it, and how long results take to come in.

Makes a store of ``--backends`` × ``--runs`` runs of ``--tests`` tests with a churn of 0.5 % per run, serves it, and
measures over HTTP. Prints one JSON object.

    python benchmarks/hud/store_at_scale.py --backends 100 --runs 50 --tests 100000
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from hud_site import Site, served

from hud.core.lines import Identity
from hud.core.outcomes import CODE
from hud.core.snapshot import Note, Snapshot
from hud.seed import commit, finish, push, upload
from hud.store import Store, open_store
from hud.store.batches import batches
from hud.store.intervals import enter
from hud.store.results import number_tests
from hud.store.tables import run, snapshot

CHURN = 0.005
DTYPES = ("float32", "float16", "bfloat16", "int64", "bool", "complex64", "float64", "int32", "uint8", "int8")


def line(number: int, device: str, outcome: str = "passed") -> dict[str, Any]:
    op, dtype, kind = f"op{number // 100}", DTYPES[number % 10], number // 10 % 10
    failed = {"message": f"op{number // 100}: {number} of 1024 elements differ", "trace": "line\n" * 40}
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
        **(failed if outcome == "failed" else {}),
    }


def fill(store: Store, backends: int, runs: int, tests: int, now: float) -> None:
    chance = random.Random(1)
    fields = ("file", "class", "test", "op", "dtype")
    lines = (line(number, "d") for number in range(tests))
    identities = [Identity(row["id"].removesuffix("d"), *(row[name] for name in fields)) for row in lines]
    ids = array("I", sorted(n for batch in batches(identities, 500) for n in number_tests(store, batch)))
    codes = [CODE["passed"]] * 85 + [CODE["skipped"]] * 10 + [CODE["xfailed"]] * 4 + [CODE["failed"]]
    palette = tuple(Note(f"ops.yaml:{n}", f"reason {n}") for n in range(40))
    for number in range(backends):
        outcomes = bytearray(chance.choice(codes) for _ in range(tests))
        durations = bytes(60 + chance.randrange(30) for _ in range(tests))
        repo, device = f"example/backend-{number}", f"dev{number}"
        for at in range(runs):
            for place in chance.sample(range(tests), int(tests * CHURN)):
                outcomes[place] = chance.choice(codes)
            notes = array("H", (1 + code % 40 if code in (3, 4) else 0 for code in outcomes))
            results = Snapshot(ids, bytes(outcomes), notes, durations, palette)
            moment = now - (runs - at) * 3600.0
            payload = push(commit(f"c{at}"), commit(f"c{at - 1}"), moment)
            key = f"push-{at}"
            finish(store, moment, repo, "L2", payload, key, str(at), "failure", execution_time=900.0)
            with store.write() as connection:
                row = connection.execute(run.select().order_by(run.c.id.desc()).limit(1)).one()
                connection.execute(snapshot.insert().values(run_id=row.id, data=results.pack()))
                values = {"results": "complete", "totals": results.totals(), "revision": 2}
                connection.execute(run.update().where(run.c.id == row.id).values(**values))
                enter(connection, row.id)
        print(f"{number + 1} of {backends} backends", file=sys.stderr, flush=True)
        if number == 0:
            upload(store, now, repo, "L2", "device", "device", [line(0, device)])


def timed(site: Site, path: str, times: int = 20) -> dict[str, float]:
    took = []
    for _ in range(times):
        start = time.perf_counter()
        answer = site.http.get(path)
        took.append(1000 * (time.perf_counter() - start))
        assert answer.status_code == 200, path
    return {"first_ms": round(took[0], 1), "p50_ms": round(statistics.median(took), 1),
            "p95_ms": round(sorted(took)[int(0.95 * times)], 1)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", type=int, default=10)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tests", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "hud.db"
        store = open_store(f"sqlite:///{file}")
        start = time.perf_counter()
        with served(store) as site:
            fill(store, options.backends, options.runs, options.tests, site.clock.now)
            made = time.perf_counter() - start
            size = sum(part.stat().st_size for part in Path(folder).iterdir())
            body = gzip.compress("\n".join(json.dumps(line(n, "dev0")) for n in range(100_000)).encode(), 1)
            start = time.perf_counter()
            answer = site.upload("ingest", gzip.decompress(body), repo="example/backend-0")
            ingest = time.perf_counter() - start
            assert answer.json()["tests"] == 100_000
            key = site.get("/backend/example/backend-0")["commits"][0]["cells"][0]["run"]
            earlier = site.get("/backend/example/backend-0")["commits"][1]["cells"][0]["run"]
            name = "test_ops.py::TestOperators::test_kind_1[op3][float32]@dev0"
            pages = {
                path: timed(site, path)
                for path in ("/", "/backend/example/backend-0", f"/run/{key}", f"/run/{key}?outcome=all&q=op77",
                             f"/test?name={name}", "/matrix/example/backend-0", f"/diff?base={earlier}&head={key}",
                             "/health", "/prs")
            }  # fmt: skip
        store.close()
    runs = options.backends * options.runs
    told = {
        "runs": runs,
        "tests": options.tests,
        "bytes": size,
        "bytes_per_run": size // runs,
        "fill_seconds": round(made, 1),
        "ingest_100000_seconds": round(ingest, 2),
        "pages": pages,
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
