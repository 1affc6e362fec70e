"""The allowlist: which downstream repositories take part, at which level, with which wishes (spec 1.3).

One reader serves the running relay and ``relay allowlist lint``: both see the same findings with file and line, so a
file that lints clean is a file that the relay loads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import yaml

from relay.wire import Level

LEVELS: tuple[Level, ...] = ("L1", "L2", "L3", "L4")
EVENTS = ("pull_request", "push")
GATE_PREFIX = "ciflow/crcr/"
"""Label on an upstream PR that opens the check-run gate of the L3 device named after it."""

_REPO = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})/[A-Za-z0-9._-]{1,100}")
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ONCALL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9/_-]{0,99})")
_OPTIONS = ("oncalls", "events", "refs", "paths", "job_timeout_seconds", "rate_burst", "rate_per_minute")
_RANGES = {"job_timeout_seconds": (60, 7 * 86400), "rate_burst": (1, 1_000_000), "rate_per_minute": (1, 1_000_000)}


@dataclass(frozen=True)
class Finding:
    """One thing wrong with an allowlist file. ``line`` counts from 1."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


class AllowlistError(ValueError):
    """The text is no allowlist; ``findings`` says everything that is wrong with it."""

    def __init__(self, findings: list[Finding]):
        super().__init__("; ".join(map(str, findings)))
        self.findings = findings


@dataclass(frozen=True)
class Target:
    """One downstream repository.

    Attributes:
        repo: ``owner/name`` as written in the file.
        level: L1 to L4.
        device: the L3 gate's device, ``None`` on the other levels.
        oncalls: GitHub logins or teams to ask.
        events: which of :data:`EVENTS` are dispatched.
        refs: shell patterns of branch names for ``push`` (without ``refs/heads/``); ``None`` takes the relay's default.
        paths: shell patterns of changed files; empty means every change. ``**`` and ``*`` both cross slashes.
        job_timeout_seconds: after this an unfinished job counts as timed out; ``None`` takes the relay's default.
        rate_burst, rate_per_minute: how fast it may report; ``None`` takes the relay's default.
    """

    repo: str
    level: Level
    device: str | None = None
    oncalls: tuple[str, ...] = ()
    events: tuple[str, ...] = EVENTS
    refs: tuple[str, ...] | None = None
    paths: tuple[str, ...] = ()
    job_timeout_seconds: float | None = None
    rate_burst: float | None = None
    rate_per_minute: float | None = None

    @property
    def key(self) -> str:
        """Lower-case name: GitHub compares repository names without case."""
        return self.repo.lower()

    def wants_branch(self, branch: str, default_refs: tuple[str, ...]) -> bool:
        """Whether a push to ``branch`` (without ``refs/heads/``) is dispatched to this repository."""
        patterns = default_refs if self.refs is None else self.refs
        return any(fnmatchcase(branch, pattern) for pattern in patterns)

    def wants_paths(self, changed: list[str]) -> bool:
        """Whether one of the changed files interests this repository."""
        return not self.paths or any(fnmatchcase(path, pattern) for path in changed for pattern in self.paths)


@dataclass(frozen=True)
class Allowlist:
    """All targets by lower-case name."""

    targets: dict[str, Target] = field(default_factory=dict)

    def get(self, repo: str) -> Target | None:
        """The target of that name in any case."""
        return self.targets.get(repo.lower())

    def __iter__(self) -> Iterator[Target]:
        return iter(self.targets.values())

    def __len__(self) -> int:
        return len(self.targets)

    def devices(self) -> dict[str, list[Target]]:
        """L3 targets by device, lower case."""
        result: dict[str, list[Target]] = {}
        for target in self:
            if target.device is not None:
                result.setdefault(target.device.lower(), []).append(target)
        return result


class _Reader:
    """Walks the YAML node tree, because only nodes know their lines."""

    def __init__(self, file: str):
        self.file = file
        self.findings: list[Finding] = []
        self.targets: dict[str, Target] = {}
        self.lines: dict[str, int] = {}

    def complain(self, node: yaml.Node, message: str) -> None:
        self.findings.append(Finding(self.file, node.start_mark.line + 1, message))

    def pairs(self, node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        seen: dict[str, int] = {}
        for key_node, value in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.complain(key_node, "a key must be plain text")
                continue
            key = key_node.value
            if key in seen:
                self.complain(key_node, f"{key!r} stands twice (first on line {seen[key]})")
                continue
            seen[key] = key_node.start_mark.line + 1
            yield key, key_node, value

    def read(self, root: yaml.Node | None) -> None:
        if root is None:
            return
        if not isinstance(root, yaml.MappingNode):
            self.complain(root, "the file must be a mapping with the keys L1 to L4")
            return
        for key, key_node, value in self.pairs(root):
            if key not in LEVELS:
                self.complain(key_node, f"unknown level {key!r}; the levels are L1, L2, L3, L4")
            elif _is_null(value):
                continue
            elif key == "L3":
                self.devices(value)
            else:
                self.items(value, key)

    def items(self, node: yaml.Node, level: Level) -> None:
        if not isinstance(node, yaml.SequenceNode):
            self.complain(node, f"{level} must be a list of repositories (only L3 is a map of devices)")
            return
        for item in node.value:
            if isinstance(item, yaml.ScalarNode):
                self.target(item, None, level, None)
            elif isinstance(item, yaml.MappingNode) and len(item.value) == 1:
                for _, key_node, value in self.pairs(item):
                    self.target(key_node, value, level, None)
            else:
                self.complain(item, "an item is 'owner/repo' or one 'owner/repo: oncalls'")

    def devices(self, node: yaml.Node) -> None:
        if not isinstance(node, yaml.MappingNode):
            self.complain(node, "L3 must map a device to its repositories")
            return
        lower: dict[str, str] = {}
        for device, device_node, repos in self.pairs(node):
            if not _DEVICE.fullmatch(device):
                self.complain(device_node, f"{device!r} is no device name (letters, digits, '.', '_', '-')")
                continue
            if device.lower() in lower:
                self.complain(device_node, f"device {device!r} is {lower[device.lower()]!r} in another case")
                continue
            lower[device.lower()] = device
            if not isinstance(repos, yaml.MappingNode):
                self.complain(repos, f"device {device!r} must map 'owner/repo' to a list of oncalls")
                continue
            for _, repo_node, value in self.pairs(repos):
                self.target(repo_node, value, "L3", device)

    def target(self, name: yaml.Node, value: yaml.Node | None, level: Level, device: str | None) -> None:
        repo = str(name.value)
        if not _REPO.fullmatch(repo) or repo.split("/")[1] in {".", ".."}:
            self.complain(name, f"{repo!r} is no repository; write owner/repo")
            return
        line = name.start_mark.line + 1
        if repo.lower() in self.targets:
            first = self.targets[repo.lower()]
            where = f"line {self.lines[repo.lower()]}, {first.level}"
            self.complain(name, f"{repo!r} stands twice (first on {where}); a repository has one level")
            return
        options = self.options(value)
        self.lines[repo.lower()] = line
        self.targets[repo.lower()] = Target(repo=repo, level=level, device=device, **options)

    def options(self, node: yaml.Node | None) -> dict[str, Any]:
        if node is None or _is_null(node):
            return {}
        if not isinstance(node, yaml.MappingNode):
            return {"oncalls": self.oncalls(node)}
        result: dict[str, Any] = {}
        for key, key_node, value in self.pairs(node):
            if key == "oncalls":
                result[key] = self.oncalls(value)
            elif key == "events":
                result[key] = self.strings(value, key, EVENTS)
            elif key in {"refs", "paths"}:
                result[key] = self.strings(value, key, None)
            elif key in _RANGES:
                number, (least, most) = _number(value), _RANGES[key]
                if number is None or not least <= number <= most:
                    self.complain(value, f"{key} must be a number from {least} to {most}")
                else:
                    result[key] = number
            else:
                self.complain(key_node, f"unknown option {key!r}; the options are {', '.join(_OPTIONS)}")
        return result

    def oncalls(self, node: yaml.Node) -> tuple[str, ...]:
        if isinstance(node, yaml.ScalarNode):
            nodes = [(part.strip(), node) for part in node.value.split(",") if part.strip()]
        elif isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
            nodes = [(item.value, item) for item in node.value]
        else:
            self.complain(node, "oncalls are text ('oncall1, oncall2') or a list")
            return ()
        for name, where in nodes:
            if not _ONCALL.fullmatch(name):
                self.complain(where, f"{name!r} is no GitHub login or team")
        return tuple(name for name, _ in nodes)

    def strings(self, node: yaml.Node, key: str, allowed: tuple[str, ...] | None) -> tuple[str, ...]:
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        result = []
        for item in items:
            if not isinstance(item, yaml.ScalarNode) or not item.value:
                self.complain(item, f"{key} must be a list of text")
            elif allowed is not None and item.value not in allowed:
                self.complain(item, f"{item.value!r} is not one of {', '.join(allowed)}")
            else:
                result.append(item.value)
        return tuple(result)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _number(node: yaml.Node) -> float | None:
    try:
        return float(node.value)
    except (TypeError, ValueError):
        return None


def lint(text: str, file: str) -> tuple[Allowlist, list[Finding]]:
    """Read an allowlist and everything that is wrong with it.

    Args:
        text: the YAML.
        file: name to show in findings.

    Returns:
        The targets that could be read, and the findings in the order of their lines. The allowlist is usable only
        when there are no findings.
    """
    reader = _Reader(file)
    try:
        reader.read(yaml.compose(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reader.findings.append(Finding(file, mark.line + 1 if mark else 1, f"not YAML: {error.problem}"))
    except (yaml.YAMLError, RecursionError) as error:
        reader.findings.append(Finding(file, 1, f"not YAML: {str(error).splitlines()[0]}"))
    findings = sorted(reader.findings, key=lambda finding: finding.line)
    return Allowlist(reader.targets), findings


def parse(text: str, file: str) -> Allowlist:
    """Read an allowlist.

    Raises:
        AllowlistError: with every finding of :func:`lint`.
    """
    allowlist, findings = lint(text, file)
    if findings:
        raise AllowlistError(findings)
    return allowlist
