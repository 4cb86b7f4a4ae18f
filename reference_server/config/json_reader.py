"""Reads a model configuration in JSON, which load requests and `auto_complete_config` bring.

Triton reads it with protobuf's C++ library, which takes more than JSON (bare keys, single quotes,
trailing commas). This module uses protobuf's Python library. docs/protocol.md lists what differs.
"""

from __future__ import annotations

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto


def read(text: str) -> ConfigProto:
    """Return the configuration in `text`.

    Fields may have the schema's names or their camelCase form, enum values their name or number,
    and integers may be strings.

    Raises:
        ValueError: Malformed JSON, or a value that does not fit the schema. The message is one line
            without lone surrogates.
    """
    if not text.lstrip().startswith("{"):
        raise ValueError(f"found {text[:20]!r}, expected a JSON object")
    config = ConfigProto()
    try:
        json_format.Parse(text, config)
    except json_format.ParseError as error:
        # A second line would list all fields of the schema.
        line = str(error).partition("\n")[0]
        raise ValueError(line.encode(errors="backslashreplace").decode()) from error
    return config
