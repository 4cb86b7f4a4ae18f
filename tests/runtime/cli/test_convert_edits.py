"""Edits of config.pbtxt as text, compared with protobuf's reader."""

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from ge_runtime.cli.config_pbtxt import edit_config, quoted

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
