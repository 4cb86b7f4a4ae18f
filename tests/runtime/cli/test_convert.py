"""Converting configurations of npu_ge: kept, new and refused parts, and edits of the text."""

from itertools import product

import onnx
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from runtime.support.graphs import onnx_model
from tritonclient.grpc.model_config_pb2 import ModelConfig

from ge_runtime import cli
from ge_runtime.cli.config_pbtxt import edit_config, parse, quoted
from ge_runtime.cli.convert.conversion import ConvertOptions, convert
from ge_runtime.cli.convert.graph import graph_changes
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.specs import ROWS, DType

pytestmark = pytest.mark.brute_force

ENCODER = """\
# A sentence encoder on two cards.
name: "encoder"
backend: "npu_ge"
max_batch_size: 8
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] },  # tokens
  { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 384 ] } ]
dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 2000 }

# 1 and 8 rows of 64 or 128 tokens.
parameters { key: "graph.ge.inputShape" value { string_value: "ids:-1,-1;mask:-1,-1" } }
parameters {
  key: "graph.ge.dynamicDims"
  value { string_value: "1,64,1,64;8,64,8,64;1,128,1,128;8,128,8,128" }
}
parameters [
  { key: "graph.ge.dynamicNodeType" value { string_value: "1" } },
  { key: "device_ids" value { string_value: "0,1" } },
  { key: "graph.ge.aicoreNum" value { string_value: "24|48" } }
]
"""

CONVERTED = """\
# A sentence encoder on two cards.
name: "encoder"
backend: "ge"
max_batch_size: 8
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] },  # tokens
  { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 384 ] } ]
dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 2000 }

# 1 and 8 rows of 64 or 128 tokens.
parameters [
  { key: "device_ids" value { string_value: "0,1" } },
  { key: "graph.ge.aicoreNum" value { string_value: "24|48" } }
]
parameters { key: "graph.ge.exec.precision_mode_v2" value { string_value: "fp16" } }
parameters { key: "axes.ids" value { string_value: "tokens" } }
parameters { key: "axes.mask" value { string_value: "tokens" } }
parameters { key: "limit.tokens" value { string_value: "128" } }
parameters { key: "gears.batch" value { string_value: "1, 8" } }
parameters { key: "gears.tokens" value { string_value: "64, 128" } }
"""

# A classifier of images, compiled for four sizes of one image at a time.
IMAGES = """\
backend: "npu_ge"
input [ { name: "image:0" data_type: TYPE_FP32 dims: [ 1, 3, -1, -1 ] } ]
output [ { name: "heat" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] } ]
parameters { key: "device_ids" value { string_value: "3" } }
parameters { key: "device_exec_blocks" value { string_value: "2" } }
parameters { key: "session.ge.inputShape" value { string_value: "image:0:1,3,-1,-1" } }
parameters {
  key: "session.ge.dynamicDims" value { string_value: "224,224;224,448;448,224;448,448" }
}
parameters { key: "static_model" value { string_value: "1" } }
parameters { key: "session.ge.constLifecycle" value { string_value: "session" } }
parameters { key: "session.graphRunMode" value { string_value: "0" } }
parameters { key: "global.ge.exec.deviceId" value { string_value: "0" } }
parameters { key: "dump_graph" value { string_value: "0" } }
parameters { key: "instance_exec_blocks" value { string_value: "1" } }
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/opt/env.tar.gz" } }
"""

# A ranker of fixed features: one static graph.
RANKER = """\
backend: "npu_ge"
max_batch_size: 16
input { name: "features" data_type: TYPE_FP32 dims: [ 40 ] }
output { name: "score" data_type: TYPE_FP32 dims: [ 1 ] }
parameters { key: "device_ids" value { string_value: "0" } }
parameters { key: "graph.ge.inputShape" value { string_value: "features:16,40" } }
parameters { key: "static_model" value { string_value: "1" } }
"""


def parameter(key, text):
    return f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}\n'


def converted(text, *, graph=None, **options):
    given = {"axes": {}, "limits": {}, "device_ids": None, "drop": (), **options}
    given["drop"] = frozenset(given["drop"])
    return convert("m", text, ConvertOptions(**given), graph)


def ours(conversion):
    """Return the parameters of the result, which protobuf and ge_runtime must accept."""
    assert conversion.problems == []
    message = text_format.Parse(conversion.text, ModelConfig())
    RuntimeConfig.parse({"name": "m", **parse(conversion.text)}, cores=1)
    return {key: value.string_value for key, value in message.parameters.items()}


def rows(conversion, verdict):
    """Return the rows of the table with a verdict: what and why."""
    return [(row.what, row.why) for row in conversion.report.rows if row.verdict == verdict]


FP16 = {"graph.ge.exec.precision_mode_v2": "fp16"}
"""GE's default precision, which conversions write."""


@pytest.fixture
def run(tmp_path, capsys):
    """Return a function that runs `convert`: exit code, stdout and stderr."""

    def run_command(text, *arguments):
        file = tmp_path / "encoder/config.pbtxt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        code = cli.main(["convert", str(file.parent), *map(str, arguments)])
        return (code, *capsys.readouterr())

    return run_command


def test_unrelated_parts_are_unchanged(run):
    names = ("--axes", "ids=tokens", "--axes", "mask=tokens")
    code, printed, errors = run(ENCODER, *names)
    assert (code, printed) == (0, CONVERTED)
    assert [" ".join(line.split()) for line in errors.splitlines()] == [
        "kept device_ids = 0,1 the same in ge_runtime",
        "kept graph.ge.aicoreNum = 24|48 `ge-runtime build` passes --aicore_num",
        "kept dynamic_batching unchanged",
        "changed backend = npu_ge backend = ge: `ge-runtime backend` installs it",
        "changed graph.ge.dynamicDims = 1,64,1,64;8,64,8,64;1,128,1,128;8,128,8,128 axes, limit "
        "and gears, below",
        "changed graph.ge.dynamicNodeType = 1 axes, limit and gears, below",
        "changed graph.ge.inputShape = ids:-1,-1;mask:-1,-1 axes, limit and gears, below",
        "changed graph.ge.exec.precision_mode_v2 = fp16 GE's default, which npu_ge used; `origin` "
        "would keep the graph's FP32",
        "changed axes.ids = tokens from dims of -1 and the gears",
        "changed axes.mask = tokens from dims of -1 and the gears",
        "changed limit.tokens = 128 from dims of -1 and the gears",
        "changed gears.batch = 1, 8 from dims of -1 and the gears",
        "changed gears.tokens = 64, 128 from dims of -1 and the gears",
    ]


def test_the_output_file(run, tmp_path):
    file = tmp_path / "new.pbtxt"
    code, printed, _ = run(ENCODER, "--axes", "ids=tokens", "--output", file)
    assert (code, printed, file.read_text()) == (0, "", CONVERTED)


@pytest.mark.parametrize(
    ("files", "row"),
    [
        ((), None),
        (("1/b.onnx", "1/a.onnx"), ("1/a.onnx or 1/b.onnx", "rename it to 1/model.onnx, then ")),
        (("1/a.onnx", "1/model.onnx"), None),
        (("2/a.onnx", "2/model.om"), None),
        (("3/frozen.pb",), ("3/frozen.pb", "no engine reads it; compile it to 3/model.om with ")),
        (("1/net/a.onnx", "1/a.pb"), ("1/net/a.onnx", "rename it to 1/model.onnx, then ")),
        (("old/a.onnx",), None),
    ],
)
def test_the_table_names_graphs_to_rename_or_compile(tmp_path, files, row):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [(what, why[: len(row[1])]) for what, why in graph_changes(tmp_path)] == (
        [row] if row else []
    )


def test_a_graph_that_cannot_be_read_is_not_needed_for_declared_tensors(run, tmp_path):
    graph = tmp_path / "encoder/1/net.onnx"
    graph.parent.mkdir(parents=True)
    graph.write_bytes(b"no graph")
    code, printed, errors = run(ENCODER, "--axes", "ids=tokens")
    assert (code, printed) == (0, CONVERTED)
    assert errors.startswith(f"not used: {graph}: cannot be read as an ONNX graph: ")


def test_all_problems_are_printed_and_nothing_is_written(run, tmp_path):
    file = tmp_path / "new.pbtxt"
    text = ENCODER + parameter("graph.ge.oo.level", "O3") + parameter("session.graphRunMode", "1")
    code, printed, errors = run(text, "--output", file)
    assert (code, printed, file.exists()) == (1, "", False)
    assert errors.splitlines()[-2:] == [
        "cannot be converted: graph.ge.oo.level = O3: ge_runtime compiles with ATC, and has no "
        "flag for this option; compile model.om yourself with a flag of `atc --help`, or --drop "
        "graph.ge.oo.level",
        "cannot be converted: session.graphRunMode = 1: ge_runtime does not train; --drop "
        "session.graphRunMode",
    ]


@pytest.mark.parametrize(
    ("instances", "more", "blocks"),
    [
        (1, {}, None),
        (4, {}, "2"),
        (3, {"instance_exec_blocks": "2"}, "3"),
        (64, {}, "8"),
        (64, {"device_exec_blocks": "5"}, "5"),
    ],
)
def test_instances_become_engines_of_one_process(instances, more, blocks):
    """npu_ge's instances are threads; by default it has ceil(instances / cards) engines a card."""
    text = ENCODER + f"instance_group [ {{ count: {instances} }} ]\n"
    text += "".join(parameter(key, value) for key, value in more.items())
    conversion = converted(text)
    assert ours(conversion).get("device_exec_blocks") == blocks
    assert ("instance_group" in conversion.text) == (instances == 1)


def test_dropping_an_absent_parameter_is_a_problem(run):
    code, _, errors = run(ENCODER, "--drop", "profiling")
    assert code == 1
    assert errors.endswith("cannot be converted: --drop profiling: found nothing to drop\n")


def test_image_sizes_become_gears():
    conversion = converted(IMAGES)
    assert ours(conversion) == {
        "device_ids": "3",
        "device_exec_blocks": "2",
        "static_model": "1",
        "EXECUTION_ENV_PATH": "/opt/env.tar.gz",
        **FP16,
        "axes.image:0": "image_0_2,image_0_3",
        "limit.image_0_2": "448",
        "limit.image_0_3": "448",
        "gears.image_0_2": "224, 448",
        "gears.image_0_3": "224, 448",
    }
    assert rows(conversion, "dropped") == [
        ("dump_graph = 0", "it is off"),
        ("global.ge.exec.deviceId = 0", "npu_ge never passed it on"),
        ("instance_exec_blocks = 1", "one engine executes a batch"),
        ("session.ge.constLifecycle = session", "weights exist once for each device"),
        ("session.graphRunMode = 0", "ge_runtime only runs inference"),
    ]


DYNAMIC = """
name: "clip" backend: "npu_ge" max_batch_size: 64
input [ { name: "image" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] } ]
output [ { name: "features" data_type: TYPE_FP32 dims: [ 512 ] } ]
parameters { key: "device_ids" value { string_value: "0" } }
"""


@pytest.mark.parametrize(
    ("largest", "batching", "gears"),
    [
        (64, "", "1, 2, 4, 8, 16, 32, 64"),
        (12, "dynamic_batching { preferred_batch_size: [ 6, 12 ] }", "1, 2, 4, 6, 8, 12"),
        (2, "", "1, 2"),
        (1, "", None),
    ],
)
def test_a_dynamic_batch_has_gears(largest, batching, gears):
    text = RANKER.replace(parameter("graph.ge.inputShape", "features:16,40"), batching)
    text = text.replace("max_batch_size: 16", f"max_batch_size: {largest}")
    assert ours(converted(text)).get("gears.batch") == gears


def test_any_size_needs_a_limit_and_outputs_need_their_axes():
    text = """
    backend: "npu_ge" max_batch_size: 4
    input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
    output { name: "states" data_type: TYPE_FP32 dims: [ -1, 8 ] }
    """
    assert converted(text).problems == [
        "device_ids = not set: npu_ge then uses every visible card; ge_runtime needs a list; use "
        "--device-ids, e.g. 0 or 0,1",
        "axis 'ids_0' = no limit: npu_ge compiles for any size; ge_runtime plans memory for the "
        "largest; use --limit ids_0=SIZE",
        "output 'states' = [-1, 8]: npu_ge derives its size from the dim names in the ONNX file; "
        "use --axes states=AXIS,... with axes (ids_0) or relations of them",
    ]
    options = {"axes": {"ids": ["t"], "states": ["t // 2"]}, "limits": {"t": 32}}
    assert ours(converted(text, device_ids="1", **options)) == {
        "device_ids": "1",
        **FP16,
        "axes.ids": "t",
        "axes.states": "t // 2",
        "limit.t": "32",
        "gears.batch": "1, 2, 4",
    }


def test_equal_sizes_at_the_same_position_are_one_axis():
    """Height and width stay two axes, even if all gears are squares."""
    text = """
    backend: "npu_ge"
    input [ { name: "a" data_type: TYPE_FP32 dims: [ -1, -1 ] },
            { name: "b" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
    output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
    """
    text += parameter("graph.ge.inputShape", "b:-1,-1;a:-1,-1")
    text += parameter("graph.ge.dynamicDims", "2,9,2,2;4,9,4,4")
    made = ours(converted(text, device_ids="0"))
    assert (made["axes.a"], made["axes.b"]) == ("a_0,a_1", "a_0,b_1")
    assert made["gears.b_1"] == "9"
    assert made["gears.a_0,a_1"] == "2x2, 4x4"


@pytest.mark.parametrize(
    ("shape", "dims", "problem"),
    [
        (None, "1;2", "ge.inputShape is not set"),
        ("y:-1,-1", "1,1;2,2", "expected a shape of every input; write x: 2 dims"),
        ("x:-1", "1;2", "expected a shape of every input; write x: 2 dims"),
        ("x:-1,?", "1;2", "expected a shape of every input"),
        ("x:-1,-1", None, "ge.inputShape has 2 dim(s) of -1"),
        ("x:-1,-1", "1,1;2", "ge.inputShape has 2 dim(s) of -1"),
        ("x:-1,-1", "1,1;2,0", "ge.inputShape has 2 dim(s) of -1"),
        ("x:-1,-1", "1,1;2,a", "ge.inputShape has 2 dim(s) of -1"),
    ],
)
def test_malformed_sizes_are_refused(shape, dims, problem):
    text = 'backend: "npu_ge" max_batch_size: 4\n'
    text += 'input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }\n'
    text += 'output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }\n'
    text += "" if shape is None else parameter("graph.ge.inputShape", shape)
    text += "" if dims is None else parameter("graph.ge.dynamicDims", dims)
    problems = converted(text, device_ids="0", limits={"x_0": 4}).problems
    assert len(problems) == 1
    assert problem in problems[0]


def test_names_from_the_user_also_apply_to_equal_dims():
    made = ours(converted(ENCODER, axes={"mask": ["tokens"]}))
    assert (made["axes.ids"], made["axes.mask"]) == ("tokens", "tokens")
    made = ours(converted(ENCODER, axes={"mask": ["m"], "ids": ["i"]}))
    assert (made["axes.ids"], made["axes.mask"]) == ("i", "m")
    assert made["gears.i,m"] == "64x64, 128x128"


REFUSED = {
    "session.ge.graphRunMode": ("1", "does not train"),
    "session.ge.exec.deviceId": ("1", "device_ids"),
    "session.ge.session_device_id": ("1", "device_ids"),
    "session.ge.socVersion": ("Ascend910B1", "--soc_version"),
    "graph.ge.graphMemoryMaxSize": ("1", "workspace_pool_mib"),
    "graph.ge.variableMemoryMaxSize": ("1", "memory is planned"),
    "graph.ge.compileHybridMode": ("1", "add a gear"),
    "graph.ge.exec.precision_mode": ("allow_fp32_to_fp16", "precision_mode_v2"),
    "graph.ge.oo.level": ("O3", "atc --help"),
    "graph.ge.externalWeight": ("1", "weights are loaded from the .om"),
}

DROPPED = {
    "instance_exec_blocks": ("2", "mixed up the rows"),
    "dump_graph": ("1", "DUMP_GE_GRAPH"),
    "dump_data": ("1", "`dump`"),
    "profiling": ("true", "msprof"),
    "ge.aicoreNum": ("12|10", "--backend-config=npu_ge,ge.aicoreNum=... applies it"),
    "statik_model": ("1", "has no such parameter"),
    "session.ge.constLifecycle": ("2", "weights"),
    "session.ge.exec.reuseZeroCopyMemory": ("2", "planned"),
    "session.ge.exec.staticMemoryPolicy": ("2", "one workspace"),
    "session.ge.featureBaseRefreshable": ("2", "never moves"),
    "session.ge.graph_compiler_cache_dir": ("2", "before they are served"),
    "session.ge.graph_key": ("2", "before they are served"),
}
"""Parameters that do not affect responses, or that npu_ge ignored."""


@pytest.mark.parametrize("name", DROPPED)
def test_parameters_without_effect_are_dropped_with_the_reason(name):
    value, words = DROPPED[name]
    conversion = converted(RANKER + parameter(name, value))
    assert ours(conversion) == ours(converted(RANKER))
    ((what, why),) = rows(conversion, "dropped")
    assert what == f"{name} = {value}"
    assert words in why


@pytest.mark.parametrize("name", REFUSED)
def test_refused_parameters_can_be_dropped(name):
    value, words = REFUSED[name]
    text = RANKER + parameter(name, value)
    (problem,) = converted(text).problems
    assert problem.startswith(f"{name} = {value}: ")
    assert words in problem
    assert problem.endswith(f"--drop {name}")
    precision = {} if name.endswith("precision_mode") else FP16
    assert ours(converted(text, drop=[name])).items() >= {**precision, "gears.batch": "16"}.items()


@pytest.mark.parametrize(
    ("option", "value", "mode"),
    [
        (None, None, "fp16"),
        ("session.ge.exec.precision_mode_v2", "origin", "origin"),
        ("graph.ge.exec.precision_mode", "must_keep_origin_dtype", "origin"),
        ("session.ge.exec.precision_mode", "allow_mix_precision", "mixed_float16"),
    ],
)
def test_the_precision_stays(option, value, mode):
    """GE's default is fp16, and that of `ge-runtime build` is origin."""
    made = ours(converted(RANKER + (parameter(option, value) if option else "")))
    assert [value for key, value in made.items() if "precision" in key] == [mode]


def test_the_command_line_applies_unless_config_pbtxt_has_another_value():
    settings = {
        "ge.aicoreNum": "12|10",
        "ge.deterministic": "1",
        "session.ge.exec.precision_mode_v2": "origin",
        "device_ids": "5",
        "profiling": "dynamic",
    }
    text = RANKER + parameter("session.ge.deterministic", "0") + parameter("ge.aicoreNum", "9|9")
    conversion = converted(text, settings=settings)
    assert ours(conversion) == {
        "device_ids": "0",
        "static_model": "1",
        "graph.ge.aicoreNum": "12|10",
        "session.ge.deterministic": "0",
        "session.ge.exec.precision_mode_v2": "origin",
        "gears.batch": "16",
    }
    assert [what for what, _ in rows(conversion, "dropped")] == [
        "--backend-config ge.deterministic = 1",
        "profiling = dynamic",
    ]


@pytest.mark.parametrize(
    ("strategy", "batching", "early"),
    [
        ("", "{ default_priority_level: 1 preferred_batch_size: [ 8 ] }", None),
        ("latency", "{ default_priority_level: 1 max_queue_delay_microseconds: 0 }", "true"),
        (
            "throughput",
            "{ default_priority_level: 1 preferred_batch_size: [ 16 ] "
            "max_queue_delay_microseconds: 10000 }",
            "false",
        ),
    ],
)
def test_a_strategy_sets_batching_and_early_answers(strategy, batching, early):
    text = RANKER + "dynamic_batching { default_priority_level: 1 preferred_batch_size: [ 8 ] }\n"
    conversion = converted(text, strategy=strategy)
    assert f"dynamic_batching {batching}\n" in conversion.text
    assert ours(conversion).get("early_answers") == early
    if strategy:
        assert "dynamic_batching { max_queue" in converted(RANKER, strategy="latency").text


SIGNATURE = Signature(
    (
        GraphTensor("ids", DType.INT64, (None, None), ("n", "seq")),
        GraphTensor("mask", DType.INT64, (None, None), ("n", "seq")),
    ),
    (
        GraphTensor("states", DType.FP32, (None, None, 8), ("n", "(seq+1)/2", None)),
        GraphTensor("score", DType.FP32, (None,), ("n",)),
    ),
)


OPEN = 'backend: "npu_ge" max_batch_size: 4\n' + parameter("device_ids", "0")
OTHER_SIZES = ENCODER.replace("1,64,1,64;8,64,8,64", "1,64,1,32;8,64,8,32")
NO_RELATION = Signature(SIGNATURE.inputs, (GraphTensor("y", DType.FP32, (None, None), ("n", "k")),))
NO_DIMS = Signature((GraphTensor("x", DType.FP32, None),), ())


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        (
            RANKER.replace("features:16,40", "features:16,41"),
            {},
            "config.pbtxt has 40 for that dim of 'features'; make both equal",
        ),
        (
            RANKER + parameter("session.ge.inputShape", "features:8,40"),
            {},
            "session.ge.inputShape = features:8,40: graph.ge.inputShape has features:16,40; remove",
        ),
        (ENCODER.replace("1,64,1,64;", "1,64,2,64;"), {}, "inputs have different numbers of rows"),
        (ENCODER, {"axes": {"ids": ["a", "b"]}}, "--axes ids = a,b: dims [-1] contain 1 -1; give"),
        (ENCODER, {"axes": {"idz": ["t"]}}, "--axes = idz: no tensor of this name has a -1; use"),
        (ENCODER, {"axes": {"embedding": ["t"]}}, "--axes = embedding: no tensor of this name"),
        (ENCODER, {"limits": {"t": 4}}, "--limit = t: unknown axis; use one of: ids_0"),
        (ENCODER, {"device_ids": "3"}, "--device-ids = 3: there is a device_ids already"),
        (
            OTHER_SIZES,
            {"axes": {"ids": ["t"], "mask": ["t"]}},
            "--axes = t: 'mask' has other sizes in the gears",
        ),
        ('backend: "npu_ge"', {"device_ids": "0"}, "input and output = not both present: npu_ge"),
        (
            OPEN,
            {"graph": NO_RELATION, "limits": {"seq": 32}},
            "output 'y' = [-1]: npu_ge derives its size from the dim names",
        ),
        (OPEN, {"graph": NO_DIMS}, "input and output = not both present: 'x' has no dims"),
    ],
)
def test_contradictions_and_options_without_effect_are_refused(text, options, problem):
    assert problem in converted(text, **options).problems[0]


def test_tensors_that_are_not_declared_are_read_from_the_graph():
    text = 'backend: "npu_ge" max_batch_size: 4\n' + parameter("device_ids", "0")
    conversion = converted(text, graph=SIGNATURE, limits={"seq": 32})
    assert ours(conversion) == {
        "device_ids": "0",
        **FP16,
        "axes.ids": "seq",
        "axes.mask": "seq",
        "axes.states": "(seq+1)//2",
        "limit.seq": "32",
        "gears.batch": "1, 2, 4",
    }
    config = text_format.Parse(conversion.text, ModelConfig())
    assert [(each.name, list(each.dims)) for each in (*config.input, *config.output)] == [
        ("ids", [-1]),
        ("mask", [-1]),
        ("states", [-1, 8]),
        ("score", [1]),
    ]
    assert config.output[1].HasField("reshape")


def test_a_given_name_applies_to_other_dims_with_its_symbol():
    text = 'backend: "npu_ge" max_batch_size: 4\n' + parameter("device_ids", "0")
    axes = {"mask": ["tokens"]}
    made = ours(converted(text, graph=SIGNATURE, axes=axes, limits={"tokens": 32}))
    assert (made["axes.ids"], made["axes.states"]) == ("tokens", "(tokens+1)//2")


@pytest.fixture
def repository(tmp_path):
    """A repository of one model that needs no options, one that does, and one of Python."""
    graph = onnx_model(
        [helper.make_node("Relu", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", 3])],
        [("y", TensorProto.FLOAT, ["n", 3])],
    )
    texts = {
        "relu": 'backend: "npu_ge" max_batch_size: 4\n' + parameter("device_ids", "0"),
        "any": RANKER + parameter("graph.ge.oo.level", "O3"),
        "python": 'backend: "python"\n',
    }
    for name, text in texts.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(text)
    onnx.save(graph, tmp_path / "relu/1/net.onnx")
    return tmp_path


def test_a_repository_is_converted_with_the_servers_command_line(repository, capsys):
    new = repository / "new"
    command = "tritonserver --backend-config=tensorflow,ge.aicoreNum=1 --model-repository models"
    command += " --backend-config=npu_ge,ge.aicoreNum=12|10 --backend-config npu_ge,static_model=1"
    arguments = ["--output", str(new), "--server-command", *command.split()]
    assert cli.main(["convert", str(repository), *arguments]) == 1  # "any" is refused
    assert [str(file.relative_to(new)) for file in new.rglob("*.*")] == ["relu/config.pbtxt"]
    config = text_format.Parse((new / "relu/config.pbtxt").read_text(), ModelConfig())
    assert [each.name for each in (*config.input, *config.output)] == ["x", "y"]
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "device_ids": "0",
        "static_model": "1",
        "graph.ge.aicoreNum": "12|10",
        **FP16,
        "gears.batch": "1, 2, 4",
    }
    table = [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]
    assert [line for line in table if line.endswith(":")] == ["any:", "python:", "relu:"]
    assert "kept everything: its backend is python" in table
    rename = "changed 1/net.onnx rename it to 1/model.onnx, then run `ge-runtime build`"
    assert rename in table


def test_without_an_output_folder_a_repository_is_only_reported(repository, capsys):
    before = sorted(repository.rglob("*"))
    assert cli.main(["convert", str(repository), "--backend-config", "npu_ge,ge.x=1"]) == 1
    assert (capsys.readouterr().out, sorted(repository.rglob("*"))) == ("", before)


def test_names_of_one_model_are_refused_for_a_repository(repository, capsys):
    assert cli.main(["convert", str(repository), "--limit", "a=1"]) == 2
    assert "expected one model for --axes, --limit and --drop" in capsys.readouterr().err


def test_a_parameter_without_a_string_is_refused():
    text = RANKER + 'parameters { key: "profiling" value { } }\n'
    assert converted(text).problems == [
        'profiling = {}: expected value { string_value: "..." }; --drop profiling'
    ]
    assert "profiling" not in ours(converted(text, drop=["profiling"]))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('backend: "onnxruntime"', "backend: found 'onnxruntime', expected 'npu_ge'"),
        ("backend: {", "config.pbtxt: line 1, column 10: 'backend: {': Expected string"),
        ('backend: "npu_ge" input { name: "x" }', "input 'x': data_type: found None"),
    ],
)
def test_other_configurations_exit_with_2(run, text, fault):
    code, printed, errors = run(text)
    assert (code, printed) == (2, "")
    assert fault in errors


def test_a_missing_file_exits_with_2(tmp_path, capsys):
    assert cli.main(["convert", str(tmp_path)]) == 2
    assert "config.pbtxt: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("--axes", "ids"), ("--limit", "t"), ("--axes", "ids=a,")])
def test_invalid_arguments_exit_with_2(run, arguments):
    with pytest.raises(SystemExit) as exited:
        run(ENCODER, *arguments)
    assert exited.value.code == 2


@st.composite
def configurations(draw):
    """A configuration of npu_ge with its gears: rows, then the sizes of each axis."""
    batched = draw(st.booleans())
    axes = [f"axis{index}" for index in range(draw(st.integers(0, 3)))]
    inputs = [
        [draw(st.sampled_from([*axes, 3, 7])) for _ in range(draw(st.integers(1, 3)))]
        for _ in range(draw(st.integers(1, 3)))
    ]
    used = list(dict.fromkeys(dim for dims in inputs for dim in dims if dim in axes))
    width = batched + len(used)
    sizes = st.tuples(*[st.integers(1, 5)] * width)
    table = draw(st.lists(sizes, min_size=1, max_size=6, unique=True))
    # ge_runtime needs a gear with the largest size of every axis.
    table = list(dict.fromkeys([*table, tuple(map(max, zip(*table, strict=True)))]))
    gears = [dict(zip([*([ROWS] if batched else []), *used], gear, strict=True)) for gear in table]
    shapes, names, columns, text = {}, {}, [], 'backend: "npu_ge"\n'
    text += "max_batch_size: 5  # rows\n" if batched else ""
    for index, dims in enumerate(inputs):
        full = [*([ROWS] if batched else []), *dims]
        written = ", ".join(str(dim if isinstance(dim, int) else -1) for dim in dims)
        text += f'input {{ name: "in:{index}" data_type: TYPE_FP32 dims: [ {written} ] }}\n'
        shapes[f"in:{index}"] = full
        names[f"in:{index}"] = [dim for dim in dims if isinstance(dim, str)]
    written = []
    for name in draw(st.permutations(sorted(shapes))):
        columns += [dim for dim in shapes[name] if isinstance(dim, str)]
        dims = ",".join(str(dim if isinstance(dim, int) else -1) for dim in shapes[name])
        written.append(f"{name}:{dims}")
    groups = ";".join(",".join(str(gear[each]) for each in columns) for gear in gears)
    text += 'output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }\n'
    text += parameter("graph.ge.inputShape", ";".join(written))
    text += parameter("graph.ge.dynamicDims", groups) if columns else ""
    text += parameter("device_ids", draw(st.sampled_from(["0", "0,1", "3 , 1"])))
    for name in draw(st.sets(st.sampled_from(sorted(REFUSED.keys() | DROPPED.keys())))):
        text += parameter(name, {**REFUSED, **DROPPED}[name][0])
    return text, {tensor: own for tensor, own in names.items() if own}, gears


@given(configurations())
def test_gears_are_the_same_in_both(given_):
    text, names, gears = given_
    drop = [name for name in REFUSED if f'"{name}"' in text]
    conversion = converted(text, axes=names, drop=drop)
    assert conversion.problems == []
    before = text_format.Parse(text, ModelConfig())
    after = text_format.Parse(conversion.text, ModelConfig())
    config = RuntimeConfig.parse({"name": "m", **parse(conversion.text)}, cores=1)
    assert after.backend == "ge"
    made = [
        {axis: size for part in parts for axis, size in part.items()}
        for parts in product(
            *(
                [dict(zip(axes, gear, strict=True)) for gear in table]
                for axes, table in config.gears.items()
                if not isinstance(table, int)
            )
        )
    ]
    assert sorted(map(repr, map(dict, map(sorted, map(dict.items, made))))) == sorted(
        map(repr, map(dict, map(sorted, map(dict.items, gears))))
    )
    for message in (before, after):
        message.ClearField("parameters")
        message.ClearField("backend")
    assert before == after


CONFIG = """\
# A model of two parameters.
backend: 'npu' "_ge"  # the C++ one
max_batch_size: 8;
instance_group [
  { count: 4 }
]
parameters { key: "a" value { string_value: "1" } }
parameters: <
  key: "b"  # the second
  value: < string_value: "2" >
>,
parameters [
  { key: "c" value { string_value: "3" } },
  # the fourth
  { key: "d" value { string_value: "4" } },
  { key: "e" value { string_value: "5" } }
]
version_policy: { latest { num_versions: 1 } }"""


def edit(text, *, values=None, without=(), drop=(), more=None):
    return edit_config(
        text,
        values=values or {},
        without=lambda field: field in without,
        keep=lambda key: key not in drop,
        more=more or {},
    )


def test_no_edits_change_nothing():
    assert edit(CONFIG) == CONFIG


def test_a_string_is_replaced_in_place():
    assert edit(CONFIG, values={"backend": '"ge"'}) == CONFIG.replace("'npu' \"_ge\"", '"ge"')


def test_fields_and_parameters_are_removed_with_their_lines():
    assert (
        edit(CONFIG, without=["instance_group"], drop=["a", "b", "d", "e"])
        == """\
# A model of two parameters.
backend: 'npu' "_ge"  # the C++ one
max_batch_size: 8;
parameters [
  { key: "c" value { string_value: "3" } }
  # the fourth
]
version_policy: { latest { num_versions: 1 } }"""
    )


def test_an_empty_list_is_removed():
    assert "parameters [" not in edit(CONFIG, drop="cde")


def test_other_fields_in_the_same_line_are_kept():
    text = 'parameters { key: "a" } max_batch_size: 8 parameters [ { key: "b" }, { key: "c" } ]\n'
    assert edit(text, drop="ac") == ' max_batch_size: 8 parameters [ { key: "b" }  ]\n'


def test_parameters_are_added_at_the_end():
    assert edit("max_batch_size: 8", more={"a": "1", 'b"': "\\"}) == (
        "max_batch_size: 8\n"
        'parameters { key: "a" value { string_value: "1" } }\n'
        'parameters { key: "b\\"" value { string_value: "\\\\" } }\n'
    )


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_protobuf_reads_any_quoted_text(text):
    config = text_format.Parse(f"name: {quoted(text)}", ModelConfig())
    assert config.name == text


KEYS = st.sampled_from("abcdefgh")
SINGLE = st.builds(
    str.format,
    st.sampled_from(
        [
            'parameters {{ key: "{0}" value {{ string_value: "x{0}" }} }}',
            'parameters: < key: "{0}", value: < string_value: "x" "{0}" > >;',
            '\tparameters {{\n  key: "{0}" # ] }}\n  value: {{ string_value: "x{0}" }}\n}}  ',
        ]
    ),
    KEYS,
)
ENTRY = st.builds('{{ key: "{0}" value {{ string_value: "x{0}" }} }}'.format, KEYS)
LISTED = st.builds(
    lambda entries, joint: f"parameters [ {joint.join(entries)} ]",
    st.lists(ENTRY, min_size=1, max_size=4),
    st.sampled_from([", ", ",\n  ", " ,\n# why\n"]),
)
OTHER = st.sampled_from(
    [
        'input [ { name: "parameters" dims: [ -1, 3 ] } ]',
        "# parameters { }",
        "output { dims: 1; dims: [ ] }, instance_group [ ]",
    ]
)


@pytest.mark.brute_force
@given(
    st.lists(st.one_of(SINGLE, LISTED, OTHER), max_size=6),
    st.sampled_from(["\n", " \n\n"]),
    st.sets(KEYS),
)
def test_protobuf_reads_the_same_except_removed_parameters(lines, joint, drop):
    text = joint.join(lines)
    before = text_format.Parse(text, ModelConfig())
    after = text_format.Parse(edit(text, drop=drop, more={"new": "1"}), ModelConfig())
    expected = {key: value for key, value in read(before).items() if key not in drop}
    assert read(after) == {**expected, "new": "1"}
    before.ClearField("parameters")
    after.ClearField("parameters")
    assert before == after


def read(config):
    return {key: value.string_value for key, value in config.parameters.items()}
