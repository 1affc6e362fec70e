"""The pages: each renders one context of ``hud.queries`` with one template."""

from __future__ import annotations

import hashlib
import re
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from hud.app.api import Number, PageNumber, Search, Sha, TestName, Upstream, WantedOf, Word, found
from hud.app.render import BADGE_FILLS, STATE_LOOKS, VERDICT_LOOKS, iso, make_environment
from hud.app.state import HudOf, ScopeOf, hud_of
from hud.core.charts import line_chart
from hud.core.outcomes import OUTCOMES
from hud.queries.backends import backend_page, home_page, one_summary
from hud.queries.contexts import RunPoint
from hud.queries.health import health_page
from hud.queries.history import diff_page, feed, test_page
from hud.queries.matrix import STATES, matrix_page
from hud.queries.pulls import pull_list, pull_page
from hud.queries.run_lists import SHOWN, run_list
from hud.queries.runs import run_page
from hud.queries.scope import Scope

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
_templates = make_environment()


@router.get("/")
def home(request: Request, scope: ScopeOf, show: Word = "") -> HTMLResponse:
    """How the backends stand, and the latest pull requests."""
    return _render(request, scope, "home.html", page=home_page(scope), show=show)


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


@router.get("/runs")
def runs(request: Request, scope: ScopeOf, repo: Search = "", show: Word = "", page: PageNumber = 1) -> HTMLResponse:
    """Runs, the latest first."""
    return _render(request, scope, "runs.html", page=run_list(scope, repo, show, page), shown=SHOWN)


@router.get("/run/{key}")
def one_run(
    request: Request,
    scope: ScopeOf,
    key: str,
    wanted: WantedOf,
    page: PageNumber = 1,
) -> HTMLResponse:
    """One run with a page of its tests."""
    context = run_page(scope, key, wanted, page)
    if context is None:
        raise HTTPException(404, f"No run has the key {key}.")
    return _render(request, scope, "run.html", page=context, outcomes=OUTCOMES)


@router.get("/backend/{owner}/{repo}")
def one_backend(request: Request, scope: ScopeOf, hud: HudOf, owner: str, repo: str) -> HTMLResponse:
    """What ran lately on a backend."""
    page = backend_page(scope, f"{owner}/{repo}", hud.settings.readiness)
    page = found(page, f"{owner}/{repo} is not expected and has never reported.")
    return _render(request, scope, "backend.html", page=page, charts=_charts(page.trend))


def _charts(trend: list[RunPoint]) -> list[dict[str, Any]]:
    rates = [100 * point.passed / point.counted if point.counted else None for point in trend]
    failures = [float(point.failing) if point.counted else None for point in trend]
    minutes = [point.seconds / 60 if point.seconds is not None else None for point in trend]
    queued = [point.queue_seconds / 60 if point.queue_seconds is not None else None for point in trend]
    return [
        {"title": "Pass rate, %", "values": rates, "chart": line_chart(rates, ceiling=100)},
        {"title": "Failing tests", "values": failures, "chart": line_chart(failures, floor=0)},
        {"title": "Duration, minutes", "values": minutes, "chart": line_chart(minutes, floor=0)},
        {"title": "Queue time, minutes", "values": queued, "chart": line_chart(queued, floor=0)},
    ]


@router.get("/test")
def one_test(request: Request, scope: ScopeOf, name: TestName) -> HTMLResponse:
    """Since when a test fails, and where."""
    page = test_page(scope, name)
    return _render(request, scope, "test.html", 200 if page.known else 404, page=page)


@router.get("/test/{name:path}")
def test_by_path(name: str) -> RedirectResponse:
    """The address that people type."""
    return RedirectResponse(f"/test?name={quote(name, safe='')}", 308)


@router.get("/matrix/{owner}/{repo}")
def matrix(
    request: Request, scope: ScopeOf, owner: str, repo: str, q: Search = "", state: str = "", page: PageNumber = 1
) -> HTMLResponse:
    """Which operators of a backend work in which dtypes."""
    context = found(matrix_page(scope, f"{owner}/{repo}", q, state, page), f"{owner}/{repo} has never reported.")
    return _render(request, scope, "matrix.html", page=context, states=STATES)


@router.get("/diff")
def diff(
    request: Request,
    scope: ScopeOf,
    base: str = "",
    head: str = "",
    only: Word = "",
    page: PageNumber = 1,
) -> HTMLResponse:
    """What changed between two runs."""
    context = diff_page(scope, base, head, only, page) if base and head else None
    if base and head and context is None:
        raise HTTPException(404, "One of the two runs does not exist.")
    return _render(request, scope, "diff.html", page=context, base=base, head=head)


@router.get("/health")
def health(request: Request, scope: ScopeOf, hud: HudOf) -> HTMLResponse:
    """Whether reports arrive."""
    return _render(request, scope, "health.html", page=health_page(scope, hud.allowlist.error))


@router.get("/definitions")
def definitions(request: Request, scope: ScopeOf, hud: HudOf) -> HTMLResponse:
    """What the words and numbers mean."""
    return _render(request, scope, "definitions.html", settings=hud.settings)


@router.get("/feed.atom")
def atom(request: Request, scope: ScopeOf) -> Response:
    """Newly broken and fixed tests on the base branch, for a feed reader."""
    page = feed(scope)
    updated = iso(max((event.at for event in page.events), default=0))
    xml = _templates.get_template("feed.xml").render(
        request=request, page=page, base=str(request.base_url).rstrip("/"), updated=updated
    )
    return Response(xml, media_type="application/atom+xml")


@router.get("/badge/pr/{number}.svg")
def pull_badge(request: Request, scope: ScopeOf, number: Number, upstream: Upstream = None) -> Response:
    """The verdict on a pull request as a picture."""
    page = pull_page(scope, number, upstream=upstream)
    verdict = page.verdict if page is not None else "not reported"
    return _badge(request, f"PR #{number}", verdict, VERDICT_LOOKS[verdict][1])


@router.get("/badge/{owner}/{repo}.svg")
def backend_badge(request: Request, scope: ScopeOf, owner: str, repo: str) -> Response:
    """A backend's state on the base branch as a picture."""
    known = one_summary(scope, f"{owner}/{repo}")
    state = known.state if known is not None else "no data"
    figures = f" {known.passed}/{known.counted}" if known is not None and known.counted else ""
    return _badge(request, f"{owner}/{repo}", state + figures, STATE_LOOKS[state][1])


def _badge(request: Request, left: str, right: str, colour: str) -> Response:
    """A picture that others show in their pages.

    GitHub shows it through a proxy that keeps what it may keep: ``no-cache`` makes it ask again each time (GitHub Docs,
    "About anonymized URLs"), and the tag lets the answer be short.
    """
    svg = _templates.get_template("badge.svg").render(left=left, right=right, fill=BADGE_FILLS[colour])
    tag = f'"{hashlib.blake2b(svg.encode(), digest_size=16).hexdigest()}"'
    headers = {"Cache-Control": "no-cache", "ETag": tag, "Cross-Origin-Resource-Policy": "cross-origin"}
    known = {given.strip().removeprefix("W/") for given in request.headers.get("if-none-match", "").split(",")}
    if known & {tag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(svg, media_type="image/svg+xml", headers=headers)


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
