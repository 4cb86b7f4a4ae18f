"""The table of parameters: the documentation shows it, and every parameter is read."""

from pathlib import Path

import pytest
from runtime.support.configs import encoder_config
from runtime.support.parsing import faults_of

from ge_runtime.config.parameter_table import FAMILIES, SETTINGS
from ge_runtime.config.parameters import markdown_table

PAGE = Path(__file__).parents[3] / "docs" / "parameters.md"


@pytest.mark.parametrize("entries", [SETTINGS, FAMILIES], ids=["settings", "families"])
def test_the_page_shows_the_table(entries):
    assert markdown_table(entries) in PAGE.read_text(encoding="utf-8")


def test_a_row_has_key_value_and_default():
    oversize = next(setting for setting in SETTINGS if setting.key == "oversize")
    limit = next(family for family in FAMILIES if family.name == "limit")
    assert markdown_table([oversize, limit]).splitlines()[2:] == [
        "| `oversize` | `error` or `fallback`. A request that fits no gear is refused by `error`, "
        "and executed alone at its own size by `fallback` | `error` |",
        "| `limit.<axis>` | a size. No request may be larger along the axis; memory is planned "
        "for this size | needed for every axis |",
    ]


@pytest.mark.parametrize("key", [setting.key for setting in SETTINGS])
def test_every_setting_must_be_a_string(key):
    config = encoder_config()
    config["parameters"][key] = {"int64_value": 1}
    assert f"parameter '{key}': found {{'int64_value': 1}}, expected value" in faults_of(config)[0]


@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
def test_a_family_needs_a_target(family):
    faults = faults_of(encoder_config({family: "1"}))
    assert f"parameter '{family}': found no such parameter" in faults[0]
    assert f"did you mean '{family}." in faults[0]
