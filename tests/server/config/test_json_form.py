"""Configurations in JSON, written byte for byte, and read. tests/contract has what is accepted."""

import contextlib

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from server.support.configs import completed, ensemble, proto, step
from tritonclient.grpc.model_config_pb2 import ModelConfig

from reference_server.config import json_form
from reference_server.config.json_form import read
from reference_server.core.errors import Code, ServerError

BAT = """
    backend: "python"
    max_batch_size: 8
    input { name: "A" data_type: TYPE_FP32 dims: [4] }
    output { name: "OA" data_type: TYPE_FP32 dims: [4] }
"""

BAT_JSON = (
    '{"name":"bat","platform":"","backend":"python","runtime":"",'
    '"version_policy":{"latest":{"num_versions":1}},"max_batch_size":8,'
    '"input":[{"name":"A","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[4],'
    '"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,'
    '"is_non_linear_format_io":false}],'
    '"output":[{"name":"OA","data_type":"TYPE_FP32","dims":[4],"label_filename":"",'
    '"is_shape_tensor":false,"is_non_linear_format_io":false}],'
    '"batch_input":[],"batch_output":[],'
    '"optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},'
    '"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,'
    '"eager_batching":false},'
    '"instance_group":[{"name":"bat","kind":"KIND_CPU","count":1,"gpus":[],'
    '"secondary_devices":[],"profile":[],"passive":false,"host_policy":""}],'
    '"default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{},'
    '"parameters":{},"model_warmup":[]}'
)


def test_a_full_configuration_is_rendered():
    assert json_form.as_json(completed(BAT, "bat")) == BAT_JSON


#: Messages as Triton prints them if they are present.
PRESENT = {
    ensemble(step("bat", {"A": "I"}, {"OA": "O"})): (
        '"ensemble_scheduling":{"step":[{"model_name":"bat","model_version":-1,'
        '"input_map":{"A":"I"},"output_map":{"OA":"O"},"model_namespace":""}]},'
        '"instance_group":[],"default_model_filename":""'
    ),
    "dynamic_batching { preferred_batch_size: [2] max_queue_delay_microseconds: 100 "
    "priority_levels: 2 default_priority_level: 1 default_queue_policy { timeout_action: DELAY "
    "default_timeout_microseconds: 5 allow_timeout_override: true max_queue_size: 7 } "
    "priority_queue_policy { key: 1 value { max_queue_size: 3 } } }": (
        '"dynamic_batching":{"preferred_batch_size":[2],"max_queue_delay_microseconds":100,'
        '"preserve_ordering":false,"priority_levels":2,"default_priority_level":1,'
        '"default_queue_policy":{"timeout_action":"DELAY","default_timeout_microseconds":5,'
        '"allow_timeout_override":true,"max_queue_size":7},"priority_queue_policy":{"1":'
        '{"timeout_action":"REJECT","default_timeout_microseconds":0,'
        '"allow_timeout_override":false,"max_queue_size":3}}}'
    ),
    "sequence_batching { direct { } max_sequence_idle_microseconds: 2000000 control_input { "
    'name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } } }': (
        '"sequence_batching":{"direct":{"max_queue_delay_microseconds":0,'
        '"minimum_slot_utilization":0},"max_sequence_idle_microseconds":2000000,'
        '"control_input":[{"name":"START","control":[{"kind":"CONTROL_SEQUENCE_START",'
        '"int32_false_true":[0,1],"fp32_false_true":[],"bool_false_true":[],'
        '"data_type":"TYPE_INVALID"}]}],"state":[],"iterative_sequence":false}'
    ),
    "sequence_batching { oldest { preferred_batch_size: [4] } }": (
        '"oldest":{"max_candidate_sequences":0,"preferred_batch_size":[4],'
        '"max_queue_delay_microseconds":0,"preserve_ordering":false}'
    ),
    'sequence_batching { state { initial_state { name: "z" dims: [1] } } }': (
        '"initial_state":[{"data_type":"TYPE_INVALID","dims":["1"]'
    ),
    'instance_group { name: "grp" count: 2 rate_limiter { resources { name: "R1" count: 4 } '
    "priority: 2 } }": (
        '"instance_group":[{"name":"grp","kind":"KIND_CPU","count":2,"rate_limiter":{"resources":'
        '[{"name":"R1","global":false,"count":4}],"priority":2},"gpus":[]'
    ),
    'model_warmup { name: "w" batch_size: 1 count: 3 inputs { key: "A" value { data_type: '
    "TYPE_FP32 dims: [2] zero_data: true } } }": (
        '"model_warmup":[{"name":"w","batch_size":1,"inputs":{"A":{"data_type":"TYPE_FP32",'
        '"dims":[2],"zero_data":true}},"count":3}]'
    ),
    "model_transaction_policy { decoupled: true }": (
        '"model_transaction_policy":{"decoupled":true}'
    ),
    "response_cache { enable: true }": '"response_cache":{"enable":true}',
    "version_policy { all { } }": '"version_policy":{"all":{}}',
    "version_policy { specific { versions: [1, 3] } }": (
        '"version_policy":{"specific":{"versions":[1,3]}}'
    ),
    'parameters { key: "k" value { string_value: "v" } }': (
        '"parameters":{"k":{"string_value":"v"}}'
    ),
    'input { name: "X" data_type: TYPE_FP32 dims: [4] reshape { shape: [2, 2] } }': (
        '"dims":[4],"reshape":{"shape":[2,2]},"is_shape_tensor":false'
    ),
    'output { name: "X" data_type: TYPE_FP32 dims: [1] reshape { } label_filename: "l" }': (
        '"dims":[1],"reshape":{"shape":[]},"label_filename":"l"'
    ),
}


@pytest.mark.parametrize(("text", "rendered"), PRESENT.items())
def test_a_present_message_is_rendered(text, rendered):
    assert rendered in json_form.as_json(completed(text))


def test_maps_are_sorted_by_key():
    text = "".join(f'metric_tags {{ key: "{key}" value: "" }}' for key in "bca")
    assert '"metric_tags":{"a":"","b":"","c":""}' in json_form.as_json(proto(text))


@pytest.mark.parametrize(
    ("text", "rendered"), [("0.5", "0.5"), ("0.1", "0.1"), ("1.0", "1"), ("0", "0")]
)
def test_fractions_are_as_short_as_possible(text, rendered):
    config = proto(f"sequence_batching {{ direct {{ minimum_slot_utilization: {text} }} }}")
    assert f'"minimum_slot_utilization":{rendered}}}' in json_form.as_json(config)


@pytest.mark.parametrize(("used", "rendered"), [("", False), ("max_inflight_requests: 5", True)])
def test_fields_of_newer_releases_are_rendered_only_if_set(used, rendered):
    config = proto(f"ensemble_scheduling {{ {used} }}")
    assert ("max_inflight_requests" in json_form.as_json(config)) is rendered


def test_only_necessary_characters_are_escaped():
    config = proto('name: "m" parameters { key: "é/" value { string_value: "\\"\\n" } }')
    assert '"é/":{"string_value":"\\"\\n"}' in json_form.as_json(config)


def test_a_number_without_a_name_is_refused():
    with pytest.raises(ServerError, match="non-string as string: kind is 9") as caught:
        json_form.as_json(proto("batch_input { kind: 9 }"))
    assert caught.value.code is Code.INTERNAL


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@st.composite
def configs(draw):
    config = ModelConfig(
        name=draw(TEXT),
        max_batch_size=draw(st.integers(-(2**31), 2**31 - 1)),
    )
    for dims in draw(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3), max_size=3)):
        config.input.add(name=draw(TEXT), data_type=draw(st.integers(0, 14)), dims=dims)
    for key, value in draw(st.dictionaries(TEXT, TEXT, max_size=3)).items():
        config.parameters[key].string_value = value
    batching = draw(st.sampled_from(["dynamic_batching", "sequence_batching", None]))
    if batching is not None:
        getattr(config, batching).SetInParent()
    if batching == "sequence_batching":
        # protobuf's JSON parser refuses the largest 32-bit floats that its own printer writes.
        fraction = draw(st.floats(-(2.0**126), 2.0**126, width=32))
        config.sequence_batching.direct.minimum_slot_utilization = fraction
    if batching == "dynamic_batching":
        levels = draw(st.dictionaries(st.integers(0, 2**64 - 1), st.booleans(), max_size=3))
        for level, value in levels.items():
            policy = config.dynamic_batching.priority_queue_policy[level]
            policy.allow_timeout_override = value
    return config


@given(configs(), st.booleans(), st.booleans())
def test_a_configuration_that_protobuf_writes_is_read_back(config, in_camel_case, ascii_only):
    text = json_format.MessageToJson(
        config, preserving_proto_field_name=not in_camel_case, ensure_ascii=ascii_only
    )
    assert read(text) == config


@given(st.text(alphabet='{}[]:,"\\ua1-.etrufalsn\0 ', max_size=40))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(ValueError):
        read(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "found '', expected a JSON object"),
        ("[]", r"found '\[\]', expected a JSON object"),
        ('{"max_batch_size": 4,}', "Failed to load JSON: .*: line 1 column 2"),
        ('{"a":' * 100_000, "Failed to load JSON: maximum recursion depth exceeded"),
        ('{"nope": 1}', 'Message type "inference.ModelConfig" has no field named "nope" at'),
        ('{"input": [{"dims": ["x"]}]}', r"dims field: invalid literal .* 'x'"),
        ('{"input": [{"data_type": 1e400}]}', "cannot convert float infinity to integer"),
        ('{"name": "\\udc00"}', "Failed to parse name field: Unpaired surrogate"),
        ('{"name": "\udc00"}', "Failed to parse name field: Unpaired surrogate"),
        ('{"\\udc00": 1}', "Failed to parse JSON: SystemError"),
    ],
)
def test_an_error_is_one_line_that_can_be_sent(text, reason):
    with pytest.raises(ValueError, match=reason) as raised:
        read(text)
    message = str(raised.value)
    assert "\n" not in message
    assert message.encode()
