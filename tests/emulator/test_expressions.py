"""The expression language, against GitHub's "Evaluate expressions in workflows and actions"."""

import math
import re

import pytest

from relay.emulator.runner.expressions import (
    ExpressionError,
    condition,
    evaluate,
    parse,
    template,
    to_text,
)

CONTEXTS = {
    "github": {
        "event_name": "push",
        "ref": "refs/heads/main",
        "event": {"labels": [{"name": "Bug"}, {"name": "ciflow/crcr/spyre"}], "number": 7, "nothing": None},
    },
    "vars": {"EMPTY": "", "SOURCE": "nightly"},
    "matrix": {"os": "linux", "shape": {"rows": 2, "cols": 3}},
    "steps": {"build-it": {"outputs": {"x": "1"}}},
}


def value(text: str) -> object:
    return evaluate(parse(text), CONTEXTS, {})


TABLE = [
    # literals
    ("true", True),
    ("null", None),
    ("-3.5", -3.5),
    ("0xff", 255),
    ("0o17", 15),
    ("1e3", 1000),
    ("'it''s'", "it's"),
    # properties
    ("github.event_name", "push"),
    ("GitHub.Event_Name", "push"),
    ("github['ref']", "refs/heads/main"),
    ("github.event.labels[1].name", "ciflow/crcr/spyre"),
    ("github.event.labels[9]", None),
    ("github.event.labels.*.name", ["Bug", "ciflow/crcr/spyre"]),
    ("github.event.missing.deeper", None),
    ("steps.build-it.outputs.x", "1"),
    ("matrix.shape.*", [2, 3]),
    # logic gives operands
    ("vars.EMPTY || vars.SOURCE || 'wheel'", "nightly"),
    ("github.event.nothing || 'wheel'", "wheel"),
    ("'' && 'x'", ""),
    ("github.event.number && format('pr-{0}', github.event.number) || 'none'", "pr-7"),
    ("!github.event.nothing", True),
    ("!!'a'", True),
    ("!!!'a'", False),
    # precedence
    ("true || false && false", True),
    ("!true == false", True),
    ("1 < 2 == true", True),
    ("(true || false) && false", False),
    # comparison
    ("'A' == 'a'", True),
    ("'b' > 'A'", True),
    ("1 == '1'", True),
    ("null == 0", True),
    ("null == ''", True),
    ("'' == 0", True),
    ("true == 1", True),
    ("'true' == true", False),
    ("'abc' == 0", False),
    ("'abc' < 1", False),
    ("'abc' >= 1", False),
    ("NaN == NaN", False),
    ("2 >= 2", True),
    ("github.event == github.event", True),
    ("github.event == github", False),
    ("'0x10' == 16", True),
    ("' 12 ' == 12", True),
    # functions
    ("contains('Hello world', 'llO')", True),
    ("contains(github.event.labels.*.name, 'bug')", True),
    ("contains(github.event.labels.*.name, 'ciflow')", False),
    ("contains(fromJSON('[1, 2]'), 2)", True),
    ("startsWith('Hello', 'he')", True),
    ("endsWith('Hello', 'LO')", True),
    ("format('{0} {1} {{0}} {0}', 'a', true)", "a true {0} a"),
    ("join(github.event.labels.*.name, ' + ')", "Bug + ciflow/crcr/spyre"),
    ("join(fromJSON('[1, null, true]'))", "1,,true"),
    ("join('one')", "one"),
    ("toJSON(fromJSON('{\"a\": [1, 1.5]}'))", '{\n  "a": [\n    1,\n    1.5\n  ]\n}'),
    ("toJSON('x')", '"x"'),
    ("fromJSON('180') == 180", True),
    ("CONTAINS('a', 'a')", True),
]


@pytest.mark.parametrize(("text", "expected"), TABLE, ids=[row[0] for row in TABLE])
def test_value(text: str, expected: object) -> None:
    found = value(text)
    assert found == expected
    assert isinstance(found, bool) == isinstance(expected, bool)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, ""),
        (True, "true"),
        (3.0, "3"),
        (0.1, "0.1"),
        (-0.5, "-0.5"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        ([], "Array"),
        ({}, "Object"),
    ],
)
def test_conversion_to_text(given: object, text: str) -> None:
    assert to_text(given) == text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty"),
        ("a b", "unexpected"),
        ("foo('x')", "unknown function 'foo'"),
        ("contains('x')", "takes 2 to 2 arguments, not 1"),
        ('"double"', "unexpected symbol"),
        ("'open", "unexpected symbol"),
        ("a = b", "unexpected symbol"),
        ("a.", "property name"),
        ("(a", "expected ')'"),
        ("a[1", "expected ']'"),
        ("a & b", "unexpected symbol"),
        ("1abc", "unexpected symbol"),
        ("(" * 60 + "a" + ")" * 60, "nested deeper"),
    ],
)
def test_malformed_is_named(text: str, part: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(part)):
        parse(text)


@pytest.mark.parametrize("text", ["format('{1}', 'a')", "format('{', 'a')", "fromJSON('{')", "nowhere.x", "success()"])
def test_cannot_be_evaluated(text: str) -> None:
    with pytest.raises(ExpressionError):
        value(text)


def test_template_keeps_the_type_of_a_lone_expression_only() -> None:
    assert template("${{ github.event.number }}").render(CONTEXTS, {}) == 7
    assert template("n=${{ github.event.number }}").render(CONTEXTS, {}) == "n=7"
    assert template("${{ '}}' }} and $${{ 'x' }}").render(CONTEXTS, {}) == "}} and $x"
    assert template("plain {{ text }}").render(CONTEXTS, {}) == "plain {{ text }}"
    with pytest.raises(ExpressionError, match="without"):
        template("${{ github.ref")


def test_injected_text_is_not_evaluated_again() -> None:
    contexts = {"github": {"title": "${{ secrets.TOKEN }}"}}
    assert template("echo ${{ github.title }}").render(contexts, {}) == "echo ${{ secrets.TOKEN }}"


@pytest.mark.parametrize(
    ("text", "job_failed", "expected"),
    [
        ("true", False, True),
        ("true", True, False),
        ("always()", True, True),
        ("failure() || false", True, True),
        ("${{ always() && github.event_name == 'push' }}", True, True),
        ("github.event_name == 'push'", True, False),
        ("success() || true", True, True),
    ],
)
def test_condition_implies_success_unless_it_asks_for_a_status(text: str, job_failed: bool, expected: bool) -> None:
    functions = {"success": lambda: not job_failed, "failure": lambda: job_failed, "always": lambda: True}
    assert bool(evaluate(condition(text), CONTEXTS, functions)) is expected


def test_condition_with_text_around_the_expression_is_refused() -> None:
    with pytest.raises(ExpressionError, match="would always be true"):
        condition("${{ github.ref }} == 'x'")
