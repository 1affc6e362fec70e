"""The verdict engine: one row for each case of spec/hud.md 2, and what must hold for any input."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.core.outcomes import FAILING, OUTCOMES, fails_on_cpu_too
from hud.core.sentences import sentence
from hud.core.verdicts import VERDICTS, Base, Head, judge, worst

PASSES = Base[str]("success", {"t": "passed"})
FAILS = Base[str]("failure", {"t": "failed"})
NO_TESTS = Base[str]("success", {}, results=False)


def failed(*names: str, **more) -> Head[str]:
    return Head("completed", "failure", names, **more)


def ended(conclusion: str, names=(), **more) -> Head[str]:
    return Head("completed", conclusion, names, **more)


def base(**outcomes) -> Base[str]:
    return Base("success", outcomes)


CASES = [
    ("fails, passes on the base", failed("t"), PASSES, "broken by this PR"),
    ("fails, fails on the base", failed("t"), FAILS, "not this PR's fault"),
    ("fails, timed out on the base", failed("t"), base(t="timed_out"), "not this PR's fault"),
    ("fails, skipped on the base", failed("t"), base(t="skipped"), "broken by this PR"),
    ("fails, expected to fail on the base", failed("t"), base(t="xfailed"), "broken by this PR"),
    ("fails, flaky on the base", failed("t"), base(t="flaky"), "unclear"),
    ("fails, a new or renamed test", failed("t"), base(), "broken by this PR"),
    ("fails, no base", failed("t"), None, "unclear"),
    ("fails, base without tests", failed("t"), NO_TESTS, "unclear"),
    ("one new, one known", failed("t", "u"), base(t="failed", u="passed"), "broken by this PR"),
    ("known and uncertain", failed("t", "u"), base(t="failed", u="flaky"), "unclear"),
    ("passes", ended("success"), PASSES, "passed"),
    ("passes without a base", ended("success"), None, "passed"),
    ("zero tests", ended("success", results=False), None, "passed"),
    ("neutral", ended("neutral"), PASSES, "passed"),
    ("only skipped", ended("skipped"), PASSES, "passed"),
    ("flaky within the run", ended("success", flaky=["t"]), PASSES, "flaky"),
    ("failed, then passed in a new attempt", ended("success", failed_elsewhere=["t"]), PASSES, "flaky"),
    ("passed, then failed in a new attempt", failed("t", passed_elsewhere=["t"]), PASSES, "flaky"),
    ("flaky beside a known failure", failed("t", flaky=["u"]), FAILS, "not this PR's fault"),
    ("running", Head("running"), PASSES, "running"),
    ("stuck", Head("stuck"), PASSES, "infra"),
    ("not reported", Head("not reported"), PASSES, "not reported"),
    ("timed out", ended("timed_out"), PASSES, "infra"),
    ("cancelled", ended("cancelled"), PASSES, "infra"),
    ("did not start", ended("startup_failure"), PASSES, "infra"),
    ("cancelled after a test broke", ended("cancelled", ["t"]), PASSES, "broken by this PR"),
    ("says success although a test broke", ended("success", ["t"]), PASSES, "broken by this PR"),
    ("says success although a known failure", ended("success", ["t"]), FAILS, "not this PR's fault"),
    ("job fails, no failing test, base passes", failed(), PASSES, "broken by this PR"),
    ("job fails, no failing test, base fails", failed(), FAILS, "not this PR's fault"),
    ("job fails, no failing test, no base", failed(), None, "unclear"),
    ("job fails, no failing test, base cancelled", failed(), Base("cancelled"), "unclear"),
    ("unnamed failures, base passes", failed(failing_unnamed=3), PASSES, "broken by this PR"),
    ("fails on the CPU too, passes on the base", failed("t", on_cpu=["t"]), PASSES, "broken by this PR"),
    ("fails on the CPU too, fails on the base", failed("t", on_cpu=["t"]), FAILS, "not this PR's fault"),
    ("fails on the CPU too, no base", failed("t", on_cpu=["t"]), None, "unclear"),
    ("flaky, fails on the CPU too", failed("t", passed_elsewhere=["t"], on_cpu=["t"]), PASSES, "flaky"),
    ("unnamed failures beside known ones", failed("t", failing_unnamed=1), FAILS, "not this PR's fault"),
]  # fmt: skip


@pytest.mark.parametrize(("head", "against", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_table_of_cases(head: Head[str], against: Base[str] | None, expected: str) -> None:
    assert judge(head, against).verdict == expected


def test_vocabulary_and_order_are_fixed() -> None:
    assert VERDICTS == (
        "broken by this PR",
        "unclear",
        "not this PR's fault",
        "flaky",
        "infra",
        "running",
        "not reported",
        "passed",
    )
    assert {case[3] for case in CASES} == set(VERDICTS)


@pytest.mark.parametrize(("first", "second"), list(product(VERDICTS, VERDICTS)))
def test_the_worst_of_two_stands_earlier(first, second) -> None:
    assert VERDICTS.index(worst([first, second])) == min(VERDICTS.index(first), VERDICTS.index(second))


def test_success_with_failed_tests_is_inconsistent() -> None:
    assert judge(Head("completed", "success", ["t"]), PASSES).inconsistent
    assert judge(Head("completed", "success", failing_unnamed=1), PASSES).inconsistent
    assert not judge(Head("completed", "failure", ["t"]), PASSES).inconsistent
    assert not judge(Head("completed", "success"), PASSES).inconsistent


def test_a_failing_test_that_the_base_does_not_have_is_named_as_such() -> None:
    judgement = judge(Head("completed", "failure", ["new", "t"]), PASSES)
    assert judgement.new_failures == ("new", "t")
    assert judgement.added == ("new",)
    assert judgement.why == "2 new failing tests, 1 of them not on the base"


@pytest.mark.parametrize(
    ("names", "on_cpu", "against", "why"),
    [
        (["t"], ["t"], PASSES, "1 new failing test, which fails on the CPU too"),
        (["t", "u"], ["t", "u"], base(t="passed", u="passed"), "2 new failing tests, all of which fail on the CPU too"),
        (["t", "u"], ["u"], base(t="passed", u="passed"), "2 new failing tests, 1 of which fails on the CPU too"),
        (["t", "u"], ["u"], base(t="passed", u="failed"), "1 new failing test"),
        (["t"], ["t"], FAILS, "1 test failing on the base too, which fails on the CPU too"),
        (["t"], ["t"], None, "1 failing test, no result of the base to compare with, which fails on the CPU too"),
    ],
)
def test_failing_on_the_cpu_too_is_said_and_hides_nothing(names, on_cpu, against, why: str) -> None:
    judgement = judge(failed(*names, on_cpu=on_cpu), against)
    assert (judgement.why, judgement.on_cpu) == (why, tuple(on_cpu))
    without = judge(failed(*names), against)
    assert judgement.verdict == without.verdict and judgement.new_failures == without.new_failures


@pytest.mark.parametrize(
    ("outcome", "there", "too"),
    [
        ("failed", "failed", True),
        ("failed", "error", True),
        ("failed", "passed", False),
        ("failed", "skipped", False),
        ("failed", "not_there", False),
        ("failed", "", False),
        ("crashed", "failed", False),
        ("crashed", "crashed", True),
        ("timed_out", "timed_out", True),
        ("timed_out", "crashed", False),
        ("passed", "failed", False),
    ],
)
def test_a_failure_is_not_the_backends_where_the_cpu_has_it_too(outcome: str, there: str, too: bool) -> None:
    assert fails_on_cpu_too(outcome, there) is too


NAMES = st.sampled_from("abcdefgh")
OUTCOME = st.sampled_from(OUTCOMES)


@given(
    failing=st.sets(NAMES),
    passed=st.sets(NAMES),
    flaky=st.sets(NAMES),
    against=st.none() | st.dictionaries(NAMES, OUTCOME),
    conclusion=st.sampled_from(["success", "failure", "cancelled", "timed_out", "skipped"]),
)
def test_every_failing_test_is_in_exactly_one_list(failing, passed, flaky, against, conclusion) -> None:
    head = Head("completed", conclusion, failing, flaky=flaky - failing, passed_elsewhere=passed & failing)
    judgement = judge(head, None if against is None else Base("success", against))
    lists = (judgement.new_failures, judgement.already_failing, judgement.uncertain)
    told = [name for listed in lists for name in listed] + [name for name in judgement.flaky if name in failing]
    assert sorted(told) == sorted(failing)
    assert set(judgement.added) <= set(judgement.new_failures)
    assert (judgement.verdict == "passed") <= (not failing)
    for name in judgement.already_failing:
        assert against is not None and against[name] in FAILING


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["passed", "broken by this PR", "passed"], "Broken by this PR on 1 of 3 backends – 2 new failing tests"),
        (["passed", "passed"], "Passed on every backend"),
        (["passed"], "Passed on 1 of 1 backend"),
        (["passed", "not reported"], "Not reported by 1 of 2 backends"),
        (["running", "passed"], "Running on 1 of 2 backends"),
        ([], "No backend has reported yet"),
    ],
)
def test_the_sentence(verdicts, expected: str) -> None:
    assert sentence(verdicts, 2, 0)[1] == expected


def test_the_sentence_says_what_fails_on_the_cpu_too() -> None:
    assert sentence(["broken by this PR"], 2, 0, 1)[1].endswith("2 new failing tests, 1 of which fails on the CPU too")
