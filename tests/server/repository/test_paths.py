"""Paths in a configuration cannot reach files outside the model's folder."""

import json
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc.model_config_pb2 import ModelConfig

from reference_server.core.errors import Code, ServerError
from reference_server.core.paths import is_within, refuse_links_out
from reference_server.testing import open_repository

#: The fields of a configuration that name files the server reads, with a text that names `PATH`.
FILES = {
    "default_model_filename": 'default_model_filename: "PATH"',
    "output.label_filename": "",  # has a separate test, because its links are followed
    "backend": 'backend: "PATH"',
    "sequence_batching.state.initial_state.data_file": """
        sequence_batching { state [ {
          input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [1]
          initial_state: [ {
            name: "s" data_type: TYPE_FP32 dims: [1] data_file: "PATH" } ] } ] }
    """,
    "model_warmup.inputs.value.input_data_file": """
        model_warmup [ { name: "w" batch_size: 1
          inputs { key: "X" value { data_type: TYPE_FP32 dims: [1] input_data_file: "PATH" } } } ]
    """,
}
#: The number of the other string fields: names of models, tensors, instances and hosts, versions,
#: values of parameters, and fields that only Triton's own backends read.
NO_FILES = 44
MODEL = """
    max_batch_size: 4
    input [ { name: "X" data_type: TYPE_FP32 dims: [1] } ]
    output [ { name: "Y" data_type: TYPE_FP32 dims: [1] } ]
"""
CODE = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


def texts(message: Descriptor, above: str = "") -> list[str]:
    """Return the paths of all string and bytes fields of a message."""
    found = []
    for field in message.fields:
        path = f"{above}{field.name}"
        if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            found.append(path)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            found += texts(field.message_type, f"{path}.")
    return found


def test_no_other_string_field_names_a_file():
    found = set(texts(ModelConfig.DESCRIPTOR))
    assert found >= FILES.keys()
    assert len(found - FILES.keys()) == NO_FILES, (
        "a new field; if it names a file, restrict it by `core.paths`"
    )


@pytest.fixture
def folder(tmp_path):
    """A model's folder, with files outside that it must not reach."""
    folder = tmp_path / "repository" / "m"
    for place in ("1", "initial_state", "warmup"):
        (folder / place).mkdir(parents=True)
    (folder / "1" / "model.py").write_text(CODE)
    (tmp_path / "outside").write_bytes(bytes(64))
    (tmp_path / "outside.py").write_text(CODE)
    (tmp_path / "model.py").write_text(CODE)
    return folder


@pytest.mark.parametrize("field", [field for field, given in FILES.items() if given])
@pytest.mark.parametrize("form", ["up", "absolute"])
def test_path_outside_the_folder_is_refused(folder, tmp_path, field, form):
    target = tmp_path / ("outside.py" if field == "default_model_filename" else "outside")
    if field == "backend":
        target = tmp_path
    path = str(target) if form == "absolute" else "../" * 40 + str(target).lstrip("/")
    given = FILES[field].replace("PATH", path)
    backend = "" if field == "backend" else 'backend: "python"'
    config = text_format.Parse(f"{MODEL} {backend} {given}", ModelConfig())
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config))
    with pytest.raises(ServerError) as caught, open_repository(folder.parent):
        pass
    assert caught.value.code is Code.INTERNAL
    assert f"{field.rpartition('.')[2]}: found '" in caught.value.message


@pytest.mark.parametrize("library", ["/outside.so", "../outside.so", "1/../../outside.so"])
@pytest.mark.parametrize(
    ("field", "sent"),
    [
        (
            "model_operations.op_library_filename",
            '{"model_operations": {"op_library_filename": [%s]}}',
        ),
        ("CPU_EXTENSION_PATH", '{"parameters": {"CPU_EXTENSION_PATH": {"string_value": %s}}}'),
    ],
)
def test_a_sent_configuration_names_no_library_outside_the_folder(
    folder, field, sent, library, caplog
):
    (folder / "config.pbtxt").write_text('backend: "python"')
    with open_repository(folder.parent) as models:
        config = {"backend": "python"} | json.loads(sent % json.dumps(library))
        with pytest.raises(ServerError, match="failed to poll from model repository"):
            models.load("m", config=config)
        assert f"{field}: found '" in caplog.text
        inside = {"backend": "python"} | json.loads(sent % '"1/inside.so"')
        models.load("m", config=inside)


@pytest.mark.parametrize("path", ["/env", "env", "$$TRITON_MODEL_DIRECTORY/../env"])
def test_a_sent_configuration_names_no_environment_outside_the_folder(folder, path, caplog):
    (folder / "config.pbtxt").write_text('backend: "python"')
    parameters = {"EXECUTION_ENV_PATH": {"string_value": path}}
    with open_repository(folder.parent) as models:
        with pytest.raises(ServerError, match="failed to poll from model repository"):
            models.load("m", config={"backend": "python", "parameters": parameters})
        assert "EXECUTION_ENV_PATH: found '" in caplog.text
        parameters["EXECUTION_ENV_PATH"]["string_value"] = "$$TRITON_MODEL_DIRECTORY/env"
        with pytest.raises(ServerError, match=r"Failed to get the canonical path for .*/m/env"):
            models.load("m", config={"backend": "python", "parameters": parameters})


def test_is_within_with_and_without_following_links(tmp_path):
    inner, other = tmp_path / "model", tmp_path / "other"
    inner.mkdir()
    other.write_text("")
    (inner / "link").symlink_to(other)
    assert is_within(inner, inner / "link")
    assert not is_within(inner, inner / "link", through_links=True)
    assert is_within(inner, inner / "1" / ".." / "file")
    assert not is_within(inner, Path(f"{inner}2/file"))
    assert not is_within(inner, inner / ".." / "other")


IDLE = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""


@pytest.mark.parametrize("where", ["1/model.py", "1/weights", "notes"])
def test_outside_link_is_refused_with_the_option(tmp_path, where):
    folder = tmp_path / "models" / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(IDLE)
    (folder / "config.pbtxt").write_text('backend: "python"')
    (tmp_path / "elsewhere").write_text(IDLE)
    (folder / "inner").symlink_to("config.pbtxt")
    strict = ["--allow-outside-links=false"]
    with open_repository(folder.parent, options=strict):
        """Inner links are allowed."""
    link = folder / where
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "elsewhere")
    with open_repository(folder.parent):
        """Outside links are allowed by default."""
    with pytest.raises(ServerError) as caught, open_repository(folder.parent, options=strict):
        pass
    assert f"found a link '{link}' to '{tmp_path / 'elsewhere'}'" in caught.value.message


def test_model_folder_may_be_a_link(tmp_path):
    folder = tmp_path / "kept" / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(IDLE)
    (folder / "inner").symlink_to("1")
    (tmp_path / "m").symlink_to(folder)
    refuse_links_out(tmp_path / "m")
