from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from ge_runtime.cli.config_pbtxt import KNOWN_FIELDS, parse, read_model_config, read_runtime_config
from ge_runtime.errors import ConfigFault

ENCODER = """
max_batch_size: 8
input [ { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "axes.ids" value { string_value: "tokens" } }
parameters { key: "limit.tokens" value { string_value: "32" } }
"""


@pytest.fixture
def folder(tmp_path):
    """A function: the folder of model `encoder` with this config.pbtxt."""

    def write(text):
        path = tmp_path / "encoder"
        path.mkdir()
        (path / "config.pbtxt").write_text(text, encoding="utf-8")
        return path

    return write


def test_a_folder_and_its_file_say_the_same(folder):
    path = folder(ENCODER)
    config = read_runtime_config(path)
    assert config.limits == {"tokens": 32}
    assert config.model == "encoder"
    assert read_runtime_config(path / "config.pbtxt") == config


def test_a_name_that_is_written_counts(folder):
    assert read_model_config(folder('name: "other"'))["name"] == "other"


def test_outputs_of_bytes_are_taken_to_be_derived(folder):
    label = 'output [ { name: "label" data_type: TYPE_STRING dims: [ 1 ] } ]'
    config = read_runtime_config(folder(ENCODER + label))
    assert [spec.name for spec in config.outputs] == ["embedding"]
    assert [spec.name for spec in config.derived] == ["label"]


def test_outputs_of_bytes_that_are_passed_are_not(folder):
    more = """
    input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "echo" data_type: TYPE_STRING dims: [ 1 ] } ]
    parameters { key: "pass.echo" value { string_value: "text" } }
    """
    config = read_runtime_config(folder(ENCODER + more))
    assert config.derived == ()
    assert config.passthrough == {"echo": "text"}


def test_a_file_that_cannot_be_read_names_the_line(folder):
    with pytest.raises(ConfigFault, match=r"'encoder':\n  - config.pbtxt: line 1: found '}'"):
        read_model_config(folder("}"))


def test_a_slip_in_the_name_of_a_field_is_told_with_its_place(folder):
    text = ENCODER.replace("max_batch_size", "max_batchsize")
    text = text.replace("dims: [ -1 ]", "dims: [ -1 ] allow_raged_batch: true")
    with pytest.raises(ConfigFault) as raised:
        read_runtime_config(folder(text + "instance_group [ { cuont: 2 } ]"))
    assert raised.value.faults == (
        "config.pbtxt: found no field 'max_batchsize', expected 'max_batch_size'",
        "config.pbtxt: input[0]: found no field 'allow_raged_batch', expected 'allow_ragged_batch'",
        "config.pbtxt: instance_group[0]: found no field 'cuont', expected 'count'",
    )


def test_fields_of_another_release_are_left_to_the_server(folder):
    assert read_model_config(folder(ENCODER + "quantum_batching { }"))["quantum_batching"] == {}


def test_the_fields_are_those_of_tritons_schema():
    messages = {"": "ModelConfig", "input": "ModelInput", "output": "ModelOutput"}
    for field, message in {**messages, "instance_group": "ModelInstanceGroup"}.items():
        schema = getattr(model_config_pb2, message).DESCRIPTOR
        assert {*KNOWN_FIELDS[field]} == {each.name for each in schema.fields}


def test_a_configuration_with_faults_is_refused(folder):
    with pytest.raises(ConfigFault, match=r"'limit\.words': found no axis 'words'"):
        read_runtime_config(folder(ENCODER.replace("limit.tokens", "limit.words")))


def test_a_missing_file_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_model_config(tmp_path)


@pytest.mark.parametrize("model", ["ge_classifier", "text_encoder", "text_classifier"])
def test_the_models_of_this_repository_are_read(model):
    repository = Path(__file__).parents[3] / "model_repository"
    assert read_runtime_config(repository / model).model == model


def test_a_model_configuration_is_read():
    assert parse(
        """
        # A comment, and then some.
        backend: "python"  max_batch_size: 64
        input [
          { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true },
          { name: 'lengths', data_type: TYPE_INT32; dims: 1 dims: 2 }  # the last one
        ]
        output { name: "embedding" dims: [] reshape: < shape: [ ] > }
        dynamic_batching { }
        parameters { key: "axes.ids" value { string_value: "tokens" } }
        parameters: { key: "limit.tokens" value: { string_value: "5" '12' } }
        """
    ) == {
        "backend": "python",
        "max_batch_size": 64,
        "input": [
            {
                "name": "ids",
                "data_type": "TYPE_INT64",
                "dims": [-1],
                "allow_ragged_batch": True,
            },
            {"name": "lengths", "data_type": "TYPE_INT32", "dims": [1, 2]},
        ],
        "output": [{"name": "embedding", "dims": [], "reshape": {"shape": []}}],
        "dynamic_batching": {},
        "parameters": {
            "axes.ids": {"string_value": "tokens"},
            "limit.tokens": {"string_value": "512"},
        },
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x10", 16),
        ("-3", -3),
        ("0", 0),
        ("052", 42),
        ("-010", -8),
        ("0.5", 0.5),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("false", False),
        ("KIND_CPU", "KIND_CPU"),
        (r'"a\tb\n\"\\\'"', "a\tb\n\"\\'"),
        ('"# no comment"', "# no comment"),
        ('"长"', "长"),
        ("[1, 2]", [1, 2]),
        ("[1, 2,]", [1, 2]),
        ("{ a: 1 }", {"a": 1}),
    ],
)
def test_a_value_is_read(text, value):
    assert parse(f"field: {text}") == {"field": value}


@pytest.mark.parametrize("number", ["0", "010", "-017", "0x1f", "10"])
def test_a_whole_number_is_what_protobuf_reads(number):
    read = text_format.Parse(f"max_batch_size: {number}", model_config_pb2.ModelConfig())
    assert parse(f"max_batch_size: {number}") == {"max_batch_size": read.max_batch_size}


def test_an_empty_file_says_nothing():
    assert parse("  # nothing\n") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb 2", "line 2: found '2', expected ':' or '{'"),
        ("a:", "line 1: found the end, expected a value"),
        ("a: }", "line 1: found '}', expected a value"),
        ("a {\nb: 1\n", "line 3: found the end, expected '}'"),
        ("a { b: 1 >", "line 1: found '>', expected the name of a field"),
        ("}", "line 1: found '}', expected the name of a field"),
        ("a: [1 2]", "line 1: found '2', expected ',' or ']'"),
        ("a: [1,", "line 1: found the end, expected a value"),
        ("\n\na: 'open", 'line 3: found "\'", expected a field or value'),
        ("a: [1,\n08]", "line 2: found '08', expected digits from 0 to 7"),
        ("a: 12x", "line 1: found '1', expected a field or value"),
        (r'a: "\q"', r"expected a text whose escapes are among"),
        ("a: 1 \x00", r"line 1: found '\\x00', expected a field or value"),
    ],
)
def test_a_fault_has_its_line(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)
