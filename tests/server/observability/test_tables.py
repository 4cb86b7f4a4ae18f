"""The start-up table of models."""

import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from reference_server.observability.logs import model_table, terminal_width

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
|       |         | At:                    |
| n     | -       | READY                  |
+-------+---------+------------------------+"""

EMPTY = """\
+-------+---------+--------+
| Model | Version | Status |
+-------+---------+--------+
+-------+---------+--------+"""


def test_columns_are_as_wide_as_their_contents():
    assert model_table([("vec", "1", "READY"), ("vec", "10", "READY")]) == SHORT


def test_a_status_of_several_lines_takes_several_rows():
    rows = [("m", "1", "UNAVAILABLE: Internal:\n\nAt:\n"), ("n", "-", "READY")]
    assert model_table(rows) == TALL


def test_a_table_without_models_has_a_head():
    assert model_table([]) == EMPTY


LONG = (
    "UNAVAILABLE: Internal: no file /models/m/1/model.py, and no folder of this name\n\nAt:\n  x y"
)

IN_A_TERMINAL = """\
+-------+---------+--------------------------------+
| Model | Version | Status                         |
+-------+---------+--------------------------------+
| m     | 1       | UNAVAILABLE: Internal: no file |
|       |         |   /models/m/1/model.py, and no |
|       |         |   folder of this name          |
|       |         | At:                            |
|       |         |   x y                          |
+-------+---------+--------------------------------+"""


def test_a_long_status_is_wrapped_between_words_to_fit_the_terminal():
    assert model_table([("m", "1", LONG)], width=52) == IN_A_TERMINAL


def test_the_status_has_a_least_width_in_a_narrow_terminal():
    assert model_table([("m", "1", LONG)], width=10) == IN_A_TERMINAL


@pytest.mark.parametrize("width", [70, 80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    rows = [("m" * 20, "1", "x" * 500 + " " + "y " * 90), ("n", "12", LONG)]
    lines = model_table(rows, width).splitlines()
    assert {len(line) for line in lines} == {len(lines[0])}
    assert len(lines[0]) <= width


def test_words_are_not_broken_without_a_terminal():
    path = "/folder" * 30
    assert f"| {path} |" in model_table([("m", "1", path)])


def test_only_a_terminal_has_a_width(tmp_path):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 77, 0, 0))
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb"):
        assert terminal_width(terminal) == 77
    assert terminal_width(terminal) is None
    assert terminal_width(io.StringIO()) is None
    with (tmp_path / "log").open("w") as file:
        assert terminal_width(file) is None
