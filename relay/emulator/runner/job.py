"""One job: its steps one after the other, as processes of their own, in a workspace of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from relay.emulator.runner.actions import EMULATED, ActionError
from relay.emulator.runner.commands import (
    Annotation,
    CommandError,
    CommandFiles,
    Masks,
    OutputCommands,
    allowed_environment,
    parse_file,
)
from relay.emulator.runner.expressions import (
    ExpressionError,
    Function,
    Node,
    Template,
    Value,
    evaluate,
    to_number,
    to_text,
    truthy,
)
from relay.emulator.runner.globs import hash_files
from relay.emulator.runner.model import CompositeAction, Job, Step, Workflow, WorkflowError
from relay.emulator.runner.processes import TRACKING_VARIABLE, ProcessGroup, kill_tracked
from relay.emulator.runner.workflow import SHELLS, load_action
from relay.emulator.settings import RunnerSettings
from relay.emulator.state import JobRecord, StepRecord, now

DEFAULT_JOB_MINUTES = 360
_AFTER_CANCEL_SECONDS = 300
"""What GitHub gives to the ``always()`` steps of a cancelled job."""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

StoreArtifact = Callable[[str, Mapping[str, Path], bool], "tuple[int, str, str]"]
FindArtifact = Callable[[str], "Path | None"]
PutTree = Callable[[Path], Awaitable[None]]


class StepError(Exception):
    """The step fails with this text."""


@dataclass(frozen=True)
class JobSpec:
    """Everything a job is made of.

    Attributes:
        github: the ``github`` context without what differs per step.
        needs, matrix, strategy: the contexts of those names.
        masked: values that never appear in the log.
        credentials: environment of the steps that only they see (the OIDC request token).
        directory: the job's own folder; workspace, temporary files and home live in it.
        tracking: mark of the job's processes.
        store: keeps an artifact with the run.
        stored: finds an artifact of the run by its name.
        own_tree: puts the repository's tree at the workflow's commit into a new folder.
        changed: called after every change of ``record``.
    """

    workflow: Workflow
    job: Job
    record: JobRecord
    github: dict[str, Any]
    event: dict[str, Any]
    variables: dict[str, str]
    secrets: dict[str, str]
    inputs: dict[str, Any]
    needs: dict[str, Any]
    matrix: dict[str, Any] | None
    strategy: dict[str, Any]
    masked: list[str]
    credentials: dict[str, str]
    directory: Path
    tracking: str
    settings: RunnerSettings
    store: StoreArtifact
    stored: FindArtifact
    own_tree: PutTree
    changed: Callable[[], None]


@dataclass
class _Scope:
    """What steps see besides the job: the job's own steps have one, and each call of a composite action another."""

    inputs: dict[str, Any]
    steps: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    failed: bool = False
    action_path: Path | None = None
    action: str = ""


@dataclass
class _Outcome:
    conclusion: str
    outputs: dict[str, str] = field(default_factory=dict)


class JobExecution:
    """Runs one job. ``run`` is called once; ``cancel`` at any time, from the same event loop."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.record = spec.record
        self.workspace = spec.directory / "work" / spec.github["repository"].split("/")[1]
        self.temp = spec.directory / "temp"
        self.python = spec.settings.python
        self.github = spec.github
        self._masks = Masks(spec.masked)
        self._env: dict[str, str] = {}
        self._paths: list[str] = []
        self._scope = _Scope(spec.inputs)
        self._cancelled = False
        self._forced = False
        self._interrupt = asyncio.Event()
        self._deadline = math.inf
        self._log_file: Any = None
        self._log_bytes = 0
        self._groups: list[ProcessGroup] = []
        self._file_number = 0
        self._conclusion = "failure"

    # -- life

    def cancel(self, force: bool = False) -> None:
        """Cancel as GitHub does: the running step is interrupted, then only steps that ask for it run."""
        self._forced = self._forced or force
        if not self._cancelled:
            self._cancelled = True
            self._deadline = asyncio.get_running_loop().time() + _AFTER_CANCEL_SECONDS
            self._interrupt.set()
        elif force:
            self._interrupt.set()

    async def run(self) -> None:
        """Run the job to its end and leave the result in the record. No process of the job survives the return."""
        record = self.record
        record.status, record.started_at = "in_progress", now()
        record.log.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self.workspace, self.temp, self.spec.directory / "home", self.spec.directory / "tools"):
            folder.mkdir(parents=True, exist_ok=True)
        with record.log.open("ab") as self._log_file:
            try:
                await self._run_steps()
            except asyncio.CancelledError:
                self._conclusion = "cancelled"
                self.log("##[error]The server was stopped.")
                raise
            finally:
                await self._clean_up()
                self._finish()

    def _finish(self) -> None:
        record = self.record
        for step in record.steps:
            if step.status != "completed":
                step.status, step.conclusion = "completed", "skipped" if step.started_at is None else "cancelled"
                step.completed_at = now()
        record.status, record.completed_at = "completed", now()
        record.conclusion = self._conclusion
        self.spec.changed()

    async def _run_steps(self) -> None:
        spec, job = self.spec, self.spec.job
        loop = asyncio.get_running_loop()
        (self.temp / "event.json").write_text(json.dumps(spec.event), encoding="utf-8")
        self.log(f"Job {self.record.name} of {spec.workflow.file}, run {spec.github['run_id']}")
        self.log(f"Runner labels: {', '.join(self.record.labels)}")
        self.record.steps = [StepRecord(index + 1, self._step_name(step, None)) for index, step in enumerate(job.steps)]
        try:
            for env in (spec.workflow.env, job.env):
                self._env |= {name: to_text(self._value(value, env_too=False)) for name, value in env.items()}
            minutes = self._number(job.timeout_minutes, DEFAULT_JOB_MINUTES, "timeout-minutes")
        except (ExpressionError, StepError) as error:
            self.log(f"##[error]{job.where}: {error}")
            return
        timer = loop.call_later(minutes * 60, self._job_timeout, minutes)
        try:
            for step, record in zip(job.steps, self.record.steps, strict=True):
                await self._job_step(step, record)
        finally:
            timer.cancel()
        self._outputs()
        self._conclusion = "cancelled" if self._cancelled else "failure" if self._scope.failed else "success"

    def _job_timeout(self, minutes: float) -> None:
        text = f"The job has exceeded the maximum execution time of {to_text(minutes)} minutes"
        self.log(f"##[error]{text}")
        self._annotate(Annotation("error", text))
        self.cancel()

    async def _job_step(self, step: Step, record: StepRecord) -> None:
        record.status, record.started_at = "in_progress", now()
        with contextlib.suppress(ExpressionError):
            record.name = self._step_name(step, self._scope)
        self.spec.changed()
        outcome = await self._step(step, self._scope)
        record.status, record.conclusion, record.completed_at = "completed", outcome.conclusion, now()
        self.spec.changed()

    def _outputs(self) -> None:
        for name, value in self.spec.job.outputs.items():
            try:
                text = to_text(self._value(value))
            except ExpressionError as error:
                self.log(f"##[error]output {name}: {error}")
                self._scope.failed = True
                continue
            if self._masks.found_in(text):
                self.log(f"##[warning]Skip output '{name}' since it may contain secret.")
            elif text:
                self.record.outputs[name] = text

    async def _clean_up(self) -> None:
        killed = await asyncio.to_thread(kill_tracked, self.spec.tracking)
        if killed:
            self.log(f"Cleaned up {killed} orphan process(es)")
        for group in self._groups:
            await group.close()
        for folder in (self.temp, self.workspace.parent, self.spec.directory / "home", self.spec.directory / "tools"):
            await asyncio.to_thread(shutil.rmtree, folder, True)

    # -- log

    def log(self, text: str) -> None:
        """Write lines to the job's log, masked, each with its time."""
        if self._log_file is None or self._log_file.closed:
            return
        stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f0Z")
        for line in self._masks.hide(text).split("\n"):
            data = f"{stamp} {line}\n".encode(errors="replace")
            if self._log_bytes <= self.spec.settings.max_log_bytes < self._log_bytes + len(data):
                data = f"{stamp} ##[warning]The log is longer than the runner keeps; the rest is dropped.\n".encode()
                self._log_bytes = self.spec.settings.max_log_bytes
            elif self._log_bytes > self.spec.settings.max_log_bytes:
                return
            self._log_bytes += len(data)
            self._log_file.write(data)
        self._log_file.flush()

    def _annotate(self, annotation: Annotation) -> None:
        self.record.annotations.append(
            {"level": annotation.level, "message": annotation.message, **annotation.properties}
        )

    # -- expressions

    def _contexts(self, scope: _Scope, env: Mapping[str, str] | None = None) -> dict[str, Value]:
        status = "cancelled" if self._cancelled else "failure" if self._scope.failed else "success"
        github = dict(self.github)
        if scope.action_path is not None:
            github |= {"action_path": str(scope.action_path), "action_status": "failure" if scope.failed else status}
        contexts: dict[str, Value] = {
            "github": github,
            "env": dict(env if env is not None else {**self._env, **scope.env}),
            "job": {"status": status, "check_run_id": self.record.id},
            "steps": {name: held for name, held in scope.steps.items() if not name.startswith("__")},
            "runner": self._runner(),
            "inputs": scope.inputs,
            "strategy": self.spec.strategy,
            "matrix": self.spec.matrix or {},
            "needs": self.spec.needs,
            "vars": self.spec.variables,
            "secrets": self.spec.secrets,
        }
        return contexts

    def _runner(self) -> dict[str, str]:
        return {
            "name": "emulator",
            "os": "Linux",
            "arch": {"x86_64": "X64", "aarch64": "ARM64"}.get(os.uname().machine, os.uname().machine.upper()),
            "temp": str(self.temp),
            "tool_cache": str(self.spec.directory / "tools"),
            "workspace": str(self.workspace.parent),
            "environment": "self-hosted",
            "debug": "",
        }

    def _functions(self, scope: _Scope) -> dict[str, Function]:
        return {
            "success": lambda: not self._cancelled and not scope.failed,
            "failure": lambda: not self._cancelled and scope.failed,
            "cancelled": lambda: self._cancelled,
            "always": lambda: True,
            "hashfiles": lambda *patterns: hash_files([to_text(item) for item in patterns], self.workspace),
        }

    def _value(
        self,
        template: Template,
        scope: _Scope | None = None,
        env: Mapping[str, str] | None = None,
        env_too: bool = True,
    ) -> Value:
        scope = scope or self._scope
        contexts = self._contexts(scope, env)
        if not env_too:
            del contexts["env"]
        return template.render(contexts, self._functions(scope))

    def _number(self, template: Template | None, default: float, what: str, scope: _Scope | None = None) -> float:
        if template is None:
            return default
        number = to_number(self._value(template, scope))
        if math.isnan(number) or number <= 0:
            raise StepError(f"{what} is not a positive number")
        return number

    def _step_name(self, step: Step, scope: _Scope | None) -> str:
        if step.name is not None:
            if scope is None:
                return "".join(part if isinstance(part, str) else "…" for part in step.name.parts)
            return to_text(self._value(step.name, scope))
        if step.uses is not None:
            return f"Run {step.uses}"
        first = "".join(part if isinstance(part, str) else "…" for part in step.run.parts) if step.run else ""
        return f"Run {first.strip().splitlines()[0] if first.strip() else ''}"

    # -- steps

    async def _step(self, step: Step, scope: _Scope) -> _Outcome:
        """One step of a job or of a composite action: condition, work, and what its result means for the next."""
        try:
            wanted = truthy(
                evaluate(step.condition or Node("call", "success"), self._contexts(scope), self._functions(scope))
            )
        except ExpressionError as error:
            self.log(f"##[error]{step.where}: if: {error}")
            wanted, outcome = True, _Outcome("failure")
        else:
            if not wanted or self._forced:
                outcome = _Outcome("skipped")
            else:
                outcome = await self._attempt(step, scope)
        conclusion = outcome.conclusion
        if conclusion == "failure" and step.continue_on_error is not None:
            with contextlib.suppress(ExpressionError):
                if truthy(self._boolean(step.continue_on_error, scope)):
                    conclusion = "success"
        if conclusion == "failure":
            scope.failed = True
        scope.steps[step.id] = {"outputs": outcome.outputs, "outcome": outcome.conclusion, "conclusion": conclusion}
        return _Outcome(conclusion, outcome.outputs)

    def _boolean(self, template: Template, scope: _Scope) -> Value:
        value = self._value(template, scope)
        return value.lower() == "true" if isinstance(value, str) else value

    async def _attempt(self, step: Step, scope: _Scope) -> _Outcome:
        outputs: dict[str, str] = {}
        self._interrupt.clear()
        try:
            env = {name: to_text(self._value(value, scope)) for name, value in step.env.items()}
            seen = {**self._env, **scope.env, **env}
            minutes = self._number(step.timeout_minutes, math.inf, "timeout-minutes", scope)
            work = self._use(step, scope, env, seen) if step.uses else self._script(step, scope, env, seen)
            try:
                outputs, succeeded = await asyncio.wait_for(work, None if math.isinf(minutes) else minutes * 60)
            except (asyncio.TimeoutError, TimeoutError):
                raise StepError(
                    f"The action '{self._step_name(step, scope)}' has timed out after {to_text(minutes)} minutes."
                ) from None
        except (ExpressionError, StepError, ActionError, CommandError, OSError) as error:
            self.log(f"##[error]{step.where}: {error}")
            self._annotate(Annotation("error", self._masks.hide(str(error))))
            succeeded = False
        if self._interrupt.is_set() and self._cancelled:
            self.log("##[error]The operation was canceled.")
            return _Outcome("cancelled", outputs)
        return _Outcome("success" if succeeded else "failure", outputs)

    async def _script(
        self, step: Step, scope: _Scope, env: dict[str, str], seen: dict[str, str]
    ) -> tuple[dict[str, str], bool]:
        assert step.run is not None
        script = to_text(self._value(step.run, scope, seen))
        defaults = [] if scope.action_path is not None else [self.spec.job.defaults, self.spec.workflow.defaults]
        shell = next((item for item in (step.shell, *(held.shell for held in defaults)) if item is not None), None)
        folder = next(
            (item for item in (step.working_directory, *(held.working_directory for held in defaults)) if item), None
        )
        name = to_text(self._value(shell, scope, seen)) if shell is not None else ""
        command = SHELLS.get(name) or (name.split() if "{0}" in name else None)
        if command is None:
            raise StepError(f"shell {name!r} is not emulated")
        directory = self.workspace / to_text(self._value(folder, scope, seen)) if folder else self.workspace
        if not directory.is_dir():
            raise StepError(f"working-directory {str(directory)!r} does not exist")
        self._file_number += 1
        file = self.temp / f"script{self._file_number}{'.py' if name == 'python' else '.sh'}"
        file.write_text(script + "\n", encoding="utf-8")
        first = script.strip().splitlines()[0] if script.strip() else ""
        self.log(f"##[group]Run {first}\n{script.rstrip()}\nshell: {' '.join(command)}")
        if env:
            self.log("env:\n" + "\n".join(f"  {key}: {value}" for key, value in env.items()))
        self.log("##[endgroup]")
        files = CommandFiles.make(self.temp, self._file_number)
        commands = OutputCommands(self._masks)
        arguments = [part.replace("{0}", str(file)) for part in command]
        try:
            status = await self._process(arguments, directory, self._process_env(scope, seen, files), commands.line)
        finally:
            for annotation in commands.annotations:
                self._annotate(annotation)
            outputs = self._read_files(files, commands)
        if status != 0:
            self.log(f"##[error]Process completed with exit code {status}.")
        return outputs, status == 0

    def _read_files(self, files: CommandFiles, commands: OutputCommands) -> dict[str, str]:
        env, refused = allowed_environment(parse_file(files.text("env"), "GITHUB_ENV"))
        for name in refused:
            self.log(f"##[warning]GITHUB_ENV may not set {name}")
        self._env |= env
        for line in files.text("path").splitlines():
            if line.strip():
                self._paths.insert(0, line.strip())
        self.record.summary += files.text("summary")
        return {**commands.outputs, **parse_file(files.text("output"), "GITHUB_OUTPUT")}

    def _process_env(self, scope: _Scope, seen: Mapping[str, str], files: CommandFiles | None) -> dict[str, str]:
        settings, runner = self.spec.settings, self._runner()
        env = {
            "HOME": str(self.spec.directory / "home"),
            "LANG": "C.UTF-8",
            **settings.env,
            **self.spec.credentials,
            **{name: value for name, value in seen.items() if not name.startswith(("GITHUB_", "RUNNER_"))},
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_EVENT_PATH": str(self.temp / "event.json"),
            "GITHUB_ACTION": scope.action or "__run",
            "GITHUB_JOB": self.spec.job.id,
            **{f"RUNNER_{name.upper()}": value for name, value in runner.items() if name != "debug"},
            TRACKING_VARIABLE: self.spec.tracking,
        }
        for name in (
            "actor", "actor_id", "api_url", "base_ref", "event_name", "graphql_url", "head_ref", "ref", "ref_name",
            "ref_protected", "ref_type", "repository", "repository_id", "repository_owner", "repository_owner_id",
            "retention_days", "run_attempt", "run_id", "run_number", "server_url", "sha", "triggering_actor",
            "workflow", "workflow_ref", "workflow_sha",
        ):  # fmt: skip
            env[f"GITHUB_{name.upper()}"] = to_text(self.github.get(name))
        if scope.action_path is not None:
            env["GITHUB_ACTION_PATH"] = str(scope.action_path)
        if files is not None:
            env |= files.variables()
        base = seen.get("PATH") or settings.env.get("PATH") or ":".join([*map(str, settings.path), _SYSTEM_PATH])
        env["PATH"] = ":".join([*self._paths, base])
        return env

    # -- uses

    async def _use(
        self, step: Step, scope: _Scope, env: dict[str, str], seen: dict[str, str]
    ) -> tuple[dict[str, str], bool]:
        assert step.uses is not None
        inputs = {name: to_text(self._value(value, scope, seen)) for name, value in step.inputs.items()}
        self.log(f"##[group]Run {step.uses}")
        if inputs:
            self.log("with:\n" + "\n".join(f"  {name}: {value}" for name, value in inputs.items()))
        self.log("##[endgroup]")
        if not step.uses.startswith(("./", "$/")):
            return await EMULATED[step.uses.partition("@")[0]](inputs, self), True
        action, folder = await self._local_action(step.uses)
        given = {name.lower(): value for name, value in inputs.items()}
        for name in sorted(set(given) - {name.lower() for name in action.inputs}):
            self.log(f"##[warning]Unexpected input '{name}', valid inputs are {sorted(action.inputs)}")
        values: dict[str, Any] = {}
        for name, declared in action.inputs.items():
            if name.lower() in given:
                values[name] = given[name.lower()]
            else:
                values[name] = to_text(self._value(declared.default, scope, seen)) if declared.default else ""
        inner = _Scope(values, env={**scope.env, **env}, action_path=folder, action=step.id)
        for part in action.steps:
            await self._step(part, inner)
        outputs = {name: to_text(self._value(value, inner)) for name, value in action.outputs.items()}
        return outputs, not inner.failed

    async def _local_action(self, uses: str) -> tuple[CompositeAction, Path]:
        root = self.workspace
        if uses.startswith("$/"):
            root = self.spec.directory / "actions"
            if not root.exists():
                await self.spec.own_tree(root)
        folder = (root / uses[2:]).resolve()
        if not folder.is_relative_to(root.resolve()):
            raise StepError(f"'uses: {uses}' is outside of the repository")
        for name in ("action.yml", "action.yaml"):
            if (folder / name).is_file():
                text = (folder / name).read_text(encoding="utf-8")
                try:
                    return load_action(text, f"{uses[2:].strip('/')}/{name}"), folder
                except WorkflowError as error:
                    raise StepError(str(error)) from error
        raise StepError(f"no action.yml or action.yaml in {uses}; is the repository checked out?")

    # -- what emulated actions may use (relay.emulator.runner.actions.Host)

    async def command(self, arguments: list[str], directory: Path) -> int:
        """Run a process of an emulated action; its output goes to the log."""
        return await self._process(arguments, directory, self._action_env(), lambda line: line)

    async def capture(self, arguments: list[str], directory: Path) -> str:
        """Run a process of an emulated action and give back what it wrote.

        Raises:
            ActionError: it failed.
        """
        lines: list[str] = []

        def keep(line: str) -> None:
            lines.append(line)

        if await self._process(arguments, directory, self._action_env(), keep):
            raise ActionError(f"{arguments[0]} failed: {' '.join(lines)[-500:]}")
        return "\n".join(lines) + "\n"

    def _action_env(self) -> dict[str, str]:
        git = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1"}
        return {**self._process_env(self._scope, self._env, None), **git}

    def add_path(self, directory: Path) -> None:
        """Put ``directory`` in front of the following steps' ``PATH``."""
        self._paths.insert(0, str(directory))

    def set_env(self, name: str, value: str) -> None:
        """Set a variable for the following steps."""
        self._env[name] = value

    async def store_artifact(self, name: str, files: Mapping[str, Path], overwrite: bool) -> tuple[int, str, str]:
        """Keep files with the run."""
        return await asyncio.to_thread(self.spec.store, name, files, overwrite)

    async def fetch_artifact(self, name: str, directory: Path) -> int | None:
        """Copy the files of an artifact of this run into a folder; how many, or ``None`` if there is none."""
        found = self.spec.stored(name)
        if found is None:
            return None
        await asyncio.to_thread(shutil.copytree, found, directory, dirs_exist_ok=True)
        return sum(path.is_file() for path in found.rglob("*"))

    # -- processes

    async def _process(
        self, arguments: list[str], directory: Path, env: dict[str, str], line: Callable[[str], str | None]
    ) -> int:
        found = shutil.which(arguments[0], path=env["PATH"])
        if found is None:
            raise StepError(f"{arguments[0]!r} is not in PATH")

        def show(lines: list[str]) -> None:
            if text := [shown for item in lines if (shown := line(item)) is not None]:
                self.log("\n".join(text))

        group = ProcessGroup([found, *arguments[1:]], directory, env, show)
        self._groups.append(group)
        return await group.run(
            self._interrupt,
            self._deadline,
            lambda: 0.0 if self._forced else self.spec.settings.cancel_grace_seconds,
        )
