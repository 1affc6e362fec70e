"""The same contexts as the pages show, as JSON."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import APIRouter, HTTPException, Path, Query

from hud.app.state import ScopeOf
from hud.queries.backends import backend_list
from hud.queries.contexts import BackendList, PullList, PullPage, RunPage
from hud.queries.pulls import pull_list, pull_page
from hud.queries.runs import run_page

router = APIRouter(prefix="/api/v1", tags=["read"])

T = TypeVar("T")

Number = Annotated[int, Path(ge=1, lt=2**31)]
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]
Sha = Annotated[str, Path(pattern=r"^[0-9a-f]{7,64}$")]
Upstream = Annotated[str | None, Query(max_length=255, description="where several upstreams have this number")]


@router.get("/prs")
def prs(scope: ScopeOf, page: PageNumber = 1, state: Annotated[str | None, Query(max_length=16)] = None) -> PullList:
    """Pull requests that backends reported on, the latest first."""
    return pull_list(scope, page, state)


@router.get("/pr/{number}")
def pull(scope: ScopeOf, number: Number, upstream: Upstream = None) -> PullPage:
    """What the latest commit of a pull request does."""
    return _found(pull_page(scope, number, upstream=upstream), f"no backend has reported on pull request {number}")


@router.get("/pr/{number}/{sha}")
def pull_commit(scope: ScopeOf, number: Number, sha: Sha, upstream: Upstream = None) -> PullPage:
    """What one commit of a pull request does."""
    text = f"no backend has reported on commit {sha} of pull request {number}"
    return _found(pull_page(scope, number, sha, upstream), text)


@router.get("/backends")
def backends(scope: ScopeOf) -> BackendList:
    """How every backend stands on upstream's base branch."""
    return backend_list(scope)


@router.get("/runs/{key}")
def one_run(
    scope: ScopeOf,
    key: str,
    outcome: Annotated[str, Query(max_length=32)] = "",
    q: Annotated[str, Query(max_length=512)] = "",
    page: PageNumber = 1,
) -> RunPage:
    """One run with a page of its tests."""
    return _found(run_page(scope, key, outcome, q, page), f"no run has the key {key}")


def _found(context: T | None, text: str) -> T:
    if context is None:
        raise HTTPException(404, text)
    return context
