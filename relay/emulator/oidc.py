"""The OIDC issuer of GitHub Actions: a token for a job says which repository, ref, workflow and run it is.

Claims as in "OpenID Connect reference" of GitHub's documentation. The issuer's address has the form of GitHub
Enterprise Server: ``{base}/_services/token``.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from relay.emulator.state import JobRecord, Repository, Run, State

LIFETIME_SECONDS = 300
CLOCK_SKEW_SECONDS = 300


class Issuer:
    """Signs tokens. Keys live as long as the server; :meth:`rotate` adds a new one and keeps the old in the JWKS."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._keys: list[tuple[str, rsa.RSAPrivateKey]] = []
        self._requests: dict[str, tuple[Repository, Run, JobRecord, str | None]] = {}
        self.rotate()

    @property
    def url(self) -> str:
        """The ``iss`` claim."""
        return f"{self._state.base_url}/_services/token"

    def rotate(self, forget: bool = False) -> str:
        """Sign with a new key from now on; ``forget`` drops the older keys from the JWKS. Gives its ``kid``."""
        if forget:
            self._keys.clear()
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = key.public_key().public_numbers()
        kid = hashlib.sha256(f"{public.n}".encode()).hexdigest()[:40].upper()
        self._keys.append((kid, key))
        return kid

    def jwks(self) -> dict[str, Any]:
        """RFC 7517."""
        keys = []
        for kid, key in self._keys:
            parsed = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
            keys.append({"kty": "RSA", "alg": "RS256", "use": "sig", "kid": kid, "n": parsed["n"], "e": parsed["e"]})
        return {"keys": keys}

    def discovery(self) -> dict[str, Any]:
        """OpenID Connect Discovery 1.0, section 3."""
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/.well-known/jwks",
            "subject_types_supported": ["public", "pairwise"],
            "response_types_supported": ["id_token"],
            "claims_supported": [
                "sub", "aud", "exp", "iat", "iss", "jti", "nbf", "ref", "sha", "repository", "repository_id",
                "repository_owner", "repository_owner_id", "run_id", "run_number", "run_attempt", "actor", "actor_id",
                "workflow", "workflow_ref", "workflow_sha", "head_ref", "base_ref", "event_name", "ref_type",
                "ref_protected", "job_workflow_ref", "job_workflow_sha", "runner_environment", "repository_visibility",
                "environment", "check_run_id",
            ],
            "id_token_signing_alg_values_supported": ["RS256"],
            "scopes_supported": ["openid"],
        }  # fmt: skip

    def sign(self, claims: dict[str, Any], headers: dict[str, Any] | None = None) -> str:
        """Sign any claims; issuer, times and ``jti`` are added where they are missing. ``None`` leaves a claim out."""
        now = int(time.time())
        held = {
            "iss": self.url,
            "jti": secrets.token_hex(16),
            "nbf": now - CLOCK_SKEW_SECONDS,
            "iat": now,
            "exp": now + LIFETIME_SECONDS,
            **claims,
        }
        kid, key = self._keys[-1]
        held = {name: value for name, value in held.items() if value is not None}
        return jwt.encode(held, key, algorithm="RS256", headers={"kid": kid, **(headers or {})})

    def claims(
        self, repository: Repository, run: Run, job: JobRecord | None, environment: str | None
    ) -> dict[str, Any]:
        """The claims of a job, without audience and times."""
        ref = f"refs/heads/{run.head_branch}"
        workflow_ref = f"{repository.full_name}/{run.workflow_file}@{ref}"
        subject = f"environment:{environment}" if environment else f"ref:{ref}"
        held = {
            "sub": f"repo:{repository.full_name}:{subject}",
            "ref": ref,
            "ref_type": "branch",
            "ref_protected": "false",
            "sha": run.head_sha,
            "repository": repository.full_name,
            "repository_id": str(repository.id),
            "repository_owner": repository.owner,
            "repository_owner_id": str(repository.owner_id),
            "repository_visibility": "public",
            "run_id": str(run.id),
            "run_number": str(run.number),
            "run_attempt": str(run.attempt),
            "actor": run.actor,
            "actor_id": str(repository.owner_id),
            "workflow": run.workflow_name,
            "workflow_ref": workflow_ref,
            "workflow_sha": run.head_sha,
            "job_workflow_ref": workflow_ref,
            "job_workflow_sha": run.head_sha,
            "head_ref": "",
            "base_ref": "",
            "event_name": run.event,
            "runner_environment": "self-hosted",
        }
        if environment:
            held["environment"] = environment
        if job is not None:
            held["check_run_id"] = str(job.id)
        return held

    # -- request tokens

    def allow(self, repository: Repository, run: Run, job: JobRecord, environment: str | None) -> tuple[str, str]:
        """A job may ask for tokens: its request URL, and the bearer token for it."""
        request = secrets.token_urlsafe(48)
        self._requests[request] = (repository, run, job, environment)
        url = f"{self._state.base_url}/_services/actions/idtoken/{run.id}/{job.id}?api-version=2.0"
        return url, request

    def forbid(self, request: str) -> None:
        """The job is over."""
        self._requests.pop(request, None)

    def token_for(self, request: str, run_id: int, job_id: int, audience: str | None) -> str | None:
        """A token for the job that holds ``request``, or ``None`` if it is not that job's."""
        held = self._requests.get(request)
        if held is None or held[1].id != run_id or held[2].id != job_id:
            return None
        repository, run, job, environment = held
        default = f"{self._state.base_url}/{repository.owner}"
        return self.sign({**self.claims(repository, run, job, environment), "aud": audience or default})
