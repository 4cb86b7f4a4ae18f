"""A model configuration as JSON: written in the form of Triton, and read.

Fields are in the order of the schema. Absent messages are left out; scalars, lists and maps are
always written. Models receive this text in `initialize`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.core.errors import internal

_INT64 = {
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_SINT64,
    FieldDescriptor.TYPE_FIXED64,
}
#: Protobuf writes 64-bit integers as JSON strings. Triton converts these strings to numbers, except
#: in these messages.
_KEPT_AS_STRINGS = {
    "inference.ModelSequenceBatching.InitialState",
    "inference.ModelInstanceGroup.SecondaryDevice",
}
#: Messages in which Triton fails on an enum number without a name.
_NAMES_REQUIRED = {"inference.BatchInput", "inference.BatchOutput"}
#: Messages whose oneof is declared in the middle, but written last.
_ONEOF_LAST = {"inference.ModelSequenceBatching.InitialState"}
#: Fields of newer releases, written only if they are set.
_NEWER = {"inference.ModelEnsembling.max_inflight_requests"}


def as_dict(config: ConfigProto) -> dict[str, Any]:
    """Return the configuration as plain values, with keys in Triton's order.

    Raises:
        ServerError: An enum number has no name, in a message where Triton requires one.
    """
    return _message(config)


def as_json(config: ConfigProto, *, newer_fields: bool = False) -> str:
    """Return the configuration as compact JSON.

    Args:
        config: A completed configuration.
        newer_fields: Always write the fields that only releases after 2.51 have.

    Raises:
        ServerError: As in `as_dict`.
    """
    shown = as_dict(config)
    if newer_fields and config.HasField("ensemble_scheduling"):
        ensemble = shown["ensemble_scheduling"]
        ensemble["max_inflight_requests"] = config.ensemble_scheduling.max_inflight_requests
    return orjson.dumps(shown).decode()


def _message(message: Message) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for field in _ordered(message.DESCRIPTOR):
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values = field.message_type.fields_by_name["value"]
            result[field.name] = {str(key): _value(values, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            result[field.name] = [_value(field, item) for item in value]
        elif field.has_presence:
            if message.HasField(field.name):
                result[field.name] = _value(field, value)
        elif value or field.full_name not in _NEWER:
            result[field.name] = _value(field, value)
    return result


def _ordered(message: Descriptor) -> Sequence[FieldDescriptor]:
    if message.full_name not in _ONEOF_LAST:
        return list(message.fields)
    return sorted(message.fields, key=lambda field: field.containing_oneof is not None)


def _value(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 - any protobuf value
    if field.message_type is not None:
        return _message(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        if named is not None:
            return named.name
        if field.containing_type.full_name in _NAMES_REQUIRED:
            raise internal(f"attempt to access JSON non-string as string: {field.name} is {value}")
        return value
    if field.type in _INT64 and field.containing_type.full_name in _KEPT_AS_STRINGS:
        return str(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return _fraction(value)
    return value


def _fraction(value: float) -> int | float | str:
    """Return an FP32 number as in protobuf's JSON: with six digits, or nine if necessary."""
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    text = f"{value:.6g}"
    if np.float32(text) != np.float32(value):
        text = f"{value:.9g}"
    return float(text) if {*text} & {*".e"} else int(text)


# -- reading: JSON from load requests and from `auto_complete_config`

# Triton reads it with protobuf's C++ library, which accepts more than JSON (bare keys, single
# quotes, trailing commas). This module uses protobuf's Python library. docs/protocol.md lists the
# differences.


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
