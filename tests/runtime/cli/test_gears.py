"""`ge-runtime gears`: its arguments and output."""

import json
import shlex
from pathlib import Path

import pytest
from runtime.support.graphs import ENCODER, write

from ge_runtime import cli
from ge_runtime.batching.calibration import Sample
from ge_runtime.cli import gears_needed
from ge_runtime.cli.config_pbtxt import read_runtime_config

pytestmark = pytest.mark.brute_force

CONFIG = """
max_batch_size: 8
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "lengths" data_type: TYPE_INT32 dims: [ 1 ] }
]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "axes.ids" value { string_value: "tokens" } }
parameters { key: "limit.tokens" value { string_value: "64" } }
parameters { key: "axis_length.tokens" value { string_value: "lengths" } }
parameters { key: "mask.mask" value { string_value: "tokens" } }
"""

PREPARED = """
max_batch_size: 0
input [ { name: "texts" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
parameters { key: "rows" value { string_value: "8" } }
parameters { key: "prepared.ids" value { string_value: "INT64[tokens]" } }
parameters { key: "limit.tokens" value { string_value: "64" } }
"""


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("tokens,count\n3,60\n9,30\n30,10\n")
    return path


@pytest.fixture
def model(tmp_path):
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "config.pbtxt").write_text(CONFIG)
    return tmp_path / "encoder"


@pytest.fixture
def printed(capsys):
    """Return a function that runs `gears` and returns stdout."""

    def run(*arguments):
        assert cli.main(["gears", *map(str, arguments)]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys):
    """Return a function that runs `gears` with invalid arguments and returns stderr."""

    def run(*arguments):
        try:
            code = cli.main(["gears", *map(str, arguments)])
        except SystemExit as exited:
            code = exited.code
        assert code == 2
        out, complaint = capsys.readouterr()
        assert out == ""
        return complaint

    return run


def test_report_with_a_configuration(printed, lengths, model):
    assert (
        printed(lengths, "--count", 3, "--align", 8, "--config", model)
        == f"""\
{lengths}: 100 size(s) of tokens, 3 distinct
gears of tokens up to 64, multiples of 8

                waste  gears
optimum        53.1 %  8, 16, 64
quantiles      53.1 %  8, 16, 64
powers of two  57.4 %  16, 32, 64
linear         71.6 %  24, 48, 64
lower bound    41.4 %  a gear for each size, in multiples of 8: 3 gears

gear   sizes  elements  padding  I/O bytes
   8  60.0 %    30.0 %   62.5 %      1,152
  16  30.0 %    30.0 %   43.8 %      2,176
  64  10.0 %    40.0 %   53.1 %      8,320

memory: 8,320 bytes of inputs and outputs in the largest gear of 8 row(s); other gears share them
compiled: 3 gear(s): 3 of gears.tokens

config.pbtxt:
parameters {{ key: "gears.tokens" value {{ string_value: "8, 16, 64" }} }}
parameters {{ key: "limit.tokens" value {{ string_value: "64" }} }}

ATC:
--input_shape="ids:8,-1;mask:8,-1" \\
--input_format=ND \\
--dynamic_dims="8,8;16,16;64,64"

GE options:
"ge.inputShape": "ids:8,-1;mask:8,-1",
"ge.dynamicDims": "8,8;16,16;64,64",
"ge.dynamicNodeType": "1",
"""
    )


@pytest.fixture
def executed(model, monkeypatch):
    """A model with a graph, whose executions take as many ms as they have tokens."""
    write(ENCODER, "onnxruntime", model / "1")
    text = CONFIG.replace('"ids"', '"input_ids"').replace("axes.ids", "axes.input_ids")
    text = text.replace("mask.mask", "mask.attention_mask")
    (model / "config.pbtxt").write_text(text)
    sizes = []

    def execute(executor, config, gear):
        sizes.append((gear.rows, gear.extents["tokens"]))
        return Sample(gear.extents["tokens"] / 1000 * speed.get(gear.extents["tokens"], 1))

    speed = {}
    monkeypatch.setattr(gears_needed, "execute_blank", execute)
    return model, sizes, speed


def test_a_model_on_the_cpu_needs_no_gears(printed, lengths, executed):
    model, sizes, _ = executed
    shown = printed(lengths, "--count", 3, "--align", 8, "--config", model)
    assert (
        shown.split("\n\n")[1]
        == """\
no gears needed: encoder on the CPU, by onnxruntime, which executes any size
measured with one request per execution, 12 requests of FILE, mean:
  at its own size      7.25 ms
  at these gears      15.33 ms, 2.11 times as long
the gears below are for engines that prepare sizes: .om files and CUDA graphs"""
    )
    assert {*sizes} == {(1, 3), (1, 8), (1, 9), (1, 16), (1, 30), (1, 64)}
    assert printed(lengths, "--count", "1-3", "--config", model).count("no gears needed") == 0
    arguments = ("--count", 3, "--align", 8, "--config", model, "--format", "json")
    measured = json.loads(printed(lengths, *arguments))["measured"]
    expected = {"needed": False, "own_ms": 7.25, "geared_ms": 184 / 12, "sizes": 12}
    assert measured == pytest.approx(expected)


def test_gears_that_are_faster_would_help(printed, lengths, executed):
    model, _, speed = executed
    speed |= {8: 0.1, 16: 0.1, 64: 0.1}
    shown = printed(lengths, "--count", 3, "--align", 8, "--config", model)
    assert "gears would help: encoder on the CPU, by onnxruntime" in shown


def test_the_printed_lines_configure_the_gears(printed, lengths, model):
    plan = json.loads(
        printed(lengths, "--limit", "tokens=48", "--config", model, "--format", "json")
    )
    kept = [line for line in CONFIG.splitlines() if '"limit.tokens"' not in line]
    (model / "config.pbtxt").write_text("\n".join([*kept, *plan["config_pbtxt"]]))
    config = read_runtime_config(model)
    assert config.limits == {"tokens": 48}
    (best,) = plan["plans"]
    assert config.gears == {("tokens",): tuple(map(tuple, best["choices"]["optimum"]["gears"]))}


def test_a_plot_and_json_with_flags_quoted_for_a_shell(printed, lengths, model, tmp_path):
    plot = tmp_path / "gears.png"
    arguments = ("--config", model, "--count", 2, "--align", 8, "--format", "json", "--plot", plot)
    plan = json.loads(printed(lengths, *arguments))
    assert plan["io_bytes"] == [2176, 8320]
    assert plan["compiled_gears"] == 2
    assert plan["ge"]["ge.dynamicDims"] == "16,16;64,64"
    assert shlex.split(" ".join(plan["atc"])) == [
        "--input_shape=ids:8,-1;mask:8,-1",
        "--input_format=ND",
        "--dynamic_dims=16,16;64,64",
    ]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_plain_numbers_belong_to_the_only_axis(printed, refused, tmp_path, model):
    path = tmp_path / "lengths.txt"
    path.write_text("3 9\n30, 3\n")
    assert "4 size(s) of tokens, 3 distinct" in printed(path, "--config", model)
    assert "Use --axes to name them" in refused(path)


def test_gears_of_other_axes_in_the_configuration_are_compiled_too(printed, lengths, model):
    text = CONFIG + 'parameters { key: "gears.batch" value { string_value: "1, 8" } }'
    (model / "config.pbtxt").write_text(text)
    shown = printed(lengths, "--config", model, "--count", 2)
    assert "compiled: 4 gear(s): 2 of gears.tokens x 2 of gears.batch" in shown
    assert '--dynamic_dims="1,9,1,9;8,9,8,9;1,64,1,64;8,64,8,64"' in shown


def test_a_model_with_stages_has_no_flags(printed, lengths, model):
    stages = 'parameters { key: "stages" value { string_value: "encoder, head" } }'
    (model / "config.pbtxt").write_text(CONFIG + stages)
    shown = printed(lengths, "--config", model, "--count", 2)
    assert (
        "no gears for ATC and GE: each stage has its own gears; `ge-runtime build` compiles"
        in shown
    )
    assert "--dynamic_dims" not in shown


def test_without_a_configuration_a_placeholder_is_named(printed, lengths):
    shown = printed(lengths, "--count", 2)
    assert '--input_shape="INPUT:-1"' in shown
    assert "INPUT is a placeholder; use --config MODEL for the graph's inputs" in shown
    assert "memory:" not in shown


def test_memory_is_estimated_from_bytes_per_element(printed, lengths):
    arguments = (lengths, "--count", 2, "--limit", "tokens=64,batch=4", "--bytes-per-element", 16)
    assert "memory: 4,096 bytes of inputs and outputs in the largest gear of 4 row(s)" in printed(
        *arguments
    )
    assert '--input_shape="INPUT:4,-1"' in printed(*arguments)


def test_rows_are_an_axis(printed, tmp_path):
    path = tmp_path / "batches.csv"
    path.write_text("batch,tokens\n1,30\n4,10\n")
    shown = printed(path, "--count", 3, "--bytes-per-element", 2)
    assert "3 of gears.batch,tokens" in shown
    assert "memory: 240 bytes of inputs and outputs in the largest gear; other gears" in shown
    assert '--dynamic_dims="1,30;4,10;4,30"' in shown
    assert "# max_batch_size: at least 4" in shown


def test_rows_of_prepared_tensors_have_another_key(printed, tmp_path):
    (tmp_path / "config.pbtxt").write_text(PREPARED)
    path = tmp_path / "batches.csv"
    path.write_text("batch,tokens\n1,30\n4,10\n")
    shown = printed(path, "--count", 2, "--config", tmp_path)
    assert "# rows: at least 8" in shown
    assert f"memory: {8 * (64 * 8 + 4 * 4):,} bytes of inputs and outputs" in shown
    assert '--input_shape="ids:-1,-1"' in shown


def test_a_range_of_counts_is_a_curve(printed, lengths):
    shown = printed(lengths, "--count", "2-3", "--limit", "tokens=64", "--align", 8)
    assert "    2   63.9 %     75.3 %         76.6 %  76.6 %  16, 64\n" in shown
    assert "    3   53.1 %     53.1 %         57.4 %  71.6 %  8, 16, 64\n" in shown
    assert "config.pbtxt:" not in shown
    plan = json.loads(printed(lengths, "--count", "2-3", "--format", "json"))
    assert [entry["count"] for entry in plan["plans"]] == [2, 3]
    assert "config_pbtxt" not in plan


def test_the_option_overrides_the_limit_and_larger_sizes_are_counted(printed, lengths, model):
    shown = printed(lengths, "--config", model, "--limit", "tokens=20")
    assert "90 size(s) of tokens, 2 distinct; 10 more over the limit are ignored" in shown
    assert "gears of tokens up to 20" in shown


def test_input_data_of_perf_analyzer_needs_axes(printed, refused, tmp_path):
    path = tmp_path / "images.json"
    data = [{"image": {"content": [0] * 12, "shape": [1, 3, 4]}}]
    path.write_text(json.dumps({"data": data}))
    assert "1 size(s) of height x width" in printed(path, "--axes", "image=_,height,width")
    assert "1 size(s) of width" in printed(
        path, "--axes", "image=_,height,width", "--axes", "width"
    )
    assert "Use --config, or --axes INPUT=..." in refused(path)


def test_input_data_of_perf_analyzer_with_the_models_configuration(printed):
    root = Path(__file__).parents[3]
    shown = printed(
        root / "benchmarks" / "data" / "ge_classifier.json",
        "--config",
        root / "model_repository" / "ge_classifier",
    )
    assert "size(s) of height x width" in shown
    assert '--input_shape="image:64,1,-1,-1;mask:64,-1,-1"' in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--count", "0"], "found '0', expected a number from 1 to 100 or a range such as 1-8"),
        (["--count", "101"], "found '101', expected a number from 1 to 100"),
        (["--count", "8-1"], "found '8-1', expected a number from 1 to 100"),
        (["--count", "-4"], "found '-4', expected a number from 1 to 100"),
        (["--align", "0"], "found '0', expected a whole number of at least 1"),
        (["--limit", "tokens"], "found 'tokens', expected an axis and a size, e.g. tokens=512"),
        (["--limit", "tokens=0"], "found '0', expected a whole number of at least 1"),
        (["--limit", "tokns=5"], "--limit: found no axis 'tokns', expected one of: batch, tokens"),
        (["--limit", "tokens=2"], "found 3 distinct sizes, none within the limit 2"),
        (["--axes", "a,a"], "found 'a,a', expected different axis names"),
        (["--axes", "x=_,_"], "found 'x=_,_', expected different axis names"),
        (["--axes", "words"], "found no axis 'words', expected one of: tokens"),
        (["--config", "a", "--bytes-per-element", "3"], "not allowed with argument"),
    ],
)
def test_invalid_arguments_are_refused(refused, lengths, arguments, complaint):
    assert complaint in refused(lengths, *arguments)
