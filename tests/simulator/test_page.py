"""docs/simulator.md against the package."""

import re
from dataclasses import fields
from pathlib import Path

from ascend_simulator import Settings
from ascend_simulator.faults import PLACES

PAGE = (Path(__file__).parents[2] / "docs/simulator.md").read_text()


def first_cells(heading):
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]


def test_the_page_has_every_setting_and_its_default():
    rows = dict(re.findall(r"^\| `--([a-z-]+)` \| `?([^|`]+?)`? \|", PAGE, re.MULTILINE))
    defaults = {
        field.name.replace("_", "-"): field.default
        for field in fields(Settings)
        if field.name != "visible_devices"
    }
    assert rows.keys() == defaults.keys()
    for name, default in defaults.items():
        shown = "none" if default in (None, "") else f"{default:g}" if default == 0.0 else default
        assert rows[name] == str(shown)


def test_the_page_has_every_place_of_faults():
    cells = " ".join(first_cells("Faults"))
    assert set(re.findall("`([a-z_]+)`", cells)) >= set(PLACES)
