"""Reads a model configuration in JSON as Triton does, which has Protobuf's C++ library read it.

That takes more than JSON: keys without quotes, single quotes, a comma behind the last element, any
character within a string; and it gives values to fields by rules of its own. All of it was seen on
tritonserver; where it comes from: `json_stream_parser.cc` and `protostream_objectwriter.cc` in
https://github.com/protocolbuffers/protobuf/tree/v21.12/src/google/protobuf/util/internal
"""

from __future__ import annotations

import math
import re
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

_SPACE = re.compile(r"[ \t\n\v\f\r]*")
_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_KEYWORDS = {"true": True, "false": False, "null": None}
_NUMBER = re.compile(r"[-0-9][-+0-9.eEx]*")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
#: What a string in these quotes has before it ends, or escapes a character.
_PLAIN = {quote: re.compile(rf"[^{quote}\\]*") for quote in ("'", '"')}
_HEXADECIMAL = re.compile(r"[0-9A-Fa-f]{4}")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
#: A text that is a truth, in any case.
_TRUTHS = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
_SPECIAL_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: range(-(2**31), 2**31),
    FieldDescriptor.CPPTYPE_INT64: range(-(2**63), 2**63),
    FieldDescriptor.CPPTYPE_UINT32: range(2**32),
    FieldDescriptor.CPPTYPE_UINT64: range(2**64),
    FieldDescriptor.CPPTYPE_ENUM: range(-(2**31), 2**31),
}
#: Objects within one another; the schema has far fewer.
_MAX_DEPTH = 100


class _Object(list[tuple[str, "_Value"]]):
    """The members of an object in their order; a key may come more than once."""


_Value: TypeAlias = "_Object | list[_Value] | str | bool | int | float | None"


def read(text: str) -> ConfigProto:
    """The configuration in `text`, up to its first NUL. Raises ValueError with place and reason."""
    config = ConfigProto()
    # Parameters of requests are C strings there.
    _merge(config, _Parser(text.partition("\0")[0]).document(), "")
    return config


# -- the text


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def document(self) -> _Object:
        try:
            self._text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"character {error.start}: no UTF-8") from None
        if self._next() != "{":
            raise self._expected("an object")
        found = self._object()
        if self._next():
            raise self._expected("nothing behind the object")
        return found

    def _next(self) -> str:
        """The next character that is no space; "" at the end."""
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _expected(self, what: str) -> ValueError:
        found = self._text[self._at : self._at + 20] or "the end"
        return ValueError(f"character {self._at}: found {found!r}, expected {what}")

    def _object(self) -> _Object:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._expected(f"at most {_MAX_DEPTH} objects within one another")
        self._at += 1
        members = _Object()
        while self._next() != "}":
            key = self._key()
            if self._next() != ":":
                raise self._expected("a colon")
            self._at += 1
            members.append((key, self._value()))
            if self._next() == ",":
                self._at += 1
            elif self._next() != "}":
                raise self._expected("',' or '}'")
        self._at += 1
        self._depth -= 1
        return members

    def _key(self) -> str:
        if self._next() in ("'", '"'):
            return self._string()
        match = _KEY.match(self._text, self._at)
        if match is None or match[0] in _KEYWORDS:
            raise self._expected("a key")
        self._at = match.end()
        return match[0]

    def _value(self) -> _Value:
        first = self._next()
        if first == "{":
            return self._object()
        if first == "[":
            return self._array()
        if first in ("'", '"'):
            return self._string()
        for word, value in _KEYWORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        return self._number()

    def _array(self) -> list[_Value]:
        """The elements, those of arrays within it among them: they come to the same."""
        elements: list[_Value] = []
        open_arrays = 0
        while True:
            if self._next() == "[":
                open_arrays += 1
                self._at += 1
                continue
            if self._next() != "]":
                elements.append(self._value())
            while self._next() == "]":
                open_arrays -= 1
                self._at += 1
                if not open_arrays:
                    return elements
            if self._next() != ",":
                raise self._expected("',' or ']'")
            self._at += 1

    def _string(self) -> str:
        quote = self._text[self._at]
        self._at += 1
        parts: list[str] = []
        while True:
            match = _PLAIN[quote].match(self._text, self._at)
            assert match is not None
            parts.append(match[0])
            self._at = match.end() + 1
            ended_by = self._text[match.end() : self._at]
            if ended_by == quote:
                return "".join(parts)
            if not ended_by:
                raise self._expected(f"a closing {quote}")
            parts.append(self._escaped())

    def _escaped(self) -> str:
        character = self._text[self._at : self._at + 1]
        if character != "u":
            self._at += 1
            return _ESCAPES.get(character, character)
        unit = self._utf16_unit()
        if not 0xD800 <= unit < 0xE000:
            return chr(unit)
        if unit < 0xDC00 and self._text.startswith("\\u", self._at):
            self._at += 1
            second = self._utf16_unit()
            if 0xDC00 <= second < 0xE000:
                return chr(0x10000 + (unit - 0xD800 << 10) + second - 0xDC00)
        raise self._expected("both halves of a surrogate pair")

    def _utf16_unit(self) -> int:
        match = _HEXADECIMAL.match(self._text, self._at + 1)
        if match is None:
            raise self._expected("four hexadecimal digits")
        self._at = match.end()
        return int(match[0], 16)

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._at)
        text = match[0] if match else ""
        number = _to_float(text)
        if number is None or math.isinf(number):
            raise self._expected("a value")
        self._at += len(text)
        if not _INTEGER.fullmatch(text):
            return number
        if text.lstrip("-").startswith("0") and len(text.lstrip("-")) > 1:
            raise self._expected("a decimal number")
        whole = int(text)
        return whole if -(2**63) <= whole < 2**64 else number


# -- its values in the message


def _merge(message: Message, members: _Object, path: str) -> None:
    chosen = set()
    for key, value in members:
        place = f"{path}{key}"
        field = _field(message.DESCRIPTOR, key)
        if field is None:
            raise ValueError(f"{place}: found no such field in {message.DESCRIPTOR.name}")
        if value is None:  # as if the key were not there
            continue
        if field.containing_oneof is not None:
            if field.containing_oneof.name in chosen:
                raise ValueError(f"{place}: {field.containing_oneof.name} is chosen already")
            chosen.add(field.containing_oneof.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _merge_map(getattr(message, field.name), field.message_type, value, place)
        elif field.is_repeated:
            for element in _elements(value):
                _append(getattr(message, field.name), field, element, place)
        elif field.message_type is not None:
            part = getattr(message, field.name)
            part.SetInParent()
            _merge(part, _object_at(place, value), f"{place}.")
        else:
            setattr(message, field.name, _scalar(field, value, place))


def _field(descriptor: Descriptor, key: str) -> FieldDescriptor | None:
    by_name: FieldDescriptor | None = descriptor.fields_by_name.get(key)
    return by_name or next((field for field in descriptor.fields if field.json_name == key), None)


def _elements(value: _Value) -> list[_Value]:
    """Those of an array; what is none stands for an array of one."""
    return value if isinstance(value, list) and not isinstance(value, _Object) else [value]


def _object_at(place: str, value: _Value) -> _Object:
    if isinstance(value, _Object):
        return value
    raise ValueError(f"{place}: found {_shown(value)}, expected an object")


def _append(container: Any, field: FieldDescriptor, element: _Value, place: str) -> None:  # noqa: ANN401 - Protobuf's
    if element is None:
        return
    if field.message_type is None:
        container.append(_scalar(field, element, place))
    else:
        _merge(container.add(), _object_at(place, element), f"{place}.")


def _merge_map(container: Any, entry: Descriptor, value: _Value, place: str) -> None:  # noqa: ANN401 - Protobuf's
    key_field, value_field = entry.fields_by_name["key"], entry.fields_by_name["value"]
    known = set()
    for name, element in _object_at(place, value):
        if name in known:
            raise ValueError(f"{place}: found key '{name}' twice")
        known.add(name)
        inner = f"{place}.{name}"
        key = _scalar(key_field, name, inner)
        container.pop(key, None)
        if value_field.message_type is not None:
            _merge(container[key], _object_at(inner, element or _Object()), f"{inner}.")
        elif element is not None:
            container[key] = _scalar(value_field, element, inner)
        else:
            container[key] = value_field.default_value


def _scalar(field: FieldDescriptor, value: _Value, place: str) -> bool | int | float | str:
    """What a field of this type has for it. Raises ValueError if that is nothing."""
    found: bool | float | str | None
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        found = value if isinstance(value, str) else None
    elif field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        text = value.lower() if isinstance(value, str) else ""
        found = value if isinstance(value, bool) else _TRUTHS.get(text)
    elif field.enum_type is not None:
        found = _enumerated(field, value)
    elif field.cpp_type in _RANGES:
        found = _whole(value, _RANGES[field.cpp_type])
    else:
        found = _fraction(value)
    if found is None:
        kind = field.enum_type.name if field.enum_type else _type_name(field)
        raise ValueError(f"{place}: found {_shown(value)}, expected {kind}")
    return found


def _enumerated(field: FieldDescriptor, value: _Value) -> int | None:
    """A name, in lower case and with dashes, too; or a number, as text only that of a name."""
    names, numbers = field.enum_type.values_by_name, field.enum_type.values_by_number
    number = _whole(value, _RANGES[FieldDescriptor.CPPTYPE_ENUM])
    if not isinstance(value, str) or number in numbers:
        return number
    named = names.get(value) or names.get(value.upper().replace("-", "_"))
    return named.number if named else None


def _whole(value: _Value, expected: range) -> int | None:
    if isinstance(value, str):
        number = int(value) if _INTEGER.fullmatch(value) else None
    elif isinstance(value, float):
        number = int(value) if value.is_integer() else None
    else:
        number = value if isinstance(value, int) and not isinstance(value, bool) else None
    return number if number is not None and number in expected else None


def _fraction(value: _Value) -> float | None:
    """FP32, which all fractions of the schema are."""
    if isinstance(value, str):
        number = _SPECIAL_NUMBERS.get(value, _to_float(value))
        special = value in _SPECIAL_NUMBERS
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        number, special = (float(value) if is_number else None), False  # type: ignore[arg-type]
    if number is None:
        return None
    with np.errstate(over="ignore"):
        return number if special or np.isfinite(np.float32(number)) else None


def _to_float(text: str) -> float | None:
    return float(text) if _DECIMAL.fullmatch(text) else None


def _type_name(field: FieldDescriptor) -> str:
    if field.cpp_type in _RANGES:
        whole = _RANGES[field.cpp_type]
        return f"an integer of {whole.start} to {whole.stop - 1}"
    names = {
        FieldDescriptor.CPPTYPE_STRING: "a string",
        FieldDescriptor.CPPTYPE_BOOL: "true or false",
    }
    return names.get(field.cpp_type, "an FP32 number")


def _shown(value: _Value) -> str:
    if isinstance(value, list):
        return "an object" if isinstance(value, _Object) else "an array"
    return repr(value)
