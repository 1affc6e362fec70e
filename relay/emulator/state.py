"""What the emulated GitHub knows: repositories, tokens, pull requests, checks, deliveries and runs.

Plain data in memory, owned by the server's event loop; no method awaits, so each is atomic. What a person may want to
read after the server ended (runs, deliveries) is written as one file each, replaced as a whole.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import tempfile
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from relay.emulator.settings import RepositorySettings, Settings

NULL_SHA = "0" * 40
TOKEN_SECONDS = 3600


def now() -> str:
    """This moment as GitHub writes it: UTC, whole seconds."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` as a whole: a reader, or a crash, sees the old text or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, default=str)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


@dataclass
class Pull:
    """A pull request of one repository."""

    id: int
    number: int
    title: str
    body: str | None
    user: str
    head_ref: str
    head_sha: str
    base_ref: str
    base_sha: str
    labels: list[str]
    draft: bool = False
    state: str = "open"
    merged: bool = False
    created_at: str = field(default_factory=now)
    updated_at: str = field(default_factory=now)
    closed_at: str | None = None


@dataclass
class CheckRun:
    """A check run, made by the App (``POST /repos/…/check-runs``)."""

    id: int
    suite_id: int
    name: str
    head_sha: str
    status: str = "queued"
    conclusion: str | None = None
    external_id: str = ""
    details_url: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    output: dict[str, Any] = field(default_factory=dict)
    actions: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class CheckSuite:
    """All check runs of the App on one commit."""

    id: int
    head_sha: str
    head_branch: str | None
    before: str | None
    after: str | None
    created_at: str = field(default_factory=now)
    updated_at: str = field(default_factory=now)


@dataclass
class Repository:
    """One repository and everything that hangs on it.

    Attributes:
        git: the bare repository that this server serves; ``None`` without commits.
        pulls, checks, suites: by number or id, in the order they were made.
    """

    id: int
    owner_id: int
    settings: RepositorySettings
    git: Path | None
    created_at: str = field(default_factory=now)
    pushed_at: str = field(default_factory=now)
    pulls: dict[int, Pull] = field(default_factory=dict)
    checks: dict[int, CheckRun] = field(default_factory=dict)
    suites: dict[int, CheckSuite] = field(default_factory=dict)
    run_numbers: dict[str, int] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        """``owner/name`` as the settings spell it."""
        return self.settings.name

    @property
    def owner(self) -> str:
        """The account."""
        return self.full_name.split("/")[0]

    @property
    def name(self) -> str:
        """The name without the owner."""
        return self.full_name.split("/")[1]

    @property
    def default_branch(self) -> str:
        """Name of the branch that dispatches run on."""
        return self.settings.default_branch


@dataclass(frozen=True)
class Token:
    """What a bearer token may do. ``permissions`` maps a name to ``read`` or ``write``; ``*`` is every name."""

    kind: str
    installation: int
    repositories: frozenset[str] | None
    permissions: dict[str, str]
    expires: float

    def allows(self, permission: str, level: str) -> bool:
        """Whether ``permission`` is granted at ``level``; write includes read."""
        held = self.permissions.get(permission, self.permissions.get("*"))
        return held == "write" or (held == "read" and level == "read")


@dataclass
class Delivery:
    """One attempt to deliver one webhook."""

    id: int
    guid: str
    event: str
    action: str | None
    repository: str
    repository_id: int
    payload: dict[str, Any]
    redelivery: bool = False
    delivered_at: str = field(default_factory=now)
    duration: float | None = None
    status: str = "pending"
    status_code: int = 0
    request_headers: dict[str, str] = field(default_factory=dict)
    response_headers: dict[str, str] = field(default_factory=dict)
    response_body: str = ""


@dataclass
class StepRecord:
    """How one step went."""

    number: int
    name: str
    status: str = "queued"
    conclusion: str | None = None
    started_at: str | None = None
    completed_at: str | None = None


@dataclass
class JobRecord:
    """How one job of one attempt went.

    ``key`` is the job's id in the file, ``matrix`` its combination; ``tolerated`` is a failure that
    ``continue-on-error`` hides from the run and from the jobs that need it.
    """

    id: int
    run_id: int
    attempt: int
    key: str
    name: str
    matrix: dict[str, Any] | None
    labels: list[str]
    log: Path
    status: str = "queued"
    conclusion: str | None = None
    tolerated: bool = False
    created_at: str = field(default_factory=now)
    started_at: str | None = None
    completed_at: str | None = None
    steps: list[StepRecord] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""


@dataclass
class Artifact:
    """A stored artifact: a folder of files."""

    id: int
    name: str
    path: Path
    size: int
    digest: str
    attempt: int
    created_at: str = field(default_factory=now)


@dataclass
class Run:
    """One run of one workflow; ``jobs`` holds those of every attempt."""

    id: int
    number: int
    repository: str
    workflow_file: str
    workflow_name: str
    title: str
    event: str
    payload: dict[str, Any]
    inputs: dict[str, Any]
    head_sha: str
    head_branch: str
    actor: str
    suite_id: int
    directory: Path
    attempt: int = 1
    status: str = "queued"
    conclusion: str | None = None
    created_at: str = field(default_factory=now)
    started_at: str = field(default_factory=now)
    updated_at: str = field(default_factory=now)
    problems: list[str] = field(default_factory=list)
    jobs: list[JobRecord] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)

    def jobs_of(self, attempt: int | None = None) -> list[JobRecord]:
        """The jobs of one attempt, the latest by default."""
        return [job for job in self.jobs if job.attempt == (attempt or self.attempt)]


class State:
    """Everything, and the one source of ids."""

    def __init__(self, settings: Settings, base_url: str) -> None:
        self.settings = settings
        self.base_url = base_url.rstrip("/")
        # Ids grow from start to start, as GitHub's do over the years, so that files of an earlier start are kept.
        self._ids = itertools.count(int(time.time() * 1000))
        self.repositories: dict[str, Repository] = {}
        self.installations: dict[str, int] = {}
        self.tokens: dict[str, Token] = {}
        self.deliveries: dict[int, Delivery] = {}
        self.runs: dict[int, Run] = {}
        owners: dict[str, int] = {}
        for item in settings.repositories:
            owner = item.name.split("/")[0].lower()
            owners.setdefault(owner, self.new_id())
            if item.installed:
                self.installations.setdefault(owner, self.new_id())
            self.repositories[item.name.lower()] = Repository(
                id=self.new_id(),
                owner_id=owners[owner],
                settings=item,
                git=settings.data_dir / "git" / f"{item.name}.git" if item.path is not None else None,
            )

    def new_id(self) -> int:
        """A number that no other object has."""
        return next(self._ids)

    def repository(self, full_name: str) -> Repository | None:
        """The repository by name in any case."""
        return self.repositories.get(full_name.lower())

    @property
    def upstream(self) -> Repository:
        """The repository that the control API acts on."""
        return self.repositories[self.settings.upstream.lower()]

    def new_token(
        self,
        kind: str,
        installation: int,
        repositories: frozenset[str] | None,
        permissions: dict[str, str],
        seconds: float = TOKEN_SECONDS,
    ) -> tuple[str, Token]:
        """Make a token. ``repositories`` are lower-case names, ``None`` for all of the installation."""
        value = f"ghs_{secrets.token_urlsafe(27).replace('-', 'A').replace('_', 'B')}"
        token = Token(kind, installation, repositories, permissions, time.time() + seconds)
        if len(self.tokens) > 10_000:
            self.tokens = {key: held for key, held in self.tokens.items() if held.expires > time.time()}
        self.tokens[value] = token
        return value, token

    def save_run(self, run: Run) -> None:
        """Write ``run.json`` in the run's folder."""
        run.updated_at = now()
        write_json(run.directory / "run.json", asdict(run))

    def save_delivery(self, delivery: Delivery) -> None:
        """Write the delivery's file."""
        write_json(self.settings.data_dir / "deliveries" / f"{delivery.id}.json", asdict(delivery))
