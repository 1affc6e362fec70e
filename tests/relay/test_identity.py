"""Spec 1.5: hostile tokens over real HTTP with real keys. None of them may be accepted."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from relay_parts import AUDIENCE, PIPELINE, Key, Minter, Peer, Running, dispatch_of, issuer, sqlite_only
from relay_site import pull_request, report, wait_for

Forge = Callable[["Forger"], str]


pytestmark = sqlite_only


def b64(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Forger(Minter):
    """Everything an attacker has: the public key, the key server's address, tokens for other things."""

    def __init__(self, peer: Peer, key: Key, ec_key: Key, stranger: Key):
        super().__init__(issuer(peer), key)
        self.peer, self.ec, self.stranger = peer, ec_key, stranger

    def good(self, **changes: Any) -> str:
        return self.token("org2/repo2", **changes)

    def parts(self, header: Any, claims: Any = None, signature: str | None = None) -> str:
        signed = f"{b64(header)}.{b64(self.claims('org2/repo2') if claims is None else claims)}"
        return f"{signed}.{b64(self.rs256(signed.encode()) if signature is None else signature.encode())}"

    def rs256(self, data: bytes) -> bytes:
        return jwt.get_algorithm_by_name("RS256").sign(data, self.key.private)

    def signed(self, header: dict[str, Any], claims: bytes | None = None) -> str:
        """A correct signature over whatever header and claims."""
        body = json.dumps(self.claims("org2/repo2")).encode() if claims is None else claims
        text = f"{b64({'alg': 'RS256', 'typ': 'JWT', 'kid': self.key.id, **header})}.{b64(body)}"
        return f"{text}.{b64(self.rs256(text.encode()))}"

    def hs(self, secret: bytes, algorithm: str = "HS256") -> str:
        header = {"alg": algorithm, "typ": "JWT", "kid": self.key.id}
        text = f"{b64(header)}.{b64(self.claims('org2/repo2'))}"
        digest = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}[algorithm]
        return f"{text}.{b64(hmac.new(secret, text.encode(), digest).digest())}"

    def other(self, algorithm: str) -> str:
        return jwt.encode(self.claims("org2/repo2"), self.key.private, algorithm, headers={"kid": self.key.id})


def _swap(token: str, index: int, text: str) -> str:
    parts = token.split(".")
    parts[index] = text
    return ".".join(parts)


NOW = time.time
HOSTILE: dict[str, Forge] = {
    # No proof at all.
    "alg none": lambda f: f.parts({"alg": "none", "typ": "JWT", "kid": "rsa-1"}, signature=""),
    "alg None": lambda f: f.parts({"alg": "None", "kid": "rsa-1"}, signature=""),
    "alg nOnE": lambda f: f.parts({"alg": "nOnE", "kid": "rsa-1"}, signature=""),
    "alg none with a signature": lambda f: f.parts({"alg": "none", "kid": "rsa-1"}),
    "alg missing": lambda f: f.parts({"typ": "JWT", "kid": "rsa-1"}),
    "alg null": lambda f: f.parts({"alg": None, "kid": "rsa-1"}),
    "alg a list": lambda f: f.parts({"alg": ["RS256"], "kid": "rsa-1"}),
    "alg a number": lambda f: f.parts({"alg": 256, "kid": "rsa-1"}),
    "alg with space": lambda f: f.parts({"alg": "RS256 ", "kid": "rsa-1"}),
    "alg lower case": lambda f: f.parts({"alg": "rs256", "kid": "rsa-1"}),
    "no signature": lambda f: _swap(f.good(), 2, ""),
    "two parts": lambda f: f.good().rsplit(".", 1)[0],
    "four parts": lambda f: f.good() + ".AAAA",
    # Symmetric algorithms with what is public.
    "HS256 with the public key PEM": lambda f: f.hs(f.key.public_pem),
    "HS256 with the public key PEM stripped": lambda f: f.hs(f.key.public_pem.strip()),
    "HS256 with the JWK": lambda f: f.hs(json.dumps(f.key.jwk).encode()),
    "HS256 with the modulus": lambda f: f.hs(f.key.jwk["n"].encode()),
    "HS256 with nothing": lambda f: f.hs(b""),
    "HS384 with the public key": lambda f: f.hs(f.key.public_pem, "HS384"),
    "HS512 with the public key": lambda f: f.hs(f.key.public_pem, "HS512"),
    "HS256 with the key id": lambda f: f.hs(b"rsa-1"),
    # Other asymmetric algorithms of the right key.
    "RS384": lambda f: f.other("RS384"),
    "RS512": lambda f: f.other("RS512"),
    "PS256": lambda f: f.other("PS256"),
    "ES256 header on an RSA key": lambda f: f.parts({"alg": "ES256", "kid": "rsa-1"}),
    "RS256 header on an EC key": lambda f: f.parts({"alg": "RS256", "kid": "ec-1"}),
    "ES256 with an all-zero signature": lambda f: f.parts({"alg": "ES256", "kid": "ec-1"}, signature="\0" * 64),
    # Somebody else's key.
    "stranger's key under our key id": lambda f: f.good(key=f.stranger),
    "stranger's key with its own jwk": lambda f: f.good(key=f.stranger, headers={"jwk": f.stranger.jwk}),
    "jku to the attacker": lambda f: f.good(key=f.stranger, headers={"jku": "https://attacker.invalid/jwks"}),
    "jku to our own key server": lambda f: f.good(headers={"jku": f"{f.peer.url}/jwks/github"}),
    "x5u to the attacker": lambda f: f.good(key=f.stranger, headers={"x5u": "https://attacker.invalid/cert"}),
    "x5c with a chain": lambda f: f.good(key=f.stranger, headers={"x5c": ["MIIB"]}),
    "crit header": lambda f: f.signed({"crit": ["exp"]}),
    # Key ids.
    "kid missing": lambda f: jwt.encode(f.claims("org2/repo2"), f.key.private, "RS256"),
    "kid empty": lambda f: f.signed({"kid": ""}),
    "kid unknown": lambda f: f.signed({"kid": "rsa-2"}),
    "kid a path": lambda f: f.signed({"kid": "../../../../dev/null"}),
    "kid an absolute path": lambda f: f.signed({"kid": "/etc/hostname"}),
    "kid SQL": lambda f: f.signed({"kid": "rsa-1' UNION SELECT 'x"}),
    "kid a URL": lambda f: f.signed({"kid": "https://attacker.invalid/key"}),
    "kid a list": lambda f: f.signed({"kid": ["rsa-1"]}),
    "kid a number": lambda f: f.signed({"kid": 1}),
    "kid with NUL": lambda f: f.signed({"kid": "rsa-1\0"}),
    "kid huge": lambda f: f.signed({"kid": "k" * 8000}),
    # Issuers.
    "iss of nobody": lambda f: f.good(iss="https://attacker.invalid"),
    "iss missing": lambda f: f.good(iss=None),
    "iss with a slash": lambda f: f.good(iss=f.issuer + "/"),
    "iss in upper case": lambda f: f.good(iss=f.issuer.upper()),
    "iss a prefix": lambda f: f.good(iss=f.issuer + ".attacker.invalid"),
    "iss a list": lambda f: f.signed({}, json.dumps(f.claims("org2/repo2", iss=[f.issuer])).encode()),
    "iss of GitHub itself with our key": lambda f: f.good(iss="https://attacker.invalid/.well-known"),
    # Audiences.
    "aud of another service": lambda f: f.good(aud="sts.amazonaws.com"),
    "aud missing": lambda f: f.good(aud=None),
    "aud empty": lambda f: f.good(aud=""),
    "aud a list without us": lambda f: f.good(aud=["a", "b"]),
    "aud a prefix": lambda f: f.good(aud=AUDIENCE[:-1]),
    "aud an object": lambda f: f.signed({}, json.dumps(f.claims("org2/repo2", aud={"a": AUDIENCE})).encode()),
    # Times.
    "expired": lambda f: f.good(exp=int(NOW()) - 40),
    "expired long ago": lambda f: f.good(exp=1, iat=0, nbf=0),
    "exp missing": lambda f: f.good(exp=None),
    "exp text": lambda f: f.signed({}, json.dumps(f.claims("org2/repo2", exp="never")).encode()),
    "exp infinite": lambda f: f.signed({}, json.dumps(f.claims("org2/repo2", exp=float("inf"))).encode()),
    "exp beyond every clock": lambda f: f.good(exp=10**30),
    "exp in ten years": lambda f: f.good(exp=int(NOW()) + 10 * 365 * 86400),
    "iat missing": lambda f: f.good(iat=None),
    "iat in the future": lambda f: f.good(iat=int(NOW()) + 3600, exp=int(NOW()) + 7200),
    "nbf in the future": lambda f: f.good(nbf=int(NOW()) + 3600),
    # Forms.
    "an empty one": lambda _: ".",
    "a word": lambda _: "token",
    "three dots": lambda _: "..",
    "not base64": lambda f: _swap(f.good(), 1, "!!!!"),
    "header not JSON": lambda f: _swap(f.good(), 0, b64(b"{")),
    "header a list": lambda f: _swap(f.good(), 0, b64([])),
    "claims a list": lambda f: f.signed({}, b"[]"),
    "claims not JSON": lambda f: f.signed({}, b"{"),
    "claims deep": lambda f: f.signed({}, b'{"a":' * 1500 + b"1" + b"}" * 1500),
    "huge": lambda f: f.good(padding="x" * 30_000),
    "changed claims": lambda f: _swap(f.good(), 1, b64(f.claims("org4/repo4"))),
    "changed signature": lambda f: f.good()[:-6] + "AAAAAA",
    "signature of another token": lambda f: _swap(f.good(), 2, f.token("org1/repo1").split(".")[2]),
    # The right proof of the wrong thing.
    "no repository claim": lambda f: f.token(None),
    "repository a list": lambda f: f.signed({}, json.dumps({**f.claims("x"), "repository": ["org2/repo2"]}).encode()),
    "repository without owner": lambda f: f.token("repo2"),
    "repository with a path": lambda f: f.token("org2/repo2/../../org4/repo4"),
}


@pytest.fixture
def forger(peer: Peer, rsa_key: Key, ec_key: Key, stranger_key: Key) -> Forger:
    return Forger(peer, rsa_key, ec_key, stranger_key)


def test_1_5_no_hostile_token_is_accepted(relay: Running, peer: Peer, forger: Forger) -> None:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org2/repo2")
    assert len(HOSTILE) >= 60
    answers = {name: relay.callback(forge(forger), report(payload)) for name, forge in HOSTILE.items()}
    wrong = {name: (answer.status_code, answer.text) for name, answer in answers.items() if answer.status_code != 401}
    assert not wrong
    assert not peer.hud()
    # The same report with a true token is accepted: the refusals above were for the tokens.
    assert relay.callback(forger.good(), report(payload)).json()["status"] == "in_progress"


def test_1_5_a_token_that_no_server_reads_is_refused_before_the_relay(
    relay: Running, peer: Peer, forger: Forger
) -> None:
    """Longer than the server's limit for headers: its answer, 400 or 431, depends on how the bytes come in."""
    with contextlib.suppress(httpx.TransportError):  # closed while we were still sending
        assert relay.callback(forger.good(padding="x" * 100_000), {}).status_code in (400, 401, 431)
    assert relay.callback(forger.good(), {}).status_code == 400, "the relay goes on, and reads the next one"
    assert not peer.hud()


def test_1_5_the_refusal_says_what_is_wrong(relay: Running, forger: Forger) -> None:
    expired = relay.callback(HOSTILE["expired"](forger), {}).json()["error"]
    assert expired.startswith("the token expired 4") and expired.endswith("s ago")
    assert AUDIENCE in relay.callback(HOSTILE["aud of another service"](forger), {}).json()["error"]
    assert "not trusted" in relay.callback(HOSTILE["iss of nobody"](forger), {}).json()["error"]
    assert "signature" in relay.callback(HOSTILE["changed signature"](forger), {}).json()["error"]
    assert "no Authorization header" in relay.callback(None, {}).json()["error"]


@pytest.mark.parametrize("header", ["Basic abc", "Bearer", "token abc"])
def test_1_5_other_authorization_schemes(relay: Running, header: str) -> None:
    answer = relay.http.post("/github/callback", content=b"{}", headers={"Authorization": header})
    assert answer.status_code == 401


def test_1_5_a_token_speaks_for_its_own_repository_only(relay: Running, peer: Peer, mint: Minter) -> None:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org4/repo4")
    fork = relay.callback(mint.token("someone/repo4"), report(payload))
    assert (fork.status_code, fork.json()["status"]) == (200, "ignored")
    other = relay.callback(mint.token("org2/repo2"), report(payload))
    assert other.status_code == 403, "the callback token belongs to org4/repo4"
    time.sleep(0.2)
    assert not peer.hud()
    assert not peer.checks


def test_1_5_es256(relay: Running, peer: Peer, mint: Minter, ec_key: Key) -> None:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org2/repo2")
    assert relay.callback(mint.token("org2/repo2", key=ec_key), report(payload)).status_code == 200


def test_1_5_buildkite_pipeline_speaks_for_its_repository(relay: Running, peer: Peer, rsa_key: Key) -> None:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org2/repo2")
    agent = Minter("https://agent.buildkite.com", rsa_key)
    organization, pipeline = PIPELINE.split("/")

    def token(**claims: str) -> str:
        ids = {"organization_id": organization, "pipeline_id": pipeline, "build_branch": "main"}
        return agent.token(None, **{**ids, **claims})

    unknown = relay.callback(token(pipeline_id="other"), report(payload))
    assert (unknown.status_code, "not registered" in unknown.text) == (403, True)
    branch = relay.callback(token(build_branch="topic"), report(payload))
    assert (branch.status_code, "build_branch" in branch.text) == (403, True)
    assert relay.callback(token(), report(payload)).json()["status"] == "in_progress"
    # The claim that names a repository on GitHub means nothing from this issuer.
    lie = relay.callback(agent.token("org4/repo4", organization_id="x", pipeline_id="y"), report(payload))
    assert lie.status_code == 403


def test_2_a_key_server_outage_is_not_the_callers_fault(
    start: Callable[..., Running], peer: Peer, mint: Minter
) -> None:
    relay = start()
    peer.fail("/jwks/github", times=1)
    answer = relay.callback(mint.token("org2/repo2"), {})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1


def test_2_cached_keys_serve_while_the_key_server_fails(relay: Running, peer: Peer, mint: Minter) -> None:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org2/repo2")
    assert relay.callback(mint.token("org2/repo2"), report(payload)).status_code == 200
    peer.fail("/jwks/github", times=1000)
    cache = relay.app.state.service.keys
    cache._ttl = 0
    cache._interval = 0
    assert relay.callback(mint.token("org2/repo2"), report(payload, "completed")).status_code == 200
    assert len(peer.made("GET", "/jwks/github")) >= 2


def test_2_unknown_key_ids_do_not_make_the_relay_fetch_every_time(relay: Running, peer: Peer, forger: Forger) -> None:
    for number in range(20):
        assert relay.callback(forger.signed({"kid": f"unknown-{number}"}), {}).status_code == 401
    assert len(peer.made("GET", "/jwks/github")) == 1


def test_2_a_rotated_key_is_found(relay: Running, peer: Peer, mint: Minter) -> None:
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org2/repo2")
    assert relay.callback(mint.token("org2/repo2"), report(payload)).status_code == 200
    new = Key("rsa-rotated", rsa.generate_private_key(public_exponent=65537, key_size=2048), "RS256")
    peer.jwks["github"].append(new.jwk)
    relay.app.state.service.keys._interval = 0
    answer = relay.callback(mint.token("org2/repo2", key=new), report(payload, "completed"))
    assert answer.status_code == 200, answer.text


def test_1_5_required_claims_of_github(start: Callable[..., Running], peer: Peer, mint: Minter) -> None:
    anchor = {
        "issuer": issuer(peer),
        "jwks_url": f"{peer.url}/jwks/github",
        "required_claims": {"ref": ["refs/heads/main"]},
    }
    relay = start(oidc_issuers=[anchor])
    relay.webhook("pull_request", pull_request(), delivery="d-1")
    payload = dispatch_of(peer, "org2/repo2")
    refused = relay.callback(mint.token("org2/repo2", ref="refs/heads/evil"), report(payload))
    assert (refused.status_code, "'ref'" in refused.text) == (403, True)
    assert relay.callback(mint.token("org2/repo2", ref="refs/heads/main"), report(payload)).status_code == 200
    wait_for(lambda: peer.hud())
