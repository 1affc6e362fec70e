"""The core without a server: allowlist and its findings, retry rules, rate limits, transitions, bodies."""

from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core import retry, transitions
from relay.core.allowlist import AllowlistError, lint, parse
from relay.core.body import BodyError, dump, load_object
from relay.core.callback_token import CallbackToken, CallbackTokenError, check, sign
from relay.core.ratelimit import Rate, TokenBuckets
from relay.wire import Workflow

SPEC_EXAMPLE = """\
L1: [org1/repo1]
L2:
  - org3/repo3
L3:
  spyre:
    torch-spyre/torch-spyre: [oncall1, oncall2]
L4:
  - org5/repo5: [oncall1]
  - org6/repo6: oncall1, oncall2
"""


def test_1_3_the_allowlist_of_the_specification() -> None:
    allowlist = parse(SPEC_EXAMPLE, "a.yml")
    levels = {target.repo: target.level for target in allowlist}
    assert levels == {
        "org1/repo1": "L1",
        "org3/repo3": "L2",
        "torch-spyre/torch-spyre": "L3",
        "org5/repo5": "L4",
        "org6/repo6": "L4",
    }
    assert allowlist.get("Torch-Spyre/TORCH-spyre").device == "spyre"
    assert allowlist.get("org6/repo6").oncalls == ("oncall1", "oncall2")
    assert len(parse("", "empty.yml")) == 0


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("L1: [a/b]\nL5: []\n", 2, "unknown level"),
        ("L1: [a/b]\nL2:\n  - A/B\n", 3, "stands twice"),
        ("L1: [a/b]\nL1: [c/d]\n", 2, "stands twice"),
        ("L1:\n  - nonsense\n", 2, "no repository"),
        ("L1:\n  - a/b/c\n", 2, "no repository"),
        ("L1:\n  - ../..\n", 2, "no repository"),
        ("L1: a/b\n", 1, "must be a list"),
        ("L3: [a/b]\n", 1, "must map a device"),
        ("L3:\n  spyre: [a/b]\n", 2, "must map 'owner/repo'"),
        ("L3:\n  spyre:\n    a/b: []\n  Spyre:\n    c/d: []\n", 4, "another case"),
        ("L4:\n  - a/b: {event: [push]}\n", 2, "unknown option"),
        ("L4:\n  - a/b: {events: [release]}\n", 2, "not one of"),
        ("L4:\n  - a/b: {job_timeout_seconds: soon}\n", 2, "job_timeout_seconds"),
        ("L4:\n  - {a/b: [], c/d: []}\n", 2, "an item is"),
        ("L1: [a/b\nL2: []\n", 2, "not YAML"),
        ("- a/b\n", 1, "must be a mapping"),
        ("L1: !!python/object:os.system [a/b]\n", 1, ""),
    ],
)
def test_3_lint_names_file_and_line(text: str, line: int, why: str) -> None:
    _, findings = lint(text, "dir/allowlist.yml")
    if not why:
        return  # a tag is only text to the reader of nodes: nothing is constructed
    assert [str(finding) for finding in findings if why in finding.message and finding.line == line], findings
    with pytest.raises(AllowlistError, match=f"dir/allowlist.yml:{line}: "):
        parse(text, "dir/allowlist.yml")


def test_retry_after_of_github() -> None:
    assert retry.github(403, {"retry-after": "7"}, "", 0) == retry.Again(7, everybody=True)
    assert retry.github(403, {}, "You have exceeded a secondary rate limit", 0) == retry.Again(60, everybody=True)
    primary = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "130"}
    assert retry.github(403, primary, "API rate limit exceeded", 100) == retry.Again(30, everybody=True)
    assert retry.github(403, {}, "Resource not accessible by integration", 0) == retry.Never()
    assert retry.github(422, {}, "", 0) == retry.Never()
    assert retry.github(502, {}, "", 0) == retry.Again()
    date = "Thu, 01 Jan 1970 00:00:30 GMT"
    assert retry.retry_after(date, 10) == 20
    assert retry.retry_after("soon", 10) is None
    assert retry.retry_after("999999999", 10) == retry.MAX_WAIT_SECONDS


def test_backoff_grows_and_is_bounded() -> None:
    for attempt in range(1, 2000):
        wait = retry.backoff(attempt)
        ceiling = min(300, 2 ** min(attempt - 1, 20))
        assert ceiling / 2 <= wait <= ceiling


def test_2_a_steady_caller_above_the_limit_is_not_starved() -> None:
    buckets, rate = TokenBuckets(), Rate(burst=5, per_minute=60)
    accepted = sum(buckets.take("repo", call * 0.25, rate) == 0 for call in range(400))  # 4 calls a second, 100 s
    assert 99 <= accepted <= 106
    assert buckets.take("other", 100, rate) == 0


def test_2_buckets_do_not_grow_without_bound_and_bear_clock_steps() -> None:
    buckets, rate = TokenBuckets(capacity=100), Rate(burst=1, per_minute=60)
    for number in range(1000):
        buckets.take(str(number), float(number), rate)
    assert len(buckets._buckets) == 100
    assert buckets.take("999", 0.0, rate) > 0


def workflow(status: str, **more: object) -> Workflow:
    base = {"status": status, "name": "CI", "run_id": "1", "conclusion": "success" if status == "completed" else None}
    return Workflow.model_validate({**base, **more})


def test_1_6_times_and_clock_steps() -> None:
    first = transitions.advance(None, workflow("in_progress"), now=100, dispatched_at=90)
    assert isinstance(first, transitions.Accepted)
    assert first.metrics.queue_time == 10
    done = transitions.advance(first.job, workflow("completed"), now=160.5, dispatched_at=90)
    assert isinstance(done, transitions.Accepted)
    assert done.metrics.execution_time == 60.5
    back = transitions.advance(first.job, workflow("completed"), now=50, dispatched_at=90)
    assert isinstance(back, transitions.Accepted)
    assert back.metrics.execution_time is None, "the clock stepped back: unknown is the honest answer"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_every_json_object_is_read_as_json_reads_it(value: dict[str, object]) -> None:
    body = json.dumps(value).encode()
    assert load_object(body) == json.loads(body)
    assert json.loads(dump(value)) == value


@given(st.binary(max_size=200))
def test_no_body_is_more_than_an_error(body: bytes) -> None:
    try:
        assert isinstance(load_object(body), dict)
    except BodyError as error:
        assert str(error)


@given(st.integers(1, 200), st.sampled_from(['{"a":', "["]))
def test_nesting_is_counted_outside_strings_only(depth: int, opening: str) -> None:
    closing = "}" if opening[0] == "{" else "]"
    inner = opening * depth + "1" + closing * depth
    quoted = json.dumps({"text": inner + '\\"\\\\' + "[" * 500})
    assert load_object(quoted.encode())
    body = f'{{"x":{inner}}}'.encode()
    if depth < 64:
        assert load_object(body)
    else:
        with pytest.raises(BodyError, match="nested deeper"):
            load_object(body)


@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_nesting_that_no_parser_follows(opening: str) -> None:
    with pytest.raises(BodyError, match="nested deeper"):
        load_object(b'{"x":' + opening.encode() * 200_000)


def test_2_callback_token_of_another_retention() -> None:
    """What the relay would not sign alike now is read: genuine until it expires, and not a second longer."""
    token = CallbackToken(delivery_id="d-1", repo="org2/repo2", pr_number=7, head_sha="a" * 40)
    now, secret = time.time(), "s" * 32
    for mine, now_signed in ((60, 60), (60, 3600), (3600, 60)):
        check(sign(token, secret, now + mine), secret, token, now + now_signed)
    for mine, now_signed in ((-60, -60), (-60, 60)):
        with pytest.raises(CallbackTokenError, match="expired"):
            check(sign(token, secret, now + mine), secret, token, now + now_signed)
    with pytest.raises(CallbackTokenError, match="not one that this relay signed"):
        check(sign(token, "t" * 32, now + 60), secret, token, now + 60)


def test_numbers_out_of_range() -> None:
    for text in ("1e400", "-1e400", "9" * 30, "NaN", "Infinity"):
        with pytest.raises(BodyError):
            load_object(f'{{"a": {text}}}'.encode())
    assert load_object(b'{"a": 1e-400}') == {"a": 0.0}
    assert math.isfinite(load_object(b'{"a": 1.5}')["a"])
