"""Settings of the dynamic batcher, of instances and of sequences, read from configurations."""

import pytest
from server.support.configs import completed, model_config

from reference_server.config.check_scheduling import check_sequence_batching, check_sequence_inputs
from reference_server.config.scheduler_settings import (
    ControlKind,
    Direct,
    DynamicBatching,
    InstanceConfig,
    Oldest,
    QueuePolicy,
    Resource,
)
from reference_server.core.errors import Code, ServerError
from reference_server.core.tensor import DataType


def test_all_settings_of_the_batcher_are_read():
    batching = model_config("""max_batch_size: 8 dynamic_batching {
        preferred_batch_size: [4, 2] max_queue_delay_microseconds: 100 preserve_ordering: true
        priority_levels: 1 default_priority_level: 1
        default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 }
        priority_queue_policy { key: 1 value { allow_timeout_override: true max_queue_size: 3 } }
    }""").dynamic_batching
    assert batching == DynamicBatching(
        (2, 4),
        100,
        preserve_ordering=True,
        levels=1,
        default_level=1,
        default_policy=QueuePolicy(5, delays=True),
        policies={1: QueuePolicy(overridable=True, max_size=3)},
    )
    assert not batching.is_free


def test_instances_are_named_after_their_group_and_number():
    config = model_config("""
        instance_group { }
        instance_group { name: "x" kind: KIND_MODEL count: 2
          rate_limiter { priority: 3 resources { name: "R" count: 2 }
                         resources { name: "S" count: 1 global: true } } }
    """)
    resources = (Resource("R", 2, is_global=False), Resource("S", 1, is_global=True))
    assert config.instances == (
        InstanceConfig("m_0_0", "CPU"),
        InstanceConfig("x_0", "MODEL", 3, resources),
        InstanceConfig("x_1", "MODEL", 3, resources),
    )
    assert config.instance_names == ("m_0_0", "x_0", "x_1")


START = "kind: CONTROL_SEQUENCE_START"
CORRID = "kind: CONTROL_SEQUENCE_CORRID"
VALUES = "int32_false_true: [0, 1]"


def control(name, *settings):
    controls = " ".join(f"control {{ {each} }}" for each in settings)
    return f'control_input {{ name: "{name}" {controls} }}'


def state(fields="data_type: TYPE_FP32 dims: [1]", initial="", inputs="I", outputs="O"):
    return f'state {{ input_name: "{inputs}" output_name: "{outputs}" {fields} {initial} }}'


def initial(fields='name: "i" data_type: TYPE_FP32 dims: [1] zero_data: true'):
    return f"initial_state {{ {fields} }}"


def config(batching, rows=4):
    return f"""
        max_batch_size: {rows}
        input {{ name: "X" data_type: TYPE_FP32 dims: [1] }}
        sequence_batching {{ {batching} }}
    """


POLLED = {
    "id with values": (
        control("C", f"{CORRID} data_type: TYPE_UINT64 {VALUES}"),
        "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
        "'bool_false_true' for CONTROL_SEQUENCE_CORRID for m",
    ),
    "one name for two kinds": (
        control("S", f"{START} {VALUES}") + control("S", f"kind: CONTROL_SEQUENCE_END {VALUES}"),
        "sequence batching control tensor 'S' is specified for multiple control kinds for m",
    ),
    "preferred size of zero": (
        "oldest { preferred_batch_size: 0 }",
        "sequence batching preferred batch size must be positive for m",
    ),
}
LOADED = {
    "one input for two kinds": (
        control("S", f"{START} {VALUES}", f"kind: CONTROL_SEQUENCE_END {VALUES}"),
        "sequence batching control tensor 'S' is specified for multiple control kinds for m",
    ),
    "control that is an input": (
        control("X", f"{START} {VALUES}"),
        "sequence batching adds an input 'X' that model m has already",
    ),
    "state that is an input": (
        state(inputs="X"),
        "sequence batching adds an input 'X' that model m has already",
    ),
    "state without an input": (state(inputs=""), "sequence state must specify 'input_name' for m"),
    "state without an output": (
        state(outputs=""),
        "sequence state must specify 'output_name' for m",
    ),
    "state without a type": (state("dims: [1]"), "sequence state must specify 'data_type' for m"),
    "state without dims": (
        state("data_type: TYPE_FP32"),
        "sequence state must specify 'dims' for m",
    ),
    "state of no elements": (
        state("data_type: TYPE_FP32 dims: [0]"),
        "sequence state 'I' dimension must be integer >= 1, or -1 to indicate a variable-size "
        "dimension for m",
    ),
    "state twice": (
        state() + state(outputs="P"),
        "State input name 'I' specified more than once.",
    ),
    "state output twice": (
        state() + state(inputs="J"),
        "State output name 'O' specified more than once.",
    ),
    "two initial states": (
        state(initial=initial() + initial()),
        "initial_state field for state input 'I' must contain exactly one or zero element. Found "
        "'2' elements.",
    ),
    "initial state of another rank": (
        state(initial=initial('name: "i" data_type: TYPE_FP32 dims: [1, 1] zero_data: true')),
        "'initial_state' field for state input name 'I' must have as many dims as the state.",
    ),
    "initial state of free dims": (
        state(
            "data_type: TYPE_FP32 dims: [-1]",
            initial('name: "i" data_type: TYPE_FP32 dims: [-1] zero_data: true'),
        ),
        "'initial_state' field for state input name 'I' contains variable dimensions.",
    ),
}


@pytest.mark.parametrize(("batching", "message"), POLLED.values(), ids=POLLED)
def test_refused_when_polled(batching, message):
    with pytest.raises(ServerError) as caught:
        check_sequence_batching(completed(config(batching)))
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, message)


@pytest.mark.parametrize(("batching", "message"), LOADED.values(), ids=LOADED)
def test_refused_when_loaded(batching, message):
    message_config = completed(config(batching))
    check_sequence_batching(message_config)
    with pytest.raises(ServerError) as caught:
        check_sequence_inputs(message_config)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, message)


@pytest.mark.parametrize(
    "batching",
    [
        "",
        "oldest { max_candidate_sequences: 1 preferred_batch_size: 4 }",
        'control_input { name: "S" }',
        state("data_type: TYPE_FP32 dims: [-1]"),
        state("data_type: TYPE_FP32 dims: [-1]", initial()),
        state(outputs="X"),
    ],
)
def test_accepted(batching):
    message = completed(config(batching))
    check_sequence_batching(message)
    check_sequence_inputs(message)


def test_missing_settings_get_defaults():
    batching = completed(config("oldest { }")).sequence_batching
    assert batching.max_sequence_idle_microseconds == 1_000_000
    assert list(batching.oldest.preferred_batch_size) == [4]
    unbatched = completed(config("oldest { }", rows=0)).sequence_batching
    assert not unbatched.oldest.preferred_batch_size


def test_both_strategies_are_read():
    direct = "direct { max_queue_delay_microseconds: 5 minimum_slot_utilization: 0.5 }"
    oldest = "oldest { max_candidate_sequences: 3 preferred_batch_size: [4, 2] }"
    assert model_config(config("")).sequence_batching.strategy == Direct(0, 0.0)
    assert model_config(config(direct)).sequence_batching.strategy == Direct(5, 0.5)
    assert model_config(config(oldest)).sequence_batching.strategy == Oldest(3, (2, 4), 0)
    negative = config("oldest { max_candidate_sequences: -2 }")
    assert model_config(negative).sequence_batching.strategy.max_candidates == 0


def test_controls_and_states_are_read():
    text = config(
        control("S", f"{START} int32_false_true: [-1, 1]")
        + control("C", f"{CORRID} data_type: TYPE_STRING")
        + state("data_type: TYPE_INT32 dims: [-1, 2]")
        + state(
            "data_type: TYPE_FP32 dims: [-1]",
            initial('name: "i" data_type: TYPE_FP32 dims: [3] data_file: "f"'),
            inputs="J",
            outputs="P",
        )
    )
    batching = model_config(text).sequence_batching
    start, corrid = batching.controls
    assert (start.kind, start.datatype, start.values) == (
        ControlKind.START,
        DataType.INT32,
        (-1, 1),
    )
    assert (corrid.kind, corrid.datatype, corrid.values) == (ControlKind.CORRID, DataType.BYTES, ())
    first, second = batching.states
    assert (first.initial_dims, first.initial_file) == ((1, 2), None)
    assert (second.initial_dims, second.initial_file) == ((3,), "f")
