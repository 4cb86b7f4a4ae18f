"""The commands in docs/from-npu-ge.md print the output that the page shows."""

import re
import shlex
from pathlib import Path

import pytest

from ge_runtime import cli

PAGE = Path(__file__).resolve().parents[3] / "docs/from-npu-ge.md"
BLOCKS = re.findall(r"```(\w*)\n(.*?)```\n", PAGE.read_text(), re.DOTALL)
CONFIG = next(text for kind, text in BLOCKS if kind == "" and 'backend: "npu_ge"' in text)
CONSOLES = [text for kind, text in BLOCKS if kind == "console"]


def test_the_page_shows_a_refusal_and_a_conversion():
    assert len(CONSOLES) == 2


@pytest.mark.parametrize("console", CONSOLES)
def test_the_page_shows_what_is_printed(console, tmp_path, monkeypatch, capsys):
    file = tmp_path / "enc/config.pbtxt"
    file.parent.mkdir()
    file.write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    shown, _, code = console.partition("$ echo $?\n")
    command, _, shown = shown.partition("\n")
    assert cli.main(shlex.split(command.removeprefix("$ ge-runtime "))) == int(code or 0)
    stdout, stderr = capsys.readouterr()
    assert stderr + stdout == shown
