import json
import sys

import pytest
from runtime.support.axis_graphs import recurrent, saved, strided
from runtime.support.configs import ENCODER_CONFIG
from runtime.support.graphs import ENCODER, PIXELS, write

from ge_runtime import cli
from ge_runtime.cli import inspect
from ge_runtime.memory.machine import MemoryLimit
from ge_runtime.planning.histogram import Histogram

PIXELS_CONFIG = """
max_batch_size: 2
input [ { name: "image" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] } ]
output [ { name: "inverted" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] } ]
parameters { key: "axes.image" value { string_value: "height,width" } }
parameters { key: "axes.inverted" value { string_value: "height,width" } }
parameters { key: "limit.height" value { string_value: "16" } }
parameters { key: "limit.width" value { string_value: "16" } }
parameters { key: "mask.mask" value { string_value: "height,width" } }
"""


def parameter(key, text):
    return f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}\n'


@pytest.fixture
def model(tmp_path):
    """Return a function that creates a model folder with a config.pbtxt and a graph."""

    def build(config, graph=ENCODER, name="encoder", versions=("1",)):
        folder = tmp_path / name
        for version in versions:
            (folder / version).mkdir(parents=True)
            if graph is not None:
                write(graph, "onnxruntime", folder / version)
        (folder / "config.pbtxt").write_text(config)
        return folder

    return build


@pytest.fixture
def run(capsys, monkeypatch):
    """Return a function that runs `inspect`: exit code, stdout and stderr."""
    monkeypatch.setattr(cli, "COMMANDS", (inspect.COMMAND,))

    def run_command(*arguments):
        code = cli.main(["inspect", *map(str, arguments)])
        return (code, *capsys.readouterr())

    return run_command


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """The memory limits of the machine, as a list that tests change."""
    limits = [MemoryLimit("RAM", 16 * 2**30, 8 * 2**30, "/proc/meminfo")]
    monkeypatch.setattr(inspect, "read_limits", lambda: limits)
    return limits


def section(printed, title):
    """Return the lines below a title, without their indent."""
    _, _, after = printed.partition(f"\n{title}\n")
    return [line[2:] for line in after.partition("\n\n")[0].splitlines()]


def test_report(model, run):
    gears = parameter("gears.tokens", "8, 32") + parameter("gears.batch", "8")
    code, printed, errors = run(model(ENCODER_CONFIG + gears))
    assert (code, errors) == (0, "")
    assert printed.splitlines() == [
        "encoder, version 1",
        "",
        "Engine",
        "  onnxruntime, because model.onnx is there and onnxruntime is installed; model.pt2 is not "
        "there",
        "",
        "Inputs",
        "                  in the graph  in config.pbtxt",
        "  input_ids       INT64[*,*]    input INT64[tokens], padded with 0",
        "  attention_mask  INT64[*,*]    mask of tokens",
        "  lengths         -             input INT32[1], true lengths along tokens",
        "",
        "Outputs",
        "             in the graph  in config.pbtxt",
        "  embedding  FP32[*,4]     output FP32[4]",
        "",
        "Sizes",
        "          limit  gears",
        "  batch       8  8",
        "  tokens     32  8, 32",
        "",
        "Memory, in bytes",
        "  batch  tokens  inputs  answers  workspace  peak/bound",
        "      8      32   4,096      576      9,216        1.00",
        "      8       8   1,024      576      2,304        1.00",
        "",
        "  weights        272              1.8%",
        "  workspace    9,216   9.0 KiB   60.2%  one for all 2 gears",
        "  inputs       4,096   4.0 KiB   26.8%  one for all 2 gears",
        "  answers      1,728   1.7 KiB   11.3%  3 slot(s) of 576",
        "  staging          0              0.0%  none: the device works in the host's memory",
        "  total       15,312  15.0 KiB  100.0%  1.00 of the lower bound, 15,312",
        "  not shared  20,368  19.9 KiB  133.0%  if each gear had memory of its own",
        "",
        "This machine, in bytes",
        "       needed           free              of",
        "  RAM  15,312  8,589,934,592  17,179,869,184  enough",
    ]


def test_insufficient_memory_exits_with_1(model, run, limits):
    limits.append(MemoryLimit("control group /a", 20_000, 15_311, "/sys/fs/cgroup/a"))
    gears = parameter("gears.tokens", "8, 32") + parameter("gears.batch", "8")
    code, printed, _ = run(model(ENCODER_CONFIG + gears))
    assert code == 1
    assert section(printed, "This machine, in bytes")[-2:] == [
        "control group /a  15,312         15,311          20,000  too little",
        "the plan does not fit this machine: found 15,312 bytes wanted, expected at most 15,311, "
        "the free part of control group /a (/sys/fs/cgroup/a): lower a limit or max_batch_size, or "
        "give the process more memory",
    ]
    limits[-1] = MemoryLimit("control group /a", 20_000, 15_312, "/sys/fs/cgroup/a")
    assert run(model(ENCODER_CONFIG + gears, name="fitting"))[0] == 0


def test_json_report(model, run):
    gears = parameter("gears.batch,tokens", "8x8, 2x32")
    code, printed, _ = run(model(ENCODER_CONFIG + gears), "--format", "json")
    shown = json.loads(printed)
    assert code == 0
    assert (shown["model"], shown["version"], shown["faults"]) == ("encoder", 1, [])
    assert [engine["engine"] for engine in shown["engines"]] == ["onnxruntime"]
    assert shown["inputs"][1] == {
        "name": "attention_mask",
        "graph": "INT64[*,*]",
        "config": "mask of tokens",
    }
    assert shown["limits"] == {"batch": 8, "tokens": 32}
    assert shown["gears"] == [{"axes": ["batch", "tokens"], "sizes": [[2, 32], [8, 8]]}]
    memory = shown["memory"]
    assert [gear["sizes"] for gear in memory["gears"]] == [
        {"batch": 8, "tokens": 8},
        {"batch": 2, "tokens": 32},
    ]
    assert memory["workspace_bytes"] == max(gear["workspace_bytes"] for gear in memory["gears"])
    assert memory["total_bytes"] == (
        memory["weights_bytes"]
        + memory["workspace_bytes"]
        + memory["inputs_bytes"]
        + memory["answer_slots"] * memory["answers_bytes"]
    )


@pytest.mark.parametrize(
    ("cost", "planned", "pairs"),
    [
        ("launch_us=0, element_ns=1, element2_ns=1", 1.0, 1.0),  # sizes are never mixed
        ("launch_us=1000, element_ns=0, element2_ns=0", 1.12, 1.22),  # fewest executions
        ("", 1.03, 1.22),  # without padding, mixed sizes cost attention only
    ],
)
def test_padding_of_recorded_requests(model, run, tmp_path, monkeypatch, cost, planned, pairs):
    monkeypatch.setenv("GE_RUNTIME_CACHE", str(tmp_path / "cache"))
    parameters = parameter("histogram", "sizes.json") + (parameter("cost", cost) if cost else "")
    folder = model(ENCODER_CONFIG + parameters)
    recorded = Histogram(("batch", "tokens"))
    recorded.add((1, 4), 30)
    recorded.add((1, 16), 10)
    recorded.save(folder / "1" / "sizes.json")
    _, printed, _ = run(folder, "--format", "json")
    found = json.loads(printed)["padding"]
    assert found["longest"] == pytest.approx(16 / (0.75 * 4 + 0.25 * 16), rel=0.1)
    assert found["planned"] == pytest.approx(planned, abs=0.01)
    assert found["unpadded"] == pytest.approx(pairs, abs=0.01)
    assert section(run(folder)[1], "Padding")[-1].split()[-2:] == ["1.00", f"{pairs:.2f}"]


def test_report_of_free_axes_and_images(model, run):
    code, printed, _ = run(model(PIXELS_CONFIG, PIXELS, "pixels"))
    assert code == 0
    assert section(printed, "Sizes") == [
        "        limit  gears",
        "batch       2  free: as large as a batch needs",
        "height     16  free: as large as a batch needs",
        "width      16  free: as large as a batch needs",
    ]
    assert section(printed, "Outputs")[1:] == [
        "sums      FP32[*,2]      nothing: not an output",
        "inverted  FP32[*,1,*,*]  output FP32[1,height,width]",
    ]


def test_report_of_joint_and_derived_gears(model, run):
    gears = parameter("gears.height,width", "auto 2")
    _, printed, _ = run(model(PIXELS_CONFIG + gears, PIXELS, "pixels"))
    assert section(printed, "Sizes")[-2:] == [
        "height,width  16x16  8x8, 16x16",
        'gears.height,width = "8x8, 16x16": powers of two, because there is no histogram',
    ]


def test_outputs_that_the_graph_lacks_are_computed_by_the_models_code(model, run):
    label = 'output [ { name: "label" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
    score = 'output [ { name: "score" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
    echo = 'output [ { name: "echo" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
    passed = parameter("pass.echo", "lengths")
    code, printed, _ = run(model(ENCODER_CONFIG + label + score + echo + passed))
    assert code == 0
    assert section(printed, "Outputs")[1:] == [
        "embedding  FP32[*,4]     output FP32[4]",
        "label      -             output BYTES[1], by the model's own code",
        "score      -             output FP32[1], by the model's own code",
        "echo       -             output, the request's 'lengths'",
    ]


def test_report_of_prepared_tensors(model, run):
    config = """
max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
    config += parameter("prepared.input_ids", "INT64[tokens]")
    config += parameter("prepared.lengths", "INT32[1]")
    config += parameter("limit.tokens", "32") + parameter("axis_length.tokens", "lengths")
    code, printed, _ = run(model(config + parameter("mask.attention_mask", "tokens")))
    assert code == 0
    assert section(printed, "Inputs")[1:] == [
        "input_ids       INT64[*,*]    INT64[tokens], by the model's own code, padded with 0",
        "attention_mask  INT64[*,*]    mask of tokens",
        "text            -             input BYTES[1], for the model's own code",
        "lengths         -             INT32[1], by the model's own code, true lengths along "
        "tokens",
    ]


def test_report_of_generated_inputs(model, run):
    """The graph has none of these inputs, so any names can be used."""
    config = ENCODER_CONFIG + parameter("positions.at", "tokens") + parameter("pad.input_ids", "7")
    config += parameter("lengths.long", "tokens") + parameter("offsets.cu", "tokens")
    config += """
batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: [ "count" ] data_type: TYPE_FP32
                source_input: [ "input_ids" ] } ]
"""
    code, printed, _ = run(model(config))
    assert code == 1
    assert section(printed, "Inputs")[1:] == [
        "input_ids       INT64[*,*]    input INT64[tokens], padded with 7",
        "attention_mask  INT64[*,*]    mask of tokens",
        "long            -             true lengths along tokens",
        "at              -             positions along tokens",
        "cu              -             where rows begin along tokens",
        "count           -             BATCH_ELEMENT_COUNT of input_ids",
        "lengths         -             input INT32[1], true lengths along tokens",
    ]


def test_a_disagreement_exits_with_1(model, run, tmp_path):
    config = ENCODER_CONFIG.replace("TYPE_INT64", "TYPE_INT32").replace(
        parameter("mask.attention_mask", "tokens"), ""
    )
    code, printed, errors = run(model(config))
    assert (code, errors) == (1, "")
    assert section(printed, "Inputs")[1:3] == [
        "input_ids       INT64[*,*]    input INT32[tokens], padded with 0",
        "attention_mask  INT64[*,*]    nothing",
    ]
    assert "Memory" not in printed
    assert json.loads(run(tmp_path / "encoder", "--format", "json")[1])["memory"] is None
    faults = section(printed, "Faults")
    assert faults[0] == (
        "input 'input_ids': found INT64[*,*] in the graph, expected INT32[batch,tokens]"
    )
    assert faults[1].startswith(
        "graph input 'attention_mask' INT64[*,*]: found no source, expected"
    )


def test_without_the_package_onnx_the_workspace_is_unknown(model, run, monkeypatch):
    folder = model(ENCODER_CONFIG)
    monkeypatch.setitem(sys.modules, "onnx", None)
    code, printed, _ = run(folder)
    assert code == 0
    assert "unknown: `pip install 'ge-runtime[plan]'` allows planning it" in printed
    _, printed, _ = run(folder, "--format", "json")
    assert json.loads(printed)["memory"]["workspace_bytes"] is None


def test_memory_of_several_engines(model, run):
    _, printed, _ = run(model(ENCODER_CONFIG + parameter("devices", "cpu, cpu")))
    assert "\nMemory of each of 2 engines, in bytes\n" in printed


def test_the_highest_version_is_the_default(model, run):
    folder = model(ENCODER_CONFIG, versions=("2", "10", "9"))
    assert run(folder)[1].startswith("encoder, version 10\n")
    assert run(folder, "--version", 2)[1].startswith("encoder, version 2\n")


@pytest.mark.parametrize(
    ("versions", "arguments", "text"),
    [
        (("1", "2"), ("--version", 3), "found versions 1, 2, expected a folder named 3"),
        ((), (), "found no version, expected a folder named 1"),
        (("one",), (), "found no version, expected a folder named 1"),
    ],
)
def test_an_unknown_version_exits_with_2(model, run, tmp_path, versions, arguments, text):
    (tmp_path / "encoder").mkdir(exist_ok=True)
    folder = model(ENCODER_CONFIG, versions=versions)
    assert run(folder, *arguments) == (2, "", f"ge-runtime: {folder}: {text}\n")


def test_a_model_without_a_graph_is_refused(model, run):
    # The error does not mention faults of the configuration.
    config = 'input [ { name: "text" data_type: TYPE_STRING dims: [ -1 ] } ]\n'
    folder = model(config + parameter("max_tokens", "512"), graph=None)
    (folder / "1" / "model.py").touch()
    code, printed, errors = run(folder)
    assert (code, printed) == (2, "")
    assert errors.startswith(f"ge-runtime: {folder}/1: found model.py, expected model.onnx")


def test_an_ensemble_is_refused(model, run):
    code, _, errors = run(model('platform: "ensemble"', graph=None))
    assert code == 2
    assert "platform: found ensemble, expected a model with a graph of its own" in errors


def test_report_of_states_constants_ranges_and_sizes(run, tmp_path):
    folder = tmp_path / "strided"
    saved(strided(), folder)
    (folder / "config.pbtxt").write_text(
        """
        max_batch_size: 2
        input { name: "image" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] }
        output { name: "map" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] }
        """
        + parameter("axes.image", "height, width")
        + parameter("axes.map", "height, width")
        + parameter("limit.height", "16")
        + parameter("limit.width", "16")
        + parameter("align.height", "4")
        + parameter("min.width", "6")
        + parameter("range.image", "-1..1")
        + parameter("constant.gain", "0.5")
    )
    _, printed, _ = run(folder)
    image, gain = section(printed, "Inputs")[1:]
    assert image.endswith("input FP32[1,height,width], -1.0 to 1.0, padded with 0")
    assert gain.endswith("constant 0.5")
    _, _, height, width = section(printed, "Sizes")
    assert height.endswith("free: as large as a batch needs, multiples of 4")
    assert width.endswith("free: as large as a batch needs, at least 6")


def test_report_of_sequence_states(run, tmp_path):
    folder = tmp_path / "recurrent"
    saved(recurrent(), folder)
    (folder / "config.pbtxt").write_text(
        """
        max_batch_size: 2
        input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
        sequence_batching { oldest { } }
        """
        + parameter("state.state", "next")
        + parameter("batch_axis.state", "1")
        + parameter("batch_axis.next", "1")
    )
    code, printed, _ = run(folder)
    assert code == 0
    state = section(printed, "Inputs")[-1]
    assert state.endswith("state of the sequence, 'next' of the execution before, rows along dim 1")
    assert section(printed, "Outputs")[-1].endswith("the next state of 'state', rows along dim 1")
