"""Files for observing the servers: alert rules, the dashboard, compose's profiles."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from support import grafana
from support.prometheus import PROMTOOL, needs_promtool
from support.servers import ROOT

pytest.importorskip("grafana_foundation_sdk", reason="Grafana's SDK needs Python 3.11")
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tools import dashboard

OBSERVE = ROOT / "observe"
RULES = yaml.safe_load((OBSERVE / "alerts.yml").read_text())
ALERTS = [rule["alert"] for group in RULES["groups"] for rule in group["rules"]]


def promtool(*words: str) -> None:
    ended = subprocess.run(
        [str(PROMTOOL), *words], cwd=OBSERVE, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@needs_promtool
def test_prometheus_takes_its_configuration():
    promtool("check", "config", "prometheus.yml")


@needs_promtool
@pytest.mark.parametrize("file", ["alerts_test.yml", "autoscaling_test.yml"])
def test_rules_do_what_their_cases_say(file: str):
    promtool("test", "rules", file)


def test_each_alert_has_a_case_in_which_it_fires_and_a_row_on_the_page():
    cases = yaml.safe_load((OBSERVE / "alerts_test.yml").read_text())["tests"]
    fires = {
        test["alertname"]
        for case in cases
        for test in case["alert_rule_test"]
        if test.get("exp_alerts")
    }
    assert fires == set(ALERTS)
    page = (ROOT / "docs" / "observing.md").read_text()
    section = page.partition("## Alerts")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.M) == ALERTS


def test_the_dashboard_is_what_its_tables_say():
    assert dashboard.FILE.read_text() == dashboard.build(), "run python -m tools.dashboard"


def test_grafanas_sdk_reads_the_dashboard_as_it_was_written():
    """It leaves out what it does not know: a field that is misspelt would be missing."""
    plugins.register_default_plugins()
    told = json.loads(dashboard.FILE.read_text())
    read = Dashboard.from_json(told)
    assert json.loads(JSONEncoder(sort_keys=True).encode(read)) == told


@pytest.mark.skipif(
    shutil.which("node") is None or not grafana.COMPILER.exists(),
    reason="Grafana's types were not downloaded by npm; make clients",
)
def test_the_dashboard_is_of_grafanas_own_types(tmp_path: Path):
    told = json.loads(dashboard.FILE.read_text())
    misspelt = copy.deepcopy(told)
    panel = next(each for each in misspelt["panels"] if each["type"] == "timeseries")
    panel["options"]["legends"] = panel["options"].pop("legend")
    for name, each in (("dashboard", told), ("misspelt", misspelt)):
        (tmp_path / f"{name}.ts").write_text(grafana.typescript(each))
    options = ("--noEmit", "--strict", "--skipLibCheck", "--target", "es2022")
    options += ("--module", "esnext", "--moduleResolution", "bundler")
    command = ["node", str(grafana.COMPILER), *options, "dashboard.ts", "misspelt.ts"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    faults = [line for line in ran.stdout.splitlines() if "error" in line]
    assert faults
    assert all(line.startswith("misspelt.ts") and "legends" in line for line in faults), faults


def test_the_page_names_the_profiles_of_compose():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    profiles = defaultdict(list)
    for name, service in services.items():
        for profile in service.get("profiles", ["none"]):
            profiles[profile].append(name)
    page = (ROOT / "docs" / "deployment.md").read_text()
    table = page.partition("### Profiles")[2].partition("### Services")[0]
    rows = re.findall(r"^\| `?(\w+)`? \| (`.*`) \| `docker compose (.*)` \|$", table, re.M)
    told = {profile: re.findall(r"`(\w+)`", names) for profile, names, _ in rows}
    assert told == profiles
    for profile, _, command in rows:
        assert command in ("up", f"--profile {profile} up", f"run --rm {profile}")
