"""The page of triton-replay: its commands exist, and its quickest example runs unchanged."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import blocks, commands
from support.servers import ROOT, free_ports

from triton_replay.__main__ import make_parser
from triton_replay.capture.files import read_capture

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


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_story_of_the_batcher_runs_as_it_stands(tmp_path: Path):
    """With ports of its own, and for one second instead of twenty."""
    (block,) = [block for block in SHOWN if "build/batcher.html" in block.text]
    http, grpc, metrics = free_ports(3)
    ports = f"--http-port={http} --grpc-port={grpc} --metrics-port={metrics}"
    script = block.text
    for old, new in (
        ("--seconds 20", "--seconds 1"),
        ("localhost:8000", f"127.0.0.1:{http}"),
        ("reference-server ", f"reference-server --http-address=127.0.0.1 {ports} "),
    ):
        assert old in script
        script = script.replace(old, new)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "model_repository").symlink_to(ROOT / "model_repository")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-u", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    now, later = (
        len(read_capture(tmp_path / f"build/{name}.trc").exchanges) for name in ("now", "later")
    )
    assert now == later > 10
    assert f"{now} requests compared, the answers to 0 differ" in done.stdout
    assert len(re.findall('"execution_count":', done.stdout)) == 2
    assert "<svg" in (tmp_path / "build" / "batcher.html").read_text()
