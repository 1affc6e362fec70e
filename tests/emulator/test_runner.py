"""Jobs as real processes: what GitHub's workflow documentation promises a step, a job and a run."""

import json
import time
from pathlib import Path

import pytest


def workflow(jobs: str, head: str = "") -> dict[str, str]:
    text = "on:\n  repository_dispatch:\n    types: [pull_request]\n" + head + "jobs:\n"
    return {".github/workflows/w.yml": text + "".join(f"  {line}\n" for line in jobs.strip("\n").split("\n"))}


def lines(log: str) -> list[str]:
    """What the log says, without the times."""
    return [line.partition(" ")[2] if line[:4].isdigit() else line for line in log.splitlines()]


def conclusions(run: dict) -> dict[str, str]:
    return {job["name"]: job["conclusion"] for job in run["jobs"]}


def test_environment_files_expressions_and_masks(lab) -> None:
    lab.commit(
        workflow(
            """
one:
  runs-on: ubuntu-latest
  env: {LEVEL: job, JOB_ONLY: '1'}
  outputs:
    number: ${{ steps.out.outputs.number }}
    secret: ${{ steps.out.outputs.secret }}
  defaults:
    run: {shell: bash}
  steps:
    - run: |
        echo "level=$LEVEL top=$TOP job=$JOB_ONLY greeting=${{ vars.GREETING }}"
        echo "inherited=${SERVER_SECRET:-nothing} event=$(grep -o '"who": "[a-z]*"' "$GITHUB_EVENT_PATH")"
      env: {LEVEL: step}
    - id: out
      run: |
        echo "FROM_FILE=a b" >> "$GITHUB_ENV"
        echo "GITHUB_SHA=overridden" >> "$GITHUB_ENV"
        { echo "MANY<<X"; echo "one"; echo "two"; echo "X"; } >> "$GITHUB_ENV"
        echo "number=41" >> "$GITHUB_OUTPUT"
        echo "secret=$KEY" >> "$GITHUB_OUTPUT"
        echo "### Summary" >> "$GITHUB_STEP_SUMMARY"
        mkdir -p tools && printf '#!/bin/sh\\necho from-path\\n' > tools/hello && chmod +x tools/hello
        echo "$PWD/tools" >> "$GITHUB_PATH"
        echo "::add-mask::hush-$(echo hush)"
        echo "the key is $KEY and hush-$(echo hush)"
        echo "::warning file=a.c,line=2::careful"
      env: {KEY: '${{ secrets.DEPLOY_KEY }}'}
    - run: |
        hello
        echo "file=$FROM_FILE many=$MANY/ env=${{ env.FROM_FILE }} sha=${GITHUB_SHA:0:4}"
        echo "output=${{ steps.out.outputs.number }} token=${{ github.token != '' }}"
    - run: echo "pipe status"; false | true
      continue-on-error: true
      id: pipe
    - run: echo "outcome=${{ steps.pipe.outcome }} conclusion=${{ steps.pipe.conclusion }}"
    - run: import sys; print("python", sys.version_info[0])
      shell: python
    - run: echo "here=${PWD##*/}"
      working-directory: tools
two:
  needs: one
  runs-on: ubuntu-latest
  steps:
    - run: echo "number=$NUMBER secret=$SECRET/ result=${{ needs.one.result }}"
      env: {NUMBER: '${{ needs.one.outputs.number }}', SECRET: '${{ needs.one.outputs.secret }}'}
""",
            head="env: {TOP: top, LEVEL: workflow}\n",
        )
    )
    run, log = lab.run_of(payload={"who": "tester"})
    found = lines(log)
    assert run["conclusion"] == "success", log
    for expected in (
        "level=step top=top job=1 greeting=hello",
        'inherited=nothing event="who": "tester"',
        "from-path",
        "output=41 token=true",
        "outcome=failure conclusion=success",
        "python 3",
        "here=tools",
        "number=41 secret=/ result=success",
        "the key is *** and ***",
        "##[warning]careful",
    ):
        assert expected in found, (expected, log)
    assert any(line.startswith("file=a b many=one") for line in found)
    assert any("env=a b sha=" in line and "over" not in line for line in found)
    assert "s3cr3t-value" not in log and "hush-hush" not in log
    assert any("Skip output 'secret'" in line for line in found)


def test_failure_skips_what_follows_and_status_functions_see_it(lab) -> None:
    lab.commit(
        workflow(
            """
fails:
  runs-on: ubuntu-latest
  steps:
    - run: exit 3
    - run: echo not-reached
    - run: echo on-failure
      if: failure()
    - run: echo always-${{ job.status }}
      if: ${{ always() }}
skipped:
  needs: fails
  runs-on: ubuntu-latest
  steps: [{run: echo no}]
deep:
  needs: skipped
  if: failure()
  runs-on: ubuntu-latest
  steps: [{run: 'echo deep ${{ needs.skipped.result }}'}]
closed:
  if: github.event.client_payload.action == 'closed'
  runs-on: ubuntu-latest
  steps: [{run: echo no}]
tolerated:
  continue-on-error: true
  runs-on: ubuntu-latest
  steps: [{run: exit 1}]
after:
  needs: tolerated
  runs-on: ubuntu-latest
  steps: [{run: 'echo after ${{ needs.tolerated.result }}'}]
"""
        )
    )
    run, log = lab.run_of()
    assert run["conclusion"] == "failure"
    assert conclusions(run) == {
        "fails": "failure", "skipped": "skipped", "deep": "success", "closed": "skipped", "tolerated": "failure",
        "after": "success",
    }  # fmt: skip
    found = lines(log)
    assert "not-reached" not in found
    assert {"on-failure", "always-failure", "deep skipped", "after success"} <= set(found)
    assert "##[error]Process completed with exit code 3." in found
    steps = {step["name"]: step["conclusion"] for step in next(j for j in run["jobs"] if j["key"] == "fails")["steps"]}
    assert steps["Run echo not-reached"] == "skipped"


def test_composite_action_inputs_outputs_and_scopes(lab) -> None:
    lab.commit(
        workflow(
            """
one:
  runs-on: ubuntu-latest
  steps:
    - uses: actions/checkout@v4
    - id: act
      uses: ./actions/outer
      with: {name: World}
      env: {CALLER: given}
    - run: echo "out=${{ steps.act.outputs.greeting }} inner=${{ steps.inner.outputs.x }}/ set=$SET_INSIDE"
    - uses: $/actions/fails
      continue-on-error: true
      id: broken
    - run: echo "broken=${{ steps.broken.outcome }}"
"""
        )
        | {
            "actions/outer/action.yml": """
                name: outer
                description: calls another
                inputs:
                  name: {description: whom, required: true}
                  mark: {description: how, default: '!'}
                outputs:
                  greeting: {description: text, value: '${{ steps.inner.outputs.text }}'}
                runs:
                  using: composite
                  steps:
                    - id: inner
                      uses: ./actions/inner
                      with: {text: 'Hello ${{ inputs.name }}${{ inputs.mark }}'}
                    - run: |
                        echo "caller=$CALLER path=${GITHUB_ACTION_PATH##*/} mark=${{ inputs.mark }}"
                        echo "SET_INSIDE=yes" >> "$GITHUB_ENV"
                      shell: bash
                """,
            "actions/inner/action.yml": """
                name: inner
                description: is called
                inputs:
                  text: {description: text}
                outputs:
                  text: {description: text, value: '${{ steps.s.outputs.text }}'}
                runs:
                  using: composite
                  steps:
                    - id: s
                      env: {TEXT: '${{ inputs.text }}'}
                      run: echo "text=$TEXT" >> "$GITHUB_OUTPUT"
                      shell: bash
                """,
            "actions/fails/action.yml": """
                name: fails
                description: fails
                runs:
                  using: composite
                  steps:
                    - {run: exit 1, shell: bash}
                    - {run: echo unreachable, shell: bash}
                    - {run: 'echo "cleanup"', shell: bash, if: 'failure()'}
                """,
        }
    )
    run, log = lab.run_of()
    found = lines(log)
    assert run["conclusion"] == "success", log
    assert "caller=given path=outer mark=!" in found
    assert "out=Hello World! inner=/ set=yes" in found
    assert "broken=failure" in found and "cleanup" in found and "unreachable" not in found


def test_matrix_fail_fast_and_names(lab) -> None:
    lab.commit(
        workflow(
            """
legs:
  runs-on: ubuntu-latest
  strategy:
    matrix:
      n: [1, 2]
      include: [{n: 3, extra: yes-please}]
  steps:
    - run: |
        echo "leg ${{ matrix.n }}${{ matrix.extra }} of ${{ strategy.job-total }}"
        if [ "${{ matrix.n }}" = 1 ]; then exit 1; fi
        sleep 600
from-json:
  name: dynamic ${{ matrix.x }}
  runs-on: ubuntu-latest
  strategy:
    fail-fast: false
    matrix: ${{ fromJSON('{"x":["a","b"]}') }}
  steps: [{run: 'test "${{ matrix.x }}" = b'}]
"""
        )
    )
    run, log = lab.run_of()
    found = conclusions(run)
    assert found["legs (1)"] == "failure"
    assert found["legs (2)"] == found["legs (3, yes-please)"] == "cancelled"
    assert (found["dynamic a"], found["dynamic b"]) == ("failure", "success")
    assert "leg 1 of 3" in lines(log)


def test_timeouts_end_the_whole_process_tree(lab, tmp_path: Path) -> None:
    lab.commit(
        workflow(
            """
step:
  runs-on: ubuntu-latest
  steps:
    - run: sleep 600 & setsid sleep 601 & sleep 602
      timeout-minutes: 0.01
    - run: echo after-step-timeout
      if: always()
job:
  runs-on: ubuntu-latest
  timeout-minutes: 0.01
  steps:
    - run: trap '' INT TERM; while true; do sleep 0.1; done
    - run: echo after-job-timeout
      if: always()
    - run: echo not-this
"""
        )
    )
    emulator = lab
    run, log = emulator.run_of()
    assert conclusions(run) == {"step": "failure", "job": "cancelled"}
    found = lines(log)
    assert "after-step-timeout" in found and "after-job-timeout" in found and "not-this" not in found
    assert any("has timed out after 0.01 minutes" in line for line in found)
    assert any("exceeded the maximum execution time" in line for line in found)
    assert not processes("sleep 60")


def processes(text: str) -> list[str]:
    """Command lines of running processes that hold ``text``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in line and not line.startswith(("bash -c", "/bin/sh -c")):
                found.append(line)
    return found


def test_background_process_does_not_hold_the_step(lab) -> None:
    lab.commit(
        workflow(
            """
one:
  runs-on: ubuntu-latest
  steps:
    - run: sleep 733 & echo started
    - run: echo next
"""
        )
    )
    run, log = lab.run_of()
    assert run["conclusion"] == "success"
    assert "next" in lines(log)
    assert any("orphan process" in line for line in lines(log))
    assert not processes("sleep 733")


def test_cancel_interrupts_and_lets_always_steps_and_jobs_run(lab) -> None:
    lab.commit(
        workflow(
            """
slow:
  runs-on: ubuntu-latest
  steps:
    - run: |
        trap 'echo got-interrupt; exit 1' INT
        echo ready; for i in $(seq 6000); do sleep 0.1; done
    - run: echo skipped-step
    - run: echo cleanup-${{ job.status }}
      if: cancelled()
next:
  needs: slow
  runs-on: ubuntu-latest
  steps: [{run: echo no}]
report:
  needs: slow
  if: always()
  runs-on: ubuntu-latest
  steps: [{run: 'echo reported ${{ needs.slow.result }}'}]
"""
        )
    )
    emulator = lab
    emulator.dispatch()
    run = emulator.eventually(lambda: next((r for r in emulator.runs() if "ready" in lines(emulator.logs(r))), None))
    path = f"/repos/{run['repository']}/actions/runs/{run['id']}"
    headers = emulator.as_installation()
    assert emulator.client.post(f"{path}/rerun", headers=headers).status_code == 403
    assert emulator.client.post(f"{path}/cancel", headers=headers).status_code == 202
    emulator.idle()
    run = emulator.runs()[-1]
    found = lines(emulator.logs(run))
    assert run["conclusion"] == "cancelled"
    assert conclusions(run) == {"slow": "cancelled", "next": "cancelled", "report": "success"}
    assert {"got-interrupt", "cleanup-cancelled", "reported cancelled"} <= set(found)
    assert "skipped-step" not in found
    assert emulator.client.post(f"{path}/cancel", headers=headers).status_code == 409


@pytest.mark.parametrize("cancel", [True, False])
def test_concurrency_group(lab, cancel: bool) -> None:
    lab.commit(
        workflow(
            """
one:
  runs-on: ubuntu-latest
  steps: [{run: 'echo ready; sleep ${{ github.event.client_payload.seconds }}'}]
""",
            head="concurrency:\n  group: pr-${{ github.event.client_payload.number }}\n"
            f"  cancel-in-progress: {str(cancel).lower()}\n",
        )
    )
    emulator = lab
    emulator.dispatch(payload={"number": 1, "seconds": 600 if cancel else 2})
    emulator.eventually(lambda: any("ready" in lines(emulator.logs(run)) for run in emulator.runs()))
    emulator.dispatch(payload={"number": 2, "seconds": 0})
    emulator.dispatch(payload={"number": 1, "seconds": 0})
    if not cancel:
        emulator.eventually(lambda: [run["status"] for run in emulator.runs()].count("pending") == 1)
        emulator.dispatch(payload={"number": 1, "seconds": 0})
    emulator.idle()
    assert [run["conclusion"] for run in emulator.runs()] == (
        ["cancelled", "success", "success"] if cancel else ["success", "success", "cancelled", "success"]
    )


def test_rerun_of_failed_jobs_is_the_next_attempt(lab, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    lab.commit(
        workflow(
            f"""
good:
  runs-on: ubuntu-latest
  outputs: {{value: '${{{{ steps.s.outputs.value }}}}'}}
  steps:
    - id: s
      run: echo x >> {mark}.good; echo "value=kept" >> "$GITHUB_OUTPUT"
flaky:
  needs: good
  runs-on: ubuntu-latest
  steps: [{{run: 'echo attempt $GITHUB_RUN_ATTEMPT ${{{{ needs.good.outputs.value }}}}; test -e {mark}'}}]
last:
  needs: flaky
  runs-on: ubuntu-latest
  steps: [{{run: echo last}}]
"""
        )
    )
    emulator = lab
    run, _ = emulator.run_of()
    assert conclusions(run) == {"good": "success", "flaky": "failure", "last": "skipped"}
    mark.write_text("")
    path = f"/repos/{run['repository']}/actions/runs/{run['id']}"
    headers = emulator.as_installation()
    assert emulator.client.post(f"{path}/rerun-failed-jobs", headers=headers).status_code == 201
    emulator.idle()
    run = emulator.runs()[-1]
    assert (run["attempt"], run["conclusion"]) == (2, "success")
    assert conclusions(run) == {"good": "success", "flaky": "success", "last": "success"}
    assert "attempt 2 kept" in lines(emulator.logs(run))
    assert Path(f"{mark}.good").read_text() == "x\n", "a job that succeeded does not run again"
    assert emulator.client.post(f"{path}/rerun-failed-jobs", headers=headers).status_code == 403
    every = emulator.client.get(f"{path}/jobs", params={"filter": "all"}).json()
    assert [job["run_attempt"] for job in every["jobs"]] == [1, 1, 1, 2, 2, 2]
    shown = emulator.client.get(path).json()
    assert (shown["run_attempt"], shown["conclusion"]) == (2, "success")


def test_artifacts_pass_from_job_to_job_and_are_kept(lab) -> None:
    lab.commit(
        workflow(
            """
make:
  runs-on: ubuntu-latest
  steps:
    - run: mkdir -p out/deep && echo one > out/a.txt && echo two > out/deep/b.txt && echo no > out/c.log
    - uses: actions/upload-artifact@v4
      id: up
      with: {name: results, path: "out\\n!out/*.log"}
    - run: echo "artifact ${{ steps.up.outputs.artifact-url != '' }}"
    - uses: actions/upload-artifact@v4
      with: {name: nothing, path: none, if-no-files-found: error}
      continue-on-error: true
take:
  needs: make
  runs-on: ubuntu-latest
  steps:
    - uses: actions/download-artifact@v4
      with: {name: results, path: got}
    - run: find got -type f | sort | tr '\\n' ' '
    - uses: actions/download-artifact@v4
      with: {name: absent}
"""
        )
    )
    emulator = lab
    run, log = emulator.run_of()
    found = lines(log)
    assert "artifact true" in found
    assert "got/a.txt got/deep/b.txt " in found
    assert any("Artifact not found for name: absent" in line for line in found)
    assert any("No files were found" in line for line in found)
    assert conclusions(run) == {"make": "success", "take": "failure"}
    listed = emulator.client.get(f"/repos/{run['repository']}/actions/runs/{run['id']}/artifacts").json()
    assert [item["name"] for item in listed["artifacts"]] == ["results"]
    folder = Path(run["artifacts"][0]["path"])
    assert (folder / "deep" / "b.txt").read_text() == "two\n"
    assert json.loads((folder.parents[1] / "run.json").read_text())["conclusion"] == "failure"


def test_setup_python_and_hash_files(lab) -> None:
    lab.commit(
        workflow(
            """
one:
  runs-on: ubuntu-latest
  steps:
    - uses: actions/checkout@v4
      with: {path: here, fetch-depth: 0}
    - uses: actions/setup-python@v5
      id: py
      with: {python-version: '2.7'}
    - run: echo "same=$([ "${PATH%%:*}" = "$(dirname "${{ steps.py.outputs.python-path }}")" ] && echo yes)"
    - run: echo "hash=${{ hashFiles('here/README.md') != '' }} commits=$(git -C here rev-list --count HEAD)"
"""
        )
    )
    _, log = lab.run_of()
    found = lines(log)
    assert "same=yes" in found and "hash=true commits=2" in found
    assert any("python-version 2.7 is asked for; this runner provides 3." in line for line in found)


def test_workflow_that_cannot_run_fails_at_the_start_with_file_and_line(lab) -> None:
    lab.commit(
        workflow(
            """
one:
  runs-on: ubuntu-latest
  container: ubuntu
  steps: [{run: echo never}]
"""
        )
        | {".github/workflows/other.yml": "on: push\njobs: {x: {uses: a/b/.github/workflows/c.yml@v1}}\n"}
    )
    emulator = lab
    run, log = emulator.run_of()
    assert run["conclusion"] == "startup_failure"
    assert run["problems"] == [".github/workflows/w.yml:7: 'container' (a job container) is not emulated"]
    assert len(emulator.runs()) == 1, "a file that does not listen to the event does not matter"
    assert "is not emulated" in log
    headers = emulator.as_installation()
    path = f"/repos/{run['repository']}/actions/runs/{run['id']}/rerun"
    assert emulator.client.post(path, headers=headers).status_code == 403
    emulator.dispatch("other_type")
    emulator.idle()
    assert len(emulator.runs()) == 1


def test_workflow_dispatch_inputs(lab) -> None:
    text = """
on:
  workflow_dispatch:
    inputs:
      sha: {required: true}
      source: {type: choice, options: [wheel, nightly], default: wheel}
      debug: {type: boolean, default: false}
jobs:
  one:
    runs-on: ubuntu-latest
    steps:
      - run: echo "sha=${{ inputs.sha }} source=${{ inputs.source }} off=${{ !inputs.debug }} $GITHUB_EVENT_NAME"
"""
    lab.commit({".github/workflows/manual.yml": text})
    emulator = lab
    path, headers = f"/repos/{lab.name}/actions/workflows/manual.yml/dispatches", emulator.as_installation()
    for inputs, part in (
        ({}, "Required input 'sha' not provided"),
        ({"sha": "a", "more": "b"}, "Unexpected inputs"),
        ({"sha": "a", "source": "moon"}, "not in the list"),
        ({"sha": "a", "debug": "maybe"}, "not a boolean"),
    ):
        response = emulator.client.post(path, headers=headers, json={"ref": "main", "inputs": inputs})
        assert response.status_code == 422 and part in response.json()["message"]
    assert emulator.client.post(path, headers=headers, json={"ref": "nope"}).status_code == 422
    response = emulator.client.post(path, headers=headers, json={"ref": "main", "inputs": {"sha": "abc"}})
    assert response.status_code == 204
    emulator.idle()
    run = emulator.runs()[-1]
    assert "sha=abc source=wheel off=true workflow_dispatch" in lines(emulator.logs(run))


def test_places_on_the_runner_are_bounded(start, downstream, tmp_path: Path) -> None:
    downstream.commit(
        workflow(
            f"""
one:
  runs-on: ubuntu-latest
  strategy: {{matrix: {{n: [1, 2, 3]}}}}
  steps:
    - run: |
        mkdir {tmp_path}/lock || exit 1
        sleep 0.2
        rmdir {tmp_path}/lock
"""
        )
    )
    run, _ = start(runner="concurrency = 1").run_of()
    assert set(conclusions(run).values()) == {"success"}


def test_log_is_bounded_and_lines_of_any_bytes_are_kept_apart(start, downstream) -> None:
    downstream.commit(
        workflow(
            """
one:
  runs-on: ubuntu-latest
  steps:
    - run: |
        printf 'bad \\377 byte\\nno newline'
    - run: head -c 3000000 /dev/zero | tr '\\0' 'x' | fold -w 100
"""
        )
    )
    run, log = start(runner="max_log_bytes = 100000").run_of()
    assert run["conclusion"] == "success"
    assert "bad � byte" in lines(log) and "no newline" in lines(log)
    assert len(log) < 200_000 and "the rest is dropped" in log


def test_pages_show_runs_steps_logs_and_escape_them(lab) -> None:
    lab.commit(
        workflow("one:\n  name: <b>bold</b>\n  runs-on: ubuntu-latest\n  steps: [{run: 'echo \"<script>x</script>\"'}]")
    )
    emulator = lab
    run, _ = emulator.run_of()
    base = f"/{run['repository']}/actions"
    job = run["jobs"][0]["id"]
    for path in ("/", base, f"{base}/runs/{run['id']}", f"{base}/runs/{run['id']}/job/{job}"):
        response = emulator.client.get(path)
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/html")
        assert "<script>x" not in response.text and "<b>bold" not in response.text
    assert "&lt;script&gt;x" in emulator.client.get(f"{base}/runs/{run['id']}/job/{job}").text
    assert emulator.client.get(f"{base}/runs/1").status_code == 404
    assert time.time() - emulator.client.get("/_emulator/healthz").json()["time"] < 60
