"""``conformance diff`` on a laptop and the verdict on the page name the same tests."""

import random

import pytest
from hud_site import pulled, pushed, served

from conformance.reports.accounts import OUTCOMES, Accounts, Attempt, Planned
from conformance.reports.diff import diff
from hud.store import open_store

FIELDS = {
    "newly_failing": "newly failing",
    "still_failing": "still failing",
    "fixed": "fixed",
    "missing": "missing",
    "newly_skipped": "newly skipped",
    "appeared": "appeared",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('hud')}/hud.db")
    with served(store) as opened:
        yield opened
    store.close()


def accounts(outcomes):
    made = Accounts()
    for name, outcome in outcomes.items():
        made.plan(Planned(name))
        made.record(Attempt(name, outcome))
    return made


def stored(site, payload, delivery, run_id, results):
    """The run's key, once HUD has what ``conformance run`` writes of it."""
    site.report(payload, delivery, run_id)
    key = site.report(payload, delivery, run_id, status="completed", conclusion="success")
    assert site.upload(delivery, results.lines(), run_id).status_code == 200
    return key


@pytest.mark.parametrize("seed", range(6))
def test_C30_the_same_answer_as_hud(site, seed):
    chance = random.Random(seed)
    names = [
        f"test/test_ops.py::TestOps::test_out[{op}][{dtype}]@spyre"
        for op in ("add", "mul", "sub", "div")
        for dtype in ("float16", "float32", "int64")
    ]
    base = accounts({name: chance.choice(OUTCOMES) for name in names if chance.random() < 0.9})
    # An even seed runs nearly everything, an odd one a selection.
    share = 0.97 if seed % 2 == 0 else 0.5
    head = accounts({name: chance.choice(OUTCOMES) for name in names if chance.random() < share})
    site.reset()
    keys = [
        stored(site, pushed("b"), "delivery b", "100", base),
        stored(site, pulled("c", "b"), "delivery c", "101", head),
    ]
    said = site.get("/diff", base=keys[0], head=keys[1])
    found = diff(base, head)
    theirs = {group["kind"]: sorted(group["names"]) for group in said["groups"]}
    assert {FIELDS[field]: list(getattr(found, field)) for field in FIELDS} == {
        kind: theirs.get(kind, []) for kind in FIELDS.values()
    }
    assert found.narrowed == said["narrowed"]
