"""The same contexts as the pages show, as JSON; and a run's results in other formats."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Path, Query
from fastapi.concurrency import contextmanager_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool

from hud.app.state import Hud, HudOf, ScopeOf
from hud.formats import FORMATS
from hud.queries.backends import backend_list, backend_page
from hud.queries.contexts import (
    BackendList,
    BackendPage,
    DiffPage,
    Feed,
    HealthPage,
    MatrixPage,
    PullList,
    PullPage,
    RunList,
    RunPage,
    TestPage,
)
from hud.queries.exports import NOTHING, every_result, find_run
from hud.queries.health import health_page
from hud.queries.history import diff_page, feed, test_page
from hud.queries.matrix import matrix_page
from hud.queries.pulls import pull_list, pull_page
from hud.queries.run_lists import run_list
from hud.queries.runs import Wanted, run_page

router = APIRouter(prefix="/api/v1", tags=["read"])

T = TypeVar("T")

Number = Annotated[int, Path(ge=1, lt=2**31)]
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]
Sha = Annotated[str, Path(pattern=r"^[0-9a-f]{7,64}$")]
Upstream = Annotated[str | None, Query(max_length=255, description="where several upstreams have this number")]
Search = Annotated[str, Query(max_length=512)]
Word = Annotated[str, Query(max_length=32)]
TestName = Annotated[str, Query(max_length=12_000, description="a test's id")]


def wanted_of(outcome: Word = "", q: Search = "", op: Search = "", dtype: Search = "", kind: Word = "") -> Wanted:
    """Which tests of a run to list, from the address."""
    return Wanted(outcome, q, op, dtype, kind)


WantedOf = Annotated[Wanted, Depends(wanted_of)]


@router.get("/prs")
def prs(scope: ScopeOf, page: PageNumber = 1, state: Annotated[str, Query(max_length=16)] = "") -> PullList:
    """Pull requests that backends reported on, the latest first."""
    return pull_list(scope, page, state or None)


@router.get("/pr/{number}")
def pull(scope: ScopeOf, number: Number, upstream: Upstream = None) -> PullPage:
    """What the latest commit of a pull request does."""
    return found(pull_page(scope, number, upstream=upstream), f"No backend has reported on pull request {number}.")


@router.get("/pr/{number}/{sha}")
def pull_commit(scope: ScopeOf, number: Number, sha: Sha, upstream: Upstream = None) -> PullPage:
    """What one commit of a pull request does."""
    text = f"No backend has reported on commit {sha} of pull request {number}."
    return found(pull_page(scope, number, sha, upstream), text)


@router.get("/backends")
def backends(scope: ScopeOf) -> BackendList:
    """How every backend stands on upstream's base branch."""
    return backend_list(scope)


@router.get("/backend/{owner}/{repo}")
def one_backend(scope: ScopeOf, hud: HudOf, owner: str, repo: str) -> BackendPage:
    """What ran lately on a backend."""
    page = backend_page(scope, f"{owner}/{repo}", hud.settings.readiness)
    return found(page, f"{owner}/{repo} is not expected and has never reported.")


@router.get("/runs")
def runs(scope: ScopeOf, repo: Search = "", show: Word = "", page: PageNumber = 1) -> RunList:
    """Runs, the latest first."""
    return run_list(scope, repo, show, page)


@router.get("/runs/{key}")
def one_run(scope: ScopeOf, key: str, wanted: WantedOf, page: PageNumber = 1) -> RunPage:
    """One run with a page of its tests."""
    return found(run_page(scope, key, wanted, page), f"No run has the key {key}.")


@router.get(
    "/runs/{key}/tests.{ending}",
    responses={404: {"description": "no such run, or no results"}, 410: {"description": "the results were pruned"}},
)
def all_tests(hud: HudOf, key: str, ending: Literal["csv", "jsonl", "xml"]) -> StreamingResponse:
    """Every test of a run as CSV, JSON lines or JUnit XML."""
    with hud.scope() as scope:
        row = found(find_run(scope, key), f"No run has the key {key}.")
    if row.results in NOTHING:
        status = 410 if row.results == "pruned" else 404
        raise HTTPException(status, f"The run {key} has no results of tests: {NOTHING[row.results]}.")
    media_type, _ = FORMATS[ending]
    name = {"Content-Disposition": f'attachment; filename="{key}.{ending}"'}
    return StreamingResponse(_written(hud, key, ending), media_type=media_type, headers=name)


async def _written(hud: Hud, key: str, ending: str) -> AsyncIterator[str]:
    async with hud.exports, contextmanager_in_threadpool(hud.scope()) as scope:
        row = await run_in_threadpool(find_run, scope, key)
        if row is not None:
            async for text in iterate_in_threadpool(FORMATS[ending][1](every_result(scope, row))):
                yield text


@router.get("/test")
def one_test(scope: ScopeOf, name: TestName) -> TestPage:
    """Since when a test fails, and where."""
    return test_page(scope, name)


@router.get("/matrix/{owner}/{repo}")
def matrix(scope: ScopeOf, owner: str, repo: str, q: Search = "", state: str = "", page: PageNumber = 1) -> MatrixPage:
    """Which operators of a backend work in which dtypes."""
    return found(matrix_page(scope, f"{owner}/{repo}", q, state, page), f"{owner}/{repo} has never reported.")


@router.get("/diff")
def diff(scope: ScopeOf, base: str, head: str, only: Word = "", page: PageNumber = 1) -> DiffPage:
    """What changed between two runs, given by their keys."""
    return found(diff_page(scope, base, head, only, page), "One of the two runs does not exist.")


@router.get("/health")
def health(scope: ScopeOf, hud: HudOf) -> HealthPage:
    """Whether reports arrive."""
    return health_page(scope, hud.allowlist.error)


@router.get("/feed")
def events(scope: ScopeOf) -> Feed:
    """Newly broken and fixed tests on the base branch."""
    return feed(scope)


def found(context: T | None, text: str) -> T:
    """The context, or the answer 404."""
    if context is None:
        raise HTTPException(404, text)
    return context
