"""What stands around the servers: alert rules, the dashboard's file, compose's profiles."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict

import pytest
import yaml
from support.prometheus import PROMTOOL, needs_promtool
from support.servers import ROOT

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
    assert re.findall(r"^\| `(\w+)` \|", page, re.M) == ALERTS


def test_the_dashboard_is_what_its_tables_say():
    assert dashboard.FILE.read_text() == dashboard.build(), "run python -m tools.dashboard"


def test_the_page_counts_the_panels():
    panels = [panel for row in dashboard.ROWS.values() for panel in row]
    page = (ROOT / "docs" / "observing.md").read_text()
    assert f"a dashboard with {len(panels)} panels" in page
    assert sum(panel.ours for panel in panels) == 3


def test_panels_have_places_and_numbers_of_their_own():
    panels = json.loads(dashboard.FILE.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)


def test_the_page_names_the_profiles_of_compose():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    profiles = defaultdict(list)
    for name, service in services.items():
        for profile in service.get("profiles", ["none"]):
            profiles[profile].append(name)
    page = (ROOT / "docs" / "docker.md").read_text()
    table = page.partition("## Profiles")[2].partition("## Services")[0]
    rows = re.findall(r"^\| `?(\w+)`? \| (`.*`) \| `docker compose (.*)` \|$", table, re.M)
    told = {profile: re.findall(r"`(\w+)`", names) for profile, names, _ in rows}
    assert told == profiles
    for profile, _, command in rows:
        assert command in ("up", f"--profile {profile} up", f"run --rm {profile}")


@pytest.mark.parametrize("file", ["prometheus.yml", "alerts.yml", "autoscaling.yml"])
def test_the_image_has_what_prometheus_reads(file: str):
    assert (OBSERVE / file).is_file()
    assert "COPY observe/*.yml /etc/prometheus/" in (ROOT / "Dockerfile").read_text()
    assert "!observe\n" in (ROOT / ".dockerignore").read_text()
