"""The evidence bundle (C33): one folder that shows where a backend stands and how to see it again.

PyTorch's admission of additional platforms asks for coverage, results per operator and dtype, versions, and runs that
anybody can look at.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conformance.errors import ConformanceError
from conformance.ids import parse
from conformance.profile import Profile
from conformance.reports.accounts import BROKEN, Accounts
from conformance.reports.files import HTML, JUNIT, RESULTS, SUMMARY
from conformance.reports.html import clusters, matrix
from conformance.reports.html import html as page
from conformance.reports.read import FinishedRun
from conformance.reports.write import replace, table, write_junit, write_results, write_summary

README = "README.md"
COVERAGE = "coverage.json"
OPERATORS = "operators.csv"


@dataclass(frozen=True)
class Coverage:
    """What a run says of a backend, in numbers of tests.

    Attributes:
        planned: for the device: all but those that labels or options left out.
        blocked: of them, those that upstream keeps from every device but its own.
        left_out: of them, those that a rule, a declaration or the test itself skipped.
        passed: ran as on any other device; a test that was flaky passed in the end.
        known: failed as a rule says.
        failed: failed otherwise, crashed or timed out.
        fails_on_cpu_too: of known and failed, those that the same tree and torch fail without the backend.
        share: of the tests that ran and do not fail on the CPU, how many passed; ``None`` where none ran.
        operators: with a test that passed, and with any.
        files: outcome → number of tests, per file.
    """

    planned: int
    blocked: int
    left_out: int
    passed: int
    known: int
    failed: int
    fails_on_cpu_too: int
    share: float | None
    operators: tuple[int, int]
    files: dict[str, dict[str, int]]


def coverage(accounts: Accounts) -> Coverage:
    """Counts a finished run; files that cannot be imported count as failed tests."""
    counts: Counter[str] = Counter()
    files: dict[str, Counter[str]] = defaultdict(Counter)
    tried: set[str] = set()
    works: set[str] = set()
    too = 0
    for name in accounts.attempts:
        outcome = accounts.outcome(name)
        assert outcome is not None
        if outcome == "deselected":
            continue
        test = parse(name)
        # What upstream itself expects to fail is as it should be.
        known = outcome == "xfailed" and bool(accounts.planned[name].rule)
        kind = (
            "passed" if outcome in ("passed", "flaky", "xpassed") or (outcome == "xfailed" and not known) else outcome
        )
        counts[kind] += 1
        files[test.file][kind] += 1
        there = accounts.on_cpu.get(name)
        too += there is not None and there.outcome in BROKEN and (known or accounts.breaks_on_cpu_too(name))
        if test.op:
            tried.add(test.op)
            if kind == "passed":
                works.add(test.op)
    failed = sum(counts[outcome] for outcome in BROKEN)
    own = counts["xfailed"] + failed - too
    ran = counts["passed"] + own
    return Coverage(
        planned=counts.total(),
        blocked=counts["not_applicable"],
        left_out=counts["skipped"],
        passed=counts["passed"],
        known=counts["xfailed"],
        failed=failed,
        fails_on_cpu_too=too,
        share=counts["passed"] / ran if ran else None,
        operators=(len(works), len(tried)),
        files={path: dict(sorted(files[path].items())) for path in sorted(files)},
    )


def operators(accounts: Accounts) -> str:
    """Operators × dtypes as CSV: in each cell the outcomes with their numbers, empty without a test."""
    found = matrix(accounts)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["operator", *found.dtypes])
    for op, cells in found.rows.items():
        writer.writerow([op, *(cells[dtype].text if dtype in cells else "" for dtype in found.dtypes)])
    return text.getvalue()


def reproduce(summary: Mapping[str, Any], profile: str) -> str:
    """The commands that make the run again."""
    lines = [f"pip install torch=={summary['torch'].partition('+')[0]}"]
    tree = ""
    if summary["upstream"]:
        tree = " --upstream TREE"
        lines.append(f"conformance fetch    # or a checkout of PyTorch {summary['upstream']}; TREE is its path")
    unlock = " --unlock" if summary.get("unlocked") else ""
    lines.append(f"conformance run --profile {profile}{tree}{unlock} --attribute --output out")
    if summary["narrowed"]:
        lines.append(f"# the run took a part: {', '.join(summary['narrowed'])}")
    return "\n".join(lines)


def readme(run: FinishedRun, profile: Profile) -> str:
    """What a reader of the bundle sees first, as Markdown."""
    summary, found = run.summary, coverage(run.accounts)
    share = "no test ran" if found.share is None else f"{100 * found.share:.2f} %"
    parts = [
        f"# {summary['profile']}: PyTorch's own tests\n",
        f"torch {summary['torch']}, tests of PyTorch {summary['upstream'] or '(none, the wheel suite only)'}, "
        f"{summary['devices']} devices, {summary['seconds']:.0f} s. The accounts "
        f"{'balance' if summary['balanced'] else 'do not balance'}.\n",
        f"**{share}** of the tests that ran and do not fail on the CPU pass on the device.\n",
        table(
            ("tests", "number"),
            [
                ("planned for the device", found.planned),
                ("passed", found.passed),
                ("known failures, each with a rule", found.known),
                ("other failures", found.failed),
                ("of both, failing on the CPU of the same torch too", found.fails_on_cpu_too),
                ("skipped by the test itself, a rule or a declaration", found.left_out),
                ("blocked upstream for every device but its own", found.blocked),
            ],
        ),
        f"Operators with a test that passes: {found.operators[0]} of {found.operators[1]} (`{OPERATORS}`: by dtype).\n",
    ]
    rules = {rule.name: rule for rule in profile.rules()}
    named = Counter(
        plan.rule
        for name, plan in run.accounts.planned.items()
        if run.accounts.outcome(name) == "xfailed" and plan.rule
    )
    if named:
        parts += ["## Known failures by rule\n", table(
            ("rule", "tests", "reason"),
            [(name, count, rules[name].text if name in rules else "") for name, count in named.most_common()],
        )]  # fmt: skip
    broken = clusters(run.accounts)
    if broken:
        parts += ["## Other failures by cause\n", table(
            ("outcome", "tests", "cause", "for example"),
            [(item.outcome, len(item.names), item.cause, item.names[0]) for item in broken],
        )]  # fmt: skip
    upstreams = clusters(run.accounts, on_cpu_too=True)
    if upstreams:
        parts += ["## Failing on the CPU too\n", table(
            ("outcome", "tests", "cause", "for example"),
            [(item.outcome, len(item.names), item.cause, item.names[0]) for item in upstreams],
        )]  # fmt: skip
    outcomes = sorted({outcome for counts in found.files.values() for outcome in counts})
    parts += [
        "## Files\n",
        table(("file", *outcomes), [(path, *(n.get(key, 0) for key in outcomes)) for path, n in found.files.items()]),
        "## Again\n",
        f"```console\n{reproduce(summary, 'THIS_FOLDER')}\n```\n",
    ]
    parts += [f"The run: {link}\n" for link in summary.get("links", ())]
    return "\n".join(parts)


def bundle(run: FinishedRun, profile: Profile, folder: Path) -> None:
    """Writes the bundle.

    Args:
        run: finished.
        profile: of the run; its files are copied.
        folder: new or empty.

    Raises:
        ConformanceError: the folder holds something, or cannot be written, or the profile was edited since the run.
    """
    if run.summary["profile"] != profile.name or run.summary["expectations"] != profile.fingerprint():
        raise ConformanceError(
            f"{run.folder}: profile {profile.name} or its registry is not what the run was made with; run again, or "
            "give --profile"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConformanceError(f"--bundle {folder}: is not empty; give a new folder")
        write_results(run.accounts, folder / RESULTS)
        write_junit(run.accounts, folder / JUNIT, f"conformance {run.summary['profile']}")
        write_summary(run.summary, folder / SUMMARY)
        replace(folder / HTML, page(run.accounts, run.summary))
        replace(folder / COVERAGE, json.dumps(asdict(coverage(run.accounts)), indent=2) + "\n")
        replace(folder / OPERATORS, operators(run.accounts))
        replace(folder / README, readme(run, profile))
        # JSON is YAML: the bundle is a profile by itself.
        own = profile.model_copy(update={key: Path(getattr(profile, key)).name for key in ("registry", "capabilities")})
        replace(folder / "profile.yaml", own.model_dump_json(indent=2) + "\n")
        for name in filter(None, (profile.registry, profile.capabilities)):
            shutil.copyfile(profile.folder / name, folder / Path(name).name)
    except OSError as error:
        raise ConformanceError(f"--bundle {folder}: {error.strerror or error}") from error
