"""What a workflow file and a composite action say, after loading: plain data, every expression parsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relay.emulator.runner.expressions import Node, Template


class WorkflowError(Exception):
    """The file cannot be run. ``problems`` has one ``file:line: text`` each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Step:
    """One step of a job or of a composite action. Exactly one of ``run`` and ``uses`` is set."""

    where: str
    id: str
    name: Template | None
    condition: Node | None
    run: Template | None
    uses: str | None
    inputs: dict[str, Template]
    env: dict[str, Template]
    shell: Template | None
    working_directory: Template | None
    continue_on_error: Template | None
    timeout_minutes: Template | None


@dataclass(frozen=True)
class Defaults:
    """``defaults.run``."""

    shell: Template | None = None
    working_directory: Template | None = None


@dataclass(frozen=True)
class Concurrency:
    """``concurrency``: one run or job of a group at a time."""

    group: Template
    cancel_in_progress: Template | None = None


@dataclass(frozen=True)
class Strategy:
    """``strategy``; ``matrix`` is the raw mapping with :class:`Template` leaves, or one template for all of it."""

    matrix: Any = None
    fail_fast: Template | None = None
    max_parallel: Template | None = None


@dataclass(frozen=True)
class Job:
    """One entry of ``jobs``."""

    where: str
    id: str
    name: Template | None
    needs: tuple[str, ...]
    condition: Node | None
    permissions: dict[str, str] | None
    runs_on: tuple[Template, ...]
    environment: Template | None
    concurrency: Concurrency | None
    outputs: dict[str, Template]
    env: dict[str, Template]
    defaults: Defaults
    timeout_minutes: Template | None
    continue_on_error: Template | None
    strategy: Strategy | None
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Input:
    """One input of ``workflow_dispatch``."""

    type: str = "string"
    required: bool = False
    default: Any = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workflow:
    """A loaded workflow file."""

    file: str
    name: str
    run_name: Template | None
    triggers: dict[str, Any]
    dispatch_inputs: dict[str, Input]
    permissions: dict[str, str] | None
    env: dict[str, Template]
    defaults: Defaults
    concurrency: Concurrency | None
    jobs: dict[str, Job]

    def listens_to(self, event: str, kind: str | None = None) -> bool:
        """Whether the file has the trigger; ``kind`` is the ``event_type`` of a repository dispatch."""
        return triggers_match(self.triggers, event, kind)


@dataclass(frozen=True)
class ActionInput:
    """One input of a composite action."""

    required: bool
    default: Template | None


@dataclass(frozen=True)
class CompositeAction:
    """A loaded ``action.yml``."""

    file: str
    name: str
    inputs: dict[str, ActionInput]
    outputs: dict[str, Template]
    steps: tuple[Step, ...]


def triggers_match(triggers: dict[str, Any], event: str, kind: str | None) -> bool:
    """Whether an ``on`` mapping has ``event``, and for a repository dispatch its type ``kind``."""
    if event not in triggers:
        return False
    types = (triggers[event] or {}).get("types")
    if kind is None or types is None:
        return True
    return kind in ([types] if isinstance(types, str) else types)
