"""The verdict on a pull request from real reports, on both databases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hud_site import REPO, Site, line, name_of, pulled, pushed, served, sha

BASE = {"a": "passed", "b": "passed", "c": "failed"}


def the_base(site: Site, commit: str = "b", outcomes: dict[str, str] | None = None, **more) -> str:
    at = 1_700_000_000 + 100 * ord(commit)
    before = more.pop("before", "0")
    return site.run(pushed(commit, before, at), f"push {commit}", outcomes or BASE, more.pop("run_id", "10"), **more)


def backend(site: Site, number: int = 7, repo: str = REPO) -> dict:
    return next(row for row in site.get(f"/pr/{number}")["backends"] if row["repo"] == repo)


def test_a_test_that_passes_on_the_base_and_fails_here_is_this_prs(site: Site) -> None:
    the_base(site)
    site.run(pulled("c"), "d1", {"a": "failed", "b": "passed", "c": "failed"})
    row = backend(site)
    assert row["verdict"] == "broken by this PR"
    assert row["new_failures"] == [name_of("a")] and row["already_failing"] == [name_of("c")]
    page = site.page("/pr/7")
    assert "Broken by this PR on 1 of 1 backend – 1 new failing test" in page
    assert "<title>broken by this PR · PR #7" in page


def test_a_test_that_fails_on_the_cpu_too_is_said_not_to_be_the_backends_fault(site: Site) -> None:
    the_base(site)
    key = site.report(pulled("c"), "d1", status="completed", conclusion="failure")
    tests = [("a", "failed", "failed"), ("b", "failed", "passed"), ("c", "crashed", "not_there")]
    first = [line(name, "failed") for name, _, _ in tests]
    again = [line(name, outcome, attempt=2, cpu_outcome=there) for name, outcome, there in tests]
    assert site.upload("d1", first + again).status_code == 200
    row = backend(site)
    assert (row["verdict"], row["new_failures"]) == ("broken by this PR", [name_of("a"), name_of("b")])
    assert row["why"] == "2 new failing tests, 1 of which fails on the CPU too"
    assert (row["on_cpu"], row["counts"]["on_cpu"], row["counts"]["new_on_cpu"]) == ([name_of("a")], 1, 1)
    shown = {found["name"]: found for found in site.get(f"/runs/{key}", outcome="failing")["rows"]}
    assert [shown[name_of(name)]["cpu_outcome"] for name in "abc"] == ["failed", "passed", "not_there"]
    assert [shown[name_of(name)]["on_cpu"] for name in "abc"] == [True, False, False]
    page = site.page("/pr/7")
    assert "2 new failing tests, 1 of which fails on the CPU too</a></strong>" in page
    assert page.count('class="cpu"') == 1
    run = site.page(f"/run/{key}", outcome="failing")
    assert run.count('class="cpu"') == run.count("passes on the CPU") == run.count("not on the CPU") == 1
    again = [json.loads(text) for text in site.http.get(f"/api/v1/runs/{key}/tests.jsonl").text.splitlines()]
    assert [found["cpu_outcome"] for found in again] == ["failed", "passed", "not_there"]


def test_a_long_list_is_cut_and_counted(site: Site) -> None:
    names = [f"t{number}" for number in range(130)]
    # Ten of them pass on the base; the others are new tests, which are counted once all the same.
    site.run(pushed("b"), "base", dict.fromkeys(names[:10], "passed") | {f"k{n}": "failed" for n in range(30)}, "1")
    broken = dict.fromkeys(names, "failed") | {f"k{n}": "failed" for n in range(30)}
    site.run(pulled("c"), "d1", broken, "2")
    page = site.get("/pr/7")
    (row,) = page["backends"]
    (job,) = row["jobs"]
    assert "130 new failing tests" in page["sentence"]
    assert (row["counts"]["new_failures"], row["counts"]["already_failing"]) == (130, 30)
    assert (len(job["new_failures"]), len(job["already_failing"]), job["more"]) == (100, 20, 40)
    assert site.get(f"/runs/{job['run']}", outcome="new")["matching"] == 130
    text = site.text("/pr/7")
    assert "(130)" in text and "(30)" in text and "40 more names are left out" in text


def test_what_fails_on_the_base_too_is_not_this_prs_fault(site: Site) -> None:
    the_base(site)
    site.run(pulled("c"), "d1", BASE)
    assert backend(site)["verdict"] == "not this PR's fault"


def test_fixed_and_missing_are_told(site: Site) -> None:
    the_base(site)
    site.run(pulled("c"), "d1", {"a": "passed", "c": "passed"})
    row = backend(site)
    assert (row["verdict"], row["fixed"]) == ("passed", [name_of("c")])
    whole = {f"t{n}": "passed" for n in range(20)}
    the_base(site, "d", whole)
    site.run(pulled("e", "d", number=8), "d2", {name: whole[name] for name in list(whole)[1:]})
    assert backend(site, 8)["missing"] == [name_of("t0")]


def test_a_selection_is_not_a_loss(site: Site) -> None:
    the_base(site, outcomes={f"op{n}[{dtype}]": "passed" for n in range(10) for dtype in ("float32", "int64")})
    site.run(pulled("c"), "d1", {"op3[float32]": "passed"})
    row = backend(site)
    assert row["jobs"][0]["narrowed"] and row["missing"] == [name_of("op3[int64]")]
    assert row["verdict"] == "passed"


def test_a_failing_test_that_the_base_does_not_have_is_this_prs(site: Site) -> None:
    the_base(site)
    site.run(pulled("c"), "d1", {**BASE, "new": "failed"})
    row = backend(site)
    assert row["new_failures"] == [name_of("new")] and row["jobs"][0]["added"] == [name_of("new")]
    assert "does not have: added or renamed" in site.text("/pr/7")


def test_expected_outcomes_are_no_failures(site: Site) -> None:
    the_base(site)
    site.run(pulled("c"), "d1", {"a": "xfailed", "b": "skipped", "c": "xpassed", "d": "not_applicable"})
    assert backend(site)["verdict"] == "passed"


def test_without_any_base_result_a_failure_is_unclear(site: Site) -> None:
    site.run(pulled("c"), "d1", {"a": "failed"})
    row = backend(site)
    assert row["verdict"] == "unclear" and row["uncertain"] == [name_of("a")] and row["jobs"][0]["base"] is None


@pytest.mark.parametrize("state", ["nothing", "running", "cancelled", "no tests"])
def test_the_nearest_earlier_commit_with_results_stands_in_and_is_named(site: Site, state: str) -> None:
    for commit, before in (("1", "0"), ("2", "1"), ("3", "2")):
        the_base(site, commit, {"a": "passed" if commit == "2" else "failed"}, before=before)
    at = 1_700_000_000 + 100 * ord("4")
    if state == "nothing":
        other = {"repo": "other/backend"}
        site.run(pushed("4", "3", at), "push 4", {"a": "passed"}, "44", **other)
    elif state == "running":
        site.report(pushed("4", "3", at), "push 4", "44")
    else:
        site.run(pushed("4", "3", at), "push 4", None, "44", "cancelled" if state == "cancelled" else "success")
    site.run(pulled("c", "4"), "d1", {"a": "failed"})
    row = backend(site)
    assert row["verdict"] == "not this PR's fault"
    base = row["jobs"][0]["base"]
    assert (base["sha"], base["asked"]) == (sha("3"), sha("4"))
    assert "the nearest commit before the base" in site.page("/pr/7")


def test_a_later_commit_of_the_branch_is_never_the_base(site: Site) -> None:
    site.report(pushed("1", "0", 1_700_000_100), "push 1", repo="other/backend")
    the_base(site, "2", {"a": "passed"}, before="1")
    site.run(pulled("c", "1"), "d1", {"a": "failed"})
    assert backend(site)["verdict"] == "unclear"


def test_commits_within_one_push_have_an_order(site: Site) -> None:
    payload = pushed("3", "0", 1_700_000_000)
    payload["commits"] = [{"id": sha("1")}, {"id": sha("2")}, {"id": sha("3")}]
    site.report(payload, "push 3", "9", repo="other/backend")
    nightly = {"repository": {"full_name": "pytorch/pytorch"}, "sha": sha("1")}
    site.run(nightly, sha("1"), {"a": "passed"}, "5", event="nightly")
    site.run(pulled("c", "2"), "d1", {"a": "failed"})
    row = backend(site)
    assert row["verdict"] == "broken by this PR" and row["jobs"][0]["base"]["sha"] == sha("1")


def test_a_rebase_changes_the_base(site: Site) -> None:
    the_base(site, "1", {"a": "passed"})
    the_base(site, "2", {"a": "failed"}, before="1")
    site.run(pulled("c", "1", at=1_700_001_000), "d1", {"a": "failed"})
    assert backend(site)["verdict"] == "broken by this PR"
    site.run(pulled("d", "2", at=1_700_002_000), "d2", {"a": "failed"}, "101")
    assert backend(site)["verdict"] == "not this PR's fault"
    assert site.get(f"/pr/7/{sha('c')}")["verdict"] == "broken by this PR"


def test_pushes_never_mix_and_the_latest_is_shown_whatever_arrives_last(site: Site) -> None:
    the_base(site)
    site.run(pulled("d", at=1_700_002_000), "d2", BASE, "101")
    site.run(pulled("c", at=1_700_001_000), "d1", {"a": "failed"}, "100")
    shown = site.get("/pr/7")
    assert (shown["sha"], shown["push"], len(shown["pushes"])) == (sha("d"), 2, 2)
    assert shown["verdict"] == "not this PR's fault"
    old = site.page(f"/pr/7/{sha('c')}")
    assert "A newer commit was pushed" in old and "Broken by this PR" in old


def test_the_latest_attempt_counts_and_a_rescue_is_flaky(site: Site) -> None:
    the_base(site)
    site.run(pulled("c"), "d1", {"a": "failed", "b": "passed"})
    site.run(pulled("c"), "d1", {"a": "passed", "b": "passed"}, attempt=2)
    row = backend(site)
    assert (row["verdict"], row["flaky"], row["totals"]["failed"]) == ("flaky", [name_of("a")], 0)
    attempts = row["jobs"][0]["attempts"]
    assert [attempt["attempt"] for attempt in attempts] == [1, 2]
    first = site.get(f"/runs/{attempts[0]['run']}", outcome="failing")
    assert [found["name"] for found in first["rows"]] == [name_of("a")]


def test_attempts_are_ordered_by_number_not_by_arrival(site: Site) -> None:
    the_base(site)
    site.run(pulled("c"), "d1", {"a": "passed"}, attempt=2)
    site.run(pulled("c"), "d1", {"a": "failed"}, attempt=1)
    assert backend(site)["totals"]["failed"] == 0


def test_two_workflows_with_an_equally_named_job_stay_apart(site: Site) -> None:
    the_base(site, workflow="one")
    the_base(site, workflow="two", run_id="11", outcomes={"a": "failed"})
    site.run(pulled("c"), "d1", {"a": "failed"}, "100", workflow="one")
    site.run(pulled("c"), "d1", {"a": "failed"}, "101", workflow="two")
    row = backend(site)
    assert {job["workflow"]: job["verdict"] for job in row["jobs"]} == {
        "one": "broken by this PR",
        "two": "not this PR's fault",
    }
    assert row["verdict"] == "broken by this PR" and row["totals"]["failed"] == 2


def test_a_running_job_says_how_long_and_how_long_it_usually_takes(site: Site) -> None:
    the_base(site)
    site.report(pulled("c"), "d1")
    site.clock.now += 720
    page = site.text("/pr/7")
    assert "for 12 min (usually 60 s)" in page and backend(site)["verdict"] == "running"


def test_a_job_that_never_ends_is_stuck_and_counts_as_infra(site: Site) -> None:
    site.report(pulled("c"), "d1")
    site.clock.now += 6 * 3600 + 1
    assert backend(site)["verdict"] == "infra"
    assert len(site.get("/health")["backends"][0]["stuck"]) == 1


def test_success_with_failed_tests_is_shown_as_inconsistent(site: Site) -> None:
    the_base(site)
    site.run(pulled("c"), "d1", {"a": "failed"}, conclusion="success")
    row = backend(site)
    assert row["inconsistent"] and row["verdict"] == "broken by this PR"
    assert "inconsistent" in site.page("/pr/7")


@pytest.mark.parametrize(
    ("counts", "names", "verdict"),
    [
        ({"passed": 3, "failed": 1}, ["a"], "broken by this PR"),
        ({"passed": 3, "failed": 1}, ["c"], "not this PR's fault"),
        ({"passed": 3, "failed": 2}, [], "not this PR's fault"),
    ],
)
def test_without_per_test_results_the_reports_list_is_compared(site: Site, counts, names, verdict: str) -> None:
    the_base(site)
    detail = [{"name": name_of(name)} for name in names]
    site.run(pulled("c"), "d1", None, conclusion="failure", test_results=counts, failed_tests_detail=detail)
    row = backend(site)
    assert row["verdict"] == verdict and row["counted"] == sum(counts.values())


def test_two_reports_without_any_per_test_results_are_compared(site: Site) -> None:
    site.run(pushed("b"), "p", None, "9", "failure", test_results={"passed": 1, "failed": 1},
             failed_tests_detail=[{"name": "x"}])  # fmt: skip
    site.run(pulled("c"), "d1", None, "10", "failure", test_results={"passed": 0, "failed": 2},
             failed_tests_detail=[{"name": "x"}, {"name": "y"}])  # fmt: skip
    row = backend(site)
    assert (row["new_failures"], row["already_failing"]) == (["y"], ["x"])


def test_zero_tests_and_only_skipped_tests_pass_with_the_denominator_shown(site: Site) -> None:
    site.run(pulled("c"), "d1", None)  # a run of no test has nothing to upload
    assert backend(site)["verdict"] == "passed" and "no per-test results" in site.page("/pr/7")
    site.run(pulled("d", number=8), "d2", {"a": "skipped"}, "101")
    row = backend(site, 8)
    assert (row["verdict"], row["counted"], row["totals"]["skipped"]) == ("passed", 0, 1)


@pytest.mark.parametrize(("level", "blocks"), [("L1", False), ("L2", False), ("L3", False), ("L4", True)])
def test_levels(site: Site, level: str, blocks: bool) -> None:
    site.run(pulled("c"), "d1", {"a": "passed"}, level=level)
    row = backend(site)
    assert (row["level"], row["blocks_merge"]) == (level, blocks)
    assert ("blocks merge" in site.page("/pr/7")) == blocks


def test_a_closed_pull_requests_own_run_does_not_hide_the_result(site: Site) -> None:
    the_base(site)
    site.run(pulled("c"), "d1", {"a": "failed"})
    closed = pulled("c", at=1_700_009_000, action="closed")
    closed["pull_request"].update(state="closed", merged=True)
    site.run(closed, "d2", None, "999", "cancelled")
    shown = site.get("/pr/7")
    assert (shown["state"], shown["verdict"]) == ("merged", "broken by this PR")


def test_the_same_number_of_another_upstream_is_another_pull_request(site: Site) -> None:
    site.run(pulled("c"), "d1", {"a": "passed"})
    other = pulled("d")
    other["repository"]["full_name"] = "pytorch/vision"
    site.run(other, "d2", {"a": "failed"}, "101")
    assert site.get("/pr/7")["upstream"] == "pytorch/vision"
    assert site.get("/pr/7", upstream="PyTorch/PyTorch")["verdict"] == "passed"


def test_backends_of_the_allowlist_that_are_silent_are_shown(store, tmp_path: Path) -> None:
    file = tmp_path / "allowlist.yaml"
    file.write_text(
        f"L1: [quiet/one]\nL2:\n  - {REPO}\n  - silent/two: [oncall]\n"
        "L3:\n  spyre:\n    silent/three: [someone]\nL4: [Example/Four]\n"
    )
    with served(store, allowlist=file) as site:
        site.run(pulled("c"), "d1", {"a": "passed"})
        site.run(pulled("c"), "d1", {"a": "passed"}, repo="example/four", level="L4")
        shown = {row["repo"]: (row["level"], row["verdict"]) for row in site.get("/pr/7")["backends"]}
        assert shown == {
            REPO: ("L2", "passed"),
            "silent/two": ("L2", "not reported"),
            "silent/three": ("L3", "not reported"),
            "example/four": ("L4", "passed"),
        }
        assert site.get("/pr/7")["sentence"] == "Not reported by 2 of 4 backends"
        file.write_text(f"L2: [{REPO}]\n")
        assert len(site.get("/pr/7")["backends"]) == 2
        file.write_text("L2: {broken")
        assert len(site.get("/pr/7")["backends"]) == 2
        assert site.get("/health")["allowlist"] and site.http.get("/readyz").status_code == 200


def test_worst_first(site: Site) -> None:
    for repo in ("b/passes", "a/breaks", "c/runs"):
        the_base(site, repo=repo)
        if repo == "c/runs":
            site.report(pulled("c"), "d1", repo=repo)
        else:
            site.run(pulled("c"), "d1", {"a": "failed" if repo == "a/breaks" else "passed"}, repo=repo)
    assert [row["repo"] for row in site.get("/pr/7")["backends"]] == ["a/breaks", "c/runs", "b/passes"]
