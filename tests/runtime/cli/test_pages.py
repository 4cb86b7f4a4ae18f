"""Output of commands in docs/ascend.md, docs/memory.md and docs/runtime.md."""

import os
import shutil

import pytest
from runtime.support.ascend import ENVIRONMENT, SITE, Machine, compile_in_process
from support.pages import ROOT, blocks, sessions, shows

from ge_runtime import cli
from ge_runtime.npu.driver.card import PROCESS_CARDS

pytestmark = pytest.mark.slow

COMMAND = "ge-runtime "
SHOWN = [
    (block, command, shown)
    for block in blocks()
    if block.text.startswith("$ ")
    for command, shown in sessions(block)
    if COMMAND in command and shown
]
ON_CARD = 'parameters { key: "devices" value { string_value: "npu:0" } }'


def sessions_of(page, model):
    """Return the sessions of a page whose commands are for a model."""
    return [own for own in SHOWN if own[0].page.name == page and model in own[1]]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function: folder of a model, settings of the simulator -> one that runs commands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.syspath_prepend(SITE)
    for variable, first in ENVIRONMENT.items():
        monkeypatch.setenv(variable, first, prepend=os.pathsep)
    compile_in_process(monkeypatch)

    def start(model, copy):
        source = ROOT / "model_repository" / model
        if not (source / "1" / "model.onnx").exists():
            pytest.skip("the model is not there: `make models`")
        (tmp_path / copy / "1").mkdir(parents=True)
        shutil.copy(source / "1" / "model.onnx", tmp_path / copy / "1")
        return tmp_path / copy / "config.pbtxt", (source / "config.pbtxt").read_text()

    def check(session, **settings):
        block, command, shown = session
        Machine().start(**settings)
        PROCESS_CARDS.__init__()
        cli.main(command.partition(COMMAND)[2].split())
        printed = capsys.readouterr()
        assert shows(shown, printed.out + printed.err), f"{block}: $ {command}\n{printed}"

    yield start, check
    PROCESS_CARDS.__init__()


def test_commands_for_a_classifier_on_a_simulated_card(run):
    start, check = run
    config, text = start("ge_classifier", "my_models/ge_classifier")
    (added,) = [block.text for block in blocks("pbtxt") if ON_CARD in block.text]
    config.write_text(text.replace('"256"', '"128"') + f"\n{added}")
    build, inspect, without_device = sessions_of("ascend.md", "my_models/ge_classifier")
    check(build)
    check(inspect)
    check(without_device, devices=0)
    (probe,) = sessions_of("ascend.md", "probe-device")
    check(probe)


def test_commands_for_an_encoder_on_the_cpu_and_a_simulated_card(run):
    start, check = run
    config, text = start("text_encoder", "model_repository/text_encoder")
    (gears,) = [
        block.text
        for block in blocks()
        if block.page.name == "runtime.md" and "npu:0" in block.text and "gears.batch" in block.text
    ]
    (on_cpu, on_card), (build,) = (
        [
            own
            for page in ("memory.md", "runtime.md")
            for own in sessions_of(page, "text_encoder")
            if f"{COMMAND}{name} " in own[1]
        ]
        for name in ("inspect", "build")
    )
    config.write_text(text)
    check(on_cpu)
    config.write_text(f"{text}\n{gears}")
    check(build, soc="Ascend910B3")  # that the page builds for
    check(on_card, soc="Ascend910B3")
