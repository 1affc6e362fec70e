"""Options of ``run`` and ``plan`` → what the runner is asked for."""

from __future__ import annotations

import contextlib
import io
import json
import math
import tempfile
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.profile import load_profile
from conformance.runner.run import Request
from conformance.runner.units import parse_shard
from conformance.selection.changed import changed_in_payload
from conformance.selection.decide import POLICIES
from conformance.selection.labels import parse_labels
from conformance.times import Times


def changed_files(values: list[str] | None) -> tuple[str, ...] | None:
    """Expands ``@LIST`` entries and comma- or newline-free names.

    Raises:
        ConformanceError: a list file cannot be read or is no UTF-8 text.
    """
    if values is None or not values:
        return None
    names: list[str] = []
    for value in values:
        if value.startswith("@"):
            try:
                names += Path(value[1:]).read_text(encoding="utf-8").splitlines()
            except OSError as error:
                raise ConformanceError(f"--changed {value}: cannot be read: {error.strerror or error}") from error
            except UnicodeDecodeError as error:
                raise ConformanceError(
                    f"--changed {value}: is no UTF-8 text (byte {error.start}); expected one file name per line"
                ) from error
        else:
            names.append(value)
    return tuple(name.strip() for name in names if name.strip())


def changed_in(path: Path) -> tuple[tuple[str, ...] | None, str]:
    """Paths of ``--pr`` and ``""``; ``None``, which takes everything, and the reason where the event does not say them.

    Raises:
        ConformanceError: the file cannot be read or is no JSON.
    """
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConformanceError(f"--pr {path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConformanceError(f"--pr {path}: is no JSON: {error}") from error
    names, why = changed_in_payload(payload)
    if names is None:
        return None, f"--pr {path}: everything is taken, because {why}"
    return tuple(names), ""


def build_request(
    *,
    profile: str | None,
    upstream: Path | None,
    suite: str | None,
    device: str | None,
    labels: list[str] | None,
    unclassified: str | None,
    keyword: str,
    changed: list[str] | None,
    pull: Path | None,
    shard: str,
    jobs: int | None,
    timeout: float | None,
    targets: list[str] | None,
    times: Path | None = None,
    attribute: bool = False,
    unlock: bool = False,
    strict: bool | None = None,
    collect_only: bool = False,
) -> Request:
    """Options → request.

    Raises:
        ConformanceError: an option's value does not exist.
    """
    if suite not in (None, "wheel"):
        raise ConformanceError(f"--suite {suite}: there is only 'wheel'")
    if unclassified is not None and unclassified not in POLICIES:
        raise ConformanceError(f"--unclassified {unclassified}: expected one of {', '.join(POLICIES)}")
    if upstream is not None and not upstream.is_dir():
        raise ConformanceError(f"--upstream {upstream}: no such folder; `conformance fetch` brings a checkout")
    if changed and pull is not None:
        raise ConformanceError("--changed and --pr both say what was changed; give one")
    if keyword:
        _check_keyword(keyword)
    if shard:
        parse_shard(shard)
    if timeout is not None and not math.isfinite(timeout):
        raise ConformanceError(f"--timeout {timeout}: expected a number of seconds")
    loaded = load_profile(profile)
    if device is not None and device.split(":")[0] != loaded.device:
        raise ConformanceError(
            f"--device {device}: profile {loaded.name} is for {loaded.device}; another device needs another profile"
        )
    if attribute and not loaded.custom:
        raise ConformanceError(
            f"--attribute compares a backend with the CPU; profile {loaded.name} is for {loaded.device}"
        )
    if unlock and not loaded.custom:
        raise ConformanceError(f"--unlock is for PrivateUse1 backends; profile {loaded.name} is for {loaded.device}")
    paths, note = changed_in(pull) if pull is not None else (changed_files(changed), "")
    return Request(
        profile=loaded,
        upstream=upstream,
        wheel=suite == "wheel" or upstream is None or any(name.startswith("wheel/") for name in targets or ()),
        targets=tuple(targets or ()),
        labels=parse_labels(labels) if labels else None,
        unclassified=unclassified,
        keyword=keyword,
        changed=paths,
        notes=(note,) if note else (),
        shard=shard,
        jobs=jobs,
        timeout=timeout,
        times=Times.read(times) if times is not None else Times(),
        attribute=attribute,
        unlock=unlock,
        strict=strict,
        collect_only=collect_only,
    )


def _check_keyword(text: str) -> None:
    """A wrong expression is a usage error of the command, not a failure inside every worker.

    pytest itself is asked, in a session over an empty folder.
    """
    import pytest  # A third of a second, for those who give -k.

    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_empty.py").write_text("def test_empty(): pass\n", encoding="utf-8")
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = pytest.main(
                ["--collect-only", "-q", "-c", "/dev/null", "--rootdir", folder, "--noconftest",
                 "-p", "no:cacheprovider", "-k", text, folder]
            )  # fmt: skip
    if status == pytest.ExitCode.USAGE_ERROR:
        lines = [line for line in said.getvalue().splitlines() if line.startswith("ERROR")]
        raise ConformanceError(f"-k {text!r}: {lines[-1].removeprefix('ERROR: ') if lines else 'not an expression'}")
