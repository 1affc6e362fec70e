"""The workflow and actions that backends copy, run by the emulator.

The relay is a server that takes the callback as a relay does; ``conformance`` is a program of the test that writes a
run's output, because the real one takes minutes: tests/loop and the demo run the same workflow with it.
"""

import gzip
import http.server
import json
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest

ROOT = Path(__file__).parents[2]
WORKFLOW = ".github/workflows/upstream-conformance.yml"
CONFORMANCE = """#!{python}
import json, pathlib, sys
arguments = sys.argv[1:]
output = pathlib.Path(arguments[arguments.index("--output") + 1])
output.mkdir(parents=True)
(output / "arguments.json").write_text(json.dumps(arguments))
changed = [open(item[1:]).read() for item in arguments if item.startswith("@")]
(output / "changed.json").write_text(json.dumps(changed))
upstream = pathlib.Path(arguments[arguments.index("--upstream") + 1])
bad = (upstream / "test/test_ops.py").read_text().startswith("broken")
test = {{"id": "test/test_ops.py::T::test_a", "outcome": "failed" if bad else "passed"}}
(output / "results.jsonl").write_text(json.dumps(test) + "\\n")
outcomes = {{"failed": 1}} if bad else {{"passed": 1}}
(output / "summary.json").write_text(json.dumps({{"outcomes": outcomes, "planned": 1, "balanced": True}}))
sys.exit(1 if bad else 0)
"""


class Relay:
    """Takes callbacks and result uploads."""

    def __init__(self) -> None:
        self.callbacks: list[tuple[str, dict]] = []
        self.uploads: list[bytes] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                answer: dict = {"ok": True}
                if self.path == "/github/callback":
                    message = json.loads(body)
                    outer.callbacks.append((self.headers["authorization"].split()[1], message))
                    upload = {"url": f"{outer.url}/upload", "token": "ticket", "expires": "2030-01-01T00:00:00Z"}
                    answer = {"ok": True, "status": message["workflow"]["status"], "results_upload": upload}
                else:
                    outer.uploads.append(body)
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def relay() -> Iterator[Relay]:
    held = Relay()
    yield held
    held.close()


def our_files() -> dict[str, str]:
    """This repository's workflow and actions, as they are."""
    names = [WORKFLOW, *(str(file.relative_to(ROOT)) for file in (ROOT / ".github/actions").glob("*/action.yml"))]
    return {name: (ROOT / name).read_text() for name in names}


def test_pull_request_from_dispatch_to_report(start, upstream, downstream, hook, relay, tmp_path: Path) -> None:
    downstream.commit(our_files())
    tools = tmp_path / "tools"
    tools.mkdir()
    program = tools / "conformance"
    program.write_text(CONFORMANCE.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    upstream.branch("topic", {"test/test_ops.py": "broken = 1\n", "-dash.py": "x = 1\n"})
    upstream.commit({"elsewhere.py": "main moved on\n"})
    variables = f'variables = {{ TORCH_SOURCE = "installed", RELAY_CALLBACK_URL = "{relay.url}" }}'
    # The checkout stands for an installed package; torch itself is left out to keep the test small.
    runner = f'env = {{ PYTHONPATH = "{ROOT}", PATH = "{tools}:{Path(sys.executable).parent}:/usr/bin:/bin" }}'
    emulator = start(extra=variables, runner=runner)
    emulator.control("/pulls", head_ref="topic", title=f"$(touch {tmp_path}/owned) `id` ${{{{ github.token }}}}")
    emulator.idle()
    payload = hook.events("pull_request")[0]
    client_payload = {
        "event_type": "pull_request",
        "delivery_id": "d-1",
        "payload": payload,
        "callback_token": "signed",
    }
    emulator.dispatch("pull_request", client_payload)
    emulator.idle()
    run = emulator.runs()[-1]
    log = emulator.logs(run)
    assert {job["key"]: job["conclusion"] for job in run["jobs"]} == {
        "start": "success", "conformance": "failure", "report": "success",
    }, log  # fmt: skip
    assert run["conclusion"] == "failure"
    assert not (tmp_path / "owned").exists()
    (_, first), (token, last) = relay.callbacks
    assert (first["workflow"]["status"], last["workflow"]["status"]) == ("in_progress", "completed")
    assert last["workflow"]["conclusion"] == "failure" and last["workflow"]["job_name"] == "conformance"
    assert last["callback_token"] == "signed" and last["payload"]["pull_request"]["number"] == 1
    assert last["workflow"]["test_results"]["failed"] == 1
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims["aud"] == "pytorch-cross-repo-ci-relay" and claims["repository"] == "acme/backend"
    assert b"test_a" in gzip.decompress(relay.uploads[0])
    folder = Path(run["artifacts"][0]["path"])
    assert json.loads((folder / "changed.json").read_text()) == ["-dash.py\ntest/test_ops.py\n"]
    arguments = json.loads((folder / "arguments.json").read_text())
    assert arguments[:3] == ["run", "--profile", "spyre"]

    # The end of the pull request is dispatched, too: nothing is tested and nothing reported.
    emulator.dispatch("pull_request", {**client_payload, "payload": {**payload, "action": "closed"}})
    emulator.idle()
    assert emulator.runs()[-1]["conclusion"] == "skipped" and len(relay.callbacks) == 2

    # A push is tested whole, at `after`; without an address nobody is told.
    push = {"event_type": "push", "delivery_id": "d-2",
            "payload": {"after": upstream.git("rev-parse", "main~1"), "ref": "refs/heads/main",
                        "repository": {"full_name": "pytorch/pytorch"}}}  # fmt: skip
    emulator.dispatch("push", push)
    emulator.idle()
    run = emulator.runs()[-1]
    assert run["conclusion"] == "success", emulator.logs(run)
    assert "--changed" not in json.loads((Path(run["artifacts"][0]["path"]) / "arguments.json").read_text())
    assert relay.callbacks[-1][1]["workflow"]["conclusion"] == "success"


def checkout(lab, **inputs: str) -> tuple[dict, str]:
    """Run the action with these inputs; a failed step still shows what is in the workspace."""
    given = "".join(f"            {name}: {json.dumps(value)}\n" for name, value in inputs.items())
    text = f"""on: repository_dispatch
jobs:
  one:
    runs-on: ubuntu-latest
    steps:
      - id: up
        uses: $/.github/actions/checkout-upstream
        with:
{given}
      - run: |
          cd "$TREE"
          echo "head=$(git rev-parse HEAD) files=$(cat "${{CHANGED:-/dev/null}}" | tr '\\n' ' ')"
          if [ -e link ]; then test ! -L link; fi
          files=$(find . -name .git -prune -o -name .github -prune -o -type f -printf '%P\\n' | sort)
          echo "tree=$(echo "$files" | tr '\\n' ' ')"
        env: {{TREE: '${{{{ steps.up.outputs.path }}}}', CHANGED: '${{{{ steps.up.outputs.changed-files }}}}'}}
"""
    lab.commit({**our_files(), ".github/workflows/one.yml": text, WORKFLOW: "on: push\njobs: {}\n"})
    return lab.run_of("any")


def test_checkout_upstream_fetches_exactly_the_commit_and_lists_the_change(lab) -> None:
    base = lab.commit({"kept.py": "1\n", "gone.py": "1\n"})
    lab.clone.git("checkout", "--quiet", "-b", "topic")
    (lab.clone.path / "link").symlink_to("/etc/passwd")
    head = lab.clone.commit({"new dir/ü.py": "1\n", "gone.py": None})
    lab.clone.git("checkout", "--quiet", "main")
    lab.emulator.control("/push", repository=lab.name, ref="topic")
    moved = lab.commit({"kept.py": "2\n"})
    assert moved != base
    run, log = checkout(lab, repository=lab.name, sha=head, **{"base-sha": moved, "path": "deep/tree"})
    assert run["conclusion"] == "success", log
    assert f'head={head} files=gone.py link "new dir/\\303\\274.py" ' in log
    assert "3 file(s) changed since " + base[:12] in log
    run, log = checkout(lab, repository=lab.name, sha=head)
    assert run["conclusion"] == "success" and f"head={head} files=\n" in log


def test_checkout_upstream_brings_only_the_folders_that_are_wanted(lab) -> None:
    head = lab.commit({"root.txt": "1\n", "test/a.py": "1\n", "torch/b.py": "2\n", "docs/c.md": "3\n"})
    run, log = checkout(lab, repository=lab.name, sha=head, folders="test docs")
    assert run["conclusion"] == "success" and f"head={head}" in log, log
    assert "tree=README.md docs/c.md root.txt test/a.py \n" in log


@pytest.mark.parametrize(
    ("inputs", "part"),
    [
        ({"sha": "main"}, "sha is not a full commit SHA"),
        ({"sha": "A" * 40}, "sha is not a full commit SHA"),
        ({"sha": "--upload-pack=touch /tmp/x"}, "sha is not a full commit SHA"),
        ({"sha": "0" * 39 + "1\nx"}, "sha is not a full commit SHA"),
        ({"sha": "0" * 39 + "1"}, "cannot be fetched"),
        ({"sha": "0" * 39 + "1", "base-sha": "HEAD~1"}, "base-sha is not a full commit SHA"),
        ({"sha": "0" * 39 + "1", "repository": "a/b/../c"}, "repository is not owner/name"),
        ({"sha": "0" * 39 + "1", "repository": "-a/b"}, "repository is not owner/name"),
        ({"sha": "0" * 39 + "1", "path": "../../out"}, "path is outside of the workspace"),
        ({"sha": "0" * 39 + "1", "path": "."}, "path is outside of the workspace"),
    ],
)
def test_checkout_upstream_refuses(lab, inputs: dict[str, str], part: str) -> None:
    run, log = checkout(lab, **{"repository": lab.name, **inputs})
    assert run["conclusion"] == "failure" and part in log, log


def test_report_status_without_a_relay_says_so(lab) -> None:
    text = (
        "on: repository_dispatch\njobs:\n  one:\n    runs-on: ubuntu-latest\n    permissions: {id-token: write}\n"
        "    steps: [{uses: $/.github/actions/report-status, with: {status: in_progress}}]\n"
    )
    lab.commit({**our_files(), ".github/workflows/one.yml": text, WORKFLOW: "on: push\njobs: {}\n"})
    run, log = lab.run_of("any")
    assert run["conclusion"] == "success" and "no relay address is set" in log


def test_scripts_of_the_actions_are_valid_shell() -> None:
    from relay.emulator.runner.workflow import load_action, load_workflow

    files = our_files()
    steps = [step for job in load_workflow(files[WORKFLOW], WORKFLOW, files.get).jobs.values() for step in job.steps]
    steps += [step for name, text in files.items() if name != WORKFLOW for step in load_action(text, name).steps]
    scripts = [step.run for step in steps if step.run is not None]
    assert len(scripts) >= 6
    for script in scripts:
        assert not script.expressions, "values come through the environment"
        done = subprocess.run(["bash", "-n"], input=str(script.parts[0]), text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
