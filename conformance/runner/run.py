"""A whole run or plan: profile, trees, selection → units → supervisor → accounts (C20)."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from packaging.version import InvalidVersion, Version

from conformance.errors import ConformanceError, NothingSelectedError
from conformance.inventory import FileRow, load_inventory
from conformance.inventory.tree import tree_version
from conformance.inventory.wheel import SUITE, wheel_rows
from conformance.profile import Profile
from conformance.registry.facts import installed_torch, rule_facts
from conformance.reports.accounts import Accounts
from conformance.reports.actions import links
from conformance.reports.files import ALL, SUMMARY
from conformance.reports.progress import Progress
from conformance.reports.summary import summarise
from conformance.runner.attribute import CPU, cpu_setup, cpu_units, found_on_cpu, to_repeat
from conformance.runner.mirror import mirror, remove
from conformance.runner.probe import Backend, Probe
from conformance.runner.spec import Root, Setup, Target
from conformance.runner.supervisor import Supervisor
from conformance.runner.units import expected_seconds, make_units, parse_shard, resolve_targets, shard
from conformance.selection.changed import select_changed
from conformance.selection.decide import Selection
from conformance.times import Times

WORKER_MEMORY = 1_200_000_000
"""Bytes that a worker needs before any test, with room for small ones (measured 0.9 to 1.0 GB on torch 2.14)."""

_BREADTH = ("exclude", "infer", "include")
"""Policies for classes without a label, the one that takes the fewest first."""

STATE = "state"
TREES = "trees-"
"""Prefix of the folder inside the state that holds the copies tests run in; what a killed run left goes first."""
REQUEST = "request.json"


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for; ``None`` and empty mean the profile's or the program's default."""

    profile: Profile
    upstream: Path | None = None
    wheel: bool = False
    targets: tuple[str, ...] = ()
    labels: frozenset[str] | None = None
    unclassified: str | None = None
    keyword: str = ""
    changed: tuple[str, ...] | None = None
    shard: str = ""
    jobs: int | None = None
    timeout: float | None = None
    strict: bool | None = None
    collect_only: bool = False
    attribute: bool = False
    unlock: bool = False
    times: Times = field(default_factory=Times)
    notes: tuple[str, ...] = ()

    def signature(self) -> dict[str, Any]:
        """What must be the same for a resumed run to mean the same."""
        return {
            "profile": self.profile.name,
            "content of the profile, registry or capabilities": self.profile.fingerprint(),
            "torch": installed_torch(),
            "upstream": str(self.upstream.resolve()) if self.upstream else "",
            "version of the checkout": tree_version(self.upstream) if self.upstream else "",
            "wheel": self.wheel,
            "targets": sorted(self.targets),
            "labels": sorted(self.labels or ()),
            "unclassified": self.unclassified or "",
            "keyword": self.keyword,
            "changed": None if self.changed is None else sorted(self.changed),
            "shard": self.shard,
            "attribute": self.attribute,
            "unlock": self.unlock,
        }


@dataclass
class Outcome:
    """What came out of a run.

    Attributes:
        unexpected: ids that make it fail.
        selection_notes: how changed files were mapped, versions that differ.
        interrupted: signal name, ``""`` when it ran to the end.
    """

    accounts: Accounts
    backend: Backend
    upstream: str
    seconds: float
    unexpected: list[str]
    notes: list[str] = field(default_factory=list)
    selection_notes: list[str] = field(default_factory=list)
    interrupted: str = ""
    shard: str = ""
    profile: str = ""
    expectations: str = ""
    narrowed: tuple[str, ...] = ()
    unlocked: bool = False

    def summary(self) -> dict[str, Any]:
        """``summary.json``."""
        return summarise(
            self.accounts,
            unexpected=self.unexpected,
            seconds=self.seconds,
            torch=self.backend.torch,
            upstream=self.upstream,
            profile=self.profile,
            expectations=self.expectations,
            devices=self.backend.devices,
            shard=self.shard,
            interrupted=self.interrupted,
            narrowed=self.narrowed,
            unlocked=self.unlocked,
            notes=self.selection_notes + self.notes,
            links=links(),
        )


def default_jobs() -> int:
    """Workers by cores and by memory that is free now (C25)."""
    cores = len(os.sched_getaffinity(0))
    memory = int(psutil.virtual_memory().available // WORKER_MEMORY)
    return max(1, min(cores, memory))


def skew(upstream: str, torch: str) -> str:
    """A sentence when tree and installed torch are of different releases, else ``""``."""
    try:
        tree, installed = Version(upstream.split("+")[0]), Version(torch)
    except InvalidVersion:
        return ""
    if tree.release[:2] == installed.release[:2]:
        return ""
    return f"the checkout is {upstream}, the installed torch {torch}: failures to import can come from the difference"


class Session:
    """One run being prepared and carried out.

    Attributes:
        notes: sentences about the selection.
    """

    def __init__(self, request: Request, say: Callable[[str], None]) -> None:
        self.request = request
        self.notes = list(request.notes)
        self._say = say
        self._upstream_version = ""
        self._files: dict[str, FileRow] = {}
        self._by_change = False

    def _narrowed(self) -> tuple[str, ...]:
        """Options that took less than the profile's whole set; a shard is a part of it, and stands apart."""
        request, policy = self.request, self.request.profile.policy
        took_less = {
            "FILE": bool(request.targets),
            "--hw-classification": request.labels is not None and not request.labels >= set(policy.labels),
            "--unclassified": request.unclassified is not None
            and _BREADTH.index(request.unclassified) < _BREADTH.index(policy.unclassified),
            "-k": bool(request.keyword),
            "--changed": self._by_change,
        }
        return tuple(option for option, less in took_less.items() if less)

    def _choose(self) -> list[Target]:
        """Files of this run (FILE arguments, else changed files, else the profile's defaults)."""
        request = self.request
        if request.upstream is not None:
            inventory = load_inventory(request.upstream)
            self._upstream_version = inventory.version or "unknown"
            self._files |= inventory.files
            for row in inventory.test_files:
                if row.error:
                    self.notes.append(f"{row.path}: cannot be read: {row.error}")
        wheel = wheel_rows() if request.wheel else {}
        self._files |= wheel
        if request.targets:
            return resolve_targets(request.targets, self._files, request.upstream, Path.cwd())
        if request.changed is not None:
            if request.upstream is None:
                raise ConformanceError("--changed needs --upstream DIR: changed files are mapped in that checkout")
            chosen = select_changed(inventory, request.changed)
            self.notes += chosen.notes
            self._by_change = chosen.files is not None
            if chosen.files is not None:
                return [Target(path) for path in sorted(chosen.files)]
        targets = self._wheel_defaults(wheel)
        if request.upstream is not None:
            targets += self._upstream_defaults(request.upstream)
        return targets

    def _wheel_defaults(self, wheel: dict[str, FileRow]) -> list[Target]:
        names = [f"wheel/{name}" for name in self.request.profile.wheel_files] if wheel else []
        if missing := [name for name in names if name not in wheel]:
            raise ConformanceError(
                f"profile {self.request.profile.name}: wheel_files: no {', '.join(missing)}; "
                f"there are {', '.join(wheel)}"
            )
        return [Target(path) for path in names or wheel]

    def _upstream_defaults(self, upstream: Path) -> list[Target]:
        """The profile's set; what this checkout does not have is said, not fatal: trees of many ages are tested."""
        profile = self.request.profile
        if not profile.upstream_files:
            return [Target(p) for p, row in self._files.items() if row.is_test_file and p.startswith("test/")]
        present = []
        for entry in profile.upstream_files:
            if f"test/{entry.partition('::')[0]}" in self._files:
                present.append(f"test/{entry}")
            else:
                self.notes.append(f"profile {profile.name} names {entry}, which this checkout does not have")
        return resolve_targets(present, self._files, upstream, Path.cwd())

    def _setup(self, backend: Backend) -> Setup:
        request, profile = self.request, self.request.profile
        policy = profile.policy
        facts = rule_facts(
            self._upstream_version, backend.torch, backend.devices, profile=profile.name,
            environment=profile.environment,
        )  # fmt: skip
        rules = tuple(rule for rule in profile.rules() if rule.applies(**facts))
        return Setup(
            device=profile.device,
            module=profile.module,
            custom=profile.custom,
            fallbacks=profile.fallbacks,
            environment=dict(profile.environment),
            selection=Selection(
                request.labels if request.labels is not None else frozenset(policy.labels),
                request.unclassified or policy.unclassified,
            ),
            rules=rules,
            capabilities=profile.declared(),
            keyword=request.keyword,
            collect_only=request.collect_only,
            unlock=request.unlock,
            profile=profile.argument,
        )

    def execute(self, state: Path, *, quiet: bool = False) -> Outcome:
        """Runs everything.

        Args:
            state: folder for journals and for the copy of ``test/``; what an earlier run left in its journals counts
                as done. The copy is removed at the end.
            quiet: no progress.

        Raises:
            ConformanceError: the backend does not work, or an argument names nothing.
            NothingSelectedError: no file, or no test in the files.
        """
        started = time.monotonic()
        request, policy = self.request, self.request.profile.policy
        request.profile.rules()
        state.mkdir(parents=True, exist_ok=True)
        for left in state.glob(f"{TREES}*"):
            remove(left)
        trees = Path(tempfile.mkdtemp(prefix=TREES, dir=state))
        probe = Probe(request.profile)
        try:
            targets = self._choose()
            if not targets:
                for note in self.notes:
                    self._say(note)
                raise NothingSelectedError(
                    "no test file selected: give --upstream DIR, --suite wheel or FILE arguments"
                )
            weighted = [
                (target, expected_seconds(target, self._files.get(target.path), request.times)) for target in targets
            ]
            if request.shard:
                weighted = shard(weighted, *parse_shard(request.shard), request.times)
                if not weighted:
                    raise NothingSelectedError(f"shard {request.shard} is empty: there are fewer files than shards")
            roots = self._roots(targets, trees)
            backend = probe.result()
            if warning := skew(self._upstream_version, backend.torch):
                self.notes.append(warning)
            return self._run(weighted, roots, backend, state, quiet, started, policy.rerun)
        finally:
            probe.close()
            remove(trees)

    def _roots(self, targets: Sequence[Target], folder: Path) -> dict[str, Root]:
        roots: dict[str, Root] = {}
        known: dict[str, Root] = {}
        for target in targets:
            prefix = target.path.split("/", 1)[0] + "/"
            if prefix not in known:
                home = folder / prefix
                if prefix == "test/":
                    assert self.request.upstream is not None
                    (folder / "upstream").mkdir()
                    copied = mirror(self.request.upstream.resolve(), folder / "upstream")
                    known[prefix] = Root(prefix, copied, copied)
                else:
                    home.mkdir()
                    known[prefix] = Root(prefix, SUITE, home)
            roots[target.path] = known[prefix]
        return roots

    def _run(
        self, weighted: Sequence[tuple[Target, float]], roots: dict[str, Root], backend: Backend, state: Path, quiet:
            bool,
        started: float, repetitions: int,
    ) -> Outcome:  # fmt: skip
        request, policy = self.request, self.request.profile.policy
        jobs = request.jobs or policy.jobs or default_jobs()
        setup = self._setup(backend)
        units = make_units(weighted, roots, jobs=jobs, files_per_process=policy.files_per_process, times=request.times)
        for note in self.notes:
            self._say(note)
        with Progress(sys.stderr, len(units), collect_only=request.collect_only) as progress:
            supervisor = Supervisor(
                setup, self._files, state,
                jobs=jobs,
                timeout=request.timeout or policy.timeout,
                import_timeout=policy.import_timeout,
                fork=policy.start_method == "fork",
                times=request.times,
                on_progress=(lambda _: None) if quiet else progress.update,
                on_result=(lambda _attempt, _final: None) if quiet else progress.result,
            )  # fmt: skip
            try:
                supervisor.run(units)
                if not request.collect_only and repetitions and not supervisor.interrupted:
                    supervisor.rerun(repetitions, roots, len(units) + 1)
            finally:
                supervisor.close()
        if request.attribute and not supervisor.interrupted:
            supervisor.interrupted = self._attribute(supervisor, roots)
        accounts = supervisor.accounts
        if accounts.outcomes()["deselected"] == len(accounts.planned) and not supervisor.interrupted:
            raise NothingSelectedError(
                "no test selected: the chosen files have no test with the names, labels and device that were asked for"
            )
        strict = policy.strict if request.strict is None else request.strict
        return Outcome(
            accounts, backend, self._upstream_version, time.monotonic() - started, accounts.unexpected(strict),
            supervisor.notes, self.notes, supervisor.interrupted, request.shard, request.profile.name,
            request.profile.fingerprint(), self._narrowed(), request.unlock,
        )  # fmt: skip

    def _attribute(self, device: Supervisor, roots: dict[str, Root]) -> str:
        """Repeats on the CPU what failed on the device, and enters in its accounts what came of it (C34).

        Returns:
            Name of the signal that stopped it, ``""`` without one.
        """
        names = to_repeat(device.accounts)
        units = cpu_units(names, device.accounts, roots)
        if not units:
            return ""
        self._say(f"--attribute: {len(names)} that failed on {device.setup.device} are repeated on the CPU")
        with Progress(sys.stderr, len(units)) as progress:
            cpu = Supervisor(
                cpu_setup(device.setup), self._files, device.state / CPU,
                jobs=device.jobs,
                timeout=device.timeout,
                import_timeout=device.import_timeout,
                fork=self.request.profile.policy.start_method == "fork",
                times=self.request.times,
                on_progress=progress.update,
                on_result=progress.result,
            )  # fmt: skip
            try:
                cpu.run(units)
            finally:
                cpu.close()
        device.accounts.on_cpu.update(found_on_cpu(names, cpu.accounts, not cpu.interrupted))
        return cpu.interrupted


def absolute_output(output: Path) -> Path:
    """The output folder as every process can name it.

    Raises:
        ConformanceError: its links go in a circle, or something else than a folder has its name.
    """
    try:
        output = output.resolve()
        if output.exists() and not output.is_dir():
            raise ConformanceError(f"--output {output}: is a file; give a folder")
    except (OSError, RuntimeError) as error:
        raise ConformanceError(f"--output {output}: {error}") from error
    return output


def prepare_output(output: Path, request: Request, resume: bool) -> Path:
    """Makes the output folder ready.

    Returns:
        The state folder inside.

    Raises:
        ConformanceError: the folder holds something else or cannot be made, or there is nothing to resume, or it was
            another run.
    """
    with _said(output):
        return _prepare(output, request, resume)


def _prepare(output: Path, request: Request, resume: bool) -> Path:
    state = output / STATE
    marker = state / REQUEST
    signature = request.signature()
    if resume:
        try:
            earlier = json.loads(marker.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConformanceError(
                f"--resume: {output} holds no interrupted run ({marker.name} is not readable)"
            ) from error
        if not isinstance(earlier, dict):
            raise ConformanceError(f"--resume: {marker} is damaged; run again without --resume")
        if earlier != signature:
            changed = sorted(key for key in signature if earlier.get(key) != signature[key])
            raise ConformanceError(
                f"--resume: {output} was a run with other {', '.join(changed)}; go back to that, or run again without "
                "--resume"
            )
        return state
    _empty(output)
    state.mkdir(parents=True)
    marker.write_text(json.dumps(signature))
    return state


def prepare_folder(output: Path) -> None:
    """Makes an output folder and removes an earlier run in it.

    Raises:
        ConformanceError: the folder holds something else or cannot be made.
    """
    with _said(output):
        _empty(output)


@contextmanager
def _said(output: Path) -> Iterator[None]:
    """Turns what the system says about the output folder into a sentence."""
    try:
        yield
    except OSError as error:
        raise ConformanceError(
            f"--output {output}: {error.strerror or error}; give a folder that can be made and written"
        ) from error


def _empty(output: Path) -> None:
    state = output / STATE
    ours = (state / REQUEST).exists() or (output / SUMMARY).exists()
    if output.exists() and any(output.iterdir()) and not ours:
        raise ConformanceError(f"--output {output}: the folder is not empty and was not written by conformance run")
    for name in ALL:
        (output / name).unlink(missing_ok=True)
    remove(state)
    output.mkdir(parents=True, exist_ok=True)


def plan_rows(accounts: Accounts) -> list[dict[str, Any]]:
    """Rows of ``plan --json`` (spec §6)."""
    rows = []
    for name in sorted(accounts.planned):
        row = asdict(accounts.planned[name])
        rows.append(
            {
                "id": name, "label": row["label"], "label_source": row["source"], "action": row["action"],
                "rule": row["rule"], "reason": row["reason"],
            }
        )  # fmt: skip
    return rows
