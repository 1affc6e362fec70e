"""Runs: which workflows an event starts; their attempts, concurrency groups, cancellation and re-runs."""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from relay.emulator import git
from relay.emulator.runner.attempt import Active, Attempt, GiveCredentials, Shared
from relay.emulator.runner.concurrency import Groups
from relay.emulator.runner.expressions import to_number, to_text
from relay.emulator.runner.model import Input, Job, Workflow, WorkflowError, triggers_match
from relay.emulator.runner.workflow import load_workflow, read_triggers
from relay.emulator.state import JobRecord, Repository, Run, State, now

WORKFLOW_FOLDER = ".github/workflows"

_log = logging.getLogger("relay.emulator")


class RunError(Exception):
    """The request cannot be done in the run's present state; the text is for the API's answer."""


class InputError(Exception):
    """Inputs of a workflow dispatch do not fit the workflow."""


class Runs:
    """The Actions side of the server."""

    def __init__(self, state: State, credentials: GiveCredentials) -> None:
        self.state = state
        self.tracking = f"emulator_{uuid.uuid4().hex}"
        slots = asyncio.Semaphore(state.settings.runner.concurrency)
        self._shared = Shared(state, Groups(), slots, credentials, self.tracking)
        self._active: dict[int, Active] = {}
        self._starting: set[asyncio.Task[Any]] = set()

    # -- starting

    def dispatch(self, repository: Repository, event_type: str, payload: dict[str, Any], actor: str) -> None:
        """Start, in the background, every workflow of the default branch that listens to ``event_type``."""
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
        active = Active(run)
        self._active[run.id] = active
        attempt = Attempt(self._shared, repository, active, workflow, kept)
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
        active.cancel(force)

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
