"""The start-up table of models."""

from reference_server.observability import tables

SHORT = """\
+-------+---------+--------+
| Model | Version | Status |
+-------+---------+--------+
| vec   | 1       | READY  |
| vec   | 10      | READY  |
+-------+---------+--------+"""

TALL = """\
+-------+---------+------------------------+
| Model | Version | Status                 |
+-------+---------+------------------------+
| m     | 1       | UNAVAILABLE: Internal: |
|       |         |                        |
|       |         | At:                    |
| n     | -       | READY                  |
+-------+---------+------------------------+"""

EMPTY = """\
+-------+---------+--------+
| Model | Version | Status |
+-------+---------+--------+
+-------+---------+--------+"""


def test_columns_are_as_wide_as_what_stands_in_them():
    assert tables.models([("vec", "1", "READY"), ("vec", "10", "READY")]) == SHORT


def test_a_status_of_several_lines_takes_several_rows():
    rows = [("m", "1", "UNAVAILABLE: Internal:\n\nAt:\n"), ("n", "-", "READY")]
    assert tables.models(rows) == TALL


def test_no_models():
    assert tables.models([]) == EMPTY


def test_a_long_status_is_broken():
    status = "x" * 100
    lines = tables.models([("m", "1", status)]).splitlines()
    assert len({len(line) for line in lines}) == 1
    shown = [line.split("|")[3].strip() for line in lines[3:-1]]
    assert len(shown) == 2
    assert "".join(shown) == status
