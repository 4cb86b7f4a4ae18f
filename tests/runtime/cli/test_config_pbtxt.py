from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2

from ge_runtime.cli import config_pbtxt
from ge_runtime.cli.config_pbtxt import parse, read_model_config, read_runtime_config
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
    """A function that writes the folder of the model `encoder` with the given config.pbtxt."""

    def write(text):
        path = tmp_path / "encoder"
        path.mkdir()
        (path / "config.pbtxt").write_text(text, encoding="utf-8")
        return path

    return write


def test_a_folder_and_its_file_give_the_same_configuration(folder):
    path = folder(ENCODER)
    config = read_runtime_config(path)
    assert config.limits == {"tokens": 32}
    assert config.model == "encoder"
    assert read_runtime_config(path / "config.pbtxt") == config


def test_outputs_of_bytes_are_derived_unless_they_are_passed(folder):
    more = """
    output [ { name: "label" data_type: TYPE_STRING dims: [ 1 ] } ]
    input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "echo" data_type: TYPE_STRING dims: [ 1 ] } ]
    parameters { key: "pass.echo" value { string_value: "text" } }
    name: "other"
    """
    config = read_runtime_config(folder(ENCODER + more))
    assert config.model == "other"
    assert [spec.name for spec in config.outputs] == ["embedding"]
    assert [spec.name for spec in config.derived] == ["label"]
    assert config.passthrough == {"echo": "text"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("\n}", "config.pbtxt: line 2, column 1: '}': Expected identifier or number, got }."),
        (
            "max_batchsize: 8",
            'config.pbtxt: line 1, column 1: Message type "inference.ModelConfig" has no field '
            "named \"max_batchsize\". Did you mean 'max_batch_size'?",
        ),
        (
            "instance_group [ { cuont: 2 } ]",
            'config.pbtxt: line 1, column 20: Message type "inference.ModelInstanceGroup" has no '
            "field named \"cuont\". Did you mean 'count'?",
        ),
    ],
)
def test_an_unreadable_file_is_a_fault_with_line_and_column(folder, text, fault):
    with pytest.raises(ConfigFault, match="'encoder'") as raised:
        read_model_config(folder(text))
    assert raised.value.faults == (fault,)


def test_a_file_that_is_not_utf_8_is_a_fault(folder):
    path = folder("")
    (path / "config.pbtxt").write_bytes(b"# \xff")
    with pytest.raises(ConfigFault, match=r"config\.pbtxt: 'utf-8' codec can't decode byte 0xff"):
        read_model_config(path)


def test_the_schema_is_that_of_tritonclient():
    """After an upgrade of tritonclient, write its `model_config_pb2.DESCRIPTOR.serialized_pb`."""
    schema = Path(config_pbtxt.__file__).with_name("model_config.binpb")
    assert schema.read_bytes() == model_config_pb2.DESCRIPTOR.serialized_pb


def test_a_configuration_becomes_plain_values():
    assert parse(
        """
        # A comment, and then some.
        backend: "python"  max_batch_size: 64
        input [
          { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true },
          { name: 'lengths', data_type: TYPE_INT32; dims: 1 dims: 2 }  # the last one
        ]
        output { name: "embedding" dims: [] reshape: < shape: [ ] > }
        dynamic_batching { priority_queue_policy { key: 1 value { max_queue_size: 3 } } }
        optimization { priority: 7 }
        parameters { key: "limit.tokens" value { string_value: "5" '12' } }
        parameters: { key: "axes.ids" value: { string_value: "tokens" } }
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
        "output": [{"name": "embedding", "reshape": {}}],
        "dynamic_batching": {"priority_queue_policy": {"1": {"max_queue_size": 3}}},
        "optimization": {"priority": 7},
        "parameters": {
            "axes.ids": {"string_value": "tokens"},
            "limit.tokens": {"string_value": "512"},
        },
    }


def test_parameters_are_in_the_order_of_their_keys():
    text = "".join(f'parameters {{ key: "{key}" value {{ }} }}\n' for key in "cabed")
    assert [*parse(text)["parameters"]] == [*"abcde"]
