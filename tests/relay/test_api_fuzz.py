"""Issue "bodies: 4xx, never 5xx": what schemathesis makes of the OpenAPI page, against a relay on a real socket.

Callbacks carry a token that is accepted and webhooks a signature that is right, so that the bodies are what is tried.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from relay_parts import Minter, Running, issuer
from schemathesis import GenerationMode

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
    assert shared.peer is not None and shared.key is not None
    token = Minter(issuer(shared.peer), shared.key).token("org2/repo2")
    statuses = set()

    def check(case: Any) -> None:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        response = case.call(headers=headers)
        statuses.add(response.status_code)
        assert response.status_code < 500, (case.body, response.text)
        assert response.json()["ok"] is (response.status_code == 200)
        assert response.status_code == 200 or len(response.json()["error"]) > 5, "a refusal says why"
        case.validate_response(response, headers=headers, checks=[schemathesis.checks.not_a_server_error])

    every_case(page, "/github/callback", "POST", 75, check)
    assert 400 in statuses


def test_1_1_no_webhook_body_is_a_server_error(page: Any, shared: Running) -> None:
    def check(case: Any) -> None:
        body = json.dumps(case.body).encode() if isinstance(case.body, (dict, list, str, int, float)) else b"null"
        for event in EVENTS:
            response = shared.webhook(event, body, delivery="fuzz-1")
            assert response.status_code in {200, 202, 400}, (event, body, response.text)

    every_case(page, "/github/webhook", "POST", 30, check)


@pytest.mark.parametrize("path", ["/github/callback", "/github/webhook"])
def test_1_4_nobody_without_credentials_gets_in(page: Any, path: str) -> None:
    def check(case: Any) -> None:
        assert case.call(headers={"Authorization": "Bearer x.y.z"}).status_code in {400, 401}

    every_case(page, path, "POST", 30, check)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version"])
def test_operators_answers_are_as_the_page_says(page: Any, path: str) -> None:
    case = page[path]["GET"].Case()
    case.call_and_validate()
