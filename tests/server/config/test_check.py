"""Invalid configurations, and the error text of each."""

import pytest
from server.support.configs import completed, ensemble, proto, step

from reference_server.config.check import (
    check_directory,
    check_given,
    check_loaded,
    check_polled,
    check_response_cache,
)
from reference_server.core.errors import Code, ServerError


def refusal(check, *arguments):
    with pytest.raises(ServerError) as caught:
        check(*arguments)
    return caught.value


# --------------------------------------------------------------------------------------- polled

DELAYS = "{ timeout_action: DELAY default_timeout_microseconds: 5 }"
NO_DELAY = (
    "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m"
)


def batcher(settings):
    return f"max_batch_size: 8 dynamic_batching {{ {settings} }}"


A_TO_O = step("a", {"X": "I"}, {"Y": "O"})

POLLED = {
    "an ensemble without its platform": (
        "ensemble_scheduling { }",
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
    ),
    "steps that wait for each other": (
        ensemble(A_TO_O, step("b", {"X": "Q"}, {"Y": "P"}), step("c", {"X": "P"}, {"Y": "Q"}),
                 outputs="OP"),
        "output 'P' for ensemble 'm' is not written",
    ),
    "metrics of a newer release": (
        "model_metrics { }",
        "model m: found field model_metrics; expected fields of Triton 2.51. Start the "
        "server with --triton-version=newest to use it.",
    ),
    "too many instances": (
        'backend: "python" instance_group { count: 4096 } instance_group { count: 1 }',
        "model 'm': found a total count of 4097 in 'instance_group'; expected at most 4096",
    ),
    "too many warm-ups": (
        'backend: "python" model_warmup { count: 600000 } model_warmup { count: 400001 }',
        "model 'm': found a total count of 1000001 in 'model_warmup'; expected at most 1000000",
    ),
    "too many sequences": (
        'backend: "python" max_batch_size: 500001 instance_group { count: 2 } sequence_batching {}',
        "model 'm': found 'sequence_batching' of 1000002 sequences at a time; expected at most "
        "1000000",
    ),
    "too many candidates": (
        'backend: "python" sequence_batching { oldest { max_candidate_sequences: 1000001 } }',
        "model 'm': found 'sequence_batching' of 1000001 sequences at a time; expected at most "
        "1000000",
    ),
    "a warm-up that is too large": (
        'backend: "python" model_warmup { name: "w" batch_size: 2 inputs { key: "X" value { '
        "dims: [1024, 131073] } } }",
        "model 'm': found 268437504 elements for input 'X' of warm-up 'w'; expected at most "
        "268435456",
    ),
    "input unused": (
        ensemble(A_TO_O, inputs="IJ"),
        "ensemble input 'J' for ensemble m' is not used",
    ),
    "output unwritten": (
        ensemble(A_TO_O, outputs="OP"),
        "ensemble output 'P' for ensemble m' is not used",
    ),
    "a policy of level 0": (
        batcher(
            "priority_levels: 2 default_priority_level: 1 "
            "priority_queue_policy { key: 0 value { } }"
        ),
        "priority queue policy must have priority level in range [1, 2] for m",
    ),
    "an ordered batcher with delayed requests": (
        batcher(f"preserve_ordering: true default_queue_policy {DELAYS}"),
        NO_DELAY,
    ),
    "an ordered batcher with delayed requests of a level": (
        batcher(
            "preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
            f"priority_queue_policy {{ key: 1 value {DELAYS} }}"
        ),
        NO_DELAY,
    ),
    "several missing tensors": (  # Triton names any of them
        ensemble(A_TO_O, step("b", {"Y": "Q", "X": "R"}, {"Y": "P"}), outputs="OP"),
        "output 'P' for ensemble 'm' is not written: at least one of its depending tensors, 'R', "
        "is not connected",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), POLLED.values(), ids=POLLED)
def test_refused_when_polled(text, said):
    error = refusal(check_polled, completed(text))
    assert (error.code, error.message) == (Code.INVALID_ARG, said)


def test_a_name_other_than_the_folders_is_refused():
    config = completed('name: "other"')
    check_polled(config)
    assert refusal(check_directory, config, "m").message == (
        "unexpected directory name 'm' for model 'other', directory name must equal model name"
    )
    check_directory(config, "other")


def test_a_model_without_files_and_backend_is_refused():
    error = refusal(check_polled, proto('name: "m"'))
    assert error.message == (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model "
        "configuration. Expected model name of the form 'model.<backend_name>'."
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dynamic_batching { }",
        batcher("preferred_batch_size: [8]"),
        batcher("priority_levels: 2 default_priority_level: 1"),
        batcher("default_priority_level: 3 priority_queue_policy { key: 3 value { } }"),
        batcher("preserve_ordering: true default_queue_policy { timeout_action: DELAY }"),
        batcher("preserve_ordering: true priority_levels: 1 default_priority_level: 1"),
        ensemble(A_TO_O),
        ensemble(step("b", {"X": "P"}, {"Y": "O"}), step("a", {"X": "I"}, {"Y": "P"})),
        ensemble(A_TO_O, outputs="IO"),
    ],
)
def test_accepted_when_polled(text):
    check_polled(completed(text))


# --------------------------------------------------------------------------------------- loaded


def tensor(kind, rest):
    return f"{kind} {{ {rest} }}"


def given(rest):
    return tensor("input", rest)


def batch_input(data_type="data_type: TYPE_INT32", source_input='source_input: "X"'):
    kind = 'kind: BATCH_ITEM_SHAPE target_name: "T"'
    return f"batch_input {{ {kind} {data_type} {source_input} }} "


FP32 = 'name: "X" data_type: TYPE_FP32 '
X_TO_Y = given(FP32 + "dims: [1]") + tensor("output", 'name: "Y" data_type: TYPE_FP32 dims: [1]')
DIM_TEXT = "must be integer >= 1, or -1 to indicate a variable-size dimension for m"


LOADED = {
    "reshape to nothing without a batch": (
        given(FP32 + "dims: [1] reshape { shape: [] }"),
        "model input 'X' cannot have empty reshape for non-batching model as scalar tensors are "
        "not supported for m",
    ),
    "a format of TensorRT": (
        'output { name: "Y" data_type: TYPE_FP32 dims: [1] is_non_linear_format_io: true }',
        "Non-linear IO format is only supported for the TensorRT platform for m",
    ),
    "batch output that is one twice": (
        X_TO_Y + 'batch_output { target_name: ["Y", "Y"] source_input: "X" }',
        "target output name 'Y' can only be specified once for m",
    ),
    "reshape to a dimension of zero": (
        given(FP32 + "dims: [4] reshape { shape: [0] }"),
        f"model input 'X' reshape dimensions {DIM_TEXT}",
    ),
    "reshape that joins free sizes": (
        given(FP32 + "dims: [-1, -1] reshape { shape: [-1] }"),
        "model input 'X' has different number of variable-size dimensions for dims and reshape "
        "for m",
    ),
    "a tag that is no label": (
        'metric_tags { key: "a-b" value: "x" }',
        "metric tag 'a-b' of model m must consist of letters, digits and underscores, and not "
        "begin with an underscore",
    ),
    "a tag with an underscore in front": (
        'metric_tags { key: "_a" value: "x" }',
        "metric tag '_a' of model m must consist of letters, digits and underscores, and not "
        "begin with an underscore",
    ),
    "batch input without a source": (
        X_TO_Y + batch_input(source_input=""),
        "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for m",
    ),
    "batch input of two sources": (
        X_TO_Y + batch_input(source_input='source_input: ["X", "X"]'),
        "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 2 for m",
    ),
    "batch output of no source": (
        X_TO_Y + 'batch_output { target_name: "Y" }',
        "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0 for m",
    ),
    "batch output of nothing": (
        X_TO_Y + 'batch_output { source_input: "X" }',
        "batch output must specify 'target_name' for m",
    ),
}


def test_a_profile_is_refused_before_auto_completion():
    assert refusal(check_given, completed('instance_group { profile: "p" }')).message == (
        "instance group m_0 of model m and platform specifies profile field which is only "
        "supported for TensorRT models"
    )


@pytest.mark.parametrize("value", ["", 'string_value: "maybe"', 'string_value: "YES"'])
def test_inputs_may_be_forced_to_the_cpu(value):
    text = f'parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ {value} }} }}'
    error = refusal(check_given, completed(text))
    said = value.partition('"')[2].rstrip('"')
    assert error.code is Code.UNSUPPORTED
    # Triton's text has this quote after the value.
    assert error.message == f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {said}'"


@pytest.mark.parametrize(("text", "said"), LOADED.values(), ids=LOADED)
def test_refused_when_loaded(text, said):
    error = refusal(check_loaded, completed(text))
    assert (error.code, error.message) == (Code.INVALID_ARG, said)


@pytest.mark.parametrize(
    "text",
    [
        "",
        given(FP32 + "dims: [4] reshape { shape: [2, 2] }"),
        given(FP32 + "dims: [2, 4, -1, 6] reshape { shape: [8, -1, 1, 6] }"),
        "max_batch_size: 4 " + given(FP32 + "dims: [1] reshape { shape: [] }"),
        given(FP32 + "format: FORMAT_NCHW dims: [3, -1, -1]"),
        given(FP32 + "format: 9 dims: [4]"),
        given(FP32 + "dims: [1]") * 2,
        "instance_group { kind: KIND_MODEL }",
        'platform: "any" backend: "python"',
        'metric_tags { key: "1a_" value: "any text" }',
        'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }',
        X_TO_Y + batch_input(),
        X_TO_Y + batch_input(data_type="data_type: TYPE_FP32") * 2,
        X_TO_Y + 'batch_output { target_name: "Y" source_input: "X" }',
        ensemble(A_TO_O),
    ],
)
def test_accepted_when_loaded(text):
    check_given(completed(text))
    check_loaded(completed(text))


CACHED = "response_cache { enable: true } "


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CACHED + "sequence_batching { }", "sequence batching scheduler"),
        (
            CACHED + "model_transaction_policy { decoupled: true }",
            "'decoupled' transaction policy",
        ),
        (CACHED + "dynamic_batching { }", None),
        ("response_cache { enable: false } sequence_batching { }", None),
        ("sequence_batching { } model_transaction_policy { decoupled: true }", None),
    ],
)
def test_models_without_cacheable_responses_are_refused(text, reason):
    config = proto('name: "m" ' + text)
    if reason is None:
        check_response_cache(config)
    else:
        assert refusal(check_response_cache, config).described() == (
            f"Invalid argument: Response Cache does not currently support model m with {reason}. "
            "Please disable the response cache."
        )
