"""docs/versions.md: the counts in its text are those of its tables."""

import re
from collections import Counter
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "versions.md").read_text(encoding="utf-8")


def test_the_counts_are_those_of_the_rows():
    tables = PAGE.partition("## Differences between the versions")[2].partition("## Attacks")[0]
    rows = [
        line.strip("| ").split(" | ")
        for line in tables.splitlines()
        if line.startswith("| ") and not line.startswith(("| Row ", "| --- "))
    ]
    statuses = [status.partition(":")[0] for *_, status in rows]
    fixed = sum("security" in proven or "as in newest" in proven for _, _, _, proven, _, _ in rows)
    stated = re.search(
        r"Of (\d+) rows newest \*has\* (\d+), (\d+) \*differ\*,\snone is .* holds in (\d+) rows, "
        r".* other (\d+) are",
        PAGE,
        re.DOTALL,
    )
    assert stated is not None
    found = Counter(statuses)
    assert set(found) == {"has", "differs"}
    assert [*map(int, stated.groups())] == [
        *(len(rows), found["has"], found["differs"]),
        *(fixed, len(rows) - fixed),
    ]
