"""Issue "bodies: 4xx, never 5xx": what schemathesis makes of the OpenAPI page, against a relay on a real socket.

Callbacks carry a token that is accepted and webhooks a signature that is right, so that the bodies are what is tried.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from relay_parts import Minter, Running, issuer
from schemathesis import GenerationMode, checks

AS_THE_PAGE_SAYS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
EVENTS = ("pull_request", "push", "check_run", "check_suite", "ping", "other")


@pytest.fixture(scope="module")
def page(shared: Running) -> Any:
    return schemathesis.openapi.from_url(f"{shared.url}/openapi.json")


def every_case(page: Any, path: str, method: str, examples: int, check: Callable[[Any], None]) -> None:
    """Try bodies that fit the page and bodies that do not."""
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=page[path][method].as_strategy(generation_mode=mode))
        def one(case: Any) -> None:
            check(case)

        one()


def test_1_4_no_callback_body_is_a_server_error(page: Any, shared: Running) -> None:
    """Every answer has a status, a type and a body that the page names, and a refusal names what is wrong."""
    assert shared.peer is not None and shared.key is not None
    token = Minter(issuer(shared.peer), shared.key).token("org2/repo2")
    seen: dict[GenerationMode, Counter[str]] = {mode: Counter() for mode in GenerationMode}

    def check(case: Any) -> None:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        response = case.call(headers=headers)
        case.validate_response(response, headers=headers, checks=AS_THE_PAGE_SAYS)
        answer = response.json()
        assert answer["ok"] is (response.status_code == 200), answer
        seen[case.meta.generation.mode][_kind(answer)] += 1

    every_case(page, "/github/callback", "POST", 75, check)
    fitting, unfitting = seen[GenerationMode.POSITIVE], seen[GenerationMode.NEGATIVE]
    # What fits the page is refused for what it says (no such dispatch, a nightly run of another repository), or for
    # what a schema cannot say (a conclusion has to come with "completed").
    # How many of each are drawn differs from run to run.
    assert fitting["says what cannot be"] > 0, fitting
    assert unfitting["names a field"] + unfitting["is not JSON"] > 10, unfitting
    assert (fitting + unfitting)["accepted"] == 0, "nothing was dispatched"


def _kind(answer: dict[str, Any]) -> str:
    if answer["ok"]:
        return "accepted"
    if answer["error"].startswith(("the body", "a string", "the number", "the key", "nested")):
        return "is not JSON"
    return "names a field" if re.match(r"[a-z_.0-9]+: ", answer["error"]) else "says what cannot be"


def test_1_1_no_webhook_body_is_a_server_error(page: Any, shared: Running) -> None:
    statuses: Counter[tuple[str, int]] = Counter()

    def check(case: Any) -> None:
        body = json.dumps(case.body).encode() if isinstance(case.body, (dict, list, str, int, float)) else b"null"
        for event in EVENTS:
            response = shared.webhook(event, body, delivery="fuzz-1")
            case.validate_response(response, checks=AS_THE_PAGE_SAYS)
            assert response.status_code in {200, 400}, (event, body, response.text)
            if response.status_code == 400:
                assert response.json()["error"].startswith(f"{event}: "), response.text
            statuses[event, response.status_code] += 1

    every_case(page, "/github/webhook", "POST", 30, check)
    assert all(statuses[event, 400] for event in EVENTS), "what is no object is refused, whatever the event"
    assert statuses["ping", 200], "an object is enough for a ping"


@pytest.mark.parametrize("path", ["/github/callback", "/github/webhook"])
def test_1_4_nobody_without_credentials_gets_in(page: Any, path: str) -> None:
    def check(case: Any) -> None:
        assert case.call(headers={"Authorization": "Bearer x.y.z"}).status_code in {400, 401}

    every_case(page, path, "POST", 30, check)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version"])
def test_operators_answers_are_as_the_page_says(page: Any, path: str) -> None:
    case = page[path]["GET"].Case()
    case.call_and_validate()
