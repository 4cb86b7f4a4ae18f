"""`ge-runtime build` with the simulator's compiler."""

import json
import os
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from runtime.cli.test_inspect import parameter
from runtime.support.ascend import ENVIRONMENT, SITE, Machine, compile_in_process
from runtime.support.axis_graphs import recurrent, saved
from runtime.support.configs import ENCODER_CONFIG
from runtime.support.graphs import ENCODER, onnx_text, write
from runtime.support.images import write_shown
from runtime.support.pipelines import write_stages

from ge_runtime import cli
from ge_runtime.cli.build import build
from ge_runtime.npu.driver.atc import Atc, content_of
from ge_runtime.npu.driver.card import PROCESS_CARDS
from ge_runtime.npu.driver.driver import UNKNOWN_CHIP
from ge_runtime.npu.driver.pyacl import PyAclDriver

pytestmark = pytest.mark.brute_force

PIPELINE_CONFIG = ENCODER_CONFIG.replace(
    'name: "embedding" data_type: TYPE_FP32 dims: [ 4 ]',
    'name: "scores" data_type: TYPE_FP32 dims: [ 3 ]',
) + parameter("stages", "embed, pool, head, scale")

GEARS = parameter("gears.tokens", "8, 32") + parameter("gears.batch", "1, 8")
ON_CARD = parameter("devices", "npu:0")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.syspath_prepend(SITE)
    for variable, first in ENVIRONMENT.items():
        monkeypatch.setenv(variable, first, prepend=os.pathsep)
    compile_in_process(monkeypatch)
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


def test_build_record_and_inspect(folder, capsys):
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


def test_unchanged_models_are_not_built_again(folder, capsys):
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


def test_external_weights_are_part_of_the_record(folder, capsys):
    source = folder / "1" / "model.onnx"
    graph = onnx.load(source)
    beside = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 64}

    def built(factor):
        for tensor in graph.graph.initializer:
            if tensor.data_type == TensorProto.FLOAT:
                values = numpy_helper.to_array(tensor) * np.float32(factor)
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        (folder / "1" / "weights.bin").unlink(missing_ok=True)
        onnx.save(graph, source, **beside)
        onnx.load_external_data_for_model(graph, str(source.parent))
        assert run("build", folder) == 0
        return source.read_bytes(), ": made with" in capsys.readouterr().out

    first, made = built(1)
    assert made
    assert built(1) == (first, False)
    assert built(2) == (first, True)


def test_axes_without_gears_have_the_size_of_their_limit(folder, capsys):
    (folder / "config.pbtxt").write_text(ENCODER_CONFIG + parameter("gears.batch", "1, 8"))
    lines = build(folder, folder / "1", ["AscendSimulator"], "fp16")
    assert "--dynamic_batch_size=1,8" in lines[0]
    assert "--precision_mode_v2=fp16" in lines[0]
    assert lines[1:] == [
        "axes without gears have one size: tokens 32",
        "config.pbtxt has devices: cpu; .om files need cards, e.g. npu:0",
    ]


RECURRENT_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
sequence_batching { oldest { max_candidate_sequences: 4 } }
"""
STATE = (
    parameter("state.state", "next")
    + parameter("batch_axis.state", "1")
    + parameter("batch_axis.next", "1")
)


@pytest.mark.parametrize(
    ("batch", "gears", "compiled"),
    [("batch", "1, 4", "--dynamic_dims=1,1;4,4"), (2, None, "--input_shape=x:2,3;state:2,2,3")],
)
def test_states_and_rows_along_other_dims(tmp_path, capsys, batch, gears, compiled):
    folder = tmp_path / "recurrent"
    saved(recurrent(batch), folder)
    text = RECURRENT_CONFIG + STATE + ON_CARD
    (folder / "config.pbtxt").write_text(text + (parameter("gears.batch", gears) if gears else ""))
    assert run("build", folder) == 0
    assert compiled in capsys.readouterr().out
    assert run("conformance", folder, "--rounds", "2") == 0


def test_flags_of_atc_and_their_files_are_part_of_the_record(folder, capsys, tmp_path, monkeypatch):
    rules = folder / "rules.ini"
    rules.write_text("[High]\n")
    flags = parameter("atc.op_precision_mode", "rules.ini") + parameter("atc.log", "info")
    (folder / "config.pbtxt").write_text(ENCODER_CONFIG + GEARS + ON_CARD + flags)
    record = folder / "1" / "model.om.json"

    def built(*further):
        assert run("build", folder, *further) == 0
        return ": made with" in capsys.readouterr().out

    assert built()
    assert json.loads(record.read_text())["flags"][-2:] == [
        "--log=info",
        "--op_precision_mode=rules.ini",
    ]
    assert not built()
    rules.write_text("[Low]\n")
    assert built()
    own = tmp_path / "own.ini"
    own.write_text("[Low]\n")
    monkeypatch.chdir(tmp_path)
    further = ("--atc", "op_precision_mode=own.ini", "--atc=--op_select_implmode=high_precision")
    assert built(*further)
    assert not built(*further)
    made = json.loads(record.read_text())
    assert made["flags"][-3:] == [
        "--log=info",
        "--op_precision_mode=own.ini",
        "--op_select_implmode=high_precision",
    ]
    assert made["files"].keys() == {"op_precision_mode"}
    own.unlink()
    assert run("build", folder, *further) == 2
    assert "atc's --op_precision_mode: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("log", "found 'log', expected FLAG=VALUE"),
        ("output=x", "output: found 'x', expected none, as `ge-runtime build` sets it"),
    ],
)
def test_reserved_flags_are_refused(folder, capsys, given, expected):
    with pytest.raises(SystemExit):
        run("build", folder, "--atc", given)
    assert expected in capsys.readouterr().err


def test_a_folder_is_identified_by_its_files(tmp_path):
    bank = tmp_path / "bank"
    (bank / "sub").mkdir(parents=True)
    (bank / "sub" / "MatMul.json").write_text("{}")
    first = content_of(bank)
    assert content_of(bank) == first
    (bank / "sub" / "MatMul.json").rename(bank / "sub" / "Conv.json")
    assert content_of(bank) != first


def test_operators_that_only_atc_knows_are_passed_to_it(folder, capsys, monkeypatch):
    """Without ONNX Runtime, which refuses such graphs."""
    model = onnx.load(path := folder / "1" / "model.onnx")
    model.graph.node[-1].op_type, model.graph.node[-1].domain = "NPUFastGelu", "npu"
    onnx.save(model, path)
    compiled = []
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(
        Atc, "compile", lambda _, source, om, flags: compiled.append(source) or om.write_bytes(b"")
    )
    assert run("build", folder, "--soc-version", "Ascend910B3") == 0, capsys.readouterr().err
    assert compiled == [path.resolve()]
    assert "--input_shape=input_ids:-1,-1;attention_mask:-1,-1" in capsys.readouterr().out


def test_errors_of_atc_are_printed(folder, capsys):
    assert run("build", folder, "--soc-version", "Vulcan") == 2
    assert "atc failed with exit code 1" in (printed := capsys.readouterr().err)
    assert "E10001" in printed
    assert sorted(entry.name for entry in (folder / "1").iterdir()) == ["model.onnx"]


@pytest.mark.parametrize(
    ("chip", "asked", "made"),
    [
        ("Ascend310P3", (), "fp16"),
        ("Ascend310B1", (), "origin"),
        ("Ascend910B3", ("--precision", "fp16"), "fp16"),
    ],
)
def test_default_precision_of_a_chip(folder, capsys, chip, asked, made):
    assert run("build", folder, "--soc-version", chip, *asked) == 0
    printed = capsys.readouterr().out
    assert f"--precision_mode_v2={made}" in printed
    assert ("has no FP32 in its matrix units" in printed) == (made == "fp16" and not asked)


def test_a_card_without_a_chip_name_is_refused(folder, capsys, monkeypatch):
    monkeypatch.setattr(PyAclDriver, "soc_name", lambda driver: UNKNOWN_CHIP)
    assert run("build", folder) == 2
    printed = capsys.readouterr().err
    assert "npu:0 does not report its chip: specify the chip" in printed
    assert sorted(entry.name for entry in (folder / "1").iterdir()) == ["model.onnx"]


def test_missing_files_are_named(folder, capsys, monkeypatch):
    (folder / "1" / "model.onnx").rename(folder / "model.onnx")
    assert run("build", folder) == 2
    assert "found no model.onnx" in capsys.readouterr().err
    (folder / "model.onnx").rename(folder / "1" / "model.onnx")
    monkeypatch.setenv("PATH", "/nowhere")
    assert run("build", folder, "--soc-version", "AscendSimulator") == 2
    assert "found no `atc` on PATH" in capsys.readouterr().err
    (folder / "config.pbtxt").write_text(ENCODER_CONFIG + parameter("stages", "a, b"))
    assert run("build", folder) == 2
    assert "found no a.onnx, b.onnx, expected the graphs to compile" in capsys.readouterr().err


def test_too_many_gears_are_refused(folder, capsys):
    sizes = ", ".join(map(str, range(1, 33)))
    more = parameter("gears.tokens", sizes) + parameter("gears.batch", "1, 2, 4, 8")
    (folder / "config.pbtxt").write_text(ENCODER_CONFIG + more)
    assert run("build", folder, "--soc-version", "AscendSimulator") == 2
    assert "found 128 combinations of gears, expected at most 100" in capsys.readouterr().err


@pytest.fixture
def pipeline(tmp_path):
    folder = tmp_path / "pipeline"
    write_stages(folder / "1")
    (folder / "config.pbtxt").write_text(PIPELINE_CONFIG + GEARS + ON_CARD)
    return folder


def flags_of(folder, stage):
    return json.loads((folder / "1" / f"{stage}.om.json").read_text())["flags"]


def test_every_stage_is_compiled_for_the_models_gears(pipeline, capsys):
    assert run("build", pipeline) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == [
        str(pipeline / "1" / f"{stage}.om") for stage in ("embed", "pool", "head", "scale")
    ]
    tokens = "--dynamic_dims=1,8,1,8;1,32,1,32;8,8,8,8;8,32,8,32"
    assert flags_of(pipeline, "embed")[1:4] == [
        "--input_shape=input_ids:-1,-1;attention_mask:-1,-1",
        "--input_format=ND",
        tokens,
    ]
    assert flags_of(pipeline, "pool")[1:4] == [
        "--input_shape=hidden:-1,-1;attention_mask:-1,-1",
        "--input_format=ND",
        tokens,
    ]
    for stage, shape in {"head": "pooled:-1,1", "scale": "logits:-1,3"}.items():
        assert flags_of(pipeline, stage)[1:4] == [
            f"--input_shape={shape}",
            "--input_format=ND",
            "--dynamic_batch_size=1,8",
        ]
    assert run("conformance", pipeline, "--range", "input_ids=0:16", "--rounds", "2") == 0


def test_only_changed_stages_are_compiled_again(pipeline, capsys):
    def made():
        assert run("build", pipeline, "--soc-version", "AscendSimulator") == 0
        lines = capsys.readouterr().out.splitlines()
        return [line.partition(".om:")[0][-5:] for line in lines if ": made with" in line]

    assert made() == ["embed", "/pool", "/head", "scale"]
    assert made() == []
    (pipeline / "1" / "pool.om").unlink()
    assert made() == ["/pool"]
    more = parameter("gears.tokens", "16, 32") + parameter("gears.batch", "1, 8")
    (pipeline / "config.pbtxt").write_text(PIPELINE_CONFIG + more + ON_CARD)
    assert made() == ["embed", "/pool"]


def test_inspect_shows_all_stages_and_their_tensors(pipeline, capsys):
    assert run("build", pipeline) == 0
    capsys.readouterr()
    assert run("inspect", pipeline, "--format", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [each["file"] for each in shown["engines"]] == [
        "embed.om",
        "pool.om",
        "head.om",
        "scale.om",
    ]
    assert shown["gears"] == [
        {"axes": ["batch", "tokens"], "sizes": [[1, 8], [1, 32], [8, 8], [8, 32]]}
    ]
    memory = shown["memory"]
    (ids, mask, hidden) = (8 * 32 * size for size in (8, 8, 4))
    assert memory["device_io_bytes"] > ids + mask + hidden
    assert memory["inputs_bytes"] == ids + mask
    assert {gear["workspace_bytes"] for gear in memory["gears"]} == {memory["workspace_bytes"]}


def test_sizes_between_stages_are_inferred(pipeline, capsys):
    """Half of the tokens: a size that has no name among the inputs' dims."""
    halves = onnx_text(
        "(int64[rows, tokens] input_ids, int64[rows, tokens] attention_mask) => "
        "(float[rows, half] hidden) { ids = Cast <to = 1> (input_ids) "
        "column = Unsqueeze (ids, one) pairs = MaxPool <kernel_shape = [2], strides = [2]> (column)"
        " hidden = Squeeze (pairs, one) unused = Cast <to = 1> (attention_mask) }",
        one=np.array([1]),
    )
    total = onnx_text(
        "(float[rows, half] hidden) => (float[rows, 1] most)"
        "{ most = ReduceMax <axes = [1]> (hidden) }"
    )
    onnx.save(halves, pipeline / "1" / "halves.onnx")
    onnx.save(total, pipeline / "1" / "total.onnx")
    config = PIPELINE_CONFIG.replace("embed, pool, head, scale", "halves, total")
    config = config.replace(
        '"scores" data_type: TYPE_FP32 dims: [ 3 ]', '"most" data_type: TYPE_FP32 dims: [ 1 ]'
    )
    (pipeline / "config.pbtxt").write_text(config + GEARS + ON_CARD)
    assert run("build", pipeline) == 0
    assert flags_of(pipeline, "total")[1:4] == [
        "--input_shape=hidden:-1,-1",
        "--input_format=ND",
        "--dynamic_dims=1,4;1,16;8,4;8,16",
    ]


def test_sizes_that_depend_on_data_are_refused(pipeline, capsys):
    found = onnx_text(
        "(int64[rows, tokens] input_ids, int64[rows, tokens] attention_mask) => "
        "(int64[2, found] hidden)"
        "{ kept = Mul (input_ids, attention_mask) hidden = NonZero (kept) }"
    )
    count = onnx_text(
        "(int64[2, found] hidden, int64[rows, tokens] input_ids) => (int64[rows, tokens] scores)"
        "{ sum = ReduceSum (hidden) scores = Add (input_ids, sum) }"
    )
    onnx.save(found, pipeline / "1" / "find.onnx")
    onnx.save(count, pipeline / "1" / "count.onnx")
    config = PIPELINE_CONFIG.replace("embed, pool, head, scale", "find, count")
    config = config.replace("TYPE_FP32 dims: [ 3 ]", "TYPE_INT64 dims: [ -1 ]")
    config += parameter("axes.scores", "tokens")
    (pipeline / "config.pbtxt").write_text(config + GEARS + ON_CARD)
    assert run("build", pipeline) == 2
    err = capsys.readouterr().err
    assert "find.onnx: found outputs of unknown size, hidden, expected" in err
    assert "or merge the two stages" in err


@pytest.mark.slow
def test_several_chips_have_their_own_files(folder, capsys):
    chips = ("Ascend910B3", "Ascend310P3")
    assert run("build", folder, *(word for chip in chips for word in ("--soc-version", chip))) == 0
    assert "Ascend310P3 has no FP32 in its matrix units" in capsys.readouterr().out
    made = sorted(path.name for path in (folder / "1").glob("model.*"))
    files = ("model.310p3.om", "model.910b3.om")
    assert made == sorted(("model.onnx", *files, *(f"{name}.json" for name in files)))
    for chip, name, precision in zip(chips, reversed(files), ("origin", "fp16"), strict=True):
        record = json.loads((folder / "1" / f"{name}.json").read_text())
        assert f"--soc_version={chip}" in record["flags"]
        assert f"--precision_mode_v2={precision}" in record["flags"]
        Machine().start(soc=chip)
        PROCESS_CARDS.__init__()
        assert run("inspect", folder) == 0
        out = capsys.readouterr().out
        assert "om, because model.310p3.om, model.910b3.om is there and acl is installed; " in out
        assert f"; {name} is for {chip}" in out
        assert run("conformance", folder, "--rounds", "2") == 0
        capsys.readouterr()
    Machine().start(soc="Ascend910B1")
    PROCESS_CARDS.__init__()
    assert run("inspect", folder) == 2
    assert capsys.readouterr().err == (
        f"ge-runtime: {folder / '1'}: found model.310p3.om, model.910b3.om, expected "
        "model.910b1.om or model.om, for Ascend910B1: `ge-runtime build --soc-version "
        "Ascend910B1`\n"
    )
    assert run("build", folder, "--soc-version", "Ascend910B1") == 0
    assert (folder / "1" / "model.om").exists()
    capsys.readouterr()
    assert run("inspect", folder) == 0
    assert "om, because model.om is there" in capsys.readouterr().out
    Machine()


def test_image_parameters_are_part_of_the_record(tmp_path, capsys):
    folder = tmp_path / "images"
    (folder / "1").mkdir(parents=True)
    write_shown(folder / "1", 3, 6, 8)

    def built(mean):
        (folder / "config.pbtxt").write_text(
            'name: "images" backend: "python" max_batch_size: 4\n'
            'input [ { name: "image" data_type: TYPE_UINT8 dims: [ 6, 8, 3 ] } ]\n'
            'output [ { name: "sums" data_type: TYPE_FP32 dims: [ 3 ] } ]\n'
            + ON_CARD
            + parameter("aipp.image", f"input_format=RGB888_U8, mean_chn={mean}")
        )
        assert run("build", folder) == 0
        return ": made with" in capsys.readouterr().out

    assert built(1)
    assert not built(1)
    assert "mean_chn_0: 1\n" in (folder / "1" / "model.aipp.cfg").read_text()
    record = json.loads((folder / "1" / "model.om.json").read_text())
    assert "--insert_op_conf=model.aipp.cfg" in record["flags"]
    assert built(2)
    assert run("inspect", folder) == 0
    assert "image" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run("build", folder, "--atc", "insert_op_conf=x")
    assert "aipp.<input>, which says how images are converted" in capsys.readouterr().err
