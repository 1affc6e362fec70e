"""Units → worker processes → accounts. A death or a hang costs the one test that the journal names (C21-C23, C26,
C28)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from conformance.errors import ConformanceError
from conformance.ids import TestId, parse
from conformance.inventory.model import FileRow
from conformance.reports.accounts import BROKEN, Accounts, Attempt, Planned
from conformance.runner.forkserver import ForkServer, ForkServerLost
from conformance.runner.process import EXIT_GRACE, Process, WorkerProcess, start_fresh
from conformance.runner.spec import BUCKETS, Root, Setup, Target, Unit, WorkerSpec, bucket
from conformance.times import Times

TICK = 0.05
"""Seconds between two looks at the journals."""

FRUITLESS_LIMIT = 3
"""Workers of one unit that may die in a row between tests, with nothing to blame, before its rest is given up. As many
fork servers may be lost in a row before workers start fresh."""

PYTEST_INI = "[pytest]\nxfail_strict = true\n"
"""As upstream's own configuration has it."""


class StateLog:
    """What the supervisor knows, on disk while it runs, so that another one can go on (C26)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = path.open("a", encoding="utf-8")

    def write(self, event: dict[str, Any]) -> None:
        """Appends an event."""
        self._stream.write(json.dumps(event, separators=(",", ":")) + "\n")

    def flush(self) -> None:
        """Hands everything to the kernel."""
        self._stream.flush()

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()

    @staticmethod
    def read(path: Path) -> Iterator[dict[str, Any]]:
        """Events of an earlier supervisor; a torn last line is left out."""
        with path.open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if line.endswith("\n"):
                    with contextlib.suppress(json.JSONDecodeError):
                        yield json.loads(line)


class Supervisor:
    """Runs units with up to ``jobs`` workers.

    Attributes:
        fork: workers are copies of a fork server; turned off where that turns out not to work.
        accounts: the books.
        notes: things that went wrong around tests (a worker that died after its session, a class with a wrong label).
        interrupted: name of the signal that stopped the run, ``""`` without one.
        running: units that have a worker now.
        finished_units: contents of units that are over, this run's or of the one that is resumed.
    """

    def __init__(
        self,
        setup: Setup,
        inventory: dict[str, FileRow],
        state: Path,
        *,
        jobs: int,
        timeout: float,
        import_timeout: float,
        fork: bool,
        times: Times,
        on_progress: Callable[[Supervisor], None] = lambda _: None,
        on_result: Callable[[Attempt, str], None] = lambda _attempt, _final: None,
    ) -> None:
        self.setup = setup
        self.inventory = inventory
        self.state = state
        self.jobs = jobs
        self.timeout = timeout
        self.import_timeout = import_timeout
        self.fork = fork
        self.times = times
        self.accounts = Accounts(
            issues={rule.name: rule.issue for rule in setup.rules if rule.issue},
            expiries={rule.name: rule.expires.isoformat() for rule in setup.rules if rule.expires},
            profile=setup.profile,
        )
        self.notes: list[str] = []
        self.interrupted = ""
        self.running: list[WorkerProcess] = []
        self.finished_units: set[str] = set()
        self._on_progress = on_progress
        self._on_result = on_result
        self._server: ForkServer | None = None
        self._lost_servers = 0
        self._spawned = 0
        self._fruitless: Counter[int] = Counter()
        self._contents: dict[int, str] = {}
        state.mkdir(parents=True, exist_ok=True)
        (state / "pytest.ini").write_text(PYTEST_INI)
        self._log_path = state / "events.jsonl"
        if self._log_path.exists():
            for event in StateLog.read(self._log_path):
                try:
                    self._apply(event)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    raise ConformanceError(
                        f"--resume: {self._log_path} is damaged ({event!r:.80}); run again without --resume"
                    ) from error
        self._log = StateLog(self._log_path)

    # Accounts

    def _apply(self, event: dict[str, Any]) -> None:
        kind = event["e"]
        if kind in ("item", "file"):
            self.accounts.plan(
                Planned(
                    event["id"],
                    event.get("label", ""),
                    event.get("source", ""),
                    event.get("action", "run"),
                    event.get("reason", ""),
                    event.get("rule", ""),
                    event.get("factor", 1.0),
                )
            )
        if kind in ("result", "file", "end"):
            attempt = Attempt(
                event["id"], event["outcome"], event.get("attempt", 1), event.get("duration", 0.0), event.get("phase",
                ""), event.get("message", ""), event.get("trace", ""), event.get("reason", ""), event.get("fallback"),
            )  # fmt: skip
            self.accounts.record(attempt)
            self._on_result(attempt, self.accounts.outcome(attempt.id) or attempt.outcome)
        elif kind == "unit_done":
            self.finished_units.add(event["unit"])
        elif kind == "note":
            self.notes.append(event["text"])

    def _enter(self, event: dict[str, Any], attempt: int) -> None:
        event["attempt"] = attempt
        self._apply(event)
        self._log.write(event)

    def note(self, text: str) -> None:
        """Records something that a reader of the report should know."""
        self._enter({"e": "note", "text": text}, 1)

    # Processes

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        # Fewer cores than workers × threads makes every operator slower; a person's own setting wins.
        threads = max(1, len(os.sched_getaffinity(0)) // max(1, self.jobs))
        environment.setdefault("OMP_NUM_THREADS", str(threads))
        environment.update(self.setup.environment)
        device = self.setup.device
        environment["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = f"privateuse1,{device}" if self.setup.custom else device
        environment.pop("PYTORCH_TESTING_DEVICE_EXCEPT_FOR", None)
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        environment.pop("PYTEST_ADDOPTS", None)
        return environment

    def _can_start(self) -> bool:
        """Whether a worker can be started now. Sees to it that there is a fork server."""
        if not self.fork:
            return True
        if self._server is None:
            limit = max(self.import_timeout, self.timeout)
            log = self.state / f"forkserver-{os.getpid()}.log"
            self._server = ForkServer(self.setup, self._environment(), log, limit)
        if not self._server.ready():
            return False
        if self._server.problem:
            self._start_fresh(self._server.problem)
        elif self._server.lost:
            self._lose_server()
            return self._can_start()
        return True

    def _lose_server(self) -> None:
        """The fork server was ended: by a test that kills its parent, or by the kernel. Another one is started."""
        self._lost_servers += 1
        if self._lost_servers == FRUITLESS_LIMIT:
            self._start_fresh(f"{FRUITLESS_LIMIT} in a row were ended from outside")
        else:
            self._close_server()

    def _start_fresh(self, reason: str) -> None:
        self.note(f"every worker is started fresh, because no fork server works: {reason}")
        self.fork = False
        self._close_server()

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _start(self, spec: Path, cwd: Path, output: int) -> Process:
        if self._server is not None:
            return self._server.start(spec, cwd, output)
        return start_fresh(spec, cwd, output, self._environment())

    def _spawn(self, unit: Unit) -> WorkerProcess:
        self._spawned += 1
        stem = f"unit-{unit.number:04}-{os.getpid()}-{self._spawned:04}"
        journal, stacks, path = (self.state / f"{stem}.{end}" for end in ("jsonl", "stacks", "spec"))
        done = frozenset(self.accounts.done()) if unit.attempt == 1 else self._tried(unit)
        WorkerSpec(self.setup, unit, self._rows(unit), journal, stacks, os.getpid(), done).write(path)
        return WorkerProcess(unit, path, journal, stacks, self._start)

    def _tried(self, unit: Unit) -> frozenset[str]:
        rows = self.accounts.attempts
        return frozenset(
            name for name in unit.only or () if any(row.attempt >= unit.attempt for row in rows.get(name, ()))
        )

    def _rows(self, unit: Unit) -> dict[str, FileRow]:
        rows: dict[str, FileRow] = {}
        for target in unit.targets:
            row = self.inventory.get(target.path)
            if row is None:
                continue
            rows[target.path] = row
            for cls in row.classes:
                for where in cls.mro:
                    path = where.partition("::")[0]
                    if path in self.inventory:
                        rows[path] = self.inventory[path]
        return rows

    def run(self, units: list[Unit]) -> None:
        """Works until every unit is done or a signal arrives."""
        # A unit loses files that break; what is remembered as finished is what it was given.
        self._contents |= {unit.number: unit.content for unit in units}
        queue = deque(sorted((u for u in units if u.content not in self.finished_units), key=lambda u: -u.weight))
        with self._signals():
            try:
                while (queue or self.running) and not self.interrupted:
                    while queue and len(self.running) < self.jobs and self._can_start():
                        try:
                            self.running.append(self._spawn(queue[0]))
                            queue.popleft()
                        except ForkServerLost:
                            self._lose_server()
                    self._wait()
                    for worker in list(self.running):
                        for unit in self._attend(worker):
                            queue.appendleft(unit)
                    self._log.flush()
                    self._on_progress(self)
            finally:
                for worker in self.running:
                    for event in worker.events():
                        self._take(worker, event)
                    worker.close()
                self.running.clear()
                self._log.flush()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def stop(number: int, _frame: FrameType | None) -> None:
            self.interrupted = signal.Signals(number).name

        kept = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    def _wait(self) -> None:
        readable, _, _ = select.select([w for w in self.running if not w.exited], [], [], TICK)
        if readable:
            for worker in readable:
                worker.drain()
            # Output must not turn the loop into a busy one.
            time.sleep(TICK / 5)

    def _take(self, worker: WorkerProcess, event: dict[str, Any]) -> None:
        if event["e"] in ("item", "result", "file", "end"):
            self._fruitless[worker.unit.number] = 0 if event["e"] == "end" else self._fruitless[worker.unit.number]
            self._enter(event, worker.unit.attempt)

    def _attend(self, worker: WorkerProcess) -> list[Unit]:
        """Looks after one worker.

        Returns:
            The unit again when its worker ended with work left.
        """
        status = worker.poll()
        for event in worker.events():
            self._take(worker, event)
        if status is None:
            if not self._overdue(worker):
                return []
            self._blame_hang(worker)
        elif not worker.finished:
            self._blame_death(worker)
        elif status != 0:
            worker.drain()
            self.note(
                f"{worker.unit.targets[0].path}: after its last test {worker.describe_exit()}; "
                "no test result is affected"
            )
        worker.close()
        self.running.remove(worker)
        self._lost_servers = 0
        again = self._next(worker)
        if again is None:
            self._enter({"e": "unit_done", "unit": self._contents[worker.unit.number]}, worker.unit.attempt)
            return []
        return [again]

    def _deadline(self, worker: WorkerProcess) -> float:
        if worker.finished:
            return EXIT_GRACE
        if worker.current:
            plan = self.accounts.planned.get(worker.current)
            return self.times.deadline(worker.current, self.timeout * (plan.factor if plan else 1.0))
        return max(self.import_timeout, self.timeout)

    def _overdue(self, worker: WorkerProcess) -> bool:
        return worker.idle_seconds() > self._deadline(worker)

    def _blame_hang(self, worker: WorkerProcess) -> None:
        if worker.finished:
            self.note(
                f"{worker.unit.targets[0].path}: the worker did not end within {EXIT_GRACE:g} s after its last test"
            )
            return
        seconds = self._deadline(worker)
        stacks = worker.dump_stacks()
        worker.kill()
        for event in worker.events():
            self._take(worker, event)
        self._blame(worker, "timed_out", f"no end after {seconds:g} s; its process group was killed", stacks, seconds)

    def _blame_death(self, worker: WorkerProcess) -> None:
        worker.kill()
        worker.drain()
        how = worker.describe_exit()
        if worker.exited is not None:
            how = f"the file called sys.exit({worker.exited}) while it was imported"
        self._blame(worker, "crashed", how, worker.tail(), time.monotonic() - worker.since)

    def _blame(self, worker: WorkerProcess, outcome: str, message: str, trace: str, seconds: float) -> None:
        attempt = worker.unit.attempt
        if worker.current:
            self._enter(
                {
                    "e": "result", "id": worker.current, "outcome": outcome, "message": message, "trace": trace,
                    "duration": seconds, "phase": "call",
                },
                attempt,
            )  # fmt: skip
            self._fruitless[worker.unit.number] = 0
        elif worker.collecting:
            file = "error" if worker.exited is not None else outcome
            self._enter(
                {
                    "e": "file", "id": str(TestId(worker.collecting)), "outcome": file, "message": message,
                    "trace": trace, "phase": "collect",
                },
                1,
            )  # fmt: skip
        else:
            self._fruitless[worker.unit.number] += 1
            if self._fruitless[worker.unit.number] >= FRUITLESS_LIMIT:
                self._give_up(worker, outcome, message, trace)

    def _give_up(self, worker: WorkerProcess, outcome: str, message: str, trace: str) -> None:
        text = f"{message}; this happened {FRUITLESS_LIMIT} times in a row with no test running"
        left = self._left(worker.unit)
        for name in left:
            self._enter(
                {"e": "result", "id": name, "outcome": outcome, "message": text, "trace": trace}, worker.unit.attempt
            )
        if not worker.collected and worker.unit.attempt == 1:
            for target in worker.unit.targets:
                self._enter(
                    {"e": "file", "id": str(TestId(target.path)), "outcome": outcome, "message": text, "trace": trace},
                    1,
                )

    def _left(self, unit: Unit) -> list[str]:
        """Planned tests of a unit that have no result of its attempt."""
        if unit.only is not None:
            return sorted(unit.only - self._tried(unit))
        paths = {target.path for target in unit.targets}
        missing = set(self.accounts.missing())
        return sorted(name for name in missing if parse(name).file in paths and self._in_range(name, unit))

    @staticmethod
    def _in_range(name: str, unit: Unit) -> bool:
        file = parse(name).file
        return any(t.path == file and t.low <= bucket(name) < t.high for t in unit.targets)

    def _next(self, worker: WorkerProcess) -> Unit | None:
        """What is left of a unit after its worker ended."""
        unit = worker.unit
        if self.setup.collect_only and worker.finished:
            return None
        if worker.finished:
            self._note_empty(unit)
            left = self._left(unit)
            for name in left:
                self._enter(
                    {
                        "e": "result", "id": name, "outcome": "error",
                        "message": "the session ended without running this test",
                    },
                    unit.attempt,
                )  # fmt: skip
            return None
        if self._fruitless[unit.number] >= FRUITLESS_LIMIT:
            return None
        broken = {
            name for t in unit.targets if self.accounts.outcome(name := str(TestId(t.path))) in BROKEN | {"error"}
        }
        rest = unit.without(frozenset(parse(name).file for name in broken))
        if not rest.targets:
            return None
        if worker.collected and not self._left(unit):
            return None
        return rest

    def _note_empty(self, unit: Unit) -> None:
        """A file that gives no test is said by name: it may have lost them."""
        if unit.only is None:
            counted = {parse(name).file for name in self.accounts.planned}
            for target in unit.targets:
                if target.path not in counted and not target.names and (target.low, target.high) == (0, BUCKETS):
                    self.note(f"{target.path}: imported, but it has no test")

    # Suspects

    def rerun(self, limit: int, roots: dict[str, Root], first_number: int) -> int:
        """Repeats what broke (C23): what crashed or hung in a process of its own, what failed in one process per
        file, without the tests that did not break.

        Args:
            limit: repetitions.
            roots: file path → where it lies.
            first_number: of the new units.

        Returns:
            How many tests were repeated.
        """
        number, total = first_number, 0
        for attempt in range(2, limit + 2):
            suspects = [
                n for n in self.accounts.suspects(limit) if self.accounts.attempts[n][-1].attempt == attempt - 1
            ]
            if not suspects or self.interrupted:
                break
            total += len(suspects)
            groups: dict[str, list[str]] = {}
            for name in suspects:
                dangerous = self.accounts.attempts[name][-1].outcome in ("crashed", "timed_out")
                groups.setdefault(name if dangerous else parse(name).file, []).append(name)
            units = []
            for names in groups.values():
                path = parse(names[0]).file
                units.append(Unit(number, roots[path], (Target(path),), len(names), frozenset(names), attempt))
                number += 1
            self.run(units)
        return total

    def close(self) -> None:
        """Ends the fork server and closes the state log."""
        self._close_server()
        self._log.close()
