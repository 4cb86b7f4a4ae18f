"""`python -m tools.versions compare`, which prints the differences of two versions."""

import zipfile

import pytest

from tools import triton_schema, versions

USAGE = """Usage: tritonserver [options]
  --help
\tPrint usage

HTTP:
  --http-port <integer>
\tThe port for the server to listen on for HTTP
\trequests. Default is 8000.
  --grpc-keepalive-time <integer>
\tThe period. Default is 7200000 (2 hours).
  --log-format <string>
\tSet the logging format. The default is "default". For "default", more.
"""


def test_the_table_has_added_removed_and_changed_rows(tmp_path, capsys):
    (tmp_path / "old.txt").write_text(USAGE)
    changed = USAGE.replace("8000", "9000").replace("--log-format", "--log-shape")
    (tmp_path / "new.txt").write_text(changed)
    versions.main(["compare", f"{tmp_path}/old.txt", f"{tmp_path}/new.txt"])
    assert capsys.readouterr().out == (
        "flags: 3 of 5 differ\n"
        "  --http-port   default 8000                   default 9000\n"
        "  --log-format  takes string, default default  -\n"
        "  --log-shape   -                              takes string, default default\n"
    )


def test_the_schema_has_fields_values_of_enums_and_calls():
    schema = triton_schema.installed()
    assert schema["ModelConfig.max_batch_size"] == {"": "int32", "number": "4"}
    assert schema["ModelConfig.input"] == {"": "repeated ModelInput", "number": "5"}
    assert schema["ModelConfig.dynamic_batching"]["oneof"] == "scheduling_choice"
    assert schema["DataType.TYPE_BF16"] == {"number": "14"}
    assert schema["GRPCInferenceService/ModelStreamInfer"] == {
        "takes": "stream ModelInferRequest",
        "gives": "stream ModelStreamInferResponse",
    }


def test_a_source_that_cannot_be_read_says_why(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.whl", "w"):
        pass
    for source, reason in {
        "tritonserver": "unknown source. The sources are",
        f"{tmp_path}/none.whl": "file not found",
        f"{tmp_path}/other.whl": "no tritonclient/grpc/model_config_pb2.py in it",
    }.items():
        with pytest.raises(SystemExit, match=reason):
            versions.main(["snapshot", source])
