"""The page of rows: its counts are those of its tables."""

import re
from collections import Counter
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "versions.md").read_text(encoding="utf-8")


def test_the_counts_are_those_of_the_rows():
    rows = PAGE.partition("## The rows")[2].partition("## Attacks")[0]
    statuses = [
        line.rstrip(" |").rpartition(" | ")[2].partition(":")[0]
        for line in rows.splitlines()
        if line.startswith("| ") and not line.startswith(("| Row ", "| --- "))
    ]
    told = re.search(r"Of (\d+) rows newest \*has\* (\d+), (\d+) \*differ\*,\snone is", PAGE)
    assert told is not None
    found = Counter(statuses)
    assert set(found) == {"has", "differs"}
    assert [*map(int, told.groups())] == [len(statuses), found["has"], found["differs"]]
