"""Workflow commands: what a step says in its output (``::error::``) and in the files GitHub gives it (``GITHUB_ENV``).

Source: GitHub's "Workflow commands for GitHub Actions". What a command means is decided here without I/O; the job feeds
lines in, and :class:`CommandFiles` are the files of one step.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_COMMAND = re.compile(r"^\s*::(?P<name>[A-Za-z][\w-]*)(?:\s+(?P<properties>.*?))?::(?P<value>.*)$", re.DOTALL)
_SAFE_STOP_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


class CommandError(Exception):
    """A command file is malformed; the step fails with this text."""


@dataclass(frozen=True)
class Annotation:
    """An ``error``, ``warning`` or ``notice`` of a step."""

    level: str
    message: str
    properties: dict[str, str] = field(default_factory=dict)


def _unescape(text: str, in_property: bool = False) -> str:
    if in_property:
        text = text.replace("%3A", ":").replace("%2C", ",")
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


class Masks:
    """Values that never appear in a log. Every line of a multi-line value is masked by itself, too."""

    def __init__(self, values: list[str] | None = None) -> None:
        self._values: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        for value in values or []:
            self.add(value)

    def add(self, value: str) -> None:
        """Mask ``value`` from now on; blanks alone are never masked."""
        for part in {value, *value.splitlines()}:
            if part.strip():
                self._values.add(part)
        ordered = sorted(self._values, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(part) for part in ordered)) if ordered else None

    def hide(self, text: str) -> str:
        """``text`` with every masked value replaced by ``***``."""
        return self._pattern.sub("***", text) if self._pattern else text

    def found_in(self, text: str) -> bool:
        """Whether a masked value is part of ``text``."""
        return bool(self._pattern and self._pattern.search(text))


class OutputCommands:
    """Interprets the lines of one step.

    Attributes:
        annotations: what the step said so far.
        outputs: from the deprecated ``::set-output``, which GitHub still honours.
        state: from the deprecated ``::save-state``.
    """

    def __init__(self, masks: Masks, debug: bool = False) -> None:
        self.annotations: list[Annotation] = []
        self.outputs: dict[str, str] = {}
        self.state: dict[str, str] = {}
        self._masks = masks
        self._debug = debug
        self._stop_token: str | None = None

    def line(self, text: str) -> str | None:
        """Interpret one line.

        Returns:
            What the log shows for it (not yet masked), or ``None`` for nothing.
        """
        match = _COMMAND.match(text)
        if match is None:
            return text
        name = match.group("name").lower()
        if self._stop_token is not None:
            if name == self._stop_token.lower():
                self._stop_token = None
                return None
            return text
        value = _unescape(match.group("value"))
        properties = {}
        for item in (match.group("properties") or "").split(","):
            key, separator, content = item.partition("=")
            if separator:
                properties[key.strip()] = _unescape(content.strip(), in_property=True)
        handler: Callable[[str, dict[str, str]], str | None] | None = {
            "add-mask": self._add_mask,
            "group": lambda title, _: f"##[group]{title}",
            "endgroup": lambda _title, _: "##[endgroup]",
            "debug": lambda message, _: f"##[debug]{message}" if self._debug else None,
            "stop-commands": self._stop,
            "echo": lambda _value, _: None,
            "add-matcher": lambda _value, _: None,
            "remove-matcher": lambda _value, _: None,
            "set-output": self._set_output,
            "save-state": self._save_state,
        }.get(name)
        if name in ("error", "warning", "notice"):
            self.annotations.append(Annotation(name, self._masks.hide(value), properties))
            return f"##[{name}]{value}"
        if name in ("set-env", "add-path"):
            self.annotations.append(Annotation("error", f"the command '{name}' is disabled; write to its file instead"))
            return f"##[error]The `{name}` command is disabled; use the environment file instead"
        return handler(value, properties) if handler else text

    def _add_mask(self, value: str, _properties: dict[str, str]) -> str:
        self._masks.add(value)
        return "::add-mask::***"

    def _stop(self, token: str, _properties: dict[str, str]) -> str | None:
        if not _SAFE_STOP_TOKEN.fullmatch(token):
            return f"##[error]stop-commands needs a token of letters, digits, '_' and '-', not {token!r}"
        self._stop_token = token
        return None

    def _set_output(self, value: str, properties: dict[str, str]) -> str:
        self.outputs[properties.get("name", "")] = value
        return "##[warning]The `set-output` command is deprecated; write to $GITHUB_OUTPUT"

    def _save_state(self, value: str, properties: dict[str, str]) -> str:
        self.state[properties.get("name", "")] = value
        return "##[warning]The `save-state` command is deprecated; write to $GITHUB_STATE"


def parse_file(text: str, file: str) -> dict[str, str]:
    """The pairs of a ``GITHUB_ENV``/``GITHUB_OUTPUT``/``GITHUB_STATE`` file.

    Each is ``name=value``, or ``name<<DELIMITER`` with the value on the following lines up to a line that is exactly
    the delimiter. A later pair of the same name wins.

    Args:
        text: the file's content.
        file: the variable that named the file, for messages.

    Raises:
        CommandError: a line of neither form, an empty name, or a delimiter that never comes.
    """
    pairs: dict[str, str] = {}
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        if not line:
            continue
        equals, here = line.find("="), line.find("<<")
        if equals >= 0 and (here < 0 or equals < here):
            name, value = line[:equals], line[equals + 1 :]
        elif here >= 0:
            name, delimiter = line[:here], line[here + 2 :]
            try:
                end = lines.index(delimiter, index)
            except ValueError:
                raise CommandError(f"{file}: delimiter {delimiter!r} of {name!r} not found") from None
            if not delimiter:
                raise CommandError(f"{file}: {name!r} has an empty delimiter")
            value = "\n".join(lines[index:end])
            index = end + 1
        else:
            raise CommandError(f"{file}: invalid format {line[:80]!r}")
        if not name:
            raise CommandError(f"{file}: a value without a name: {line[:80]!r}")
        pairs[name] = value
    return pairs


def allowed_environment(pairs: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Split what a step may set for later steps from what GitHub refuses (its own variables, ``NODE_OPTIONS``)."""
    refused = [name for name in pairs if name.startswith(("GITHUB_", "RUNNER_")) or name == "NODE_OPTIONS"]
    return {name: value for name, value in pairs.items() if name not in refused}, refused


@dataclass(frozen=True)
class CommandFiles:
    """The files that a step writes commands to."""

    paths: dict[str, Path]

    @classmethod
    def make(cls, temp: Path, number: int) -> CommandFiles:
        """New, empty files in ``temp`` for the step's script of this number."""
        paths = {name: temp / f"{name}_{number}" for name in ("env", "output", "path", "summary", "state")}
        for path in paths.values():
            path.touch()
        return cls(paths)

    def variables(self) -> dict[str, str]:
        """The variables that tell the step where its files are."""
        names = {"summary": "GITHUB_STEP_SUMMARY"}
        return {names.get(name, f"GITHUB_{name.upper()}"): str(path) for name, path in self.paths.items()}

    def text(self, name: str) -> str:
        """What the step wrote; empty if it removed the file."""
        try:
            return self.paths[name].read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
