"""Two places never disagree: random reports, late, repeated and out of order, and every place asked for its totals."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hud_site import Site, line, pulled, pushed, report

from hud.core.outcomes import FAILING, OUTCOMES

REPOS = ("a/one", "b/two")
WORKFLOWS = ("CI", "nightly")
COMMITS = "bcde"
AT = 1_700_000_000


class Job:
    """One attempt of one job, and what it will say."""

    def __init__(self, chance: random.Random, repo: str, workflow: str, commit: str, attempt: int) -> None:
        self.repo, self.workflow, self.commit, self.attempt = repo, workflow, commit, attempt
        self.pull = commit != "b"
        self.run_id = str(1000 + COMMITS.index(commit) * 10 + WORKFLOWS.index(workflow))
        self.delivery = f"delivery {commit}"
        self.outcomes = {f"t{n}": chance.choice(OUTCOMES) for n in range(chance.randint(0, 12))}
        bad = any(outcome in FAILING for outcome in self.outcomes.values())
        self.conclusion = "failure" if bad else "success"
        self.named: dict[str, Any] = {"repo": repo, "attempt": attempt, "job": "job"}

    def payload(self) -> dict[str, Any]:
        place = COMMITS.index(self.commit)
        return pulled(self.commit, at=AT + place) if self.pull else pushed("b", at=AT)

    def messages(self) -> list[Any]:
        start = ("report", report(self.payload(), self.delivery, self.run_id, workflow=self.workflow, **self.named))
        counts = {kind: list(self.outcomes.values()).count(kind) for kind in ("passed", "failed", "skipped")}
        said = {"status": "completed", "conclusion": self.conclusion, "test_results": counts}
        end = (
            "report",
            report(self.payload(), self.delivery, self.run_id, workflow=self.workflow, **said, **self.named),
        )
        # A job that ran no test uploads nothing: `relay report` sends no empty file, and HUD refuses one.
        return [start, end, ("results", self)] if self.outcomes else [start, end]

    def totals(self) -> dict[str, int]:
        return {outcome: list(self.outcomes.values()).count(outcome) for outcome in OUTCOMES}


def feed(site: Site, chance: random.Random) -> list[Job]:
    jobs = [
        Job(chance, repo, workflow, commit, attempt)
        for repo in REPOS
        for workflow in WORKFLOWS
        for commit in COMMITS
        if chance.random() < 0.8
        for attempt in range(1, chance.randint(1, 2) + 1)
    ]
    messages = [message for job in jobs for message in job.messages()]
    messages += chance.sample(messages, len(messages) // 3)
    chance.shuffle(messages)
    for kind, content in messages:
        if kind == "report":
            answer = site.post(content)
        else:
            lines = [line(name, outcome) for name, outcome in content.outcomes.items()]
            answer = site.upload(content.delivery, lines, content.run_id, **content.named)
        assert answer.status_code == 200, answer.text
    return jobs


def summed(jobs: list[Job]) -> dict[str, int]:
    return {outcome: sum(job.totals()[outcome] for job in jobs) for outcome in OUTCOMES}


def latest(jobs: list[Job], **wanted: Any) -> list[Job]:
    """The attempts that count, of the jobs with these properties."""
    found: dict[tuple[str, str, str], Job] = {}
    for job in jobs:
        if all(getattr(job, name) == value for name, value in wanted.items()):
            key = (job.repo, job.workflow, job.commit)
            if key not in found or found[key].attempt < job.attempt:
                found[key] = job
    return list(found.values())


@pytest.mark.parametrize("seed", range(3))
def test_every_place_gives_the_same_totals_and_nothing_is_lost(site: Site, seed: int) -> None:
    jobs = feed(site, random.Random(seed))
    for job in jobs:
        key = site.report(job.payload(), job.delivery, job.run_id, workflow=job.workflow, **job.named)
        shown = site.get(f"/runs/{key}", outcome="all")
        assert shown["totals"] == job.totals() and shown["matching"] == len(job.outcomes)
        assert sum(shown["totals"].values()) == shown["tests"] == len(job.outcomes)
    for commit in {job.commit for job in jobs if job.pull}:
        page = site.get(f"/pr/7/{commit * 40}")
        for row in page["backends"]:
            mine = latest(jobs, repo=row["repo"], commit=commit)
            assert row["totals"] == summed(mine)
            assert row["counted"] == row["passed"] + sum(row["totals"][outcome] for outcome in FAILING)
            for job in row["jobs"]:
                (one,) = [found for found in mine if found.workflow == job["workflow"]]
                assert job["totals"] == one.totals()
                failing = sum(job["totals"][outcome] for outcome in FAILING)
                told = [*job["new_failures"], *job["already_failing"], *job["uncertain"]]
                flaky_failing = failing - len(told)
                assert 0 <= flaky_failing <= len(job["flaky"])
            if row["counted"]:
                assert f"{row['passed']:,}/{row['counted']:,}" in site.text(f"/pr/7/{commit * 40}")
    pulls = site.get("/prs")["prs"]
    if pulls:
        page = site.get("/pr/7")
        assert pulls[0]["verdict"] == page["verdict"] and pulls[0]["sentence"] == page["sentence"]
        assert page["verdict"] in site.http.get("/badge/pr/7.svg").text.replace("&#39;", "'")
        assert page["verdict"] in re.search("<title>(.*?)</title>", site.page("/pr/7"))[1].replace("&#39;", "'")
    for row in site.get("/backends")["backends"]:
        mine = latest(jobs, repo=row["repo"], commit="b")
        page = site.get(f"/backend/{row['repo']}")
        assert page["summary"] == row
        if mine:
            assert row["totals"] == summed(mine)
            assert row["failing"] == sum(row["totals"][outcome] for outcome in FAILING)
            cells = [cell for cell in page["commits"][0]["cells"] if cell]
            assert sum(cell["passed"] for cell in cells) == row["passed"]
            if row["counted"]:
                assert f" {row['passed']}/{row['counted']}" in site.http.get(f"/badge/{row['repo']}.svg").text
