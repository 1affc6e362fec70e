"""Loading workflow files: what cannot run is named with file and line; our own files load and are clean."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from relay.emulator.runner.model import WorkflowError
from relay.emulator.runner.workflow import load_action, load_workflow, read_triggers

ROOT = Path(__file__).parents[2]
WORKFLOW = ".github/workflows/upstream-conformance.yml"
BIN = Path(sys.executable).parent


def read(path: str) -> str | None:
    file = ROOT / path
    return file.read_text() if file.is_file() else None


def load(text: str, files: dict[str, str] | None = None):
    held = {name: textwrap.dedent(body) for name, body in (files or {}).items()}
    return load_workflow(textwrap.dedent(text), "w.yml", held.get)


def problems(text: str, files: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(WorkflowError) as error:
        load(text, files)
    return error.value.problems


STEP = """
on: repository_dispatch
jobs:
  a:
    runs-on: ubuntu-latest
    steps:
      - {step}
"""
JOB = """
on: repository_dispatch
jobs:
  a:
    {line}
    runs-on: ubuntu-latest
    steps:
      - run: 'true'
"""


def test_our_workflow_can_run_here() -> None:
    workflow = load_workflow(read(WORKFLOW), WORKFLOW, read)
    assert set(workflow.jobs) == {"start", "conformance", "report"}
    assert workflow.listens_to("repository_dispatch", "pull_request")
    assert workflow.listens_to("repository_dispatch", "push")
    assert not workflow.listens_to("repository_dispatch", "other")
    assert set(workflow.dispatch_inputs) == {"upstream-repository", "upstream-sha", "base-sha", "torch-source"}


def test_job_with_the_upstream_code_cannot_ask_for_an_identity() -> None:
    """The trust boundary of docs/workflow.md: no OIDC token, no secret, no write permission beside untrusted code."""
    workflow = load_workflow(read(WORKFLOW), WORKFLOW, read)
    assert workflow.permissions == {}
    assert workflow.jobs["conformance"].permissions == {"contents": "read"}
    for name in ("start", "report"):
        job = workflow.jobs[name]
        assert job.permissions == {"contents": "read", "id-token": "write"}
        assert not [step.uses for step in job.steps if step.uses and "checkout" in step.uses]
    assert "secrets." not in read(WORKFLOW)


@pytest.mark.parametrize("kind", ["workflows", "actions"])
def test_our_files_are_valid_for_github(kind: str) -> None:
    pattern = "workflows/*.yml" if kind == "workflows" else "actions/*/action.yml"
    files = sorted(str(file) for file in (ROOT / ".github").glob(pattern))
    assert files
    command = [str(BIN / "check-jsonschema"), "--builtin-schema", f"vendor.github-{kind}", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_our_files_are_clean_under_zizmor_and_it_would_notice(tmp_path: Path) -> None:
    def audit(folder: Path) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "zizmor"), "--offline", "--pedantic", "--no-progress", "--no-config", str(folder)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = audit(ROOT / ".github")
    assert done.returncode == 0, done.stdout
    copy = tmp_path / ".github"
    shutil.copytree(ROOT / ".github", copy)
    file = copy / "workflows" / "upstream-conformance.yml"
    unsafe = "conformance run ${{ github.event.client_payload.payload.action }}"
    file.write_text(file.read_text().replace('conformance run "${arguments[@]}"', unsafe))
    done = audit(copy)
    assert done.returncode != 0 and "template-injection" in done.stdout


@pytest.mark.parametrize(
    ("step", "line", "part"),
    [
        ("uses: docker://alpine:3", 7, "container action"),
        ("uses: octo/thing@v1", 7, "'uses: octo/thing@v1' is not emulated; the emulated actions are actions/checkout"),
        ("uses: actions/checkout", 7, "no @ref"),
        ("{uses: actions/checkout@v4, with: {submodules: true}}", 7, "input 'submodules' of actions/checkout"),
        ("{run: x, shell: pwsh}", 7, "shell 'pwsh' is not emulated"),
        ("{run: x, uses: ./a}", 7, "either 'run' or 'uses'"),
        ("{name: x}", 7, "either 'run' or 'uses'"),
        ("{run: x, with: {a: b}}", 7, "'with' goes with 'uses'"),
        ("{run: x, foo: bar}", 7, "unknown key 'foo' in the step"),
        ("{run: x, id: '1a'}", 7, "not a step id"),
        ("{run: x, timeout-minutes: 0}", 7, "'timeout-minutes' must be a number of minutes above 0"),
        ("{run: x, continue-on-error: maybe}", 7, "'continue-on-error' must be true or false"),
        ("run: echo ${{ nowhere.x }}", 7, "context 'nowhere' is not available here"),
        ("run: echo ${{ github.x", 7, "without"),
        ("{run: x, if: secrets.A != ''}", 7, "context 'secrets' is not available here"),
        ("{run: x, env: {A: '${{ always() }}'}}", 7, "always() is available in 'if' only"),
        ("{run: x, if: '${{ true }} y'}", 7, "always be true"),
        ("uses: $/missing", 7, "no action.yml or action.yaml in missing"),
    ],
)
def test_step_that_cannot_run_is_named(step: str, line: int, part: str) -> None:
    found = problems(STEP.replace("{step}", step))
    assert any(item.startswith(f"w.yml:{line}: ") and part in item for item in found), found


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ("container: ubuntu:24.04", "'container' (a job container) is not emulated"),
        ("services: {db: {image: postgres}}", "'services' (service containers) is not emulated"),
        ("uses: ./.github/workflows/other.yml", "'uses' (a reusable workflow) is not emulated"),
        ("needs: nobody", "needs 'nobody', which does not exist"),
        ("needs: a", "needs itself"),
        ("strategy: {matrix: {x: 1}}", "matrix.x must be a list"),
        ("strategy: {matrix: 5}", "'matrix' must be a mapping or one expression"),
        ("strategy: {matrix: {x: [1]}, fail-fast: 7}", "'fail-fast' must be true or false"),
        ("timeout-minutes: abc", "'timeout-minutes' must be a number of minutes above 0"),
        ("timeout-minutes: .nan", "'timeout-minutes' must be a number of minutes above 0"),
        ("continue-on-error: 7", "'continue-on-error' must be true or false"),
        ("permissions: everything", "must be a mapping, read-all or write-all"),
        ("env: {A: '${{ env.B }}'}", "context 'env' is not available here"),
        ("if: hashFiles('x')", "hashFiles() is available in steps only"),
        ("timeout-minutes: '${{ secrets.T }}'", "context 'secrets' is not available here"),
        ("typo: 1", "unknown key 'typo' in job 'a'"),
    ],
)
def test_job_that_cannot_run_is_named(entry: str, part: str) -> None:
    found = problems(JOB.replace("{line}", entry))
    assert any(item.startswith("w.yml:") and part in item for item in found), found


def test_every_problem_is_reported_at_once_with_its_line() -> None:
    found = problems(
        """
        on: repository_dispatch
        jobs:
          a:
            runs-on: windows-latest
            container: x
            steps:
              - uses: ./one
              - uses: octo/thing@v1
          1b:
            runs-on: x
        """,
        {"one/action.yml": "name: x\ndescription: y\nruns:\n  using: node20\n  main: index.js\n"},
    )
    assert [item.split(": ")[0] for item in found] == ["w.yml:6", "w.yml:5", "one/action.yml:3", "w.yml:9", "w.yml:10"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [", "w.yml:1: not YAML"),
        ("- x", "not a mapping"),
        ("on: push", "no jobs"),
        ("on: repository_dispatch\non: push\njobs: {}", "w.yml:2: not YAML"),
        ("jobs: {}", "no 'on'"),
        ("on: {workflow_call: {}}\njobs: {}", "reusable workflow"),
    ],
)
def test_broken_file(text: str, part: str) -> None:
    assert any(part in item for item in problems(text))


def test_actions_that_use_each_other_in_a_circle() -> None:
    action = "name: x\ndescription: y\nruns:\n  using: composite\n  steps:\n    - uses: ./{}\n"
    found = problems(
        STEP.replace("{step}", "uses: ./one"),
        {"one/action.yml": action.format("two"), "two/action.yaml": action.format("one")},
    )
    assert any("uses itself" in item for item in found)


def test_composite_action_rules() -> None:
    action = load_action(read(".github/actions/checkout-upstream/action.yml"), "action.yml")
    assert set(action.outputs) == {"path", "changed-files"}
    with pytest.raises(WorkflowError, match="needs 'shell'"):
        load_action("name: x\nruns:\n  using: composite\n  steps:\n    - run: x\n", "action.yml")
    with pytest.raises(WorkflowError, match="context 'secrets'"):
        load_action(
            "name: x\nruns: {using: composite, steps: [{run: '${{ secrets.X }}', shell: bash}]}\n", "action.yml"
        )
    with pytest.raises(WorkflowError, match="only composite actions"):
        load_action("name: x\nruns: {using: docker, image: Dockerfile}\n", "action.yml")


def test_on_is_a_key_and_not_true() -> None:
    assert read_triggers("on:\n  push:\n  repository_dispatch:\n    types: [a]\njobs: {}\n", "w.yml")["push"] is None
    assert set(read_triggers("on: [push, pull_request]\njobs: {}\n", "w.yml")) == {"push", "pull_request"}


def test_types_of_an_event_are_text() -> None:
    found = problems("on:\n  repository_dispatch:\n    types: 5\njobs: {}\n")
    assert "w.yml:3: 'types' must be text or a list of it" in found


def test_check_command(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "relay.emulator.cli", "check", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert run(WORKFLOW).returncode == 0
    (tmp_path / "w.yml").write_text(JOB.replace("{line}", "container: x"))
    done = run("w.yml", "--root", str(tmp_path))
    assert done.returncode == 1 and "w.yml:5: 'container'" in done.stderr
    assert run("none.yml").returncode == 2
    (tmp_path / "w.yml").write_bytes(b"\xff\xfe")
    done = run("w.yml", "--root", str(tmp_path))
    assert done.returncode == 2 and "cannot be read" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "w.yml").write_text("on: push\njobs: " + "[" * 3000 + "]" * 3000 + "\n")
    done = run("w.yml", "--root", str(tmp_path))
    assert done.returncode == 1 and "w.yml:1: nested too deeply" in done.stderr
