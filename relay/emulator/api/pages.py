"""Pages for people: the repositories, a run with its steps and logs, a pull request with its checks, raw files."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from relay.emulator import git
from relay.emulator.api.actions import find_job, find_run, read_log, runs_of
from relay.emulator.api.common import ApiError, Repo, ServerDep
from relay.emulator.server import Server
from relay.emulator.state import JobRecord, Repository, Run

router = APIRouter(include_in_schema=False)

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1f2328; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
pre { background: #f6f8fa; padding: .8rem; overflow-x: auto; font-size: 12px; } a { color: #0550ae; }
.success { color: #116329; } .failure, .startup_failure, .timed_out { color: #a40e26; }
.cancelled, .skipped { color: #57606a; }
"""


def _page(title: str, body: str) -> HTMLResponse:
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><main><h1>{escape(title)}</h1>{body}</main></body></html>"
    )


def _table(heads: list[str], rows: list[list[str]]) -> str:
    """Cells are HTML."""
    head = "".join(f'<th scope="col">{escape(item)}</th>' for item in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _state(status: str, conclusion: str | None) -> str:
    word = conclusion or status
    return f'<span class="{escape(word)}">{escape(word)}</span>'


def _run_link(run: Run) -> str:
    return f'<a href="/{run.repository}/actions/runs/{run.id}">{escape(run.workflow_name)} #{run.number}</a>'


@router.get("/")
async def index(server: ServerDep) -> Response:
    """What there is."""
    rows = [
        [
            f'<a href="/{item.full_name}/actions">{escape(item.full_name)}</a>',
            ", ".join(f'<a href="/{item.full_name}/pull/{number}">#{number}</a>' for number in item.pulls),
            str(len(runs_of(server, item))),
        ]
        for item in list(server.state.repositories.values())[:200]
    ]
    return _page("Emulated GitHub", _table(["Repository", "Pull requests", "Runs"], rows))


@router.get("/{owner}/{name}/actions")
async def runs(item: Repo, server: ServerDep) -> Response:
    """Runs of a repository."""
    rows = [
        [_run_link(run), escape(run.title), _state(run.status, run.conclusion), escape(run.created_at)]
        for run in runs_of(server, item)[:200]
    ]
    return _page(f"{item.full_name}: workflow runs", _table(["Run", "Event", "State", "Created"], rows))


@router.get("/{owner}/{name}/actions/runs/{number}")
@router.get("/{owner}/{name}/actions/runs/{number}/attempts/{attempt}")
async def run(number: int, item: Repo, server: ServerDep, attempt: int | None = None) -> Response:
    """One attempt of a run: jobs, steps, annotations, summary, artifacts."""
    found = find_run(server, item, number)
    parts = [
        f"<p>{_state(found.status, found.conclusion)} · attempt {attempt or found.attempt} of {found.attempt} · "
        f"{escape(found.event)} · commit <code>{escape(found.head_sha[:12])}</code> · "
        f'<a href="/{item.full_name}/actions/runs/{number}/logs">all logs</a></p>'
    ]
    if found.problems:
        parts.append("<h2>The workflow cannot run</h2><pre>" + escape("\n".join(found.problems)) + "</pre>")
    parts += [_job_section(item, found, job) for job in found.jobs_of(attempt)]
    if found.artifacts:
        rows = [
            [
                f'<a href="/repos/{item.full_name}/actions/artifacts/{held.id}/zip">{escape(held.name)}</a>',
                str(held.size),
            ]
            for held in found.artifacts
        ]
        parts.append("<h2>Artifacts</h2>" + _table(["Name", "Bytes"], rows))
    return _page(f"{found.workflow_name} #{found.number}: {found.title}", "".join(parts))


def _job_section(item: Repository, found: Run, job: JobRecord) -> str:
    rows = [
        [
            str(step.number),
            escape(step.name),
            _state(step.status, step.conclusion),
            escape(step.started_at or ""),
            escape(step.completed_at or ""),
        ]
        for step in job.steps
    ]
    link = f'<a href="/{item.full_name}/actions/runs/{found.id}/job/{job.id}">log</a>'
    notes = "".join(
        f"<li>{escape(str(note['level']))}: {escape(str(note['message']))}</li>" for note in job.annotations
    )
    return (
        f"<h2>{escape(job.name)}: {_state(job.status, job.conclusion)} ({link})</h2>"
        + _table(["", "Step", "State", "Started", "Completed"], rows)
        + (f"<ul>{notes}</ul>" if notes else "")
        + (f"<h3>Summary</h3><pre>{escape(job.summary)}</pre>" if job.summary else "")
    )


@router.get("/{owner}/{name}/actions/runs/{number}/job/{job}")
async def job(number: int, job: int, item: Repo, server: ServerDep) -> Response:
    """A job with its log."""
    found = find_run(server, item, number)
    _, held = find_job(server, item, job)
    return _page(
        f"{found.workflow_name} #{found.number}: {held.name}",
        _job_section(item, found, held) + f"<h2>Log</h2><pre>{escape(read_log(held))}</pre>",
    )


@router.get("/{owner}/{name}/actions/runs/{number}/logs")
async def logs(number: int, item: Repo, server: ServerDep) -> Response:
    """All logs of the latest attempt as text."""
    found = find_run(server, item, number)
    texts = [f"===== {held.name}\n{read_log(held)}" for held in found.jobs_of()]
    return PlainTextResponse("\n".join([*found.problems, *texts]) + "\n")


@router.get("/{owner}/{name}/actions/runs/{number}/artifacts/{artifact}")
async def artifact(number: int, artifact: int, item: Repo, server: ServerDep) -> Response:
    """The files of an artifact."""
    for held in find_run(server, item, number).artifacts:
        if held.id == artifact:
            files = [str(path.relative_to(held.path)) for path in sorted(held.path.rglob("*")) if path.is_file()]
            zipped = f'<p><a href="/repos/{item.full_name}/actions/artifacts/{held.id}/zip">Download</a></p>'
            return _page(f"Artifact {held.name}", zipped + "<pre>" + escape("\n".join(files)) + "</pre>")
    raise ApiError(404, "Not Found")


@router.get("/{owner}/{name}/pull/{number}")
async def pull(number: int, item: Repo, server: ServerDep) -> Response:
    """A pull request with its checks."""
    if number not in item.pulls:
        raise ApiError(404, "Not Found")
    held = item.pulls[number]
    rows = [
        [
            f'<a href="{escape(check.details_url or "#")}">{escape(check.name)}</a>',
            _state(check.status, check.conclusion),
            escape(str(check.output.get("title") or "")),
        ]
        for check in item.checks.values()
        if check.head_sha == held.head_sha
    ]
    about = (
        f"<p>{escape(held.state)} · {escape(held.head_ref)} → {escape(held.base_ref)} · "
        f"<code>{escape(held.head_sha[:12])}</code> · {escape(', '.join(held.labels))}</p>"
    )
    return _page(f"#{number} {held.title}", about + "<h2>Checks</h2>" + _table(["Check", "State", "Title"], rows))


@router.get("/{owner}/{name}/raw/{path:path}")
async def raw(path: str, item: Repo, server: ServerDep) -> Response:
    """A file as it is: ``raw/{ref}/{path}``; a branch name may have slashes."""
    found = await _blob(server, item, path)
    return PlainTextResponse(found)


@router.get("/{owner}/{name}/blob/{path:path}")
async def blob(path: str, item: Repo, server: ServerDep) -> Response:
    """A file on a page."""
    return _page(path, "<pre>" + escape((await _blob(server, item, path)).decode(errors="replace")) + "</pre>")


async def _blob(_server: Server, item: Repository, path: str) -> bytes:
    parts = path.removeprefix("refs/heads/").split("/")
    for count in range(1, len(parts)):
        sha = await git.resolve(item.git, "/".join(parts[:count])) if item.git is not None else None
        data: Any = await git.read_file(item.git, sha, "/".join(parts[count:])) if sha and item.git else None
        if data is not None:
            return bytes(data)
    raise ApiError(404, "Not Found")
