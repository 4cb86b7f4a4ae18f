"""JSON as Protobuf's C++ library reads it; which forms tritonserver takes is in contract tests."""

import contextlib
import json
import re

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from reference_server.config.json_reader import read

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
        fraction = draw(st.floats(width=32, allow_nan=False))
        config.sequence_batching.direct.minimum_slot_utilization = fraction
    if batching == "dynamic_batching":
        levels = draw(st.dictionaries(st.integers(0, 2**64 - 1), st.booleans(), max_size=3))
        for level, value in levels.items():
            policy = config.dynamic_batching.priority_queue_policy[level]
            policy.allow_timeout_override = value
    return config


@given(configs(), st.booleans(), st.booleans())
def test_what_protobuf_writes_is_read_back(config, in_camel_case, ascii_only):
    text = json_format.MessageToJson(
        config, preserving_proto_field_name=not in_camel_case, ensure_ascii=ascii_only
    )
    assert read(text) == config


@given(configs(), st.randoms())
def test_quotes_and_commas_of_any_kind_change_nothing(config, random):
    """Keys without quotes, strings in single ones, and a comma behind every last element."""

    def written(value, *, is_key=False):
        if isinstance(value, dict):
            entries = [f"{written(k, is_key=True)}:{written(v)}," for k, v in value.items()]
            return "{" + " ".join(entries) + "\f}"
        if isinstance(value, list):
            return "[" + "".join(f"{written(each)}," for each in value) + "]"
        if isinstance(value, str):
            if is_key and value.isidentifier() and value.isascii():
                return value
            if random.random() < 0.5:
                return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return json.dumps(value)

    fields = json_format.MessageToDict(config, preserving_proto_field_name=True)
    assert read(written(fields)) == config


@given(st.text(alphabet="{}[]:,'\"\\ua1-.etrufalsn\0 ", max_size=40))
def test_any_other_text_is_read_or_refused(text):
    with contextlib.suppress(ValueError):
        read(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "character 0: found 'the end', expected an object"),
        ("[]", "character 0: found '[]', expected an object"),
        ("{} x", "character 3: found 'x', expected nothing behind the object"),
        ("{,}", "character 1: found ',}', expected a key"),
        ("{null: 1}", "character 1: found 'null: 1}', expected a key"),
        ("{a 1}", "character 3: found '1}', expected a colon"),
        ("{a: 1 b: 2}", "character 6: found 'b: 2}', expected ',' or '}'"),
        ("{a: [1 2]}", "character 7: found '2]}', expected ',' or ']'"),
        ("{a: 'b}", "character 8: found 'the end', expected a closing '"),
        (r"{a: '\u12'}", 'character 6: found "u12\'}", expected four hexadecimal digits'),
        (r"{a: '\udc00'}", 'character 11: found "\'}", expected both halves of a surrogate pair'),
        ("{a: 010}", "character 7: found '}', expected a decimal number"),
        ("{a: 1e400}", "character 4: found '1e400}', expected a value"),
        ("{a: \udcff}", "character 4: no UTF-8"),
        ("{nope: 1}", "nope: found no such field in ModelConfig"),
        ("{input: 5}", "input: found 5, expected an object"),
        ("{input: {dims: 'x'}}", "input.dims: found 'x', expected an integer of -922337203685"),
        ("{max_batch_size: 2147483648}", "max_batch_size: found 2147483648, expected an integer"),
        ("{platform: []}", "platform: found an array, expected a string"),
        ("{model_transaction_policy: {decoupled: 1}}", "decoupled: found 1, expected true or fals"),
        ("{input: {data_type: 'X'}}", "input.data_type: found 'X', expected DataType"),
        ("{parameters: {a: {}, 'a': {}}}", "parameters: found key 'a' twice"),
        (
            "{dynamic_batching: {}, sequence_batching: {}}",
            "sequence_batching: scheduling_choice is chosen already",
        ),
        (
            "{sequence_batching: {direct: {minimum_slot_utilization: 1e39}}}",
            "sequence_batching.direct.minimum_slot_utilization: found 1e+39, expected an FP32 nu",
        ),
        ("{a:" * 101, "expected at most 100 objects within one another"),
    ],
)
def test_an_error_says_where_and_what_was_expected(text, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        read(text)
