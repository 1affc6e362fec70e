"""Runs: which workflows an event starts; their attempts, concurrency groups, cancellation and re-runs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import shutil
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relay.emulator import git
from relay.emulator.runner import matrix as matrices
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
from relay.emulator.runner.workflow import (
    Concurrency,
    Input,
    Job,
    Workflow,
    WorkflowError,
    load_workflow,
    read_triggers,
    triggers_match,
)
from relay.emulator.state import Artifact, JobRecord, Repository, Run, State, now

WORKFLOW_FOLDER = ".github/workflows"
DEFAULT_PERMISSIONS = {"contents": "read", "metadata": "read", "packages": "read"}
"""Of ``GITHUB_TOKEN`` where a workflow says nothing ("Permissions for the GITHUB_TOKEN", restricted)."""

_log = logging.getLogger("relay.emulator")


class RunError(Exception):
    """The request cannot be done in the run's present state; the text is for the API's answer."""


class InputError(Exception):
    """Inputs of a workflow dispatch do not fit the workflow."""


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
class _Active:
    """A run attempt that is not over."""

    run: Run
    task: asyncio.Task[None] | None = None
    executions: dict[int, JobExecution] = field(default_factory=dict)
    cancelled: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _Member:
    """A run or job that holds, or waits for, a concurrency group."""

    cancel: Callable[[], None]
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class _Groups:
    """Concurrency groups: one member runs, at most one waits, a newer one takes the waiting one's place."""

    def __init__(self) -> None:
        self._running: dict[str, _Member] = {}
        self._waiting: dict[str, _Member] = {}

    def enter(self, name: str, member: _Member, cancel_in_progress: bool) -> None:
        if name not in self._running:
            self._running[name] = member
            member.ready.set()
            return
        if name in self._waiting:
            self._waiting[name].cancel()
        self._waiting[name] = member
        if cancel_in_progress:
            self._running[name].cancel()

    def leave(self, name: str, member: _Member) -> None:
        if self._waiting.get(name) is member:
            del self._waiting[name]
        if self._running.get(name) is member:
            del self._running[name]
            if name in self._waiting:
                self._running[name] = self._waiting.pop(name)
                self._running[name].ready.set()


class Runs:
    """The Actions side of the server."""

    def __init__(self, state: State, credentials: GiveCredentials) -> None:
        self.state = state
        self._credentials = credentials
        self._active: dict[int, _Active] = {}
        self._groups = _Groups()
        self._starting: set[asyncio.Task[Any]] = set()
        # 0 means that nothing runs, for tests of queued runs.
        self._slots = asyncio.Semaphore(state.settings.runner.concurrency)
        self.tracking = f"emulator_{uuid.uuid4().hex}"

    # -- starting

    def dispatch(self, repository: Repository, event_type: str, payload: dict[str, Any], actor: str) -> None:
        """Start, in the background, every workflow of the default branch that listens to ``event_type``."""
        if repository.git is None:
            return
        self._later(self._dispatch(repository, event_type, payload, actor))

    def _later(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._starting.add(task)

        def done(finished: asyncio.Future[Any]) -> None:
            self._starting.discard(finished)
            if not finished.cancelled() and finished.exception() is not None:
                _log.error("a run could not be started", exc_info=finished.exception())

        task.add_done_callback(done)

    async def _dispatch(self, repository: Repository, event_type: str, payload: dict[str, Any], actor: str) -> None:
        assert repository.git is not None
        branch = repository.default_branch
        sha = await git.resolve(repository.git, f"refs/heads/{branch}")
        if sha is None:
            return
        for file in await self.workflow_files(repository, sha):
            text = await self._text(repository, sha, file)
            try:
                if not triggers_match(read_triggers(text, file), "repository_dispatch", event_type):
                    continue
            except WorkflowError as error:
                self._failed_start(repository, file, payload, sha, branch, actor, error.problems)
                continue
            await self._start(repository, file, text, "repository_dispatch", payload, {}, sha, branch, actor)

    async def dispatch_workflow(
        self, repository: Repository, file: str, ref: str, inputs: Mapping[str, Any], actor: str
    ) -> None:
        """Start one workflow by hand (``workflow_dispatch``).

        Raises:
            InputError: no such ref or file, no such trigger, or inputs that do not fit.
        """
        branch = ref.removeprefix("refs/heads/")
        sha = await git.resolve(repository.git, f"refs/heads/{branch}") if repository.git is not None else None
        if sha is None:
            raise InputError(f"No ref found for: {ref}")
        text = await self._text(repository, sha, file)
        try:
            triggers = read_triggers(text, file)
            if "workflow_dispatch" not in triggers:
                raise InputError("Workflow does not have 'workflow_dispatch' trigger")
            workflow = load_workflow(text, file, await self._reader(repository, sha))
        except WorkflowError as error:
            raise InputError(str(error)) from error
        values = check_inputs(workflow.dispatch_inputs, inputs)
        payload = {"inputs": {name: to_text(value) for name, value in values.items()}, "ref": f"refs/heads/{branch}",
                   "workflow": file}  # fmt: skip
        await self._start(repository, file, text, "workflow_dispatch", payload, values, sha, branch, actor)

    async def workflow_files(self, repository: Repository, sha: str) -> list[str]:
        """Paths of the repository's workflow files at a commit."""
        if repository.git is None:
            return []
        entries = await git.list_folder(repository.git, sha, WORKFLOW_FOLDER) or []
        return [
            f"{WORKFLOW_FOLDER}/{name}"
            for name, kind, _, _ in entries
            if kind == "file" and name.endswith((".yml", ".yaml"))
        ]

    async def _text(self, repository: Repository, sha: str, file: str) -> str:
        assert repository.git is not None
        data = await git.read_file(repository.git, sha, file)
        return (data or b"").decode(errors="replace")

    async def _reader(self, repository: Repository, sha: str) -> Callable[[str], str | None]:
        """All ``action.yml`` of the tree, so that loading needs no I/O of its own."""
        assert repository.git is not None
        listing = await git.git(repository.git, "ls-tree", "-r", "-z", "--name-only", sha)
        files = [name for name in listing.decode(errors="replace").split("\0")
                 if name.rpartition("/")[2] in ("action.yml", "action.yaml")]  # fmt: skip
        held = {name: await self._text(repository, sha, name) for name in files}
        return held.get

    def _new_run(
        self, repository: Repository, file: str, name: str, event: str, payload: dict[str, Any],
        inputs: dict[str, Any], sha: str, branch: str, actor: str,
    ) -> Run:  # fmt: skip
        number = repository.run_numbers.get(file, 0) + 1
        repository.run_numbers[file] = number
        identifier = self.state.new_id()
        run = Run(
            id=identifier,
            number=number,
            repository=repository.full_name,
            workflow_file=file,
            workflow_name=name,
            title=str(payload.get("action") or name),
            event=event,
            payload=payload,
            inputs=inputs,
            head_sha=sha,
            head_branch=branch,
            actor=actor,
            suite_id=self.state.new_id(),
            directory=self.state.settings.data_dir / "runs" / str(identifier),
        )
        self.state.runs[run.id] = run
        return run

    def _failed_start(
        self, repository: Repository, file: str, payload: dict[str, Any], sha: str, branch: str, actor: str,
        problems: list[str],
    ) -> None:  # fmt: skip
        run = self._new_run(repository, file, file, "repository_dispatch", payload, {}, sha, branch, actor)
        self._refuse(run, problems)

    def _refuse(self, run: Run, problems: list[str]) -> None:
        run.problems = problems
        run.status, run.conclusion = "completed", "startup_failure"
        for problem in problems:
            _log.error("run %s of %s cannot start: %s", run.id, run.repository, problem)
        self.state.save_run(run)

    async def _start(
        self, repository: Repository, file: str, text: str, event: str, payload: dict[str, Any],
        inputs: dict[str, Any], sha: str, branch: str, actor: str,
    ) -> None:  # fmt: skip
        run = self._new_run(repository, file, file, event, payload, inputs, sha, branch, actor)
        try:
            workflow = load_workflow(text, file, await self._reader(repository, sha))
        except WorkflowError as error:
            self._refuse(run, error.problems)
            return
        run.workflow_name = workflow.name
        run.title = workflow.name if event == "workflow_dispatch" else run.title
        self._launch(repository, run, workflow, {})

    def _launch(
        self, repository: Repository, run: Run, workflow: Workflow, kept: dict[tuple[str, str], JobRecord]
    ) -> None:
        active = _Active(run)
        self._active[run.id] = active
        attempt = _Attempt(self, repository, active, workflow, kept)
        active.task = asyncio.create_task(attempt.execute(), name=f"run {run.id}")
        active.task.add_done_callback(lambda _: self._active.pop(run.id, None))

    # -- what the API does to runs

    def cancel(self, run: Run, force: bool = False) -> None:
        """Cancel a run.

        Raises:
            RunError: it is over.
        """
        active = self._active.get(run.id)
        if active is None:
            raise RunError("Cannot cancel a workflow run that is completed.")
        self._cancel(active, force)

    @staticmethod
    def _cancel(active: _Active, force: bool = False) -> None:
        active.cancelled = True
        active.wake.set()
        for execution in active.executions.values():
            execution.cancel(force)

    async def rerun(self, repository: Repository, run: Run, only_failed: bool, actor: str) -> None:
        """Start the next attempt of a run.

        Raises:
            RunError: it still runs, has nothing to re-run, or never was a valid workflow.
        """
        if run.id in self._active or run.status != "completed":
            raise RunError("This workflow is already running")
        if run.conclusion == "startup_failure":
            raise RunError("This workflow run cannot be retried: its workflow file is not valid")
        latest = run.jobs_of()
        failed = {job.key for job in latest if job.conclusion not in ("success", "skipped", "neutral")}
        if only_failed and not failed:
            raise RunError("This workflow run has no failed jobs to re-run")
        workflow = load_workflow(
            await self._text(repository, run.head_sha, run.workflow_file),
            run.workflow_file,
            await self._reader(repository, run.head_sha),
        )
        if run.id in self._active:
            raise RunError("This workflow is already running")
        kept: dict[tuple[str, str], JobRecord] = {}
        if only_failed:
            again = {job.id for job in workflow.jobs.values() if _reaches(workflow, job, failed)}
            for record in latest:
                downstream_of_failed = record.key in again and record.key not in failed
                if (record.conclusion == "success" and not downstream_of_failed) or record.key not in again:
                    kept[record.key, repr(record.matrix)] = record
        run.attempt += 1
        run.status, run.conclusion, run.started_at, run.actor = "queued", None, now(), actor
        self._launch(repository, run, workflow, kept)

    @property
    def busy(self) -> bool:
        """Whether a run is starting or not over."""
        return bool(self._starting or self._active)

    async def stop(self) -> None:
        """End every run now; nothing of them is left running."""
        tasks = [*self._starting, *(active.task for active in self._active.values() if active.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- used by attempts

    async def slot(self) -> None:
        """Wait for a free place on the runner."""
        await self._slots.acquire()

    def free_slot(self) -> None:
        """Give the place back."""
        self._slots.release()

    @property
    def groups(self) -> _Groups:
        """The concurrency groups of all repositories; names carry the repository."""
        return self._groups

    def credentials(self, run: Run, record: JobRecord, environment: str | None, allowed: dict[str, str]) -> Credentials:
        """The credentials of one job."""
        return self._credentials(run, record, environment, allowed)


def _reaches(workflow: Workflow, job: Job, failed: set[str]) -> bool:
    return job.id in failed or any(_reaches(workflow, workflow.jobs[need], failed) for need in job.needs)


def check_inputs(declared: Mapping[str, Input], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a workflow dispatch, typed as declared.

    Raises:
        InputError: an unexpected input, a required one missing, or a value of the wrong type.
    """
    unexpected = sorted(set(given) - set(declared))
    if unexpected:
        raise InputError(f"Unexpected inputs provided: {unexpected}")
    values: dict[str, Any] = {}
    for name, item in declared.items():
        value = given.get(name, item.default)
        if value is None or value == "":
            if item.required:
                raise InputError(f"Required input '{name}' not provided")
            value = {"boolean": False, "choice": item.options[0] if item.options else ""}.get(item.type, "")
        if item.type == "boolean":
            if str(value).lower() not in ("true", "false"):
                raise InputError(f"Provided value '{value}' for input '{name}' is not a boolean")
            values[name] = str(value).lower() == "true"
        elif item.type == "number":
            if value != "" and math.isnan(to_number(value)):
                raise InputError(f"Provided value '{value}' for input '{name}' is not a number")
            values[name] = to_number(value) if value != "" else ""
        else:
            if item.type == "choice" and str(value) not in item.options:
                raise InputError(f"Provided value '{value}' for input '{name}' not in the list of allowed values")
            values[name] = str(value)
    return values


class _Attempt:
    """One attempt of one run."""

    def __init__(
        self, runs: Runs, repository: Repository, active: _Active, workflow: Workflow,
        kept: dict[tuple[str, str], JobRecord],
    ) -> None:  # fmt: skip
        self.runs = runs
        self.state = runs.state
        self.repository = repository
        self.active = active
        self.run = active.run
        self.workflow = workflow
        self.kept = kept
        self.results: dict[str, list[JobRecord]] = {}

    def changed(self) -> None:
        self.state.save_run(self.run)

    async def execute(self) -> None:
        run = self.run
        try:
            if self.workflow.run_name is not None:
                run.title = to_text(self.render(self.workflow.run_name)).strip() or run.title
            with self._group(self.workflow.concurrency, {}, lambda: self.runs._cancel(self.active)) as member:
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

    async def _ready(self, member: _Member) -> None:
        """Wait for the group, or for the run's cancellation."""
        waits = {asyncio.create_task(member.ready.wait()), asyncio.create_task(self.active.wake.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    @contextlib.contextmanager
    def _group(self, concurrency: Concurrency | None, contexts: dict[str, Any], cancel: Callable[[], None]) -> Any:
        if concurrency is None:
            yield None
            return
        name = f"{self.run.repository}:{to_text(self.render(concurrency.group, contexts))}".lower()
        stop = concurrency.cancel_in_progress
        member = _Member(cancel)
        self.runs.groups.enter(name, member, stop is not None and self.flag(stop, contexts))
        try:
            yield member
        finally:
            self.runs.groups.leave(name, member)

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
        held = {
            "github": self.github(),
            "inputs": self.run.inputs,
            "vars": self.repository.settings.variables,
            "secrets": self.repository.settings.secrets,
            **(contexts or {}),
        }
        return template.render(held, {})

    def flag(self, template: Template, contexts: Mapping[str, Any] | None = None) -> bool:
        value = self.render(template, contexts)
        return value.lower() == "true" if isinstance(value, str) else truthy(value)

    def deep(self, value: Any, contexts: Mapping[str, Any]) -> Any:
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
        batch: list[_JobRun] = []
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
            batch.append(_JobRun(self, job, record, own))
        self.changed()

        async def one(job_run: _JobRun) -> None:
            async with limit:
                await job_run.execute()
            if fail_fast and len(combinations) > 1 and job_run.record.conclusion == "failure":
                for other in batch:
                    other.cancel()

        await asyncio.gather(*(one(job_run) for job_run in batch))


class _JobRun:
    """One combination of one job, from the queue to its end."""

    def __init__(self, attempt: _Attempt, job: Job, record: JobRecord, contexts: dict[str, Any]) -> None:
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
        attempt, record = self.attempt, self.record
        try:
            with attempt._group(self.job.concurrency, self.contexts, self.cancel) as member:
                if not await self._wait(member):
                    record.status, record.conclusion, record.completed_at = "completed", "cancelled", now()
                    return
                try:
                    await self._run()
                finally:
                    attempt.runs.free_slot()
        except ExpressionError as error:
            record.annotations.append({"level": "error", "message": f"{self.job.where}: {error}"})
            record.status, record.conclusion, record.completed_at = "completed", "failure", now()
        finally:
            attempt.changed()

    async def _wait(self, member: _Member | None) -> bool:
        """Wait for the concurrency group and a place on the runner; ``False`` if cancelled before."""

        async def turn() -> None:
            if member is not None:
                await member.ready.wait()
            await self.attempt.runs.slot()

        active = self.attempt.active
        mine = asyncio.create_task(turn())
        cancelled = [asyncio.create_task(self._wake.wait())]
        if not self._late:
            cancelled.append(asyncio.create_task(active.wake.wait()))
        try:
            await asyncio.wait({mine, *cancelled}, return_when=asyncio.FIRST_COMPLETED)
            go = mine.done() and not self.cancelled and (self._late or not active.cancelled)
            if mine.done() and not go:
                self.attempt.runs.free_slot()
            return go
        finally:
            for task in (mine, *cancelled):
                task.cancel()

    async def _run(self) -> None:
        attempt, job, run, record = self.attempt, self.job, self.attempt.run, self.record
        settings = attempt.repository.settings
        environment = to_text(attempt.render(job.environment, self.contexts)) if job.environment is not None else None
        credentials = attempt.runs.credentials(run, record, environment or None, self._permissions())
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
                tracking=f"{attempt.runs.tracking}_{record.id}_",
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
