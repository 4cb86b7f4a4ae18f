"""Small configurations that both servers complete, or refuse with a reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from support.servers import Flag

X = 'input { name: "X" data_type: TYPE_FP32 dims: [1] }\n'
Y = 'output { name: "Y" data_type: TYPE_FP32 dims: [1] }\n'
PYTHON = 'backend: "python"\n'
MODEL = PYTHON + X + Y
BATCHED = MODEL + "max_batch_size: 4\n"
STEP = (
    'step { model_name: "plain" model_version: -1 '
    'input_map { key: "X" value: "I" } output_map { key: "Y" value: "O" } }\n'
)
IN = 'input { name: "I" data_type: TYPE_FP32 dims: [1] }\n'
OUT = 'output { name: "O" data_type: TYPE_FP32 dims: [1] }\n'
ENSEMBLE = f'platform: "ensemble"\n{IN}{OUT}ensemble_scheduling {{ {STEP} }}\n'
SILENT = "class TritonPythonModel:\n    pass\n"


def completes(statements: str, more: str = "") -> str:
    """Return a model.py whose `auto_complete_config` has these statements about `c`."""
    lines = "\n        ".join([*statements.splitlines(), "return c"])
    return f"""{more}
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(c):
        {lines}
"""


XY = (
    'c.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})\n'
    'c.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [1]})\n'
)


@dataclass(frozen=True)
class Configured:
    """A model folder: its config.pbtxt, the model.py of its versions, and other files."""

    config: str | None
    model: str | None = SILENT
    versions: tuple[str, ...] = ("1",)
    files: dict[str, str] = field(default_factory=dict)


def control(kind: str, values: str = "int32_false_true: [0, 1]", name: str = "C") -> str:
    return f'control_input {{ name: "{name}" control {{ kind: {kind} {values} }} }}\n'


def sequence(text: str) -> str:
    return f"{BATCHED}sequence_batching {{ {text} }}\n"


def batching(text: str, size: int = 4) -> str:
    return f"{MODEL}max_batch_size: {size}\ndynamic_batching {{ {text} }}\n"


BATCH_INPUT = 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "C" '
GPUS = "instance_group { kind: KIND_CPU gpus: [0] }\n"


def forced(value: str) -> str:
    return f'parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ {value} }} }}\n'


def environment(path: str) -> str:
    value = f'string_value: "{path}"'
    return f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ {value} }} }}\n'


def scattered(targets: str) -> str:
    kind = "kind: BATCH_SCATTER_WITH_INPUT_SHAPE"
    return f'batch_output {{ {kind} source_input: "X" target_name: {targets} }}\n'


def connected(text: str) -> str:
    """Return an ensemble's config for `INPUTS | OUTPUTS | KEY=TENSOR,...>KEY=TENSOR ; ...`."""
    inputs, outputs, steps = (part.strip() for part in text.split("|"))
    tensors = "".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [1] }}\n'
        for kind, names in (("input", inputs), ("output", outputs))
        for name in names.split(",")
    )
    written = ""
    for step in steps.split(" ; "):
        written += 'step { model_name: "plain" model_version: -1 '
        for field_name, pairs in zip(("input_map", "output_map"), step.split(">"), strict=True):
            for key, _, value in (pair.partition("=") for pair in pairs.split(",")):
                written += f'{field_name} {{ key: "{key}" value: "{value}" }} '
        written += "}\n"
    return f'platform: "ensemble"\n{tensors}ensemble_scheduling {{\n{written}}}\n'


#: Ensembles with a tensor that depends on no input. Each has one such tensor: of several, the real
#: server would name any, because its maps have no order.
NOT_CONNECTED = {
    "chain": "I | O | A=I>B=x ; A=m>B=a ; A=a>B=O",
    "long_chain": "I | O | A=I>B=x ; A=m>B=c ; A=c>B=d ; A=d>B=e ; A=e,B=x>C=O",
    "chain_reversed": "I | O | A=I>B=x ; A=e,B=x>C=O ; A=d>B=e ; A=c>B=d ; A=m>B=c",
    "one_of_two": "I | O | A=I,B=m>C=O",
    "one_of_two_first": "I | O | A=m,B=I>C=O",
    "one_of_three": "I | O | A=I>B=x ; A=x,B=I,C=m>D=O",
    "twice": "I | O | A=I>B=x ; A=m,B=m>C=O",
    "second_input": "I,J | O | A=I>B=x ; A=J,B=m>C=a ; A=a>C=O",
    "second_output": "I | O,P | A=I>B=O ; A=m>B=P",
    "two_outputs": "I | O,P | A=I>B=x ; A=m>B=O ; A=n>B=P",
    "two_outputs_swapped": "I | P,O | A=I>B=x ; A=m>B=O ; A=n>B=P",
    "outputs_of_a_step": "I | O,P | A=I>B=x ; A=m>B=O,C=P",
    "cycle": "I | O | A=I>B=x ; A=b>C=a ; A=a>C=b ; A=b>C=O",
    "cycle_with_input": "I | O | A=I,B=c>B=x ; A=x>B=y ; A=y>B=c ; A=y>B=O",
    "cycle_beside": "I | O | A=I,B=y>B=x ; A=x>B=y,C=O",
    "cycle_of_the_output": "I | O | A=I>B=x ; A=O>C=a ; A=a>C=O",
    "own_output": "I | O | A=I>B=x ; A=O>C=O",
    "own_tensor": "I | O | A=I>B=x ; A=a>C=a ; A=a>C=O",
    "output_only_read": "I | O | A=I,B=O>C=x",
    "output_unknown_later": "I | O,Q | A=I>B=x ; A=m>B=O",
    "output_unknown_first": "I | Q,O | A=I>B=x ; A=m>B=O",
    "unused_tensor": "I | O | A=I>B=O,C=x",
    "input_as_output": "I | O,I | A=I>B=O",
}

SWITCHES: dict[str, dict[str, Flag]] = {
    "models complete their configuration": {},
    "strict": {"disable_auto_complete_config": None},
}

CONFIGS: dict[str, Configured] = {
    "plain": Configured(MODEL),
    "no_config": Configured(None),
    "empty_config": Configured(""),
    "comment_alone": Configured("# nothing\n"),
    "name_alone": Configured('name: "name_alone"\n'),
    "other_name": Configured('name: "another"\n'),
    "backend_alone": Configured(PYTHON),
    "no_backend": Configured(X + Y),
    "no_backend_no_file": Configured(X + Y, None),
    "empty_folder": Configured(None, None, ()),
    "version_without_files": Configured(None, None),
    "platform_python": Configured('platform: "python"\n' + X + Y),
    "platform_unknown": Configured('platform: "whatever"\n' + X + Y),
    "platform_and_backend": Configured('platform: "whatever"\n' + MODEL),
    "platform_onnx": Configured('platform: "onnxruntime_onnx"\n' + X + Y),
    "platform_torch": Configured('platform: "pytorch_libtorch"\n' + X + Y),
    "platform_tf": Configured('platform: "tensorflow_savedmodel"\n' + X + Y),
    "platform_trt": Configured('platform: "tensorrt_plan"\n' + X + Y),
    "backend_onnx": Configured('backend: "onnxruntime"\n' + X + Y),
    "backend_unknown": Configured('backend: "nobody"\n' + X + Y),
    "file_onnx": Configured(None, None, ("1",), {"1/model.onnx": ""}),
    "file_onnx_and_python": Configured(None, SILENT, ("1",), {"1/model.onnx": ""}),
    "file_onnx_configured": Configured(X + Y, None, ("1",), {"1/model.onnx": ""}),
    "file_plan": Configured(None, None, ("1",), {"1/model.plan": ""}),
    "file_pt": Configured(None, None, ("1",), {"1/model.pt": ""}),
    "file_savedmodel": Configured(None, None, ("1",), {"1/model.savedmodel/x": ""}),
    "file_graphdef": Configured(None, None, ("1",), {"1/model.graphdef": ""}),
    "file_openvino": Configured(None, None, ("1",), {"1/model.xml": "", "1/model.bin": ""}),
    "file_of_backend": Configured(None, None, ("1",), {"1/model.something": ""}),
    "suffix.python": Configured(X + Y),
    "suffix.whatever": Configured(X + Y),
    "suffix_bare.python": Configured(None),
    "two.dots.python": Configured(None),
    "max_batch": Configured(MODEL + "max_batch_size: 8\n"),
    "max_batch_negative": Configured(MODEL + "max_batch_size: -1\n"),
    "inputs_alone": Configured(PYTHON + X),
    "outputs_alone": Configured(PYTHON + Y),
    "batching_empty": Configured(batching("")),
    "batching_unbatched": Configured(batching("", 0)),
    "batching_preferred": Configured(batching("preferred_batch_size: [2, 4]")),
    "batching_preferred_unsorted": Configured(batching("preferred_batch_size: [4, 2, 4]")),
    "batching_preferred_large": Configured(batching("preferred_batch_size: [8]")),
    "batching_preferred_zero": Configured(batching("preferred_batch_size: [0]")),
    "batching_preferred_unbatched": Configured(batching("preferred_batch_size: [1]", 0)),
    "batching_delay": Configured(batching("max_queue_delay_microseconds: 100")),
    "batching_ordered": Configured(batching("preserve_ordering: true")),
    "batching_priorities": Configured(batching("priority_levels: 3 default_priority_level: 2")),
    "batching_priorities_beyond_32_bits": Configured(
        batching("priority_levels: 4294967300 default_priority_level: 4294967299")
    ),
    "batching_priority_default_missing": Configured(batching("priority_levels: 3")),
    "batching_priority_default_large": Configured(
        batching("priority_levels: 3 default_priority_level: 4")
    ),
    "batching_priority_policy": Configured(
        batching(
            "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 2 value { "
            "timeout_action: DELAY max_queue_size: 3 } } priority_queue_policy { key: 1 value { } }"
        )
    ),
    "batching_priority_policy_large": Configured(
        batching(
            "priority_levels: 2 default_priority_level: 1 "
            "priority_queue_policy { key: 3 value { } }"
        )
    ),
    "batching_default_policy": Configured(
        batching(
            "default_queue_policy { default_timeout_microseconds: 5 allow_timeout_override: true }"
        )
    ),
    "batching_ordered_priorities": Configured(
        batching("preserve_ordering: true priority_levels: 2 default_priority_level: 1")
    ),
    "batching_ordered_delay": Configured(
        batching("preserve_ordering: true default_queue_policy { timeout_action: DELAY }")
    ),
    "group_empty": Configured(MODEL + "instance_group { }\n"),
    "group_count": Configured(MODEL + "instance_group { count: 2 }\n"),
    "group_zero": Configured(MODEL + "instance_group { count: 0 }\n"),
    "group_negative": Configured(MODEL + "instance_group { count: -1 }\n"),
    "group_cpu": Configured(MODEL + "instance_group { kind: KIND_CPU }\n"),
    "group_auto": Configured(MODEL + "instance_group { kind: KIND_AUTO }\n"),
    "group_model": Configured(MODEL + "instance_group { kind: KIND_MODEL }\n"),
    "group_gpu": Configured(MODEL + "instance_group { kind: KIND_GPU }\n"),
    "group_gpu_of": Configured(MODEL + "instance_group { kind: KIND_GPU gpus: [0] }\n"),
    "group_auto_gpu": Configured(MODEL + "instance_group { gpus: [0] }\n"),
    "group_cpu_gpus": Configured(MODEL + "instance_group { kind: KIND_CPU gpus: [0] }\n"),
    "group_model_gpus": Configured(MODEL + "instance_group { kind: KIND_MODEL gpus: [0] }\n"),
    "groups_named": Configured(
        MODEL + 'instance_group [ { name: "a" count: 2 }, { kind: KIND_CPU }, { name: "a" } ]\n'
    ),
    "group_passive": Configured(MODEL + "instance_group { passive: true }\n"),
    "group_limited": Configured(
        MODEL + 'instance_group { rate_limiter { resources { name: "R" count: 2 } priority: 3 } }\n'
    ),
    "group_policy": Configured(MODEL + 'instance_group { host_policy: "p" }\n'),
    "group_secondary": Configured(
        MODEL + "instance_group { secondary_devices { kind: KIND_NVDLA device_id: 1 } }\n"
    ),
    "group_profile": Configured(MODEL + 'instance_group { profile: ["p", "q"] }\n'),
    "versions_all": Configured(MODEL + "version_policy { all { } }\n", versions=("1", "2")),
    "versions_latest": Configured(
        MODEL + "version_policy { latest { num_versions: 2 } }\n", versions=("1", "3", "7")
    ),
    "versions_latest_none": Configured(MODEL + "version_policy { latest { } }\n"),
    "versions_empty": Configured(MODEL + "version_policy { }\n"),
    "versions_specific": Configured(
        MODEL + "version_policy { specific { versions: [1, 3, 9] } }\n", versions=("1", "2", "3")
    ),
    "versions_specific_missing": Configured(
        MODEL + "version_policy { specific { versions: [2] } }\n"
    ),
    "versions_specific_none": Configured(MODEL + "version_policy { specific { } }\n"),
    "versions_odd_names": Configured(
        MODEL + "version_policy { all { } }\n", versions=("0", "5", "abc")
    ),
    "optimization_empty": Configured(MODEL + "optimization { }\n"),
    "optimization_graph": Configured(MODEL + "optimization { graph { level: 1 } }\n"),
    "optimization_cuda": Configured(
        MODEL + "optimization { cuda { graphs: true graph_spec { batch_size: 1 } } }\n"
    ),
    "optimization_accelerators": Configured(
        MODEL
        + 'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" '
        'parameters { key: "k" value: "v" } } } }\n'
    ),
    "optimization_pinned": Configured(
        MODEL + "optimization { input_pinned_memory { enable: false } output_pinned_memory { } }\n"
    ),
    "optimization_gather": Configured(
        MODEL + "optimization { gather_kernel_buffer_threshold: 5 priority: PRIORITY_MIN }\n"
    ),
    "cached": Configured(MODEL + "response_cache { enable: true }\n"),
    "cached_off": Configured(MODEL + "response_cache { enable: false }\n"),
    "cached_decoupled": Configured(
        MODEL + "response_cache { enable: true }\nmodel_transaction_policy { decoupled: true }\n"
    ),
    "cached_sequence": Configured(sequence("") + "response_cache { enable: true }\n"),
    "decoupled": Configured(MODEL + "model_transaction_policy { decoupled: true }\n"),
    "decoupled_not": Configured(MODEL + "model_transaction_policy { }\n"),
    "parameters": Configured(
        MODEL
        + 'parameters { key: "b" value { string_value: "2" } } parameters { key: "a" value { } }\n'
    ),
    "tags": Configured(MODEL + 'metric_tags { key: "team" value: "blue" }\n'),
    "files_named": Configured(
        MODEL
        + 'cc_model_filenames { key: "8.6" value: "x.py" }\ndefault_model_filename: "other.py"\n',
        None,
        ("1",),
        {"1/other.py": SILENT},
    ),
    "file_not_python": Configured(
        MODEL + 'default_model_filename: "other.txt"\n', None, ("1",), {"1/other.txt": SILENT}
    ),
    "operations": Configured(MODEL + 'model_operations { op_library_filename: "x.so" }\n'),
    "agents": Configured(MODEL + 'model_repository_agents { agents { name: "nobody" } }\n'),
    "warmed": Configured(
        MODEL + 'model_warmup { name: "w" inputs { key: "X" value { data_type: TYPE_FP32 dims: [1] '
        "zero_data: true } } }\n",
        "import numpy as np\nimport triton_python_backend_utils as pb\n"
        "class TritonPythonModel:\n    def execute(self, requests):\n"
        "        return [pb.InferenceResponse([pb.Tensor('Y', np.zeros(1, np.float32))])"
        " for _ in requests]\n",
    ),
    "runtime_named": Configured(MODEL + 'runtime: "something"\n'),
    "runtime_library": Configured(MODEL + 'runtime: "libtriton_python.so"\n'),
    "batch_input": Configured(
        BATCHED + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "C" data_type: TYPE_INT32 '
        'source_input: "X" }\n'
    ),
    "batch_output": Configured(
        BATCHED + 'batch_output { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE '
        'source_input: "X" }\n'
    ),
    "ragged": Configured(
        PYTHON
        + "max_batch_size: 4\n"
        + Y
        + 'input { name: "X" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }\n'
    ),
    "shape_tensor": Configured(
        PYTHON + Y + 'input { name: "X" data_type: TYPE_INT32 dims: [1] is_shape_tensor: true }\n'
    ),
    "non_linear": Configured(
        PYTHON
        + Y
        + 'input { name: "X" data_type: TYPE_FP32 dims: [1] is_non_linear_format_io: true }\n'
    ),
    "reshaped": Configured(
        PYTHON
        + Y
        + 'input { name: "X" data_type: TYPE_FP32 dims: [4] reshape { shape: [2, 2] } }\n'
    ),
    "reshaped_empty": Configured(
        PYTHON + Y + 'input { name: "X" data_type: TYPE_FP32 dims: [1] reshape { } }\n'
    ),
    "format": Configured(
        PYTHON
        + Y
        + 'input { name: "X" data_type: TYPE_FP32 dims: [1, 2, 3] format: FORMAT_NHWC }\n'
    ),
    "input_without_name": Configured(PYTHON + Y + "input { data_type: TYPE_FP32 dims: [1] }\n"),
    "input_without_type": Configured(PYTHON + Y + 'input { name: "X" dims: [1] }\n'),
    "input_without_dims": Configured(PYTHON + Y + 'input { name: "X" data_type: TYPE_FP32 }\n'),
    "input_zero_dim": Configured(
        PYTHON + Y + 'input { name: "X" data_type: TYPE_FP32 dims: [0] }\n'
    ),
    "input_twice": Configured(PYTHON + X + X + Y),
    "labels_missing": Configured(
        PYTHON
        + X
        + 'output { name: "Y" data_type: TYPE_FP32 dims: [1] label_filename: "none.txt" }\n'
    ),
    # Sequences.
    "sequence_empty": Configured(sequence("")),
    "sequence_unbatched": Configured(MODEL + "sequence_batching { }\n"),
    "sequence_direct": Configured(sequence("direct { }")),
    "sequence_direct_set": Configured(
        sequence("direct { max_queue_delay_microseconds: 5 minimum_slot_utilization: 0.5 }")
    ),
    "sequence_slots_large": Configured(sequence("direct { minimum_slot_utilization: 1.5 }")),
    "sequence_oldest": Configured(sequence("oldest { }")),
    "sequence_oldest_set": Configured(
        sequence(
            "oldest { max_candidate_sequences: 4 preferred_batch_size: [2] "
            "preserve_ordering: true }"
        )
    ),
    "sequence_oldest_large": Configured(sequence("oldest { preferred_batch_size: [9] }")),
    "sequence_idle": Configured(sequence("max_sequence_idle_microseconds: 5000000")),
    "sequence_controls": Configured(
        sequence(
            control("CONTROL_SEQUENCE_START", name="S")
            + control("CONTROL_SEQUENCE_END", "fp32_false_true: [0, 1]", "E")
            + control("CONTROL_SEQUENCE_READY", "bool_false_true: [false, true]", "R")
            + control("CONTROL_SEQUENCE_CORRID", "data_type: TYPE_UINT64", "I")
        )
    ),
    "sequence_control_twice": Configured(
        sequence(control("CONTROL_SEQUENCE_START", name="S") + control("CONTROL_SEQUENCE_START"))
    ),
    "sequence_control_values": Configured(
        sequence(control("CONTROL_SEQUENCE_START", "int32_false_true: [0]"))
    ),
    "sequence_state": Configured(
        sequence(
            'state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: [1] '
            'initial_state { name: "z" data_type: TYPE_INT32 dims: [1] zero_data: true } }'
        )
    ),
    "sequence_iterative": Configured(
        sequence("iterative_sequence: true") + "model_transaction_policy { decoupled: true }\n"
    ),
    "two_schedulers": Configured(BATCHED + "dynamic_batching { } sequence_batching { }\n"),
    # Ensembles.
    "ensemble": Configured(ENSEMBLE, None),
    "ensemble_named": Configured('name: "ensemble_named"\n' + ENSEMBLE, None),
    "ensemble_without_version": Configured(ENSEMBLE, None, ()),
    "ensemble_by_scheduling": Configured(ENSEMBLE.replace('platform: "ensemble"\n', ""), None),
    "ensemble_without_scheduling": Configured(f'platform: "ensemble"\n{IN}{OUT}', None),
    "ensemble_empty": Configured('platform: "ensemble"\n', None),
    "ensemble_without_step": Configured(
        f'platform: "ensemble"\n{IN}{OUT}ensemble_scheduling {{ }}', None
    ),
    "ensemble_backend": Configured(ENSEMBLE + 'backend: "python"\n', None),
    "ensemble_optimized": Configured(ENSEMBLE + "optimization { eager_batching: true }\n", None),
    "ensemble_group": Configured(ENSEMBLE + "instance_group { count: 2 }\n", None),
    "ensemble_group_gpu": Configured(ENSEMBLE + "instance_group { kind: KIND_GPU }\n", None),
    "ensemble_batching": Configured(
        f'platform: "ensemble"\n{IN}{OUT}dynamic_batching {{ }}\n', None
    ),
    "ensemble_decoupled": Configured(
        ENSEMBLE + "model_transaction_policy { decoupled: true }\n", None
    ),
    "ensemble_cached": Configured(ENSEMBLE + "response_cache { enable: true }\n", None),
    "ensemble_parameters": Configured(
        ENSEMBLE + 'parameters { key: "k" value { string_value: "v" } }\n', None
    ),
    "ensemble_file": Configured(ENSEMBLE + 'default_model_filename: "x.py"\n', None),
    "ensemble_versioned": Configured(
        ENSEMBLE.replace("model_version: -1", "model_version: 1"), None
    ),
    "ensemble_version_unset": Configured(ENSEMBLE.replace("model_version: -1", ""), None),
    "ensemble_version_wrong": Configured(
        ENSEMBLE.replace("model_version: -1", "model_version: 5"), None
    ),
    "ensemble_namespace": Configured(
        ENSEMBLE.replace("model_version: -1", 'model_version: -1 model_namespace: "n"'), None
    ),
    "ensemble_of_failed": Configured(ENSEMBLE.replace('"plain"', '"completes_raising"'), None),
    "ensemble_of_nobody": Configured(ENSEMBLE.replace('"plain"', '"nobody"'), None),
    "ensemble_of_bad_config": Configured(ENSEMBLE.replace('"plain"', '"max_batch_negative"'), None),
    "ensemble_of_itself": Configured(ENSEMBLE.replace('"plain"', '"ensemble_of_itself"'), None),
    "ensemble_unused_output": Configured(
        ENSEMBLE.replace(
            "output {", 'output { name: "P" data_type: TYPE_FP32 dims: [1] }\noutput {'
        ),
        None,
    ),
    "ensemble_writes_input": Configured(
        ENSEMBLE.replace(OUT, IN.replace("input", "output")).replace('value: "O"', 'value: "I"'),
        None,
    ),
    "ensemble_no_input_map": Configured(
        ENSEMBLE.replace('input_map { key: "X" value: "I" }', ""), None
    ),
    "ensemble_inflight": Configured(
        ENSEMBLE.replace("ensemble_scheduling {", "ensemble_scheduling { max_inflight_requests: 2"),
        None,
    ),
    **{
        f"not_connected_{name}": Configured(connected(text), None)
        for name, text in NOT_CONNECTED.items()
    },
    # One fault.
    "batch_input_typeless": Configured(BATCHED + BATCH_INPUT + 'source_input: "X" }\n'),
    "batch_input_long": Configured(
        BATCHED + BATCH_INPUT + 'source_input: "X" data_type: TYPE_INT64 }\n'
    ),
    "batch_output_twice": Configured(BATCHED + scattered('["Y", "Y"]')),
    "batch_output_unknown": Configured(BATCHED + scattered('"Q"')),
    "ensemble_scheduling_alone": Configured(MODEL + "ensemble_scheduling { }\n"),
    "environment_is_empty": Configured(MODEL + environment("")),
    "environment_is_missing": Configured(
        MODEL + environment("$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    ),
    "environment_in_the_middle": Configured(
        MODEL + environment("ab/$$TRITON_MODEL_DIRECTORY/0123456789")
    ),
    "environment_without_activate": Configured(
        MODEL + environment("$$TRITON_MODEL_DIRECTORY/env"), files={"env/bin/x": ""}
    ),
    "environment_without_python": Configured(
        MODEL + environment("$$TRITON_MODEL_DIRECTORY/env"),
        completes("c.set_max_batch_size(int(os.environ['SIZE']))", "import os"),
        files={"env/bin/activate": "export SIZE=3\n"},
    ),
    "wrong_parameter_and_environment": Configured(
        MODEL + forced('string_value: "maybe"') + environment("/no/env")
    ),
    "forced_to_cpu": Configured(MODEL + forced('string_value: "yes"')),
    "forced_to_cpu_by_nothing": Configured(MODEL + forced("")),
    "forced_to_cpu_in_capitals": Configured(MODEL + forced('string_value: "YES"')),
    # Two faults; Triton reports the first one that it finds.
    "wrong_name_and_dim": Configured(
        MODEL.replace("dims: [1]", "dims: [0]", 1) + 'name: "somebody"\n'
    ),
    "wrong_name_and_batch": Configured(MODEL + 'name: "somebody"\nmax_batch_size: -1\n'),
    "wrong_group_and_dim": Configured(MODEL.replace("dims: [1]", "dims: [0]", 1) + GPUS),
    "wrong_group_and_model": Configured(MODEL + GPUS, completes('raise RuntimeError("no")')),
    "wrong_group_of_two_kinds": Configured(
        MODEL + 'instance_group { kind: KIND_CPU gpus: [0] profile: "p" }\n'
    ),
    "wrong_parameter_and_model": Configured(
        MODEL + forced('string_value: "maybe"'), completes('raise RuntimeError("no")')
    ),
    "wrong_batch_input_and_model": Configured(
        BATCHED + BATCH_INPUT + 'source_input: "X" }\n', completes('raise RuntimeError("no")')
    ),
    "wrong_cache_and_control": Configured(
        sequence(control("CONTROL_SEQUENCE_END", "")) + "response_cache { enable: true }\n"
    ),
    "wrong_tensor_and_reshape": Configured(
        PYTHON + Y + 'input { name: "X" data_type: TYPE_FP32 dims: [4] reshape { shape: [3] } '
        "is_shape_tensor: true format: FORMAT_NHWC }\n"
    ),
    "wrong_reshape_and_dim": Configured(
        PYTHON + Y + 'input { name: "X" data_type: TYPE_FP32 dims: [0] reshape { } }\n'
    ),
    "wrong_ready_and_end": Configured(
        sequence(
            control("CONTROL_SEQUENCE_READY", "int32_false_true: [0]", name="R")
            + control("CONTROL_SEQUENCE_END", "int32_false_true: [1]", name="E")
        )
    ),
    "wrong_id_and_end": Configured(
        sequence(
            control("CONTROL_SEQUENCE_CORRID", "data_type: TYPE_BOOL", name="I")
            + control("CONTROL_SEQUENCE_END", "", name="E")
        )
    ),
    "wrong_id_twice": Configured(
        sequence(
            control("CONTROL_SEQUENCE_CORRID", "data_type: TYPE_BOOL int32_false_true: [0, 1]")
        )
    ),
    "wrong_ensemble_group_and_warmup": Configured(
        ENSEMBLE + 'instance_group { } model_warmup { name: "w" }\n', None
    ),
    # Models that complete their configurations.
    "completes": Configured(None, completes(XY + "c.set_max_batch_size(4)")),
    "completes_batching": Configured(
        None, completes(XY + "c.set_max_batch_size(4)\nc.set_dynamic_batching()")
    ),
    "completes_batching_unbatched": Configured(None, completes(XY + "c.set_dynamic_batching()")),
    "completes_batching_over": Configured(
        batching("max_queue_delay_microseconds: 7"), completes("c.set_dynamic_batching()")
    ),
    "completes_decoupled": Configured(
        None, completes(XY + 'c.set_model_transaction_policy({"decoupled": True})')
    ),
    "completes_coupled": Configured(
        None, completes(XY + 'c.set_model_transaction_policy({"decoupled": False})')
    ),
    "completes_optional": Configured(
        None,
        completes(
            'c.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1], "optional": True})'
        ),
    ),
    "completes_more": Configured(
        MODEL, completes('c.add_output({"name": "Z", "data_type": "TYPE_STRING", "dims": [2, -1]})')
    ),
    "completes_by_hand": Configured(
        MODEL,
        completes(
            'd = c.as_dict()\nd["parameters"] = {"k": {"string_value": "v"}}\n'
            'd["max_batch_size"] = 3\nd["instance_group"] = []\n'
            'd["input"][0]["format"] = "FORMAT_NONE"\nd["version_policy"] = {"all": {}}'
        ),
    ),
    "completes_sequence": Configured(
        BATCHED, completes('c.as_dict()["sequence_batching"] = {"oldest": {}}')
    ),
    "completes_nonsense": Configured(MODEL, completes('c.as_dict()["input"][0]["dims"] = ["x"]')),
    "completes_unknown": Configured(MODEL, completes('c.as_dict()["nonsense"] = 1')),
    "completes_type": Configured(
        None, completes('c.add_input({"name": "X", "data_type": "FP32", "dims": [1]})')
    ),
    "completes_negative": Configured(MODEL, completes("c.set_max_batch_size(-1)")),
    "completes_zero_dim": Configured(
        None, completes('c.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [0]})')
    ),
    "completes_less": Configured(BATCHED, completes("c.set_max_batch_size(2)")),
    "completes_other_type": Configured(
        MODEL, completes('c.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [1]})')
    ),
    "completes_none": Configured(MODEL, completes("return None")),
    "completes_raising": Configured(MODEL, completes('raise RuntimeError("no way")')),
    "completes_large_preferred": Configured(
        MODEL,
        completes(
            "c.set_max_batch_size(4)\n"
            'c.as_dict()["dynamic_batching"] = {"preferred_batch_size": [9]}'
        ),
    ),
    # Texts that cannot be read.
    "unknown_field": Configured(MODEL + "nonsense: 1\n"),
    "unknown_nested_field": Configured(MODEL + "dynamic_batching { nonsense: 1 }\n"),
    "syntax": Configured(MODEL + "dynamic_batching {\n"),
    "syntax_word": Configured("hello\n"),
    "newer_field": Configured(MODEL + "model_metrics { }\n"),
    "bad_enum": Configured(MODEL.replace("TYPE_FP32", "TYPE_FP33")),
    "bad_number": Configured(MODEL + "max_batch_size: 9999999999999\n"),
    "field_twice": Configured(MODEL + "max_batch_size: 2\nmax_batch_size: 4\n"),
    "backend_empty": Configured('backend: ""\n' + X + Y),
    "comma": Configured(MODEL + "max_batch_size: 2, version_policy: { all { }},\n"),
    "semicolon": Configured(MODEL + "max_batch_size: 2;\n"),
    "deprecated": Configured(MODEL + "optimization { input_pinned_memory: { enable: 0 } }\n"),
}


def write_configs(repository: Path, names: Iterable[str]) -> None:
    """Write the model folders of these rows."""
    for name in names:
        row = CONFIGS[name]
        folder = repository / name
        folder.mkdir(parents=True)
        if row.config is not None:
            (folder / "config.pbtxt").write_text(row.config, encoding="utf-8")
        for version in row.versions:
            (folder / version).mkdir()
            if row.model is not None:
                (folder / version / "model.py").write_text(row.model, encoding="utf-8")
        for path, text in row.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
