"""`ge-runtime build`: the real command, with the simulator's compiler on PATH."""

import json
import os

import pytest
from runtime.cli.test_inspect import ENCODER_CONFIG, parameter
from runtime.support.ascend import ENVIRONMENT, SITE, Machine
from runtime.support.graphs import ENCODER, write

from ge_runtime import cli
from ge_runtime.ascend.card import PROCESS_CARDS
from ge_runtime.cli.build import build

GEARS = parameter("gears.tokens", "8, 32") + parameter("gears.batch", "1, 8")
ON_CARD = parameter("devices", "npu:0")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.syspath_prepend(SITE)
    for variable, first in ENVIRONMENT.items():
        monkeypatch.setenv(variable, first, prepend=os.pathsep)
    machine = Machine()
    yield
    assert machine.report.live == []
    PROCESS_CARDS.__init__()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "encoder"
    write(ENCODER, "onnxruntime", folder / "1")
    (folder / "config.pbtxt").write_text(ENCODER_CONFIG + GEARS + ON_CARD)
    return folder


def run(*arguments):
    return cli.main([*map(str, arguments)])


def test_a_model_that_is_not_for_a_card_is_built_and_that_is_said(folder, capsys):
    (folder / "config.pbtxt").write_text(ENCODER_CONFIG + GEARS)
    assert run("build", folder) == 0
    _, note = capsys.readouterr().out.splitlines()
    assert note == "config.pbtxt says devices: cpu; model.om is served on npu:0 and others"


def test_a_model_is_built_recorded_and_inspected(folder, capsys):
    assert run("build", folder) == 0
    om = folder / "1" / "model.om"
    printed = capsys.readouterr().out
    assert printed.startswith(f"{om}: made with --soc_version=AscendSimulator ")
    assert "--dynamic_dims=1,8,1,8;" in printed.replace("'", "")
    record = json.loads(om.with_name("model.om.json").read_text())
    assert "--precision_mode_v2=origin" in record["flags"]
    assert run("inspect", folder) == 0
    shown = capsys.readouterr().out
    assert "npu:0 is AscendSimulator" in shown
    assert "batch,tokens   8x32  1x8, 1x32, 8x8, 8x32" in shown
    assert "device I/O" in shown
    assert run("conformance", folder, "--range", "input_ids=0:16", "--rounds", "2") == 0


def test_nothing_is_built_again_unless_something_has_changed(folder, capsys):
    def built():
        assert run("build", folder, "--soc-version", "AscendSimulator") == 0
        return ": made with" in capsys.readouterr().out

    assert built()
    assert not built()
    (folder / "1" / "model.om").write_bytes(b"something else")
    assert built()
    (folder / "config.pbtxt").write_text(ENCODER_CONFIG + parameter("gears.tokens", "16, 32"))
    assert built()
    assert not built()


def test_axes_without_gears_have_the_size_of_their_limit(folder, capsys):
    (folder / "config.pbtxt").write_text(
        ENCODER_CONFIG + parameter("gears.batch", "1, 8") + ON_CARD
    )
    lines = build(folder, folder / "1", "AscendSimulator", "fp16")
    assert "--dynamic_batch_size=1,8" in lines[0]
    assert "--precision_mode_v2=fp16" in lines[0]
    assert lines[1:] == ["without gears, so always tokens 32"]


def test_what_atc_refuses_is_told_in_its_words(folder, capsys):
    assert run("build", folder, "--soc-version", "Vulcan") == 2
    assert "atc failed with exit code 1" in (printed := capsys.readouterr().err)
    assert "E10001" in printed
    assert sorted(entry.name for entry in (folder / "1").iterdir()) == ["model.onnx"]


def test_what_is_missing_is_told_with_its_cure(folder, capsys, monkeypatch):
    (folder / "1" / "model.onnx").rename(folder / "model.onnx")
    assert run("build", folder) == 2
    assert "found no model.onnx" in capsys.readouterr().err
    (folder / "model.onnx").rename(folder / "1" / "model.onnx")
    monkeypatch.setenv("PATH", "/nowhere")
    assert run("build", folder, "--soc-version", "AscendSimulator") == 2
    assert "found no `atc` on PATH" in capsys.readouterr().err
    (folder / "config.pbtxt").write_text(ENCODER_CONFIG + parameter("stages", "a, b"))
    assert run("build", folder) == 2
    assert "parameter 'stages': found a, b, expected one model.onnx" in capsys.readouterr().err


def test_more_gears_than_atc_takes_are_refused(folder, capsys):
    sizes = ", ".join(map(str, range(1, 33)))
    more = parameter("gears.tokens", sizes) + parameter("gears.batch", "1, 2, 4, 8")
    (folder / "config.pbtxt").write_text(ENCODER_CONFIG + more)
    assert run("build", folder, "--soc-version", "AscendSimulator") == 2
    assert "found 128 combinations of gears, expected at most 100" in capsys.readouterr().err
