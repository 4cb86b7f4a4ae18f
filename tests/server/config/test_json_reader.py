"""Configurations in JSON. tests/contract compares the accepted forms with the real server's."""

import contextlib

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from reference_server.config.json_form import read

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
