"""The JSON text of a model configuration, laid out as Triton prints it.

Fields stand in the order in which the schema declares them; absent messages are left out;
scalars, lists and maps are always written. Models read this very text in `initialize`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
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
#: Protobuf's JSON writes 64-bit integers as strings. Triton turns them back into numbers, but
#: not in these messages.
_KEPT_AS_STRINGS = {
    "inference.ModelSequenceBatching.InitialState",
    "inference.ModelInstanceGroup.SecondaryDevice",
}
#: Messages in which Triton itself needs an enumeration's number to have a name.
_NAMES_READ = {"inference.BatchInput", "inference.BatchOutput"}
#: Here the choice is declared in the middle, and written at the end.
_CHOICE_LAST = {"inference.ModelSequenceBatching.InitialState"}
#: Fields of newer releases, written only when they are used.
_NEWER = {"inference.ModelEnsembling.max_inflight_requests"}


def as_dict(config: ConfigProto) -> dict[str, Any]:
    """The configuration as plain values, keys in Triton's order.

    Raises ServerError for a number that has no name where Triton needs one.
    """
    return _message(config)


def as_json(config: ConfigProto, *, names_all: bool = False) -> str:
    """The configuration as compact JSON; `names_all` also the fields that newer releases name."""
    shown = as_dict(config)
    if names_all and config.HasField("ensemble_scheduling"):
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
    if message.full_name not in _CHOICE_LAST:
        return list(message.fields)
    return sorted(message.fields, key=lambda field: field.containing_oneof is not None)


def _value(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 - any protobuf value
    if field.message_type is not None:
        return _message(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        if named is not None:
            return named.name
        if field.containing_type.full_name in _NAMES_READ:
            raise internal(f"attempt to access JSON non-string as string: {field.name} is {value}")
        return value
    if field.type in _INT64 and field.containing_type.full_name in _KEPT_AS_STRINGS:
        return str(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return _fraction(value)
    return value


def _fraction(value: float) -> int | float | str:
    """An FP32 number as Protobuf's JSON writes it: in six digits, or in nine if it takes more."""
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    text = f"{value:.6g}"
    if np.float32(text) != np.float32(value):
        text = f"{value:.9g}"
    return float(text) if {*text} & {*".e"} else int(text)
