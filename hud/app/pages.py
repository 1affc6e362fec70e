"""The pages: each renders one context of ``hud.queries`` with one template."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from hud.app.api import Number, PageNumber, Sha, Upstream
from hud.app.render import make_environment
from hud.app.state import ScopeOf, hud_of
from hud.core.outcomes import OUTCOMES
from hud.queries.backends import home_page
from hud.queries.pulls import pull_list, pull_page
from hud.queries.runs import FILTERS, run_page
from hud.queries.scope import Scope

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
_templates = make_environment()


@router.get("/")
def home(request: Request, scope: ScopeOf) -> HTMLResponse:
    """How the backends stand, and the latest pull requests."""
    return _render(request, scope, "home.html", page=home_page(scope))


@router.get("/prs")
def prs(request: Request, scope: ScopeOf, page: PageNumber = 1, state: str = "") -> HTMLResponse:
    """All pull requests."""
    return _render(request, scope, "prs.html", page=pull_list(scope, page, state or None), state=state)


@router.get("/go")
def go(q: Annotated[str, Query(max_length=512)] = "") -> RedirectResponse:
    """The search box: a pull request's number or address."""
    number = re.search(r"(\d{1,10})\s*$", q)
    if number is None or not 0 < int(number[1]) < 2**31:
        raise HTTPException(404, f"'{q}' is not a pull request's number or address")
    return RedirectResponse(f"/pr/{int(number[1])}", 303)


@router.get("/pr/{number}")
def pull(request: Request, scope: ScopeOf, number: Number, upstream: Upstream = None) -> HTMLResponse:
    """What the latest commit of a pull request does."""
    page = pull_page(scope, number, upstream=upstream)
    if page is None:
        return _render(request, scope, "pr_unknown.html", 404, number=number)
    return _render(request, scope, "pr.html", page=page, permalink=False)


@router.get("/pr/{number}/{sha}")
def pull_commit(request: Request, scope: ScopeOf, number: Number, sha: Sha, upstream: Upstream = None) -> HTMLResponse:
    """What one commit of a pull request does."""
    page = pull_page(scope, number, sha, upstream)
    if page is None:
        raise HTTPException(404, f"No backend has reported on commit {sha} of pull request {number}.")
    return _render(request, scope, "pr.html", page=page, permalink=True)


@router.get("/run/{key}")
def one_run(
    request: Request,
    scope: ScopeOf,
    key: str,
    outcome: str = "",
    q: Annotated[str, Query(max_length=512)] = "",
    page: PageNumber = 1,
) -> HTMLResponse:
    """One run with a page of its tests."""
    context = run_page(scope, key, outcome, q, page)
    if context is None:
        raise HTTPException(404, f"No run has the key {key}.")
    return _render(request, scope, "run.html", page=context, filters=FILTERS, outcomes=OUTCOMES)


def error_page(request: Request, status: int, text: str, headers: dict[str, str]) -> HTMLResponse:
    """A page that says what went wrong; it needs no store."""
    name = HTTPStatus(status).phrase
    sentence = text if text != name else {404: "There is no such page."}.get(status, name)
    html = _templates.get_template("error.html").render(
        request=request, now=hud_of(request).clock(), status=status, name=name, sentence=sentence
    )
    return HTMLResponse(html, status, headers)


def _render(request: Request, scope: Scope, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    html = _templates.get_template(template).render(request=request, now=scope.now, **context)
    return HTMLResponse(html, status, {"Cache-Control": "no-cache"})
