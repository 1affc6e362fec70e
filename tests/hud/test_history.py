"""The history of tests on the base branch: stored stretches tell what the runs told, in whatever order they came."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from typing import Any

import pytest
import sqlalchemy as sa
from hud_site import REPO, Site, line, name_of, pulled, pushed, sha

from hud.seed import finish, push, upload
from hud.store import Store
from hud.store.prune import prune
from hud.store.tables import run, snapshot

COMMITS = "123456789abcdef"
AT = 1_700_000_000


def push_of(commit: str) -> dict[str, Any]:
    place = COMMITS.index(commit)
    return pushed(commit, COMMITS[place - 1] if place else "0", AT + 1000 * place)


def told(site: Site, names: Iterable[str]) -> dict[str, list[tuple[str, str, str | None]]]:
    """By test: outcome, first commit, commit where it ended; in the order of commits."""
    found: dict[str, list[tuple[str, str, str | None]]] = {}
    for name in names:
        for lane in site.get("/test", name=name_of(name))["lanes"]:
            stretches = [(span["outcome"], span["first_sha"], span["until_sha"]) for span in reversed(lane["spans"])]
            found[name] = [(outcome, first[0], until and until[0]) for outcome, first, until in stretches]
    return found


def expected(runs: dict[str, dict[str, str]]) -> dict[str, list[tuple[str, str, str | None]]]:
    """The same from the runs themselves, without any cleverness."""
    found: dict[str, list[tuple[str, str, str | None]]] = {}
    for name in {name for outcomes in runs.values() for name in outcomes}:
        current: tuple[str, str] | None = None
        for commit in sorted(runs):
            outcome = runs[commit].get(name)
            if current is not None and outcome != current[0]:
                found.setdefault(name, []).append((*current, commit))
                current = None
            if current is None and outcome is not None:
                current = (outcome, commit)
        if current is not None:
            found.setdefault(name, []).append((*current, None))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_history_is_what_the_runs_told_in_whatever_order_they_arrive(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    names = [f"t{n}" for n in range(6)]
    runs: dict[str, dict[str, str]] = {}
    arrivals = list(COMMITS[:6])
    chance.shuffle(arrivals)
    for commit in arrivals + chance.sample(arrivals, 2):
        outcomes = {name: chance.choice(["passed", "failed", "skipped"]) for name in chance.sample(names, 4)}
        if commit in runs:
            lines = [line(name, outcome) for name, outcome in outcomes.items()]
            assert site.upload(f"push {commit}", lines, commit).status_code == 200
        else:
            site.run(push_of(commit), f"push {commit}", outcomes, commit, conclusion="success")
        runs[commit] = outcomes
        site.run(pulled("f", commit), f"pull {commit}", {"t0": "failed", "other": "failed"}, "7" + commit)
        assert told(site, names) == expected(runs)


def test_the_page_says_since_when_and_where(site: Site) -> None:
    for commit, outcome in (("1", "passed"), ("2", "failed"), ("3", "failed")):
        site.run(push_of(commit), f"push {commit}", {"a": outcome, "b": "passed"}, commit)
    site.run(push_of("1"), "push 1", {"a": "passed"}, "1", repo="other/backend")
    site.run(pulled("c", "3"), "d1", {"a": "failed"}, "9")
    shown = site.get("/test", name=name_of("a"))
    lanes = {lane["repo"]: lane for lane in shown["lanes"]}
    assert lanes[REPO]["outcome"] == "failed" and lanes[REPO]["since"]["first_sha"] == sha("2")
    assert [span["outcome"] for span in lanes[REPO]["spans"]] == ["failed", "passed"]
    assert lanes["other/backend"]["outcome"] == "passed"
    assert [found["pr"] for found in shown["failures"]] == [7, None, None]
    page = site.page("/test", name=name_of("a"))
    assert sha("2")[:7] in page and "PR #7" in page


def test_a_test_that_went_away_is_not_there(site: Site) -> None:
    site.run(push_of("1"), "push 1", {"a": "passed", "b": "passed"}, "1")
    site.run(push_of("2"), "push 2", {"b": "passed"}, "2")
    (lane,) = site.get("/test", name=name_of("a"))["lanes"]
    assert lane["outcome"] is None and lane["spans"][0]["until_sha"] == sha("2")


def test_an_unknown_test_offers_names_that_contain_it(site: Site) -> None:
    site.run(push_of("1"), "push 1", {"conv2d[float32]": "passed"}, "1")
    answer = site.http.get("/api/v1/test", params={"name": "conv2d"})
    assert answer.json()["known"] is False and len(answer.json()["suggestions"]) == 1
    assert site.http.get("/test", params={"name": "conv2d"}).status_code == 404


def test_two_runs_are_compared(site: Site) -> None:
    base = site.run(push_of("1"), "push 1", {"a": "passed", "b": "failed", "c": "passed", "d": "passed"}, "1")
    head = site.run(push_of("2"), "push 2", {"a": "failed", "b": "passed", "c": "skipped", "e": "passed"}, "2")
    groups = {group["kind"]: group["names"] for group in site.get("/diff", base=base, head=head)["groups"]}
    assert groups == {
        "newly failing": [name_of("a")],
        "still failing": [],
        "missing": [],
        "newly skipped": [name_of("c")],
        "fixed": [name_of("b")],
        "appeared": [name_of("e")],
    }
    assert name_of("a") in site.page("/diff", base=base, head=head)
    assert site.http.get("/diff", params={"base": base, "head": "nothing"}).status_code == 404


def test_the_feed_tells_what_broke_and_what_was_fixed(site: Site) -> None:
    site.run(push_of("1"), "push 1", {"a": "passed", "b": "failed"}, "1")
    assert site.get("/feed")["events"] == []
    site.run(push_of("2"), "push 2", {"a": "failed", "b": "passed"}, "2")
    (event,) = site.get("/feed")["events"]
    assert (event["broken"], event["fixed"]) == ([name_of("a")], [name_of("b")])
    assert "1 newly failing, 1 fixed at 2222222" in site.page("/feed.atom")


def test_operators_by_dtypes(site: Site) -> None:
    outcomes = {
        "add[float32]": "passed",
        "add[int64]": "failed",
        "mul[float32]": "skipped",
        "mul[int64]": "passed",
    }
    site.run(push_of("1"), "push 1", outcomes, "1")
    site.run(pulled("c", "1"), "d1", {"add[float32]": "failed"}, "9")
    shown = site.get(f"/matrix/{REPO}")
    states = {row["op"]: {dtype: cell["state"] for dtype, cell in row["cells"].items()} for row in shown["rows"]}
    assert states == {
        "add": {"float32": "passing", "int64": "failing"},
        "mul": {"float32": "skipped", "int64": "passing"},
    }
    assert shown["dtypes"] == ["float32", "int64"]
    assert [row["op"] for row in site.get(f"/matrix/{REPO}", state="failing")["rows"]] == ["add"]
    assert [row["op"] for row in site.get(f"/matrix/{REPO}", q="mu")["rows"]] == ["mul"]


def test_a_matrix_of_many_operators_has_pages(sqlite_site: Site) -> None:
    outcomes = {f"op{number:03}[float32]": "failed" if number == 7 else "passed" for number in range(150)}
    sqlite_site.run(push_of("1"), "push 1", outcomes, "1")
    first, second = (sqlite_site.get(f"/matrix/{REPO}", page=page) for page in (1, 2))
    assert (first["operators"], first["matching"], first["pages"]) == (150, 150, 2)
    assert [row["op"] for row in first["rows"] + second["rows"]] == [f"op{number:03}" for number in range(150)]
    assert first["states"] == {"passing": 149, "failing": 1}
    assert "page 2 of 2" in sqlite_site.page(f"/matrix/{REPO}", page=2)
    assert sqlite_site.get(f"/matrix/{REPO}", state="failing")["matching"] == 1


def test_pruning_keeps_since_when_a_test_fails_and_how_things_stand(site: Site) -> None:
    start = site.clock.now
    for day, commit in enumerate(COMMITS[:8]):
        site.clock.now = start + day * 86_400
        outcomes = {"a": "passed" if day < 2 else "failed", "b": "passed", "c": "failed" if day == 1 else "passed"}
        site.run(push_of(commit), f"push {commit}", outcomes, commit)
        site.run(pulled(commit, commit, number=day + 1), f"pull {commit}", {"a": "failed"}, "7" + commit)
    before, stretches = site.get("/test", name=name_of("a"))["lanes"][0]["since"], told(site, "abc")
    prune(site.store, start + 3.5 * 86_400)
    done = prune(site.store, start + 5.5 * 86_400)
    assert done.runs > 0 and done.results == 4
    for name, left in told(site, "abc").items():
        # What ended in a run that is gone is gone too; what lasts is told as before.
        assert left == stretches[name][-len(left) :] and left[-1][2] is None
        assert [ended for _, _, ended in left if ended is not None and ended in COMMITS[:2]] == []
    (lane,) = site.get("/test", name=name_of("a"))["lanes"]
    assert lane["since"] == before and lane["outcome"] == "failed"
    assert site.get(f"/backend/{REPO}")["summary"]["failing"] == 1
    assert [pull["number"] for pull in site.get("/prs")["prs"]] == [8, 7]
    site.clock.now += 86_400
    site.run(push_of("9"), "push 9", {"a": "passed", "b": "passed", "c": "passed"}, "9")
    assert site.get("/test", name=name_of("a"))["lanes"][0]["since"]["first_sha"] == sha("9")
    late = site.run({**push_of("4"), "after": sha("d")}, "late", {"a": "passed"}, "99")
    assert site.get(f"/runs/{late}")["totals"]["passed"] == 1
    for path in ("/", "/health", f"/backend/{REPO}", f"/test?name={name_of('a')}", "/prs"):
        site.page(path)
    with site.store.read() as connection:
        orphans = sa.select(snapshot.c.run_id).where(snapshot.c.run_id.not_in(sa.select(run.c.id)))
        assert connection.execute(orphans).first() is None


def test_the_latest_results_of_a_job_are_never_pruned(site: Site) -> None:
    site.run(push_of("1"), "push 1", {"a": "failed"}, "1")
    prune(site.store, site.clock.now + 1e9)
    assert site.get(f"/backend/{REPO}")["summary"]["failing"] == 1
    assert site.get("/test", name=name_of("a"))["lanes"][0]["outcome"] == "failed"


def test_results_that_were_pruned_are_said_to_be(site: Site) -> None:
    key = site.run(pushed("b"), "p1", {"a": "passed"}, "1")
    site.clock.now += 60
    silent = site.report(pulled("c"), "d1")
    site.run(pushed("c", "b"), "p2", {"a": "failed"}, "2")
    prune(site.store, site.clock.now)
    for name, status, why in ((key, 410, "they were pruned"), (silent, 404, "none were sent in"), ("x", 404, "No run")):
        answer = site.http.get(f"/api/v1/runs/{name}/tests.jsonl")
        assert answer.status_code == status and why in answer.json()["error"]


def test_prune_and_uploads_do_not_disturb_each_other(store: Store) -> None:
    """An upload's words and its run are numbered before they are referred to; meanwhile nothing refers to them."""
    now, stop, broken = 1_700_000_000.0, threading.Event(), list[BaseException]()

    def forget() -> None:
        try:
            while not stop.is_set():
                prune(store, now - 100)
        except BaseException as error:  # whatever it is, the test says it
            broken.append(error)

    pruning = threading.Thread(target=forget)
    pruning.start()
    payload = push("b" * 40, "a" * 40, now)
    try:
        for number in range(30):
            lines = [line(f"t{place}", "failed", message=f"m{place}") for place in range(20)]
            upload(store, now, "a/b", "L2", "d", "1", lines if number % 2 else [line("t0")])
            finish(store, now, "a/b", "L2", payload, "d", "1", "failure")
    finally:
        stop.set()
        pruning.join()
    assert broken == []


def test_the_page_of_a_test_says_what_was_before_without_what_is_now(sqlite_site: Site) -> None:
    for job in ("one", "two"):
        sqlite_site.run(push_of("1"), "p1", {"a": "failed", "b": "passed"}, "1", job=job)
        sqlite_site.run(push_of("2"), "p2", {"a": "passed", "b": "passed"}, "2", job=job)
    assert sqlite_site.text("/test", name=name_of("b")).count("nothing else") == 2
    assert sqlite_site.text("/test", name=name_of("a")).count("failed from 1111111 until 2222222") == 2
