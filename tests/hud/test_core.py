"""Snapshots, changes, differences, result lines, text: the parts without I/O."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hud_site import line, name_of
from hypothesis import given
from hypothesis import strategies as st

from hud.core import lines
from hud.core.charts import line_chart
from hud.core.diffs import diff
from hud.core.fingerprints import fingerprint
from hud.core.history import BLOCK_BITS, changes, opened_with, opening
from hud.core.lines import Collector, LineError, display_name, parse_junit, parse_line
from hud.core.outcomes import FAILING, OUTCOMES, combine, denominator, pass_rate
from hud.core.readiness import Criteria, RunFacts, assess
from hud.core.snapshot import Entry, Note, Roster, Snapshot, duration_code, duration_of
from hud.core.text import clean, cut, link, sha

WORDS = st.sampled_from(["", "rule.yaml:3", "no such operator", "é\n\"'"])
NOTES = st.none() | st.builds(Note, WORDS, st.just("why"), WORDS, WORDS)
ENTRIES = st.dictionaries(
    st.integers(1, 2**32 - 1),
    st.builds(Entry, st.sampled_from(OUTCOMES), NOTES, st.none() | st.floats(0, 1e6), st.booleans()),
    max_size=40,
)
RUNS = st.dictionaries(st.integers(1, 30), st.sampled_from(OUTCOMES), max_size=30)


def built(outcomes) -> Snapshot:
    return Snapshot.build({number: Entry(outcome, None, None, False) for number, outcome in outcomes.items()})[0]


@given(ENTRIES)
def test_a_snapshot_comes_back_as_it_was_packed(entries) -> None:
    snapshot, cut_off = Snapshot.build(entries)
    again = Snapshot.unpack(Roster.unpack(snapshot.roster.pack()), **snapshot.pack())
    assert again.pack() == snapshot.pack() and not cut_off
    assert list(again.ids) == sorted(entries)
    for place, number in enumerate(again.ids):
        entry = again.entry_at(place)
        assert (entry.outcome, entry.note, entry.fallback) == (
            entries[number].outcome,
            entries[number].note,
            entries[number].fallback,
        )
    assert sum(again.totals().values()) == len(entries)
    assert again.failing_ids() == sorted(number for number, entry in entries.items() if entry.outcome in FAILING)


@given(ENTRIES, ENTRIES)
def test_merging_keeps_the_later_entry(first, second) -> None:
    merged = Snapshot.build(first)[0].merged(Snapshot.build(second)[0])
    assert {number: merged.outcome_of(number) for number in merged.ids} == {
        number: entry.outcome for number, entry in {**first, **second}.items()
    }


@given(st.floats(0.001, 2000))
def test_a_stored_duration_is_within_six_per_cent(seconds: float) -> None:
    assert duration_of(duration_code(seconds)) == pytest.approx(seconds, rel=0.06)


@pytest.mark.parametrize("seconds", [None, float("nan"), float("inf"), -1.0])
def test_an_impossible_duration_is_unknown(seconds) -> None:
    assert duration_of(duration_code(seconds)) is None


@given(RUNS, RUNS)
def test_changes_are_exactly_the_differences(before, after) -> None:
    told = {change.test_id: (change.before, change.after) for change in changes(built(before), built(after))}
    numbers = before.keys() | after.keys()
    assert told == {n: (before.get(n), after.get(n)) for n in numbers if before.get(n) != after.get(n)}


@given(RUNS)
def test_an_opening_has_every_test_and_no_other(outcomes) -> None:
    spread = {number * 1000: outcome for number, outcome in outcomes.items()}
    blocks = dict(opening(built(spread)))
    for number in range(0, 40_000, 500):
        block = blocks.get(number >> BLOCK_BITS)
        assert (opened_with(block, number) if block is not None else None) == spread.get(number)


@given(RUNS, RUNS)
def test_a_difference_accounts_for_every_failing_test_of_the_head(before, after) -> None:
    found = diff(built(before), built(after), lambda numbers: [n % 3 for n in numbers])
    failing = {number for number, outcome in after.items() if outcome in FAILING}
    assert set(found.newly_failing) | set(found.still_failing) == failing
    assert not set(found.newly_failing) & set(found.still_failing)
    assert set(found.missing) <= before.keys() - after.keys()
    for number in found.fixed:
        assert before[number] in FAILING and after[number] == "passed"


def test_only_variants_of_what_a_narrowed_run_ran_can_be_missing() -> None:
    base = built(dict.fromkeys(range(40), "passed"))
    head = built(dict.fromkeys(range(8), "passed"))
    found = diff(base, head, lambda numbers: [n < 10 for n in numbers])
    assert found.narrowed and found.missing == (8, 9)
    whole = diff(base, built(dict.fromkeys(range(38), "passed")), lambda numbers: [n < 10 for n in numbers])
    assert not whole.narrowed and whole.missing == (38, 39)


def test_a_line_of_conformance_is_read_with_every_field() -> None:
    read = parse_line(json.dumps(line("add[float32]", "failed", trace="here", rule="r.yaml:3")).encode(), 1)
    assert (read.id, read.cls, read.outcome, read.duration) == (name_of("add[float32]"), "TestOps", "failed", 0.25)


ODD = st.none() | st.booleans() | st.integers(-1, 3) | st.floats() | st.text(max_size=3) | st.just([1])
FIELDS = ("file", "class", "op", "device", "attempt", "duration", "phase", "message", "reason", "expires", "fallback")


@given(st.dictionaries(st.sampled_from(FIELDS), ODD), st.sampled_from([*OUTCOMES, "great", None]))
def test_a_usual_line_is_read_as_any_other(fields, outcome) -> None:
    """What the quick way takes, it takes as the thorough one does; the rest it leaves to it."""
    said = {"id": "t", "outcome": outcome, **fields}
    quick = lines._usual(said)
    try:
        thorough = lines._validated(said, 1)
    except LineError:
        thorough = None
    assert quick is None or quick == thorough


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"{", "line 7"),
        (b"[]", "line 7"),
        (b'{"outcome": "passed"}', "id: Field required"),
        (b'{"id": "t", "outcome": "great"}', "outcome"),
        (b'{"id": "t", "outcome": "passed", "attempt": "often"}', "attempt"),
        (b'{"id": "t", "outcome": "passed", "duration": []}', "duration"),
    ],
)
def test_a_bad_line_is_named_with_its_field(text: bytes, named: str) -> None:
    with pytest.raises(LineError, match=r"line 7") as caught:
        parse_line(text, 7)
    assert named in str(caught.value)


def collected(*said) -> dict[str, tuple[str, object]]:
    collector = Collector(None)
    for number, found in enumerate(said, start=1):
        collector.add(parse_line(json.dumps(found).encode(), number))
    return {name: (entry.outcome, words) for name, entry, words in collector.results()}


def test_attempts_of_one_test_are_one_result() -> None:
    told = collected(
        line("a", "failed", message="first"),
        line("a", "passed", attempt=2),
        line("b", "failed", attempt=2, message="second"),
        line("b", "failed", message="first"),
        line("c", "passed"),
    )
    (a, a_words), (b, b_words), (c, c_words) = (told[name_of(name, "")] for name in "abc")
    assert (a, b, c) == ("flaky", "failed", "passed")
    assert (a_words.message, b_words.message, c_words) == ("first", "second", None)


@given(st.lists(st.sampled_from(["passed", "failed", "error", "skipped", "timed_out"]), min_size=1))
def test_failing_and_passing_in_one_run_is_flaky(attempts) -> None:
    both = "passed" in attempts and any(outcome in FAILING for outcome in attempts)
    assert combine(attempts) == ("flaky" if both else attempts[-1])


@given(st.lists(st.tuples(st.sampled_from(OUTCOMES), st.integers(1, 4)), min_size=1, max_size=8))
def test_the_result_is_that_of_all_attempts_in_order(attempts) -> None:
    told = [line("a", outcome, attempt=number, message=f"m{place}") for place, (outcome, number) in enumerate(attempts)]
    ordered = sorted(told, key=lambda found: found["attempt"])
    outcome, words = collected(*told)[name_of("a", "")]
    assert outcome == combine(found["outcome"] for found in ordered)
    failing = [found["message"] for found in ordered if found["outcome"] in FAILING]
    if failing:
        assert words.message == failing[-1]


def test_attempts_of_one_test_do_not_add_up_in_memory() -> None:
    collector = Collector(None)
    texts = {"message": "m" * 50_000, "trace": "t" * 50_000, "reason": "r" * 50_000, "fallback": ["f" * 50_000]}
    tracemalloc.start()
    for number in range(2000):
        said = line("a", "failed", attempt=number + 1, **texts)
        collector.add(parse_line(json.dumps(said).encode(), number))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (collector.lines, len(collector)) == (2000, 1)
    assert held < 1 << 20


def test_the_backends_own_device_is_not_part_of_the_stored_name() -> None:
    told = collected(line("a"), {**line("b"), "id": "test_b@cpu", "device": "cpu"}, {"id": "c", "outcome": "passed"})
    assert set(told) == {name_of("a", ""), "test_b@cpu", "c"}
    assert display_name(name_of("a", ""), "spyre") == name_of("a")
    assert display_name("test_b@cpu", "spyre") == "test_b@cpu"


def test_long_texts_are_cut_and_the_run_says_so() -> None:
    collector = Collector(None)
    long = line("a", "failed", message="é" * 5000, trace="t" * 50_000, id="n" * 20_000)
    collector.add(parse_line(json.dumps(long).encode(), 1))
    ((name, _, words),) = collector.results()
    assert len(name.encode()) <= 10_240
    assert len(words.message.encode()) <= 1024 and len(words.trace.encode()) <= 4096
    assert collector.cuts == {"name": 1, "message": 1, "trace": 1}


JUNIT = b"""<?xml version="1.0"?><testsuites><testsuite name="s">
<testcase classname="C" name="ok" file="t.py" time="0.5"/>
<testcase classname="C" name="bad"><failure message="no">trace</failure></testcase>
<testcase classname="C" name="worse"><error message="crash">trace</error></testcase>
<testcase classname="C" name="not"><skipped message="why"/></testcase>
<testcase classname="C" name="known"><skipped type="pytest.xfail" message="why"/></testcase>
</testsuite></testsuites>"""


def test_junit_of_pytest_is_read() -> None:
    told = {found.id: found.outcome for found in parse_junit(JUNIT)}
    assert told == {
        "t.py::C::ok": "passed",
        "C::bad": "failed",
        "C::worse": "error",
        "C::not": "skipped",
        "C::known": "xfailed",
    }


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize(
    ("cases", "outcome"),
    [
        (("", "<failure/>"), "failed"),
        (("", "<error/>", "<failure/>"), "error"),
        (("<skipped/>", "<failure/>"), "failed"),
        (("<skipped/>", ""), "passed"),
        (("<failure/><skipped/>",), "failed"),
    ],
)
def test_cases_of_one_name_in_a_junit_file_are_no_attempts(cases: tuple[str, ...], outcome: str, turn: int) -> None:
    suites = "".join(
        f'<testsuite name="{place}"><testcase classname="T" name="t">{inside}</testcase></testsuite>'
        for place, inside in enumerate(cases[::turn])
    )
    collector = Collector(None)
    for found in parse_junit(f"<testsuites>{suites}</testsuites>".encode()):
        collector.add(found)
    assert list(collector.outcomes()) == [outcome] and collector.lines == len(cases)


@pytest.mark.parametrize(
    "document",
    [
        b"<testsuite><testcase",
        b"<html/>",
        b'<!DOCTYPE x [<!ENTITY a "b">]><testsuite/>',
        b"<testsuite>" + b" " * 5000 + b'<!ENTITY a "b"></testsuite>',
    ],
)
def test_what_is_not_junit_is_refused(document: bytes) -> None:
    with pytest.raises(LineError):
        list(parse_junit(document))


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_any_text_becomes_storable(text: str) -> None:
    assert "\0" not in clean(text)
    clean(text).encode()


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.integers(8, 200))
def test_a_cut_text_fits(text: str, limit: int) -> None:
    short, was_cut = cut(text, limit)
    assert len(short.encode()) <= limit and was_cut == (len(text.encode()) > limit)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://example.org/x", True),
        ("HTTP://example.org", True),
        ("javascript:alert(1)", False),
        (" javascript:alert(1)", False),
        ("java\nscript:alert(1)", False),
        ("data:text/html,x", False),
        ("//example.org", False),
        ("https:", False),
        ("http://[bad", False),
        (7, False),
    ],
)
def test_only_web_addresses_become_links(url: object, kept: bool) -> None:
    assert (link(url) is not None) == kept


@pytest.mark.parametrize("value", ["main", "abc123", "g" * 40, "0" * 40, "a" * 39, "a" * 41, None, 7, ""])
def test_what_is_not_a_whole_sha_is_none(value: object) -> None:
    assert sha(value) is None
    assert sha("A" * 40) == "a" * 40


def test_the_pass_rate_counts_what_passed_or_failed() -> None:
    totals = dict(zip(OUTCOMES, range(1, 12), strict=True))
    assert denominator(totals) == totals["passed"] + sum(totals[outcome] for outcome in FAILING)
    assert pass_rate(totals) == totals["passed"] / denominator(totals)
    assert pass_rate(dict.fromkeys(OUTCOMES, 0)) is None


def test_failures_of_one_kind_share_a_fingerprint() -> None:
    one = fingerprint("failed", "Tensor at 0x7ffe differs: 12 of 1024, /home/x/y.py")
    assert one == fingerprint("failed", "Tensor at 0xdead differs: 9 of 77, /tmp/other/z.py")
    assert one != fingerprint("error", "Tensor at 0x7ffe differs: 12 of 1024, /home/x/y.py")
    assert one != fingerprint("failed", "Shapes differ")


def test_a_missing_value_is_a_gap_in_a_chart() -> None:
    chart = line_chart([1.0, 2.0, None, 3.0, 4.0])
    assert len(chart.lines) == 2 and [place for *_, place in chart.dots] == [0, 1, 3, 4]
    assert line_chart([None, None]).dots == ()
    assert len(line_chart([5.0]).dots) == 1


def test_readiness_without_data_is_unknown_and_each_criterion_can_fail() -> None:
    assert all(found.met is None for found in assess([], Criteria()))
    good = [RunFacts(100, 100, False, 60.0)] * 10
    assert all(found.met for found in assess(good, Criteria()))
    bad = [*[RunFacts(80, 100, True, 20_000.0)] * 6, *[RunFacts(100, 100, False, 90_000.0)] * 4]
    assert not any(found.met for found in assess(bad, Criteria()))
