"""Output of commands for the encoder in docs/memory.md and docs/runtime.md."""

import os
import shutil

import pytest
from runtime.support.ascend import ENVIRONMENT, SITE, Machine, compile_in_process
from support.pages import ROOT, blocks, sessions, shows

from ge_runtime import cli
from ge_runtime.npu.driver.card import PROCESS_CARDS

SOURCE = ROOT / "model_repository" / "text_encoder"
COMMAND = "ge-runtime "
FOLDER = "model_repository/text_encoder"
SHOWN = [
    (block, command, shown)
    for block in blocks()
    if block.page.name in ("memory.md", "runtime.md") and block.text.startswith("$ ")
    for command, shown in sessions(block)
    if command.startswith(COMMAND) and FOLDER in command and shown
]
(GEARS,) = [
    block.text
    for block in blocks()
    if block.page.name == "runtime.md" and "npu:0" in block.text and "gears.batch" in block.text
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the pages' commands run."""
    if not (SOURCE / "1" / "model.onnx").exists():
        pytest.skip("the model is not there: `make models`")
    folder = tmp_path_factory.mktemp("pages")
    (folder / FOLDER / "1").mkdir(parents=True)
    shutil.copy(SOURCE / "1" / "model.onnx", folder / FOLDER / "1")
    shutil.copy(SOURCE / "config.pbtxt", folder / FOLDER)
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Return a function that runs a page's command and returns its output."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(SITE)
    for variable, first in ENVIRONMENT.items():
        monkeypatch.setenv(variable, first, prepend=os.pathsep)
    compile_in_process(monkeypatch)
    Machine().start(soc="Ascend910B3")  # that the page builds for

    def run(command):
        assert cli.main(command.removeprefix(COMMAND).split()) == 0
        return capsys.readouterr().out

    yield run
    PROCESS_CARDS.__init__()


@pytest.mark.slow
def test_commands_print_the_output_on_the_pages(folder, run):
    """First on the CPU, then with the gears of runtime.md on a simulated card."""
    (on_cpu, on_card), (build,) = (
        [each for each in SHOWN if f"{COMMAND}{name} " in each[1]] for name in ("inspect", "build")
    )
    assert shows(on_cpu[2], run(on_cpu[1])), str(on_cpu[0])
    with (folder / FOLDER / "config.pbtxt").open("a") as config:
        config.write(f"\n{GEARS}")
    assert shows(build[2], run(build[1])), str(build[0])
    assert shows(on_card[2], run(on_card[1])), str(on_card[0])
