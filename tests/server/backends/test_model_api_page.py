"""Tests that docs/model-api.md agrees with the tests of the features."""

import re
from pathlib import Path

from contract import model_api_scripts
from server.backends.checklist import ROWS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "model-api.md").read_text(encoding="utf-8")
STATES = {"superset", "difference"}
TABLE = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if re.match(r"\| \d", line)
]
STATE = {row.number: "same" for row in ROWS} | {int(row[0]): row[2] for row in TABLE}


def test_the_page_has_each_difference_once_in_order_and_with_its_reason():
    numbers = [int(row[0]) for row in TABLE]
    assert numbers == sorted(set(numbers))
    assert {row[2] for row in TABLE} == STATES
    assert all(row[3] for row in TABLE)


def test_rows_without_the_real_server_are_not_marked_as_same():
    alone = {row.number for row in ROWS if row.ours_alone}
    for number in alone:
        same = all(row.ours_alone for row in ROWS if row.number == number)
        assert not (same and STATE[number] == "same")


def test_rows_with_the_real_server_are_marked_as_same():
    asked = {row.number for row in ROWS if not row.ours_alone}
    assert {STATE[number] for number in asked} <= {"same"}


def test_the_refusal_of_the_page_is_the_one_that_models_get():
    (script,) = [
        row for row in model_api_scripts.SCRIPTS if row.name == "oneself, with no other instance"
    ]
    (shown,) = [block for block in PAGE.split("```") if "would never be answered" in block]
    assert script.here == f"__ErrorCode.INTERNAL: {' '.join(shown.split())}"
