"""Jinja, with everything escaped, and the words and figures that templates use."""

from __future__ import annotations

import math
import re
import time
import unicodedata
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from hud.core.outcomes import FAILING, LETTER, OUTCOMES, denominator
from hud.core.text import link
from hud.core.verdicts import VERDICTS

VERDICT_LOOKS: Mapping[str, tuple[str, str]] = {
    "broken by this PR": ("X", "red"),
    "unclear": ("?", "purple"),
    "not this PR's fault": ("~", "amber"),
    "flaky": ("~", "purple"),
    "infra": ("T", "amber"),
    "running": ("…", "blue"),
    "not reported": ("–", "grey"),
    "passed": ("O", "green"),
}
"""Glyph and colour of each verdict. Red is for what is new; what failed before is amber."""

STATE_LOOKS: Mapping[str, tuple[str, str]] = {
    "success": ("O", "green"),
    "passing": ("O", "green"),
    "failure": ("X", "amber"),
    "failing": ("X", "amber"),
    "cancelled": ("C", "grey"),
    "timed_out": ("T", "amber"),
    "stuck": ("T", "amber"),
    "infra": ("T", "amber"),
    "startup_failure": ("T", "amber"),
    "stale": ("T", "grey"),
    "action_required": ("?", "purple"),
    "skipped": ("S", "grey"),
    "neutral": ("N", "grey"),
    "running": ("…", "blue"),
    "no data": ("–", "grey"),
    "not reported": ("–", "grey"),
}

OUTCOME_COLOURS: Mapping[str, str] = {
    "passed": "green",
    "flaky": "purple",
    "xpassed": "purple",
    "xfailed": "grey",
    "skipped": "grey",
    "not_applicable": "grey",
    "deselected": "grey",
    **dict.fromkeys(FAILING, "amber"),
}

BADGE_FILLS: Mapping[str, str] = {
    "green": "#1a7f37",
    "red": "#cf222e",
    "amber": "#9a6700",
    "blue": "#0969da",
    "grey": "#59636e",
    "purple": "#8250df",
}

_HIDDEN = ("Cc", "Cf", "Co", "Cn", "Zl", "Zp")
_KEPT = "\n\t"
_ASCII_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_WHEEL_SUITE = "wheel/"
"""Prefix of the tests that come with conformance and need no checkout (docs/conformance.md, "Names")."""


def visible(value: Any) -> Any:
    """Make characters that one cannot see, or that reorder others, visible: ``U+202E`` becomes ``⟨202E⟩``."""
    if (
        not isinstance(value, str)
        or isinstance(value, Markup)
        or (value.isascii() and (value.isprintable() or _ASCII_CONTROL.search(value) is None))
    ):
        return value
    return "".join(
        f"⟨{ord(character):04X}⟩"
        if unicodedata.category(character) in _HIDDEN and character not in _KEPT
        else character
        for character in value
    )


def duration(seconds: float | None) -> str:
    """``40 s``, ``12 min``, ``3 h 5 min``, ``4 d``; a dash where it is unknown or impossible."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "–"
    if seconds < 10:
        return f"{seconds:.3f} s" if seconds < 0.1 else f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d"


def _duration(seconds: float | None) -> Markup:
    """The duration as an element that says that its figure is measured, and counts nothing."""
    return Markup('<span class="fact">{}</span>').format(duration(seconds))


def iso(seconds: float) -> str:
    """ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@pass_context
def ago(context: Context, seconds: float | None) -> Markup:
    """A ``<time>`` element: how long ago, and the moment itself on hover."""
    if seconds is None:
        return Markup("<span>never</span>")
    moment = iso(seconds)
    passed = duration(max(0.0, context.get("now", time.time()) - seconds))
    return Markup('<time datetime="{}" title="{}">{} ago</time>').format(moment, moment, passed)


def percent(part: int, whole: int) -> str:
    """A rate that says 100 % only when nothing is missing."""
    if not whole:
        return "–"
    value = 100 * part / whole
    return "100 %" if part == whole else f"{min(value, 99.99):.2f} %" if value > 99 else f"{value:.1f} %"


def thousands(number: int) -> str:
    """``12,345``."""
    return f"{number:,}"


@pass_context
def here(context: Context, **changes: object) -> str:
    """This page's address with some parameters changed; an empty value removes one."""
    request = context["request"]
    parameters = {**request.query_params, **{name: str(value) for name, value in changes.items()}}
    if "page" not in changes:
        parameters.pop("page", None)
    text = urlencode({name: value for name, value in parameters.items() if value != ""})
    path = str(request.url.path)
    return f"{path}?{text}" if text else path


def reproduce(page: Any, name: str) -> str:
    """Commands that run one test again, on the commit of its run and with its profile.

    A profile that is a path lies in the backend's own repository; without one, it is the installed backend's.
    """
    lines, options = [], ""
    if page.profile:
        options = f" --profile {_quoted(page.profile)}"
        if "/" in page.profile or page.profile.startswith("."):
            lines.append(f"# in a checkout of {' '.join(str(visible(page.repo)).split())}")
    if name.startswith(_WHEEL_SUITE):
        return "\n".join([*lines, f"conformance run{options} --output out {_quoted(name)}"])
    if page.sha:
        lines.append(f"git -C pytorch fetch origin {page.sha} && git -C pytorch checkout {page.sha}")
    lines.append(f"conformance run{options} --upstream pytorch --output out {_quoted(name)}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + str(visible(text)).replace("'", "'\\''").replace("\n", " ") + "'"


def make_environment() -> Environment:
    """The environment of every template."""
    environment = Environment(
        loader=PackageLoader("hud.app"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
    )
    environment.filters.update(
        ago=ago, duration=_duration, iso=iso, thousands=thousands, link=link, quoted=lambda text: quote(text, safe="")
    )
    environment.globals.update(
        percent=percent,
        here=here,
        reproduce=reproduce,
        denominator=denominator,
        verdict_looks=VERDICT_LOOKS,
        state_looks=STATE_LOOKS,
        outcome_colours=OUTCOME_COLOURS,
        letters=LETTER,
        outcomes=OUTCOMES,
        verdicts=VERDICTS,
    )
    return environment
