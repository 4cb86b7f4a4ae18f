from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2

from ge_runtime.cli.field_names import FIELDS
from ge_runtime.cli.model_config import read_model_config, read_runtime_config
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
        assert {*FIELDS[field]} == {each.name for each in schema.fields}


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
