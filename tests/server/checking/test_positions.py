"""Each fault of a configuration is reported at the line of its field."""

import ast
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from reference_server.checking.config_text import ConfigText
from reference_server.checking.faults import check_repositories
from reference_server.checking.model_check import Fault, Rules
from reference_server.config import check, check_scheduling, complete, pbtxt
from reference_server.core.errors import ServerError
from reference_server.core.profiles import NEWEST, V2_51
from reference_server.repository import ensembles

CODE = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
X = 'input { name: "X" data_type: TYPE_FP32 dims: 1 }\n'
Y = 'output { name: "Y" data_type: TYPE_FP32 dims: 1 }\n'
PYTHON = 'backend: "python"\n'
MODEL = PYTHON + X + Y
BATCHED = MODEL + "max_batch_size: 8\n"
ENSEMBLE = 'platform: "ensemble"\n' + X + Y
STEP = """ step {
  model_name: "good"
  model_version: -1
  input_map { key: "X" value: "X" }
  output_map { key: "Y" value: "Y" }
 }
"""
STATE = """sequence_batching {
 state {
  input_name: "S"
  output_name: "T"
  data_type: TYPE_FP32
  dims: 1
 }
"""
BLANK = """sequence_batching {
 state {
  input_name: "S"
  output_name: "T"
  data_type: TYPE_FP32
  dims: 1
  initial_state {
"""


def tensor(*lines: str, kind: str = "input") -> str:
    other = Y if kind == "input" else X
    first = f'{kind} {{ name: "A" data_type: TYPE_FP32 dims: 1 }}'
    return PYTHON + other + "\n".join([first, f"{kind} {{", *lines, "}"]).replace("{\n#!", "{ #!")


def control(*lines: str, more: str = "") -> str:
    inner = "\n".join(lines)
    return f'{BATCHED}sequence_batching {{\ncontrol_input {{\nname: "C"\n{inner}\n}}\n{more}\n}}'


def dynamic(*lines: str) -> str:
    return "\n".join([BATCHED + "dynamic_batching {", *lines, "}"])


def steps(*parts: str, tensors: str = ENSEMBLE) -> str:
    return f"{tensors}ensemble_scheduling {{\n{''.join(parts)}}}\n"


def step(text: str, replacement: str) -> str:
    return STEP.replace(text, replacement)


START = "control { kind: CONTROL_SEQUENCE_START\n int32_false_true: [ 0, 1 ] }"
SOURCE = 'kind: BATCH_ELEMENT_COUNT\ntarget_name: "B"\ndata_type: TYPE_INT32'
SPLIT = 'kind: BATCH_SCATTER_WITH_INPUT_SHAPE\nsource_input: "X"'
#: Configurations by the start of a fault's text. The fault is at the line with the mark `#!`, or
#: in the whole file.
FAULTS = [
    # check_polled
    ("unable to find 'libtritonrepoagent_a.so'", MODEL + 'model_repository_agents {\n'
     'agents { name: "b" }\nagents { name: "a" } #!\n}'),
    ("Invalid model name: Could not determine backend", X + Y),
    ("model {}: found field model_metrics", MODEL + "model_metrics { } #!"),
    ("model {}: found field ensemble_scheduling.max_inflight", steps(
        STEP, "max_inflight_requests: 3 #!\n")),
    ("metric control must specify 'metric_identifier'", MODEL + "model_metrics {\n"
     "metric_control { #!\nhistogram_options { buckets: 1 }\n} }"),
    ("metric identifier must specify", MODEL + "model_metrics { metric_control {\n"
     "metric_identifier { #!\n}\nhistogram_options { buckets: 1 } } }"),
    ("metric control must specify 'histogram_options'", MODEL + "model_metrics {\n"
     'metric_control { #!\nmetric_identifier { family: "f" }\n} }'),
    ("histogram options must specify", MODEL + "model_metrics {\nmetric_control {\n"
     'metric_identifier { family: "f" }\nhistogram_options { #!\n} } }'),
    ("'max_batch_size' must be", MODEL + "max_batch_size: -1 #!"),
    ("model '{}': found a total count of 5000", MODEL + "instance_group { count: 5000 } #!"),
    ("model '{}': found 'sequence_batching' of 2000000 sequences", BATCHED
     + "sequence_batching { #!\noldest { max_candidate_sequences: 2000000 } }"),
    ("model '{}': found 800000000 elements for input 'X'", BATCHED + "model_warmup { #!\n"
     'name: "w" batch_size: 8 inputs { key: "X" value { data_type: TYPE_FP32 dims: 100000000 '
     "zero_data: true } } }"),
    ("ensemble scheduling cannot be set", MODEL + "ensemble_scheduling { } #!"),
    ("control of control_input of sequence_batching of model {}: found kind 9", control(
        "control {", "kind: 9 #!", "}")),
    ("unexpected directory name", 'name: "other" #!\n' + MODEL),
    ("unexpected platform type", X + Y + 'platform: "odd" #!'),
    ("unexpected 'platform' and 'backend' pair", PYTHON.replace("python", "tensorflow") + X + Y
     + 'platform: "odd" #!'),
    # check_given
    ("unexpected batch input data type", MODEL + "batch_input {\n"
     "data_type: TYPE_INVALID #!\n}"),
    ("Incorrect value for FORCE_CPU", MODEL + 'parameters { key: "a" }\n'
     'parameters {\nkey: "FORCE_CPU_ONLY_INPUT_TENSORS"\nvalue {\nstring_value: "x" #!\n} }'),
    ("Failed to get the canonical path for /no/env", MODEL
     + 'parameters { #!\nkey: "EXECUTION_ENV_PATH"\nvalue { string_value: "/no/env" } }'),
    ("metric tag 'a b' of", MODEL + 'metric_tags { key: "ok" value: "1" }\n'
     'metric_tags { #!\nkey: "a b"\nvalue: "1" }'),
    # check_tensors
    ("model input must specify 'name'", tensor("#!", "data_type: TYPE_FP32 dims: 1")),
    ("model output 'B' must specify 'data_type'", tensor("#!", 'name: "B" dims: 1', kind="output")),
    ("model input 'B' must specify 'dims'", tensor("#!", 'name: "B" data_type: TYPE_FP32')),
    ("model input 'B' cannot have empty reshape", tensor(
        'name: "B" data_type: TYPE_FP32 dims: 1', "reshape { } #!")),
    ("model input 'B' dimension must", tensor(
        'name: "B" data_type: TYPE_FP32', "dims: [ 1,", "0 #!", "]")),
    ("model input 'B' reshape dimensions must", tensor(
        'name: "B" data_type: TYPE_FP32 dims: 1', "reshape {", "shape: 1", "shape: -2 #!", "}")),
    ("model input 'B' has different number", tensor(
        'name: "B" data_type: TYPE_FP32 dims: [ 2, -1, 2, -1 ]', "reshape {",
        "shape: [ -1, 4 ] #!", "}")),
    ("model input 'B' has different size", tensor(
        'name: "B" data_type: TYPE_FP32 dims: 4', "reshape {", "shape: 3 #!", "}")),
    ("element count for tensor 'B' exceeds", tensor(
        'name: "B" data_type: TYPE_FP32', "dims: [ 9223372036854775807, 2 ] #!")),
    ("model input NHWC/NCHW require", tensor(
        'name: "B" data_type: TYPE_FP32', "format: FORMAT_NHWC", "dims: 1 #!")),
    ("shape tensors are only", tensor(
        'name: "B" data_type: TYPE_FP32 dims: 1', "is_shape_tensor: true #!")),
    ("Non-linear IO format", tensor(
        'name: "B" data_type: TYPE_FP32 dims: 1', "is_non_linear_format_io: true #!")),
    ("batch input data type must be", MODEL + "batch_input {\nsource_input: \"X\"\n"
     "data_type: TYPE_FP16 #!\n}"),
    ("batch input kind 'BATCH_ELEMENT_COUNT' expects", MODEL + f"batch_input {{ #!\n{SOURCE}\n}}"),
    ("unknown source input name 'W'", MODEL + f"batch_input {{\n{SOURCE}\n"
     'source_input: "W" #!\n}'),
    ("unknown target output name 'W'", MODEL + f'batch_output {{\n{SPLIT}\n'
     'target_name: "W" #!\n}'),
    ("target output name 'Y' can only", MODEL + f'batch_output {{\n{SPLIT}\n'
     'target_name: "Y"\ntarget_name: "Y" #!\n}'),
    ("batch output must specify", MODEL + f"batch_output {{ #!\n{SPLIT}\n}}"),
    # instance groups
    ("instance group {}_1 of model {} has unexpected kind", MODEL
     + "instance_group { count: 1 }\ninstance_group {\nkind: 9 #!\n}"),
    ("instance group {}_1 of model {} has kind KIND_CPU but specifies", MODEL
     + "instance_group { count: 1 }\ninstance_group {\nkind: KIND_CPU\ngpus: 0 #!\n}"),
    ("instance group {}_1 of model {} has kind KIND_GPU", MODEL
     + "instance_group [ { count: 1 },\n{ count: 1\n kind: KIND_GPU #!\n } ]"),
    ("instance group {}_0 of model {} specifies invalid", MODEL
     + "instance_group {\nkind: KIND_GPU\ngpus: 0 #!\n}"),
    ("instance group {}_0 of model {} and platform", MODEL
     + 'instance_group {\nkind: KIND_CPU\nprofile: "p" #!\n}'),
    ("Response Cache does not currently support model {} with sequence", BATCHED
     + "sequence_batching { }\nresponse_cache {\nenable: true #!\n}"),
    # dynamic batching
    ("dynamic batching preferred size must be positive", dynamic(
        "preferred_batch_size: 4", "preferred_batch_size: -2 #!")),
    ("dynamic batching preferred size must be <=", dynamic(
        "preferred_batch_size: 4", "preferred_batch_size: 9 #!")),
    ("default priority level must", dynamic(
        "priority_levels: 2", "default_priority_level: 3 #!")),
    ("priority queue policy must", dynamic(
        "priority_levels: 2", "default_priority_level: 1",
        "priority_queue_policy { key: 1 value { } }", "priority_queue_policy { #!", "key: 3",
        "value { } }")),
    ("Only one priority level", dynamic(
        "priority_levels: 2 #!", "default_priority_level: 1", "preserve_ordering: true")),
    ("Queue policy can not have DELAY", dynamic(
        "preserve_ordering: true", "default_queue_policy { #!", "timeout_action: DELAY",
        "default_timeout_microseconds: 5", "}")),
    # ensembles
    ("Ensemble model '{}' must have platform", steps(STEP) + 'backend: "x" #!'),
    ("ensemble scheduling must be set", X + Y + 'platform: "ensemble" #!'),
    ("instance group should not be", steps(STEP) + "instance_group { } #!"),
    ("model_warmup can not be", steps(STEP) + 'model_warmup { name: "w" } #!'),
    ("must specify 'step'", ENSEMBLE + "ensemble_scheduling { } #!"),
    ("must specify 'input_map' in step 1", steps(STEP, 'step { #!\nmodel_name: "good" }\n')),
    ("ensemble tensor 'Y' can appear", steps(STEP, step(
        'output_map { key: "Y" value: "Y" }', 'output_map { key: "Y" value: "Y" } #!'))),
    ("ensemble output 'Z' for", steps(STEP) + 'output { #!\nname: "Z" '
     "data_type: TYPE_FP32 dims: 1 }"),
    ("output 'Y' for ensemble '{}' is not written", steps(STEP.replace(
        'value: "X" }', 'value: "W" } #!'), step('value: "Y"', 'value: "Q"'))),
    ("output 'Z' for ensemble '{}' is not written", steps(STEP, step(
        'key: "X" value: "X"', 'key: "X" value: "Z"').replace('value: "Y"', 'value: "Z"'))
     + 'output { #!\nname: "Z" data_type: TYPE_FP32 dims: 1 }'),
    ("ensemble tensor 'Q' is unused", steps(STEP, step(
        'output_map { key: "Y" value: "Y" }', 'output_map { key: "Y" value: "Q" } #!'))),
    ("ensemble {} contains models that are not available or ambiguous: goood", steps(STEP.replace(
        '"good"', '"goood" #!'))),
    ("in ensemble {}, ensemble tensor X is mapping to non-existing input W", steps(STEP.replace(
        'key: "X" value: "X" }', 'key: "W" value: "X" } #!'))),
    ("in ensemble {}, ensemble tensor Y is mapped from non-existing output W", steps(STEP.replace(
        'key: "Y" value: "Y" }', 'key: "W" value: "Y" } #!'))),
    ("in ensemble {}, input Z in model two is not mapped", steps(STEP.replace(
        '"good"', '"two"').replace('value: "X" }', 'value: "X" } #!'))),
    ("ensemble '{}' depends on 'good' whose required version 3", steps(STEP.replace(
        "-1", "3 #!"))),
    ("ensemble {} allows maximum batch size 9", steps(STEP.replace('"good"', '"batched"'))
     + "max_batch_size: 9 #!"),
    ("in ensemble {}, ensemble tensor X: inconsistent data type", steps(STEP.replace(
        'value: "X" }', 'value: "X" } #!')).replace("TYPE_FP32", "TYPE_INT32", 1)),
    ("in ensemble {}, ensemble tensor Y: inconsistent shape", steps(STEP.replace(
        'value: "Y" }', 'value: "Y" } #!')).replace(Y, Y.replace("dims: 1", "dims: 2"))),
    ("in ensemble {}, step of model '{}' receives inputs", steps(
        STEP.replace("good", "decoupled").replace('"Y" }', '"P" }'),
        STEP.replace("good", "decoupled").replace('"Y" }', '"Q" }'),
        STEP.replace("good", "two").replace(
            'value: "X" }', 'value: "P" } input_map { key: "Z" value: "Q" }'),
    ).replace("scheduling {", "scheduling { #!")),
    # sequences
    ("sequence batching minimum slot", BATCHED + "sequence_batching {\ndirect {\n"
     "minimum_slot_utilization: 2 #!\n} }"),
    ("sequence batching preferred batch size must be positive", BATCHED + "sequence_batching {\n"
     "oldest {\npreferred_batch_size: [ 4,\n0 #!\n] } }"),
    ("sequence batching preferred batch size must be <=", BATCHED + "sequence_batching {\n"
     "oldest {\npreferred_batch_size: [ 4,\n9 #!\n] } }"),
    ("sequence batching control tensor must", BATCHED
     + f"sequence_batching {{\ncontrol_input {{ #!\n{START}\n}} }}"),
    ("sequence batching control tensor 'C' is specified for multiple", control(
        START, more='control_input {\nname: "C" #!\ncontrol { kind: CONTROL_SEQUENCE_END '
        "int32_false_true: [ 0, 1 ] } }")),
    ("sequence batching specifies multiple CONTROL_SEQUENCE_START", control(
        START, more=f'control_input {{\nname: "D"\n{START.replace("START", "START #!")}\n}}')),
    ("sequence batching must not specify either", control(
        "control { kind: CONTROL_SEQUENCE_CORRID", "fp32_false_true: [ 0, 1 ] #!", "}")),
    ("sequence batching must specify either", control("control { #!", "}")),
    ("sequence batching specifies more than one", control(
        "control { int32_false_true: [ 0, 1 ]", "fp32_false_true: [ 0, 1 ] #!", "}")),
    ("sequence batching control 'int32_false_true' must", control(
        "control {", "int32_false_true: [ 0 ] #!", "}")),
    ("unexpected data type for control", control(
        "control { kind: CONTROL_SEQUENCE_CORRID", "data_type: TYPE_FP32 #!", "}")),
    ("sequence batching adds an input 'X'", control(START).replace('"C"', '"X" #!')),
    ("sequence state must specify 'dims'", BATCHED + STATE.replace("dims: 1", "").replace(
        " state {", " state { #!") + "}"),
    ("State input name 'S' specified more", BATCHED + STATE
     + STATE.removeprefix("sequence_batching {\n").replace('"S"', '"S" #!') + "}"),
    ("sequence state 'S' dimension must", BATCHED + STATE.replace("dims: 1", "dims: 0 #!") + "}"),
    ("initial_state field for state input 'S' must", BATCHED + BLANK
     + "}\ninitial_state { #!\n} } }"),
    ("The data type used for 'initial_state'", BATCHED + BLANK + "data_type: TYPE_INT8 #!\n} } }"),
    ("Field 'name' must be set when", BATCHED + BLANK.replace(
        "initial_state {", "initial_state { #!") + "} } }"),
    ("'initial_state' field for state input name 'S' must have as", BATCHED + BLANK
     + "dims: [ 1, 2 ] #!\n} } }"),
    ("'initial_state' field for state input name 'S' contains", BATCHED + BLANK
     + "dims: -1 #!\n} } }"),
    ("'initial_state' dim for input name 'S'", BATCHED + BLANK + "dims: 2 #!\n} } }"),
    ("initial_state setting expects state'S'", BATCHED + BLANK.replace(
        "initial_state {", 'initial_state { #!\nname: "i" data_type: TYPE_FP32 dims: 1') + "} } }"),
    # files and portability
    ("failed to open text file for read", PYTHON + X + 'output {\nname: "Y"\ndims: 1\n'
     'data_type: TYPE_FP32\nlabel_filename: "none.txt" #!\n}'),
    ("failed to open text file for read", BATCHED + BLANK + 'name: "i"\ndata_type: TYPE_FP32\n'
     'dims: 1\ndata_file: "none" #!\n} } }'),
    ("failed to open text file for read", MODEL + 'model_warmup { name: "v" }\nmodel_warmup {\n'
     'name: "w"\nbatch_size: 1\ninputs { #!\nkey: "X"\nvalue { data_type: TYPE_FP32 dims: 1 '
     'input_data_file: "none" } } }'),
    ("unable to find backend library", X + Y + 'backend: "pyhton" #!'),
    ("unable to find backend library", X + Y + 'platform: "tensorrt_plan" #!'),
    ("unable to find backend library", MODEL + 'runtime: "libtriton_own.so" #!'),
    ("default_model_filename: found", MODEL + 'default_model_filename: "../../model.py" #!'),
    ("at least one version must", MODEL + "version_policy { specific { versions: 9 } } #!"),
    ("works here, not on tritonserver 2.51: a state", BATCHED + STATE.replace(
        " state {", " state { #!") + "}"),
    ("model input 'X' is declared twice", MODEL + 'input {\ndata_type: TYPE_FP32\ndims: 1\n'
     'name: "X" #!\n}'),
    ("parameters.a.value.string_value: found", MODEL + 'parameters {\nkey: "a"\nvalue {\n'
     'string_value: "${x}" #!\n} }'),
]  # fmt: skip

SOURCES = (check, check_scheduling, complete, ensembles)
#: Functions that make errors.
MAKERS = {"invalid_arg", "internal", "unsupported", "NotHere", "ServerError"}
#: Texts of cycles, which another test has, and of models that disappear during a load.
ELSEWHERE = ("circular dependency", "ensemble {ensemble} contains models")


class Reported(NamedTuple):
    """The faults by model, and the lines of code that made them."""

    faults: dict[str, list[Fault]]
    lines: set[tuple[str, int]]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """The faults of all configurations, by model, with the rules of both releases."""
    folder = tmp_path_factory.mktemp("repository")
    two = X.replace('"X"', '"Z"')
    helpers = {"good": MODEL, "two": MODEL + two, "batched": BATCHED}
    helpers["decoupled"] = MODEL + "model_transaction_policy { decoupled: true }"
    cases = {f"m{number}": text for number, (_, text) in enumerate(FAULTS)}
    for name, text in (helpers | cases).items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        named = "" if text.startswith("name:") else f'# A comment.\nname: "{name}"\n'
        (folder / name / "config.pbtxt").write_text(named + text)
        if PYTHON in text:
            (version / "model.py").write_text(CODE)
    found: dict[str, list[Fault]] = {}
    lines: set[tuple[str, int]] = set()
    create = ServerError.__init__

    def recording(self: ServerError, *values: object) -> None:
        frame = sys._getframe(1)
        while frame.f_back and frame.f_code.co_name in MAKERS | {"__init__"}:
            frame = frame.f_back
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        create(self, *values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerError, "__init__", recording)
        for profile in (V2_51, NEWEST):
            for fault in check_repositories([folder], Rules(profile)).faults:
                found.setdefault(fault.model, []).append(fault)
    return Reported(found, lines)


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[text for text, _ in FAULTS])
def test_a_fault_is_at_the_line_of_its_field(reported, number):
    name = f"m{number}"
    start = FAULTS[number][0].format(*[name] * 2)
    faults = [fault for fault in reported.faults[name] if fault.message.startswith(start)]
    assert faults, [fault.message for fault in reported.faults[name]]
    file = faults[0].place.file
    marked = [at for at, line in enumerate(file.read_text().splitlines(), 1) if "#!" in line]
    assert [faults[0].place.position.line] == (marked or [0])


@pytest.mark.parametrize("source", SOURCES)
def test_the_table_has_every_fault_of_a_configuration(reported, source):
    file = source.__file__
    made = {line for name, line in reported.lines if name == file}
    text = Path(file).read_text()
    missing = [
        f"{Path(file).name}:{call.lineno}: {ast.get_source_segment(text, call)}"
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in MAKERS
        and not any(call.lineno <= line <= (call.end_lineno or 0) for line in made)
    ]
    assert not [each for each in missing if not any(start in each for start in ELSEWHERE)]


@pytest.mark.brute_force
def test_syntax_errors_begin_with_that_of_the_server(tmp_path):
    file = tmp_path / "config.pbtxt"
    whole = f"# A comment.\n{MODEL}{steps(STEP)}parameters {{ key: 'a' value {{ }} }}"
    for offset in range(0, len(whole), 4):
        for text in (whole[:offset], whole[:offset] + whole[offset + 1 :]):
            file.write_text(text)
            faults = ConfigText(file).read()[1]
            expected = []
            try:
                pbtxt.read(file)
            except ServerError as error:
                expected = [error.message]
            assert [fault.text for fault in faults[:1]] == expected
