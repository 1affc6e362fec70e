"""The loader of workflow files and composite actions.

The loader reads GitHub's documented syntax and nothing else. Whatever cannot be run here (a container, a reusable
workflow, an action that is not emulated, an unknown key) is a problem named ``file:line``; all problems of a file are
reported at once, before any step runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from relay.emulator.runner.actions import EMULATED_INPUTS
from relay.emulator.runner.expressions import ExpressionError, Node, Template, condition, template
from relay.emulator.runner.model import (
    ActionInput,
    CompositeAction,
    Concurrency,
    Defaults,
    Input,
    Job,
    Step,
    Strategy,
    Workflow,
    WorkflowError,
)

ReadFile = Callable[[str], "str | None"]
"""Text of a file of the downstream tree by its path from the root, or ``None`` where there is none."""

STARTABLE = ("repository_dispatch", "workflow_dispatch")
"""The events that start a run here. Other triggers of a file are read and never fire."""

SHELLS = {
    "": ["bash", "-e", "{0}"],
    "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail", "{0}"],
    "sh": ["sh", "-e", "{0}"],
    "python": ["python", "{0}"],
}
"""Command lines of the shells on Linux ("Workflow syntax", ``steps[*].shell``); the empty name is the default shell."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_MAX_ACTION_DEPTH = 10

_GITHUB = frozenset({"github", "inputs", "vars"})
_NEEDS = _GITHUB | {"needs"}
_MATRIX = _NEEDS | {"strategy", "matrix"}
_STEP = _MATRIX | {"job", "runner", "env", "steps", "secrets"}
_ACTION = frozenset({"github", "inputs", "steps", "runner", "job", "env", "strategy", "matrix"})

CONTEXTS: dict[str, frozenset[str]] = {
    "run-name": _GITHUB,
    "concurrency": _GITHUB,
    "env": _GITHUB | {"secrets"},
    "job.if": _NEEDS,
    "job.strategy": _NEEDS,
    "job": _MATRIX,
    "job.env": _MATRIX | {"secrets"},
    "job.defaults": _MATRIX | {"env"},
    "job.outputs": _STEP,
    "step": _STEP,
    "step.if": _STEP - {"secrets"},
    "action.default": frozenset({"github", "strategy", "matrix", "job", "runner"}),
    "action.step": _ACTION,
    "action.output": _ACTION,
}
"""Which contexts a key may use ("Contexts reference", context availability)."""

_STATUS = frozenset({"job.if", "step.if"})
_FILES = frozenset({"step", "step.if", "action.step"})


def read_triggers(text: str, file: str) -> dict[str, Any]:
    """Only the ``on`` of a file, as a mapping, so that a file which never starts here need not be runnable here.

    Raises:
        WorkflowError: not YAML, or no ``on``.
    """
    loader = _Loader(file)
    root = loader.yaml(text)
    triggers = loader.triggers(root)
    loader.finish()
    return triggers


def load_workflow(text: str, file: str, read: ReadFile) -> Workflow:
    """Load a workflow file and check every local action it names.

    Args:
        text: the file.
        file: its path from the repository's root, for messages.
        read: reads local actions at the same commit.

    Raises:
        WorkflowError: with every problem found.
    """
    loader = _Loader(file, read)
    workflow = loader.workflow(loader.yaml(text))
    loader.finish()
    return workflow


def load_action(text: str, file: str, read: ReadFile | None = None) -> CompositeAction:
    """Load a composite action's metadata file.

    Raises:
        WorkflowError: not a composite action, or anything in it that cannot run here.
    """
    loader = _Loader(file, read)
    action = loader.action(loader.yaml(text))
    loader.finish()
    return action


@dataclass
class _Loader:
    file: str
    read: ReadFile | None = None
    stack: tuple[str, ...] = ()
    problems: list[str] = field(default_factory=list)

    # -- plumbing

    def finish(self) -> None:
        if self.problems:
            raise WorkflowError(self.problems)

    def problem(self, line: int, text: str) -> None:
        self.problems.append(f"{self.file}:{line}: {text}")

    def yaml(self, text: str) -> CommentedMap:
        try:
            root = YAML(typ="rt").load(StringIO(text))
        except MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise WorkflowError([f"{self.file}:{line}: not YAML: {error.problem or error.context}"]) from error
        except YAMLError as error:
            raise WorkflowError([f"{self.file}:1: not YAML: {error}"]) from error
        except RecursionError:
            raise WorkflowError([f"{self.file}:1: nested too deeply"]) from None
        if not isinstance(root, CommentedMap):
            raise WorkflowError([f"{self.file}:1: the file is not a mapping"])
        return root

    @staticmethod
    def line(node: CommentedMap, key: Any) -> int:
        try:
            return int(node.lc.key(key)[0]) + 1
        except (KeyError, AttributeError):
            return int(node.lc.line) + 1

    def known(self, node: CommentedMap, allowed: Iterable[str], unsupported: dict[str, str], what: str) -> None:
        for key in node:
            if key in unsupported:
                self.problem(self.line(node, key), f"'{key}' ({unsupported[key]}) is not emulated")
            elif key not in allowed:
                self.problem(self.line(node, key), f"unknown key {str(key)!r} in {what}")

    def mapping(self, node: CommentedMap, key: str) -> CommentedMap:
        value = node.get(key)
        if value is None:
            return CommentedMap()
        if not isinstance(value, CommentedMap):
            self.problem(self.line(node, key), f"'{key}' must be a mapping")
            return CommentedMap()
        return value

    def text(self, node: CommentedMap, key: Any, where: str) -> Template | None:
        """A scalar that may hold expressions, as a template; numbers and booleans become their text."""
        value = node.get(key)
        if value is None:
            return None
        if isinstance(value, (CommentedMap, CommentedSeq)):
            self.problem(self.line(node, key), f"'{key}' must be text, a number or true/false")
            return None
        return self.template(value, self.line(node, key), where)

    def minutes(self, node: CommentedMap, where: str) -> Template | None:
        """``timeout-minutes``; what an expression gives is checked when the job runs."""
        value, key = node.get("timeout-minutes"), "timeout-minutes"
        if not isinstance(value, str) or "${{" not in value:
            try:
                fits = value is None or (not isinstance(value, bool) and 0 < float(value) < float("inf"))
            except (TypeError, ValueError):
                fits = False
            if not fits:
                self.problem(self.line(node, key), f"'{key}' must be a number of minutes above 0")
                return None
        return self.text(node, key, where)

    def flag(self, node: CommentedMap, key: str, where: str) -> Template | None:
        """A boolean or an expression that gives one."""
        value = node.get(key)
        if value is None or isinstance(value, bool) or (isinstance(value, str) and "${{" in value):
            return self.text(node, key, where)
        self.problem(self.line(node, key), f"'{key}' must be true or false")
        return None

    def template(self, value: Any, line: int, where: str) -> Template | None:
        if isinstance(value, bool):
            value = "true" if value else "false"
        try:
            parsed = template(str(value))
        except ExpressionError as error:
            self.problem(line, str(error))
            return None
        for node in parsed.expressions:
            self.available(node, line, where)
        return parsed

    def available(self, node: Node, line: int, where: str) -> None:
        for part in node.walk():
            if part.kind == "context" and part.value not in CONTEXTS[where]:
                self.problem(line, f"context '{part.value}' is not available here")
            if part.kind == "call" and part.value in ("success", "failure", "always", "cancelled"):
                if where not in _STATUS:
                    self.problem(line, f"{part.value}() is available in 'if' only")
            elif part.kind == "call" and part.value == "hashfiles" and where not in _FILES:
                self.problem(line, "hashFiles() is available in steps only")

    def condition(self, node: CommentedMap, where: str) -> Node | None:
        value = node.get("if")
        if value is None:
            return None
        line = self.line(node, "if")
        try:
            parsed = condition("true" if value is True else "false" if value is False else str(value))
        except ExpressionError as error:
            self.problem(line, str(error))
            return None
        allowed = CONTEXTS[where] if where in CONTEXTS else CONTEXTS["action.step"]
        for part in parsed.walk():
            if part.kind == "context" and part.value not in allowed:
                self.problem(line, f"context '{part.value}' is not available here")
            if part.kind == "call" and part.value == "hashfiles" and where == "job.if":
                self.problem(line, "hashFiles() is available in steps only")
        return parsed

    def texts(self, node: CommentedMap, key: str, where: str) -> dict[str, Template]:
        result = {}
        held = self.mapping(node, key)
        for name in held:
            value = self.text(held, name, where)
            result[str(name)] = value if value is not None else Template(("",))
        return result

    def names(self, node: CommentedMap, key: str) -> list[str]:
        value = node.get(key)
        if value is None:
            return []
        items = list(value) if isinstance(value, CommentedSeq) else [value]
        if not all(isinstance(item, str) for item in items):
            self.problem(self.line(node, key), f"'{key}' must be a name or a list of names")
            return []
        return items

    # -- workflow

    def triggers(self, root: CommentedMap) -> dict[str, Any]:
        value = root.get("on")
        if isinstance(value, str):
            return {value: None}
        if isinstance(value, CommentedSeq):
            return {str(item): None for item in value}
        if isinstance(value, CommentedMap):
            for event in STARTABLE:
                if value.get(event) is not None and not isinstance(value[event], CommentedMap):
                    self.problem(self.line(value, event), f"'{event}' must be a mapping")
                    value[event] = None
                elif value.get(event) is not None:
                    self.types(value[event])
            return dict(value)
        self.problem(1, "the workflow has no 'on'")
        return {}

    def types(self, trigger: CommentedMap) -> None:
        held = trigger.get("types")
        names = held if isinstance(held, CommentedSeq) else [] if held is None else [held]
        if not all(isinstance(name, str) for name in names):
            self.problem(self.line(trigger, "types"), "'types' must be text or a list of it")
            trigger["types"] = None

    def workflow(self, root: CommentedMap) -> Workflow:
        self.known(
            root,
            ("name", "run-name", "on", "permissions", "env", "defaults", "concurrency", "jobs"),
            {},
            "the workflow",
        )
        triggers = self.triggers(root)
        if "workflow_call" in triggers:
            self.problem(self.line(root, "on"), "'workflow_call' (a reusable workflow) is not emulated")
        jobs: dict[str, Job] = {}
        held = self.mapping(root, "jobs")
        if not held:
            self.problem(self.line(root, "jobs"), "the workflow has no jobs")
        for identifier in held:
            line = self.line(held, identifier)
            if not _IDENTIFIER.fullmatch(str(identifier)):
                self.problem(line, f"{str(identifier)!r} is not a job id")
            elif not isinstance(held[identifier], CommentedMap):
                self.problem(line, f"job '{identifier}' must be a mapping")
            else:
                jobs[identifier] = self.job(identifier, held[identifier], line)
        self.check_needs(jobs, held)
        name = root.get("name")
        return Workflow(
            file=self.file,
            name=str(name) if name else self.file,
            run_name=self.text(root, "run-name", "run-name"),
            triggers=triggers,
            dispatch_inputs=self.dispatch_inputs(triggers),
            permissions=self.permissions(root),
            env=self.texts(root, "env", "env"),
            defaults=self.defaults(root, "env"),
            concurrency=self.concurrency(root, "concurrency"),
            jobs=jobs,
        )

    def check_needs(self, jobs: dict[str, Job], held: CommentedMap) -> None:
        for job in jobs.values():
            for need in job.needs:
                if need not in jobs:
                    self.problem(self.line(held, job.id), f"job '{job.id}' needs '{need}', which does not exist")
        done: set[str] = set()
        while ready := {job.id for job in jobs.values() if job.id not in done and set(job.needs) <= done}:
            done |= ready
        known = set(jobs)
        for job in jobs.values():
            if job.id not in done and set(job.needs) <= known:
                self.problem(self.line(held, job.id), f"job '{job.id}' needs itself, directly or through others")

    def dispatch_inputs(self, triggers: dict[str, Any]) -> dict[str, Input]:
        node = triggers.get("workflow_dispatch")
        if not isinstance(node, CommentedMap):
            return {}
        result = {}
        held = self.mapping(node, "inputs")
        for name in held:
            item = held[name] if isinstance(held[name], CommentedMap) else CommentedMap()
            kind = str(item.get("type", "string"))
            if kind not in ("string", "boolean", "choice", "number", "environment"):
                self.problem(self.line(held, name), f"input '{name}' has the unknown type {kind!r}")
            options = item.get("options") or []
            result[str(name)] = Input(
                kind, bool(item.get("required", False)), item.get("default"), tuple(str(part) for part in options)
            )
        return result

    def permissions(self, node: CommentedMap) -> dict[str, str] | None:
        value = node.get("permissions")
        if value is None:
            return {} if "permissions" in node else None
        line = self.line(node, "permissions")
        if value in ("read-all", "write-all"):
            return {"*": str(value).removesuffix("-all")}
        if not isinstance(value, CommentedMap):
            self.problem(line, "'permissions' must be a mapping, read-all or write-all")
            return {}
        for name, level in value.items():
            if level not in ("read", "write", "none"):
                self.problem(self.line(value, name), f"permission '{name}' must be read, write or none")
        return {str(name): str(level) for name, level in value.items()}

    def defaults(self, node: CommentedMap, where: str) -> Defaults:
        held = self.mapping(node, "defaults")
        self.known(held, ("run",), {}, "'defaults'")
        run = self.mapping(held, "run")
        self.known(run, ("shell", "working-directory"), {}, "'defaults.run'")
        shell = self.text(run, "shell", where)
        self.shell(shell, run)
        return Defaults(shell, self.text(run, "working-directory", where))

    def shell(self, shell: Template | None, node: CommentedMap) -> None:
        """A literal shell is checked here, one from an expression when the step starts."""
        if shell is None or shell.expressions:
            return
        name = str(shell.parts[0])
        if name not in SHELLS and "{0}" not in name:
            self.problem(self.line(node, "shell"), f"shell {name!r} is not emulated")

    def concurrency(self, node: CommentedMap, where: str) -> Concurrency | None:
        value = node.get("concurrency")
        if value is None:
            return None
        if isinstance(value, CommentedMap):
            self.known(value, ("group", "cancel-in-progress"), {}, "'concurrency'")
            group = self.text(value, "group", where)
            cancel = self.text(value, "cancel-in-progress", where)
        else:
            group, cancel = self.text(node, "concurrency", where), None
        if group is None:
            self.problem(self.line(node, "concurrency"), "'concurrency' has no group")
            return None
        return Concurrency(group, cancel)

    # -- jobs and steps

    def job(self, identifier: str, node: CommentedMap, line: int) -> Job:
        self.known(
            node,
            (
                "name", "needs", "if", "permissions", "runs-on", "environment", "concurrency", "outputs", "env",
                "defaults", "timeout-minutes", "continue-on-error", "strategy", "steps",
            ),
            {
                "uses": "a reusable workflow", "with": "a reusable workflow", "secrets": "a reusable workflow",
                "container": "a job container", "services": "service containers", "snapshot": "a custom image",
            },
            f"job '{identifier}'",
        )  # fmt: skip
        steps = node.get("steps")
        if not isinstance(steps, CommentedSeq) or not steps:
            if "uses" not in node:
                self.problem(line, f"job '{identifier}' has no steps")
            steps = CommentedSeq()
        return Job(
            where=f"{self.file}:{line}",
            id=identifier,
            name=self.text(node, "name", "job"),
            needs=tuple(self.names(node, "needs")),
            condition=self.condition(node, "job.if"),
            permissions=self.permissions(node),
            runs_on=self.runs_on(identifier, node, line),
            environment=self.environment(node),
            concurrency=self.concurrency(node, "job"),
            outputs=self.texts(node, "outputs", "job.outputs"),
            env=self.texts(node, "env", "job.env"),
            defaults=self.defaults(node, "job.defaults"),
            timeout_minutes=self.minutes(node, "job"),
            continue_on_error=self.flag(node, "continue-on-error", "job"),
            strategy=self.strategy(node),
            steps=self.steps(steps, "step"),
        )

    def runs_on(self, identifier: str, node: CommentedMap, line: int) -> tuple[Template, ...]:
        value = node.get("runs-on")
        if isinstance(value, CommentedMap):
            value = value.get("labels")
        if value is None:
            if "uses" not in node:
                self.problem(line, f"job '{identifier}' has no runs-on")
            return ()
        labels = list(value) if isinstance(value, CommentedSeq) else [value]
        for label in labels:
            if re.match(r"(windows|macos)\b", str(label), re.IGNORECASE):
                self.problem(
                    self.line(node, "runs-on"), f"a runner labelled {str(label)!r} is not emulated: only Linux is"
                )
        parsed = (self.template(label, self.line(node, "runs-on"), "job") for label in labels)
        return tuple(label for label in parsed if label is not None)

    def environment(self, node: CommentedMap) -> Template | None:
        if isinstance(node.get("environment"), CommentedMap):
            return self.text(node["environment"], "name", "job")
        return self.text(node, "environment", "job")

    def strategy(self, node: CommentedMap) -> Strategy | None:
        held = node.get("strategy")
        if held is None:
            return None
        if not isinstance(held, CommentedMap):
            self.problem(self.line(node, "strategy"), "'strategy' must be a mapping")
            return None
        self.known(held, ("matrix", "fail-fast", "max-parallel"), {}, "'strategy'")
        line = self.line(held, "matrix")
        matrix = self.deep(held.get("matrix"), line, "job.strategy")
        if matrix is not None and not isinstance(matrix, (dict, Template)):
            self.problem(line, "'matrix' must be a mapping or one expression")
            matrix = None
        if isinstance(matrix, dict):
            for name, values in matrix.items():
                if not isinstance(values, (list, Template)):
                    self.problem(line, f"matrix.{name} must be a list or one expression")
        return Strategy(
            matrix,
            self.flag(held, "fail-fast", "job.strategy"),
            self.text(held, "max-parallel", "job.strategy"),
        )

    def deep(self, value: Any, line: int, where: str) -> Any:
        if isinstance(value, CommentedMap):
            return {str(key): self.deep(item, line, where) for key, item in value.items()}
        if isinstance(value, CommentedSeq):
            return [self.deep(item, line, where) for item in value]
        if isinstance(value, str) and "${{" in value:
            return self.template(value, line, where)
        if isinstance(value, str):
            return str(value)
        return value

    def steps(self, nodes: CommentedSeq, where: str) -> tuple[Step, ...]:
        result: list[Step] = []
        seen: set[str] = set()
        for index, node in enumerate(nodes):
            line = int(nodes.lc.item(index)[0]) + 1
            if not isinstance(node, CommentedMap):
                self.problem(line, "a step must be a mapping")
                continue
            step = self.step(node, line, index, where)
            if step.id in seen:
                self.problem(line, f"step id '{step.id}' stands twice")
            seen.add(step.id)
            result.append(step)
        return tuple(result)

    def step(self, node: CommentedMap, line: int, index: int, where: str) -> Step:
        self.known(
            node,
            (
                "id", "name", "if", "run", "uses", "with", "env", "shell", "working-directory",
                "continue-on-error", "timeout-minutes",
            ),
            {},
            "the step",
        )  # fmt: skip
        identifier = node.get("id")
        if identifier is not None and not _IDENTIFIER.fullmatch(str(identifier)):
            self.problem(self.line(node, "id"), f"{str(identifier)!r} is not a step id")
        run, uses = self.text(node, "run", where), node.get("uses")
        if ("run" in node) == ("uses" in node):
            self.problem(line, "a step has either 'run' or 'uses'")
        if "run" in node and "with" in node:
            self.problem(self.line(node, "with"), "'with' goes with 'uses'")
        shell = self.text(node, "shell", where)
        self.shell(shell, node)
        if where == "action.step" and "run" in node and shell is None:
            self.problem(line, "a 'run' step of a composite action needs 'shell'")
        inputs = self.texts(node, "with", where)
        if uses is not None:
            uses = str(uses)
            self.uses(uses, inputs, self.line(node, "uses"))
        return Step(
            where=f"{self.file}:{line}",
            id=str(identifier) if identifier is not None else f"__{index + 1}",
            name=self.text(node, "name", where),
            condition=self.condition(node, "step.if" if where == "step" else "action.step.if"),
            run=run,
            uses=uses,
            inputs=inputs,
            env=self.texts(node, "env", where),
            shell=shell,
            working_directory=self.text(node, "working-directory", where),
            continue_on_error=self.flag(node, "continue-on-error", where),
            timeout_minutes=self.minutes(node, where),
        )

    def uses(self, uses: str, inputs: dict[str, Template], line: int) -> None:
        if uses.startswith("docker://"):
            self.problem(line, f"'uses: {uses}' (a container action) is not emulated")
        elif uses.startswith(("./", "$/")):
            self.local_action(uses, line)
        else:
            name, separator, reference = uses.partition("@")
            if not separator or not reference:
                self.problem(line, f"'uses: {uses}' has no @ref")
            elif name not in EMULATED_INPUTS:
                known = ", ".join(sorted(EMULATED_INPUTS))
                self.problem(line, f"'uses: {uses}' is not emulated; the emulated actions are {known}")
            else:
                for key in sorted(set(inputs) - EMULATED_INPUTS[name]):
                    self.problem(line, f"input '{key}' of {name} is not emulated")

    def local_action(self, uses: str, line: int) -> None:
        """Check an action of the same repository.

        ``$/x`` is the workflow's own commit. ``./x`` is the workspace: usually the same tree, but one that is not in
        the tree may come from a checkout at run time, and is checked then.
        """
        if self.read is None:
            return
        folder = uses[2:].strip("/")
        if uses in self.stack or len(self.stack) >= _MAX_ACTION_DEPTH:
            self.problem(line, f"'uses: {uses}' uses itself, or actions are nested deeper than {_MAX_ACTION_DEPTH}")
            return
        for name in ("action.yml", "action.yaml"):
            file = f"{folder}/{name}" if folder else name
            text = self.read(file)
            if text is not None:
                inner = _Loader(file, self.read, (*self.stack, uses))
                try:
                    inner.action(inner.yaml(text))
                except WorkflowError as error:
                    inner.problems += error.problems
                self.problems += [item for item in inner.problems if item not in self.problems]
                return
        if uses.startswith("$/"):
            self.problem(line, f"'uses: {uses}': there is no action.yml or action.yaml in {folder or 'the root'}")

    # -- actions

    def action(self, root: CommentedMap) -> CompositeAction:
        self.known(root, ("name", "author", "description", "inputs", "outputs", "runs", "branding"), {}, "the action")
        runs = self.mapping(root, "runs")
        using = str(runs.get("using", ""))
        if using != "composite":
            self.problem(self.line(root, "runs"), f"'runs.using: {using}' is not emulated; only composite actions are")
            return CompositeAction(self.file, "", {}, {}, ())
        self.known(runs, ("using", "steps"), {}, "'runs'")
        inputs = {}
        held = self.mapping(root, "inputs")
        for name in held:
            item = held[name] if isinstance(held[name], CommentedMap) else CommentedMap()
            default = self.text(item, "default", "action.default")
            inputs[str(name)] = ActionInput(bool(item.get("required", False)), default)
        outputs = {}
        held = self.mapping(root, "outputs")
        for name in held:
            item = held[name] if isinstance(held[name], CommentedMap) else CommentedMap()
            value = self.text(item, "value", "action.output")
            if value is None:
                self.problem(self.line(held, name), f"output '{name}' of a composite action needs 'value'")
            else:
                outputs[str(name)] = value
        steps = runs.get("steps")
        if not isinstance(steps, CommentedSeq):
            self.problem(self.line(root, "runs"), "a composite action needs 'runs.steps'")
            steps = CommentedSeq()
        return CompositeAction(
            self.file, str(root.get("name", self.file)), inputs, outputs, self.steps(steps, "action.step")
        )
