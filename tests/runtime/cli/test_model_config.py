from pathlib import Path

import pytest

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
    assert config.passes == {"echo": "text"}


def test_a_file_that_cannot_be_read_names_the_line(folder):
    with pytest.raises(ConfigFault, match=r"'encoder':\n  - config.pbtxt: line 1: found '}'"):
        read_model_config(folder("}"))


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
