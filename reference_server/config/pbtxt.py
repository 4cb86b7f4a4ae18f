"""Reads config.pbtxt with protobuf's text format reader and the schema of tritonclient."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType as DataTypeProto
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.core.errors import ServerError, internal
from reference_server.core.tensor import CONFIG_DATATYPES, DataType

FILE_NAME = "config.pbtxt"
NO_FIELD = re.compile(r'Message type "(?P<message>[\w.]+)" has no field named "(?P<field>\w+)"')


def locate(model_folder: Path, name: str = "") -> Path:
    """Return the path of a model's configuration file.

    Args:
        model_folder: The model's folder.
        name: The name of a configuration in the subfolder `configs` (--model-config-name). The
            default file is used if there is no such configuration.
    """
    named = model_folder / "configs" / f"{name}.pbtxt"
    return named if name and named.is_file() else model_folder / FILE_NAME


def read(path: Path) -> ConfigProto:
    """Return the configuration in the file at `path`, or an empty configuration without it.

    Raises:
        ServerError: The file cannot be read. Triton's text is followed by the line, column and
            reason, which Triton only logs. For a misspelled field the nearest name is suggested.
    """
    config = ConfigProto()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:  # as in Triton, the model may complete an empty configuration
        return config
    except (OSError, UnicodeDecodeError) as error:
        raise internal(f"failed to read text proto from {path}: {error}") from error
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise unreadable(path, error) from error
    return config


def unreadable(path: Path, error: text_format.ParseError) -> ServerError:
    """Return the error of a text that is not a configuration."""
    field = suggested_field(str(error))
    suggestion = f" Did you mean '{field}'?" if field else ""
    # Characters such as a byte order mark cannot be seen.
    shown = (c if c.isprintable() or c in "\n\t" else f"<U+{ord(c):04X}>" for c in str(error))
    reason = "".join(shown)
    return internal(f"failed to read text proto from {path}: {reason}{suggestion}")


def datatype(number: int) -> DataType | None:
    """Return the data type of a number of the schema's enum.

    None for TYPE_INVALID and for numbers without a name.
    """
    named = DataTypeProto.DESCRIPTOR.values_by_number.get(number)
    return CONFIG_DATATYPES.get(named.name) if named else None


def known_datatype(number: int) -> DataType:
    """Return the data type of a number in a checked configuration, where every number is valid."""
    found = datatype(number)
    assert found is not None, "the rules of config/check.py refuse TYPE_INVALID"
    return found


def suggested_field(reason: str) -> str:
    """Return the field that a parser's error about an unknown field probably means, or ""."""
    match = NO_FIELD.search(reason)
    if match is None:
        return ""
    descriptor = ConfigProto.DESCRIPTOR.file.pool.FindMessageTypeByName(match["message"])
    fields = [field.name for field in descriptor.fields]
    return next(iter(difflib.get_close_matches(match["field"], fields)), "")
