"""Recorded terminals and their drawing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

from tools import recording

SVG = "{http://www.w3.org/2000/svg}"


def test_a_terminal_records_commands_and_output(tmp_path: Path):
    terminal = recording.Terminal("A terminal", 5, tmp_path, {"NAME": "value"})
    try:
        terminal.type("echo \"<$NAME>\"; printf '\\033[1mbold\\033[0m\\n'")
    finally:
        terminal.close()
    command, *output = [text for _, text in terminal.lines()]
    assert command.startswith('$ echo "<$NAME>"; printf')
    assert output == ["<value>", "bold"]


def test_the_drawing_shows_lines_when_they_appeared_and_scrolls():
    times = [(0.0, "$ run"), (0.1, "one & two"), (0.1, "x" * 120), (60.0, "$ end"), (60.5, "last")]
    terminal = SimpleNamespace(title="T", rows=3, lines=lambda: times)
    drawn = recording.draw([terminal], "Title <1>")
    root = ElementTree.fromstring(drawn)
    assert root.find(f"{SVG}title").text == "Title <1>"
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert texts == ["T", "$ run", "one & two", "x" * 99 + "…", "$ end", "last"]
    # The pause of a minute is shown as 1.5 s, and a second for the command; then the last screen.
    assert "animation:s0 12.3s" in drawn
    rules = drawn.split("@keyframes s0")[1].split("@keyframes c0")
    assert [part.split("px")[0] for part in rules[0].split("translateY(")[1:]] == [
        *("-0", "-0", "-16", "-32")
    ]
    assert [part.split("px")[0] for part in rules[1].split("translateY(")[1:]][:4] == [
        *("16", "48", "64", "80")
    ]
