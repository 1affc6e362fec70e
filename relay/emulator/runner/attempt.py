"""One attempt of one run: the order of its jobs, their matrices, their results."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relay.emulator import git
from relay.emulator.runner import matrix as matrices
from relay.emulator.runner.concurrency import Groups, Member
from relay.emulator.runner.expressions import (
    ExpressionError,
    Function,
    Node,
    Template,
    evaluate,
    to_number,
    to_text,
    truthy,
)
from relay.emulator.runner.job import JobExecution, JobSpec
from relay.emulator.runner.model import Concurrency, Job, Workflow
from relay.emulator.state import Artifact, JobRecord, Repository, Run, State, now

DEFAULT_PERMISSIONS = {"contents": "read", "metadata": "read", "packages": "read"}
"""Of ``GITHUB_TOKEN`` where a workflow says nothing ("Permissions for the GITHUB_TOKEN", restricted)."""

_log = logging.getLogger("relay.emulator")


@dataclass
class Credentials:
    """What a job gets besides its definition: its token, and its OIDC request address and token if it may have them."""

    token: str
    id_token_url: str | None = None
    id_token_request: str | None = None
    revoke: Callable[[], None] = lambda: None


GiveCredentials = Callable[[Run, JobRecord, "str | None", dict[str, str]], Credentials]
"""Run, job, deployment environment, permissions → the job's credentials."""


@dataclass
class Active:
    """A run attempt that is not over."""

    run: Run
    task: asyncio.Task[None] | None = None
    executions: dict[int, JobExecution] = field(default_factory=dict)
    cancelled: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def cancel(self, force: bool = False) -> None:
        """Cancel it: jobs that wait are cancelled, those that run are asked to end."""
        self.cancelled = True
        self.wake.set()
        for execution in self.executions.values():
            execution.cancel(force)


@dataclass(frozen=True)
class Shared:
    """What all attempts share.

    Attributes:
        groups: concurrency groups of all repositories; names carry the repository.
        slots: places on the runner.
        give: makes a job's credentials.
        tracking: prefix of the tracking ids of all jobs' processes.
    """

    state: State
    groups: Groups
    slots: asyncio.Semaphore
    give: GiveCredentials
    tracking: str


class Attempt:
    """One attempt of one run."""

    def __init__(
        self, shared: Shared, repository: Repository, active: Active, workflow: Workflow,
        kept: dict[tuple[str, str], JobRecord],
    ) -> None:  # fmt: skip
        self.shared = shared
        self.state = shared.state
        self.repository = repository
        self.active = active
        self.run = active.run
        self.workflow = workflow
        self.kept = kept
        self.results: dict[str, list[JobRecord]] = {}

    def changed(self) -> None:
        """Write the run's file."""
        self.state.save_run(self.run)

    async def execute(self) -> None:
        """Run every job; the run is completed afterwards, whatever happened."""
        run = self.run
        try:
            if self.workflow.run_name is not None:
                run.title = to_text(self.render(self.workflow.run_name)).strip() or run.title
            with self.group(self.workflow.concurrency, {}, self.active.cancel) as member:
                if member is not None and not member.ready.is_set():
                    run.status = "pending"
                    self.changed()
                    await self._ready(member)
                run.status = "in_progress"
                self.changed()
                await self._jobs()
        except asyncio.CancelledError:
            self.active.cancelled = True
            raise
        except Exception as error:
            _log.exception("run %s of %s failed in the runner", run.id, run.repository)
            run.problems.append(f"{self.workflow.file}: {error}")
        finally:
            run.status, run.conclusion = "completed", self._conclusion()
            self.changed()

    async def _ready(self, member: Member) -> None:
        """Wait for the group, or for the run's cancellation."""
        waits = {asyncio.create_task(member.ready.wait()), asyncio.create_task(self.active.wake.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    @contextlib.contextmanager
    def group(self, concurrency: Concurrency | None, contexts: dict[str, Any], cancel: Callable[[], None]) -> Any:
        """Context of a concurrency group; gives the member that waits for it, ``None`` without a group."""
        if concurrency is None:
            yield None
            return
        name = f"{self.run.repository}:{to_text(self.render(concurrency.group, contexts))}".lower()
        stop = concurrency.cancel_in_progress
        member = Member(cancel)
        self.shared.groups.enter(name, member, stop is not None and self.flag(stop, contexts))
        try:
            yield member
        finally:
            self.shared.groups.leave(name, member)

    def _conclusion(self) -> str:
        jobs = self.run.jobs_of()
        conclusions = ["success" if job.tolerated else job.conclusion for job in jobs]
        if self.run.problems:
            return "failure"
        if "failure" in conclusions:
            return "failure"
        if self.active.cancelled or "cancelled" in conclusions:
            return "cancelled"
        return "skipped" if conclusions and all(item == "skipped" for item in conclusions) else "success"

    # -- expressions

    def github(self, job: Job | None = None, token: str = "") -> dict[str, Any]:
        """The ``github`` context."""
        run, repository, base = self.run, self.repository, self.state.base_url
        ref = f"refs/heads/{run.head_branch}"
        return {
            "action": "",
            "actor": run.actor,
            "actor_id": str(repository.owner_id),
            "api_url": base,
            "base_ref": "",
            "event": self.event(),
            "event_name": run.event,
            "graphql_url": f"{base}/graphql",
            "head_ref": "",
            "job": job.id if job is not None else "",
            "ref": ref,
            "ref_name": run.head_branch,
            "ref_protected": "false",
            "ref_type": "branch",
            "repository": repository.full_name,
            "repository_id": str(repository.id),
            "repository_owner": repository.owner,
            "repository_owner_id": str(repository.owner_id),
            "repositoryUrl": f"git://{base.partition('://')[2]}/{repository.full_name}.git",
            "retention_days": "90",
            "run_attempt": str(run.attempt),
            "run_id": str(run.id),
            "run_number": str(run.number),
            "server_url": base,
            "sha": run.head_sha,
            "token": token,
            "triggering_actor": run.actor,
            "workflow": self.workflow.name,
            "workflow_ref": f"{repository.full_name}/{run.workflow_file}@{ref}",
            "workflow_sha": run.head_sha,
        }

    def event(self) -> dict[str, Any]:
        """The webhook payload that started the run."""
        return self.run.payload

    def render(self, template: Template, contexts: Mapping[str, Any] | None = None) -> Any:
        """Value of a template outside of any step."""
        held = {
            "github": self.github(),
            "inputs": self.run.inputs,
            "vars": self.repository.settings.variables,
            "secrets": self.repository.settings.secrets,
            **(contexts or {}),
        }
        return template.render(held, {})

    def flag(self, template: Template, contexts: Mapping[str, Any] | None = None) -> bool:
        """As :meth:`render`, as a boolean."""
        value = self.render(template, contexts)
        return value.lower() == "true" if isinstance(value, str) else truthy(value)

    def deep(self, value: Any, contexts: Mapping[str, Any]) -> Any:
        """As :meth:`render`, for every template inside a matrix."""
        if isinstance(value, Template):
            return self.render(value, contexts)
        if isinstance(value, dict):
            return {name: self.deep(item, contexts) for name, item in value.items()}
        return [self.deep(item, contexts) for item in value] if isinstance(value, list) else value

    def needs(self, job: Job) -> dict[str, Any]:
        """The ``needs`` context."""
        result = {}
        for need in job.needs:
            records = self.results[need]
            outputs: dict[str, str] = {}
            for record in records:
                outputs |= record.outputs
            result[need] = {"result": _joint(records), "outputs": outputs}
        return result

    def status_functions(self, job: Job) -> dict[str, Function]:
        """``success()`` and its like for a job's ``if``: about all jobs above it, not only those it names."""
        above = [_joint(self.results[need]) for need in _ancestors(self.workflow, job)]
        return {
            "success": lambda: not self.active.cancelled and all(item == "success" for item in above),
            "failure": lambda: not self.active.cancelled and "failure" in above,
            "cancelled": lambda: self.active.cancelled,
            "always": lambda: True,
        }

    # -- jobs

    async def _jobs(self) -> None:
        waiting = dict(self.workflow.jobs)
        running: dict[asyncio.Task[None], str] = {}
        try:
            while waiting or running:
                ready = [
                    job for job in waiting.values()
                    if all(need in self.results and need not in running.values() for need in job.needs)
                ]  # fmt: skip
                for job in ready:
                    del waiting[job.id]
                    self.results[job.id] = []
                    running[asyncio.create_task(self._job(job))] = job.id
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del running[task]
                    task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _record(self, job: Job, combination: dict[str, Any] | None, contexts: Mapping[str, Any]) -> JobRecord:
        identifier = self.state.new_id()
        name = job.id if combination is None else f"{job.id} ({matrices.suffix(combination)})"
        if job.name is not None:
            with contextlib.suppress(ExpressionError):
                name = to_text(self.render(job.name, contexts))
        labels: list[str] = []
        for template in job.runs_on:
            with contextlib.suppress(ExpressionError):
                value = self.render(template, contexts)
                labels += [to_text(item) for item in value] if isinstance(value, list) else [to_text(value)]
        record = JobRecord(
            id=identifier,
            run_id=self.run.id,
            attempt=self.run.attempt,
            key=job.id,
            name=name,
            matrix=combination,
            labels=labels,
            log=self.run.directory / str(self.run.attempt) / f"{identifier}.log",
        )
        self.run.jobs.append(record)
        self.results[job.id].append(record)
        return record

    async def _job(self, job: Job) -> None:
        """All combinations of one job."""
        contexts: dict[str, Any] = {"needs": self.needs(job)}
        held = {
            "github": self.github(job),
            "inputs": self.run.inputs,
            "vars": self.repository.settings.variables,
            **contexts,
        }
        problem = None
        try:
            node = job.condition or Node("call", "success")
            wanted = truthy(evaluate(node, held, self.status_functions(job)))
            matrix = self.deep(job.strategy.matrix, contexts) if job.strategy and wanted else None
            combinations = matrices.expand(matrix) if matrix is not None else [None]
            fail_fast = not (job.strategy and job.strategy.fail_fast) or self.flag(job.strategy.fail_fast, contexts)
            parallel = to_number(self.render(job.strategy.max_parallel, contexts)) \
                if job.strategy and job.strategy.max_parallel else math.inf  # fmt: skip
        except (ExpressionError, matrices.MatrixError) as error:
            problem, wanted = f"{job.where}: {error}", False
        if not wanted:
            record = self._record(job, None, contexts)
            record.status, record.completed_at = "completed", now()
            record.conclusion = "failure" if problem else "cancelled" if self.active.cancelled else "skipped"
            if problem:
                record.annotations.append({"level": "error", "message": problem})
            self.changed()
            return
        limit = asyncio.Semaphore(int(parallel) if not math.isinf(parallel) and parallel >= 1 else len(combinations))
        batch: list[JobRun] = []
        for index, combination in enumerate(combinations):
            strategy = {
                "fail-fast": fail_fast,
                "job-index": index,
                "job-total": len(combinations),
                "max-parallel": len(combinations) if math.isinf(parallel) else int(parallel),
            }
            own = {**contexts, "matrix": combination or {}, "strategy": strategy}
            old = self.kept.get((job.id, repr(combination)))
            record = self._record(job, combination, own)
            if old is not None:
                _carry_over(old, record)
                continue
            batch.append(JobRun(self, job, record, own))
        self.changed()

        async def one(job_run: JobRun) -> None:
            async with limit:
                await job_run.execute()
            if fail_fast and len(combinations) > 1 and job_run.record.conclusion == "failure":
                for other in batch:
                    other.cancel()

        await asyncio.gather(*(one(job_run) for job_run in batch))


class JobRun:
    """One combination of one job, from the queue to its end."""

    def __init__(self, attempt: Attempt, job: Job, record: JobRecord, contexts: dict[str, Any]) -> None:
        self.attempt = attempt
        self.job = job
        self.record = record
        self.contexts = contexts
        self.cancelled = False
        self.execution: JobExecution | None = None
        self._wake = asyncio.Event()
        # A job that starts after the run was cancelled asked for it (`always()`), so that cancellation is not for it.
        self._late = attempt.active.cancelled

    def cancel(self) -> None:
        """Cancel this job alone (fail-fast, or its concurrency group)."""
        self.cancelled = True
        self._wake.set()
        if self.execution is not None:
            self.execution.cancel()

    async def execute(self) -> None:
        """Wait for the concurrency group and a place, then run."""
        attempt, record = self.attempt, self.record
        try:
            with attempt.group(self.job.concurrency, self.contexts, self.cancel) as member:
                if not await self._wait(member):
                    record.status, record.conclusion, record.completed_at = "completed", "cancelled", now()
                    return
                try:
                    await self._run()
                finally:
                    attempt.shared.slots.release()
        except ExpressionError as error:
            record.annotations.append({"level": "error", "message": f"{self.job.where}: {error}"})
            record.status, record.conclusion, record.completed_at = "completed", "failure", now()
        finally:
            attempt.changed()

    async def _wait(self, member: Member | None) -> bool:
        """Wait for the concurrency group and a place on the runner; ``False`` if cancelled before."""

        async def turn() -> None:
            if member is not None:
                await member.ready.wait()
            await self.attempt.shared.slots.acquire()

        active = self.attempt.active
        mine = asyncio.create_task(turn())
        cancelled = [asyncio.create_task(self._wake.wait())]
        if not self._late:
            cancelled.append(asyncio.create_task(active.wake.wait()))
        try:
            await asyncio.wait({mine, *cancelled}, return_when=asyncio.FIRST_COMPLETED)
            go = mine.done() and not self.cancelled and (self._late or not active.cancelled)
            if mine.done() and not go:
                self.attempt.shared.slots.release()
            return go
        finally:
            for task in (mine, *cancelled):
                task.cancel()

    async def _run(self) -> None:
        attempt, job, run, record = self.attempt, self.job, self.attempt.run, self.record
        settings = attempt.repository.settings
        environment = to_text(attempt.render(job.environment, self.contexts)) if job.environment is not None else None
        credentials = attempt.shared.give(run, record, environment or None, self._permissions())
        secrets = {**settings.secrets, "GITHUB_TOKEN": credentials.token}
        extra = {}
        masked = list(secrets.values())
        if credentials.id_token_url and credentials.id_token_request:
            extra = {
                "ACTIONS_ID_TOKEN_REQUEST_URL": credentials.id_token_url,
                "ACTIONS_ID_TOKEN_REQUEST_TOKEN": credentials.id_token_request,
            }
            masked.append(credentials.id_token_request)
        directory = run.directory / str(run.attempt) / f"job-{record.id}"
        github = attempt.github(job, credentials.token)
        github["workspace"] = str(directory / "work" / attempt.repository.name)
        github["event_path"] = str(directory / "temp" / "event.json")
        self.execution = JobExecution(
            JobSpec(
                workflow=attempt.workflow,
                job=job,
                record=record,
                github=github,
                event=attempt.event(),
                variables=settings.variables,
                secrets=secrets,
                inputs=run.inputs,
                needs=self.contexts["needs"],
                matrix=self.contexts["matrix"] or None,
                strategy=self.contexts["strategy"],
                masked=masked,
                credentials=extra,
                directory=directory,
                tracking=f"{attempt.shared.tracking}_{record.id}_",
                settings=attempt.state.settings.runner,
                store=self._store,
                stored=self._stored,
                own_tree=self._own_tree,
                changed=attempt.changed,
            )
        )
        attempt.active.executions[record.id] = self.execution
        try:
            await self.execution.run()
        finally:
            credentials.revoke()
            del attempt.active.executions[record.id]
            shutil.rmtree(directory, ignore_errors=True)
        if record.conclusion == "failure" and job.continue_on_error is not None:
            # The job shows its failure; the run and the jobs that need it go on as if it had succeeded.
            record.tolerated = attempt.flag(job.continue_on_error, self.contexts)

    def _permissions(self) -> dict[str, str]:
        given = self.job.permissions if self.job.permissions is not None else self.attempt.workflow.permissions
        if given is None:
            return dict(DEFAULT_PERMISSIONS)
        return {"metadata": "read", **{name: level for name, level in given.items() if level != "none"}}

    async def _own_tree(self, target: Path) -> None:
        repository = self.attempt.repository
        assert repository.git is not None
        await git.export(repository.git, self.attempt.run.head_sha, target)

    def _stored(self, name: str) -> Path | None:
        found = [item.path for item in self.attempt.run.artifacts if item.name == name]
        return found[-1] if found else None

    def _store(self, name: str, files: Mapping[str, Path], overwrite: bool) -> tuple[int, str, str]:
        """Keep an artifact: copied beside its place and then moved, so that a listed artifact is whole."""
        run, state = self.attempt.run, self.attempt.state
        existing = [item for item in run.artifacts if item.name == name and item.attempt == run.attempt]
        if existing and not overwrite:
            raise OSError(f"an artifact with the name {name!r} already exists on this workflow run")
        identifier = state.new_id()
        target = run.directory / "artifacts" / str(identifier)
        temporary = target.with_name(f".{identifier}.new")
        total, digest = 0, hashlib.sha256()
        try:
            for inner, source in files.items():
                copy = temporary / inner
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
                data = copy.read_bytes()
                total += len(data)
                digest.update(inner.encode() + b"\0" + hashlib.sha256(data).digest())
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for old in existing:
            run.artifacts.remove(old)
            shutil.rmtree(old.path, ignore_errors=True)
        run.artifacts.append(Artifact(identifier, name, target, total, digest.hexdigest(), run.attempt))
        url = f"{state.base_url}/{run.repository}/actions/runs/{run.id}/artifacts/{identifier}"
        return identifier, url, digest.hexdigest()


def _carry_over(old: JobRecord, new: JobRecord) -> None:
    """A job that a re-run of failed jobs does not run again keeps its result."""
    for name in (
        "status", "conclusion", "started_at", "completed_at", "steps", "annotations", "outputs", "summary", "log",
        "tolerated",
    ):  # fmt: skip
        setattr(new, name, getattr(old, name))


def _ancestors(workflow: Workflow, job: Job) -> set[str]:
    found: set[str] = set()
    for need in job.needs:
        found |= {need} | _ancestors(workflow, workflow.jobs[need])
    return found


def _joint(records: list[JobRecord]) -> str:
    """One result for all combinations of a job."""
    conclusions = ["success" if record.tolerated else record.conclusion for record in records]
    for result in ("failure", "cancelled"):
        if result in conclusions:
            return result
    return "skipped" if all(item == "skipped" for item in conclusions) else "success"
