"""OIDC tokens as a relay verifies them, and git over HTTP as git uses it."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import jwt
import pytest

ASK = """
import os, sys, urllib.request, json
def ask(token):
    url = os.environ["ACTIONS_ID_TOKEN_REQUEST_URL"] + "&audience=relay"
    return urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": "bearer " + token}))
value = json.load(ask(os.environ["ACTIONS_ID_TOKEN_REQUEST_TOKEN"]))["value"]
open(sys.argv[1], "w").write(value + "\\n" + os.environ["ACTIONS_ID_TOKEN_REQUEST_URL"] + "\\n"
                             + os.environ["ACTIONS_ID_TOKEN_REQUEST_TOKEN"])
"""


def verify(base: str, token: str, audience: str = "relay") -> dict:
    issuer = f"{base}/_services/token"
    discovery = httpx.get(f"{issuer}/.well-known/openid-configuration", trust_env=False).json()
    assert discovery["issuer"] == issuer
    key = jwt.PyJWKClient(discovery["jwks_uri"]).get_signing_key_from_jwt(token)
    return jwt.decode(token, key, algorithms=["RS256"], audience=audience, issuer=issuer)


def test_a_dispatched_job_gets_its_identity_through_a_composite_action(lab, tmp_path: Path) -> None:
    """End to end: dispatch, workflow, composite action, OIDC token verified with the JWKS over HTTP."""
    lab.commit(
        {
            "ask.py": ASK,
            "identity/action.yml": f"""
                name: identity
                description: asks for a token
                runs:
                  using: composite
                  steps:
                    - run: python "$GITHUB_ACTION_PATH/../ask.py" {tmp_path}/token
                      shell: bash
                """,
            ".github/workflows/w.yml": """
                name: Identity
                on: {repository_dispatch: {types: [pull_request]}}
                jobs:
                  trusted:
                    runs-on: ubuntu-latest
                    permissions: {id-token: write}
                    environment: production
                    steps: [{uses: $/identity}]
                  untrusted:
                    runs-on: ubuntu-latest
                    permissions: {contents: read}
                    steps: [{run: 'test -z "${ACTIONS_ID_TOKEN_REQUEST_URL+x}${ACTIONS_ID_TOKEN_REQUEST_TOKEN+x}"'}]
                """,
        }
    )
    run, log = lab.run_of(payload={"delivery_id": "d-1"})
    assert run["conclusion"] == "success", log
    assert run["delivery_id"] == "d-1"
    token, url, request = (tmp_path / "token").read_text().split("\n")
    claims = verify(lab.emulator.url, token)
    sha = lab.clone.git("rev-parse", "HEAD")
    expected = {
        "repository": lab.name,
        "repository_owner": "acme",
        "ref": "refs/heads/main",
        "sha": sha,
        "workflow": "Identity",
        "run_id": str(run["id"]),
        "run_attempt": "1",
        "event_name": "repository_dispatch",
        "job_workflow_ref": f"{lab.name}/.github/workflows/w.yml@refs/heads/main",
        "environment": "production",
        "sub": f"repo:{lab.name}:environment:production",
    }
    assert expected.items() <= claims.items()
    assert {"iat", "nbf", "exp", "jti", "actor", "repository_id"} <= claims.keys()
    assert claims["nbf"] <= claims["iat"] < claims["exp"]
    assert token not in log and request not in log
    with pytest.raises(jwt.InvalidAudienceError):
        verify(lab.emulator.url, token, "other")
    late = lab.client.get(url, headers={"Authorization": f"bearer {request}"})
    assert late.status_code == 401, "the request token ends with its job"
    assert lab.client.get(url).status_code == 401


def test_tokens_on_request_and_key_rotation(lab) -> None:
    emulator = lab.emulator
    first = emulator.control("/oidc/token", repository=lab.name, audience="relay")["token"]
    assert verify(emulator.url, first)["repository"] == lab.name
    odd = emulator.control("/oidc/token", audience="relay", claims={"repository": "evil/fork", "exp": 1, "jti": None})[
        "token"
    ]
    assert jwt.decode(odd, options={"verify_signature": False})["repository"] == "evil/fork"
    assert "jti" not in jwt.decode(odd, options={"verify_signature": False})
    with pytest.raises(jwt.ExpiredSignatureError):
        verify(emulator.url, odd)
    kid = emulator.client.post("/_emulator/oidc/rotate").json()["kid"]
    second = emulator.control("/oidc/token", repository=lab.name, audience="relay")["token"]
    assert jwt.get_unverified_header(second)["kid"] == kid
    assert verify(emulator.url, first) and verify(emulator.url, second), "older keys stay until they are forgotten"
    emulator.client.post("/_emulator/oidc/rotate", params={"forget": True})
    with pytest.raises(jwt.PyJWKClientError):
        verify(emulator.url, first)


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_TERMINAL_PROMPT": "0"}
    return subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_clone_fetch_by_sha_and_refused_push(lab, tmp_path: Path) -> None:
    first = lab.commit({"a.txt": "one\n"})
    lab.commit({"a.txt": "two\n", "big.bin": "x" * 500_000})
    url = f"{lab.emulator.url}/{lab.name}.git"
    assert git(tmp_path, "clone", "--quiet", url, "full").returncode == 0
    assert (tmp_path / "full/a.txt").read_text() == "two\n"
    assert git(tmp_path, "-c", "protocol.version=0", "clone", "--quiet", "--depth=1", url, "old").returncode == 0
    assert git(tmp_path, "init", "--quiet", "one").returncode == 0
    fetched = git(tmp_path / "one", "fetch", "--quiet", "--depth=1", url.removesuffix(".git"), first)
    assert fetched.returncode == 0, fetched.stderr
    assert git(tmp_path / "one", "show", "FETCH_HEAD:a.txt").stdout == "one\n"
    assert git(tmp_path / "one", "rev-list", "--count", "FETCH_HEAD").stdout.strip() == "1"
    pushed = git(tmp_path / "full", "push", "origin", "HEAD:refs/heads/other")
    assert pushed.returncode != 0 and "403" in pushed.stderr
    assert git(tmp_path, "clone", f"{lab.emulator.url}/acme/nothing.git").returncode != 0
    dumb = lab.client.get(f"/{lab.name}.git/HEAD")
    assert dumb.status_code == 404


def test_upload_pack_processes_end_when_a_client_leaves(lab) -> None:
    with lab.client.stream("GET", f"/{lab.name}.git/info/refs?service=git-upload-pack") as response:
        assert response.status_code == 200
        next(response.iter_raw())

    def left() -> bool:
        listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        return not any("upload-pack" in line and lab.name in line for line in listing.splitlines())

    lab.eventually(left)
    assert sys.version_info >= (3, 10)
