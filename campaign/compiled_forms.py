"""What is compiled, fed side by side with its source as Python; as `decoders`, with the same rules.

The source is what the fuzzer is guided by: it sees nothing of C.
"""

from __future__ import annotations

import inspect
import struct
import sys
from collections.abc import Callable
from types import ModuleType

import orjson
from google.protobuf.message import DecodeError
from server.support.compiled import as_python

from benchmarks.attack.defects import expect
from reference_server.codecs import (
    json_data,
    json_skeleton,
    json_strings,
    number_reader,
    proto_fields,
    rapid_json,
)
from reference_server.core import string_packing

_MOST = 4
"""Elements of an array that are asked for."""


def _guiding(module: ModuleType) -> ModuleType:
    """The source of a module as Python; where Atheris runs, its functions guide it."""
    loaded: ModuleType = as_python(module)
    if "atheris" in sys.modules:
        for each in filter(inspect.isfunction, vars(loaded).values()):
            sys.modules["atheris"].instrument_func(each)
    return loaded


_NUMBERS, _STRINGS = _guiding(number_reader), _guiding(json_strings)
_PACKING, _FIELDS = _guiding(string_packing), _guiding(proto_fields)
_SKELETONS = _guiding(json_skeleton)


def _flat(value: object) -> list[object]:
    return [leaf for each in value for leaf in _flat(each)] if type(value) is list else [value]


def number_array(data: bytes) -> None:
    """An array of numbers in JSON: both forms say the same, and what orjson says."""
    for count in range(1, _MOST):
        for kind, size, typecode, _ in json_data.PACKED.values():
            read, again = (
                form.packed(data, count, kind, size) for form in (number_reader, _NUMBERS)
            )
            expect(read == again, f"{read!r} and {again!r}, of {kind}{size}")
            if read is not None:
                leaves = _flat(orjson.loads(data))
                exact = [float(str(leaf)) if kind == "f" else leaf for leaf in leaves]
                packed = struct.pack(f"{len(exact)}{typecode}", *exact)
                expect(read == packed, f"{read!r}, not {exact}")


def string_array(data: bytes) -> None:
    """An array of strings in JSON, or a wire form to be written so."""
    forms = (json_strings, _STRINGS)
    ends = [form.array_end(data, len(data), 0) for form in forms]
    expect(ends[0] == ends[1], f"it ends at {ends}")
    for count in range(1, _MOST):
        read, again = (form.strings(data, len(data), count) for form in forms)
        expect(read == again, f"{read} and {again}")
        if read is not None:
            exact = [
                str(each).encode("utf-8", "surrogateescape")
                for each in _flat(rapid_json.loads(data))
            ]
            expect(read == exact, f"{read}, not {exact}")
        written = [form.quoted(data, count) for form in forms]
        expect(written[0] == written[1], f"{written[0]!r} and {written[1]!r}")


def request_skeleton(data: bytes) -> None:
    """A request in JSON, taken apart."""
    taken, again = (form.skeleton(data) for form in (json_skeleton, _SKELETONS))
    found = [(each.text, each.request_id, each.arrays) for each in (taken, again)]
    expect(found[0] == found[1], f"{found[0]} and {found[1]}")


def packed_strings(data: bytes) -> None:
    """The wire form of BYTES."""
    found: list[tuple[int, list[bytes]]] = []
    for form in (string_packing, _PACKING):
        elements: list[bytes] = []
        found.append((form.unpack(data, len(data), 0, len(data), elements), elements))
        expect(form.pack(elements) == data[: found[-1][0]], "packed otherwise than it came")
    expect(found[0] == found[1], f"{found[0]} and {found[1]}")


def message_fields(data: bytes) -> None:
    """Where the fields of a message end, some at a time."""
    found = [_walked(form, data) for form in (proto_fields, _FIELDS)]
    expect(found[0] == found[1], f"{found[0]} and {found[1]}")


def _walked(form: ModuleType, data: bytes) -> list[object]:
    seen: list[object] = []
    most = 1 + sum(data[:4]) % 5
    groups: list[int] = []
    places: list[tuple[int, int, int]] = []
    position, before, size = 0, -1, 0
    head = bytearray(len(data))
    try:
        while before < position < len(data):
            before, position = position, form.passed(data, position, most, groups, places, 3)
            seen += (position, *groups, *places)
        groups.clear()
        position, before = 0, -1
        while before < position < len(data):
            before = position
            position, size = form.without_raw(data, position, most, groups, head, size)
            seen += (position, bytes(head[:size]), *groups)
    except DecodeError as error:
        seen.append(str(error))
    return seen


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (number_array, string_array, request_skeleton, packed_strings, message_fields)
}
SEEDS: dict[str, list[bytes]] = {
    "number_array": [b"[1,-2.5]", b"[[1e3], [0.1428571492433548]]", b"[1.7976931348623157e308]"],
    "string_array": [b'["a", "\xc3\xa4"]', b'[["a"],["b"]]', b'\1\0\0\0a\2\0\0\0\n"', b'["\\n"]'],
    "request_skeleton": [
        b'{"id":"1","inputs":[{"data":[1, 2],"name":"X"},{"data": ["a"]}]}',
        b'{"inputs":[{"data":[[1],[2]]}],"id": "a"}',
    ],
    "packed_strings": [b"", b"\1\0\0\0a\0\0\0\0\2\0\0\0bc", b"\3\0\0\0ab"],
    "message_fields": [b"\x0a\x01m\x1a\x01i\x3a\x02ab\xa3\x06\x3a\x00\xa4\x06\xba\x00\x00"],
}
