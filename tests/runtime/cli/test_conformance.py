"""`ge-runtime conformance`: exit codes and options."""

import re

import pytest
from runtime.support.graphs import PIXELS, copy_of, write

from ge_runtime import cli
from ge_runtime.engines.onnx import OnnxEngine

PIXELS_CONFIG = """
max_batch_size: 4
input { name: "image" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] }
output [
  { name: "sums" data_type: TYPE_FP32 dims: [ 2 ] },
  { name: "inverted" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] },
  { name: "label" data_type: TYPE_INT32 dims: [ 1 ] }
]
parameters { key: "axes.image" value { string_value: "height,width" } }
parameters { key: "axes.inverted" value { string_value: "height,width" } }
parameters { key: "limit.height" value { string_value: "6" } }
parameters { key: "limit.width" value { string_value: "6" } }
parameters { key: "mask.mask" value { string_value: "height,width" } }
"""


@pytest.fixture
def folder(tmp_path):
    """An image model with one output that the model's code computes."""
    folder = tmp_path / "pixels"
    write(PIXELS, "onnxruntime", folder / "1")
    (folder / "config.pbtxt").write_text(PIXELS_CONFIG)
    return folder


def run(*arguments):
    return cli.main(["conformance", *map(str, arguments), "--rounds", "2"])


def test_a_correct_model_exits_with_0(folder, capsys):
    assert run(folder, "--seed", "5", "--range", "image=0:0.25") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("pixels: 2 round(s) of seed 5, ")
    assert re.fullmatch(r"leakage: none: \d+ answer\(s\) stayed the same to the bit .*", printed[2])
    assert re.fullmatch(r"rounding: answers differ from those of .* by at most \S+", printed[3])
    assert [printed[1], *printed[4:]] == [
        "padding of 'image' poisoned with 0.25",
        "passed: every answer is that of the request alone",
    ]


def test_the_highest_version_is_the_default(folder, capsys):
    write(copy_of("float32"), "onnxruntime", folder / "2")
    assert run(folder) == 2
    assert "image" in capsys.readouterr().err  # which the graph of version 2 does not take
    assert run(folder, "--version", "1") == 0


def test_a_wrong_response_exits_with_1_unless_tolerated(folder, capsys, monkeypatch):
    execute = OnnxEngine.run

    def imprecise(engine, inputs, outputs):
        results = execute(engine, inputs, outputs)
        results["inverted"] += 1e-3 * len(inputs["image"])
        return results

    monkeypatch.setattr(OnnxEngine, "run", imprecise)
    assert run(folder) == 1
    assert "FAILED" in capsys.readouterr().out
    assert run(folder, "--tolerance", "0.1") == 0


def test_padding_can_be_nan_or_kept(folder, capsys):
    assert run(folder, "--padding", "nan") == 1  # the graph multiplies by its mask
    assert "padding of 'image' poisoned with nan" in capsys.readouterr().out
    assert run(folder, "--padding", "keep") == 0


def test_a_range_of_an_unknown_input_exits_with_2(folder, capsys):
    assert run(folder, "--range", "img=0:1") == 2
    expected = "ge-runtime: range of 'img': found no such input, expected: image\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["--range", "image"],
        ["--range", "0:1"],
        ["--range", "image=0:much"],
        ["--tolerance", "-1"],
        ["--tolerance", "some"],
        ["--seed", "-1"],
        ["--rounds", "0"],
        ["--seconds", "0"],
        ["--padding", "zero"],
    ],
)
def test_invalid_arguments_exit_with_2(folder, arguments, capsys):
    with pytest.raises(SystemExit) as exited:
        cli.main(["conformance", str(folder), *arguments])
    assert exited.value.code == 2
    assert f"argument {arguments[0]}" in capsys.readouterr().err
