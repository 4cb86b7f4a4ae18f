"""The commands in docs/from-npu-ge.md print the output that the page shows."""

import re
import shlex
from pathlib import Path

import pytest

from ge_runtime import cli

PAGE = Path(__file__).resolve().parents[3] / "docs/from-npu-ge.md"
BLOCKS = re.findall(r"```(\w*)\n(.*?)```\n", PAGE.read_text(), re.DOTALL)
CONFIGS = [text for kind, text in BLOCKS if kind == "" and 'backend: "npu_ge"' in text]
CONSOLES = [text for kind, text in BLOCKS if kind == "console"]


def test_the_page_shows_the_official_and_the_tuned_example():
    assert (len(CONFIGS), len(CONSOLES)) == (2, 2)


@pytest.mark.parametrize("console", CONSOLES)
def test_the_page_shows_what_is_printed(console, tmp_path, monkeypatch, capsys):
    for text in CONFIGS:
        file = tmp_path / "models" / re.search('name: "(.*)"', text)[1] / "config.pbtxt"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    command, _, shown = console.replace("\\\n", "").partition("\n")
    assert cli.main(shlex.split(command.removeprefix("$ ge-runtime "))) == 0
    stdout, stderr = capsys.readouterr()
    assert stderr + stdout == shown
