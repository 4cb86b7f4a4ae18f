"""Output of commands on the simulator in docs/ascend.md."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from runtime.support.ascend import ENVIRONMENT
from support.pages import ROOT, blocks, sessions, shows

SESSIONS = [
    (block, command, shown)
    for block in blocks()
    if block.page.name == "ascend.md" and block.text.startswith("$ ")
    for command, shown in sessions(block)
]
SOURCE = ROOT / "model_repository" / "ge_classifier"
ON_CARD = 'parameters { key: "devices" value { string_value: "npu:0" } }'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the page's commands run; it contains `my_models`."""
    if not (SOURCE / "1" / "model.onnx").exists():
        pytest.skip("the model is not there: `make models`")
    folder = tmp_path_factory.mktemp("page")
    model = folder / "my_models" / "ge_classifier"
    (model / "1").mkdir(parents=True)
    shutil.copy(SOURCE / "1" / "model.onnx", model / "1")
    (added,) = [block.text for block in blocks("pbtxt") if ON_CARD in block.text]
    config = (SOURCE / "config.pbtxt").read_text().replace('"256"', '"128"')
    (model / "config.pbtxt").write_text(f"{config}\n{added}")
    return folder


@pytest.mark.slow
def test_commands_print_the_output_on_the_page(folder):
    environment = {**os.environ, "COLUMNS": "100"}
    for variable, first in ENVIRONMENT.items():
        environment[variable] = os.pathsep.join((first, environment.get(variable, "")))
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    assert len(SESSIONS) == 5
    for block, command, shown in SESSIONS:
        if command.startswith("eval "):  # done: ENVIRONMENT
            continue
        line = f"({command}) 2>&1 || true"
        ran = subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert shows(shown, ran.stdout), f"{block}: $ {command}\n{ran.stdout}"
