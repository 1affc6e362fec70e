"""The files that operators copy say what the relay needs and has."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from relay.app.metrics import Metrics
from relay.app.settings import Settings
from relay.core import github_app

DEPLOY = Path(__file__).parents[2] / "relay" / "deploy"


class _Unit(configparser.ConfigParser):
    """A unit file: keys keep their case and may stand several times."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def test_1_11_the_manifest_asks_for_what_the_relay_needs() -> None:
    manifest = json.loads((DEPLOY / "app-manifest.json").read_text())
    assert manifest["default_permissions"] == dict(github_app.PERMISSIONS)
    assert manifest["default_events"] == list(github_app.EVENTS)
    assert manifest["hook_attributes"]["url"].endswith("/github/webhook")


def test_1_11_missing_permissions_and_events_are_found() -> None:
    assert github_app.missing_permissions(github_app.PERMISSIONS) == []
    assert github_app.missing_permissions({**github_app.PERMISSIONS, "checks": "read"}) == ["checks: write"]
    assert github_app.missing_permissions({"metadata": "write"})[0] == "actions: write"
    assert github_app.missing_events(["push"]) == ["check_run", "check_suite", "pull_request"]


def test_every_metric_of_the_dashboard_is_one_of_the_relays() -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\brelay_\w+", target["expr"])
    }
    metrics = Metrics()
    families = {family.name: family.type for family in metrics.registry.collect()}
    suffix = {"counter": "_total", "histogram": "_bucket", "gauge": ""}
    assert asked == {name + suffix[kind] for name, kind in families.items()}, "and every one of the relay's is shown"


@pytest.mark.parametrize("name", ["relay.service", "Containerfile"])
def test_every_setting_that_is_named_is_one(name: str) -> None:
    named = set(re.findall(r"\bRELAY_([A-Z_]+)=", (DEPLOY / name).read_text())) - {"CONFIG_FILE"}
    assert named
    assert {setting.removesuffix("_FILE").lower() for setting in named} <= Settings.model_fields.keys()


def test_the_unit_file_is_one_that_systemd_takes(tmp_path: Path) -> None:
    text = (DEPLOY / "relay.service").read_text()
    sections: Any = _Unit(strict=False)
    sections.read_string(text)
    assert sections["Service"]["ExecStart"].endswith("relay serve --port 8080")
    if shutil.which("systemd-analyze") is None:
        return
    unit = tmp_path / "relay.service"
    unit.write_text(text.replace("/opt/relay/bin/relay", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "relay.service" not in done.stderr, done.stderr
