"""The page of triton-replay: its commands exist."""

from __future__ import annotations

import shlex

import pytest
from support.pages import blocks, commands

from triton_replay.__main__ import make_parser

pytestmark = pytest.mark.slow

COMMAND = ".venv/bin/triton-replay "
SHOWN = [block for block in blocks() if block.page.name == "replay.md"]
WORDS = [
    (f"{block.page.name}: {words}", words)
    for block in SHOWN
    for command in commands(block)
    if (words := command.strip()).startswith(COMMAND)
]


@pytest.mark.parametrize("words", [words for _, words in WORDS], ids=[name for name, _ in WORDS])
def test_a_command_of_a_page_has_the_options_that_it_is_given(words: str):
    given = shlex.split(words.removeprefix(COMMAND).removesuffix(" &"))
    assert make_parser().parse_args(given).run
