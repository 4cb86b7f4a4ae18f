"""Reads config.pbtxt: protobuf text format over the schema that tritonclient ships."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType as DataTypeProto
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.core import dtypes
from reference_server.core.dtypes import DataType
from reference_server.core.errors import internal

FILE_NAME = "config.pbtxt"
_NO_FIELD = re.compile(r'Message type "(?P<message>[\w.]+)" has no field named "(?P<field>\w+)"')


def locate(model_folder: Path, name: str = "") -> Path:
    """The file of a model's configuration: that of this name in `configs`, if there is one."""
    named = model_folder / "configs" / f"{name}.pbtxt"
    return named if name and named.is_file() else model_folder / FILE_NAME


def read(path: Path) -> ConfigProto:
    """The message in the file at `path`; the empty message if there is no such file.

    Raises ServerError with Triton's text, followed by what Triton only logs: line, column,
    reason, and the field's likely name where one was mistyped.
    """
    config = ConfigProto()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:  # the model may complete an empty one, as in Triton
        return config
    except (OSError, UnicodeDecodeError) as error:
        raise internal(f"failed to read text proto from {path}: {error}") from error
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise internal(
            f"failed to read text proto from {path}: {error}{_suggestion(str(error))}"
        ) from error
    return config


def datatype(number: int) -> DataType | None:
    """The data type of a schema enum value; None for TYPE_INVALID and numbers without a name."""
    named = DataTypeProto.DESCRIPTOR.values_by_number.get(number)
    return dtypes.BY_CONFIG_NAME.get(named.name) if named else None


def known_datatype(number: int) -> DataType:
    """The same in a checked configuration."""
    found = datatype(number)
    assert found is not None, "check refuses TYPE_INVALID"
    return found


def _suggestion(reason: str) -> str:
    match = _NO_FIELD.search(reason)
    if match is None:
        return ""
    descriptor = ConfigProto.DESCRIPTOR.file.pool.FindMessageTypeByName(match["message"])
    close = difflib.get_close_matches(match["field"], [field.name for field in descriptor.fields])
    return f" Did you mean '{close[0]}'?" if close else ""
