"""JSON as Triton's server reads and writes it: RapidJSON's values, errors, accessors and texts.

Triton parses requests with RapidJSON and its `kParseNanAndInfFlag`. This dialect is a little wider
than JSON, and the texts and byte offsets of its refusals reach the client. Two readers share the
work: `json_fast_reader` reads the ordinary document, and `json_exact_reader` reads any other byte
by byte, as RapidJSON does.

Two differences from RapidJSON are intended. A number that fits a double becomes the nearest double,
where RapidJSON misses by one or two units in the last place for every tenth number of 17 digits,
and refuses a few odd ones such as `0e400`. And nesting is limited, as in newer releases.

Strings and the elements of tensors are written byte for byte like RapidJSON's writer. orjson prints
integers and booleans; `grisu` prints doubles.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import orjson

from reference_server.codecs import grisu, json_arrays, json_exact_reader, json_fast_reader
from reference_server.codecs.json_exact_reader import DEEPEST, JsonValue
from reference_server.core import gil
from reference_server.core.byte_strings import element_bytes
from reference_server.core.errors import ServerError, internal
from reference_server.core.profiles import V2_51, TritonProfile

_T = TypeVar("_T")

#: The value of a longer document is freed slice by slice.
LONG = 2 * json_fast_reader.PIECE


def loads(
    data: bytes | bytearray | memoryview,
    profile: TritonProfile = V2_51,
    repeated: set[tuple[int, str]] | None = None,
) -> JsonValue:
    """Return the value of a JSON document.

    The first of several members with the same name counts. Integers within int64 or uint64 stay
    `int`, larger ones become `float`. Invalid UTF-8 in a string is decoded with `surrogateescape`,
    so `write_string` writes the same bytes again.

    Args:
        data: The document.
        profile: The Triton release to imitate.
        repeated: Receives the depth and the name of each repeated member of an object. Depth 1 is
            the outermost object.

    Raises:
        ServerError: INTERNAL `failed to parse the request JSON buffer: <why> at <offset>` for what
            RapidJSON refuses; INVALID_ARG for nesting deeper than 100.
    """
    document = bytes(data)
    try:
        return cast("JsonValue", json_fast_reader.read(document, DEEPEST, repeated))
    except json_fast_reader.Unusual:
        pass
    # Names that the fast reader has added precede the place where it gave up, so the exact reader
    # adds them, too.
    return json_exact_reader.read(document, repeated, iteratively=profile.newer_request_checks)


def decode(
    data: memoryview,
    read: Callable[[JsonValue], _T],
    profile: TritonProfile = V2_51,
    repeated: set[tuple[int, str]] | None = None,
) -> _T:
    """Return `read(loads(data, profile, repeated))`.

    For a long document garbage collection is paused, and the value is freed slice by slice, so that
    other threads can run. `read` must not keep a part of the value.
    """
    if len(data) <= LONG:
        return read(loads(data, profile, repeated))
    value: JsonValue = None
    with gil.without_gc():
        try:
            value = loads(data, profile, repeated)
            return read(value)
        finally:
            gil.free(value)


# -- accessors


def member(value: JsonValue, key: str) -> JsonValue:
    """Return the member `key`; raises INTERNAL if it is missing, or if `value` is no object."""
    if type(value) is dict and key in value:
        return value[key]
    raise internal(f"attempt to access non-existing object member '{key}'")


def fields(value: JsonValue) -> dict[str, JsonValue]:
    """Return the members of an object, and an empty dict for any other value."""
    return value if type(value) is dict else {}


def members(value: JsonValue) -> dict[str, JsonValue]:
    """Return `value` as an object whose names are iterated; raises INTERNAL for other types."""
    if type(value) is dict:
        return value
    raise internal("attempt to get members for non-object")


def as_object(value: JsonValue) -> dict[str, JsonValue]:
    """Return `value` as an object; raises INTERNAL for other types."""
    if type(value) is dict:
        return value
    raise _mismatch("non-object as object")


def as_array(value: JsonValue) -> list[JsonValue]:
    """Return `value` as an array; raises INTERNAL for other types."""
    if type(value) is list:
        return value
    raise _mismatch("non-array as array")


def as_string(value: JsonValue) -> str:
    """Return `value` as a string; raises INTERNAL for other types."""
    if type(value) is str:
        return value
    raise _mismatch("non-string as string")


def as_bool(value: JsonValue) -> bool:
    """Return `value` as a boolean; raises INTERNAL for other types, such as 0 and 1."""
    if type(value) is bool:
        return value
    raise _mismatch("non-boolean as boolean")


def as_uint64(value: JsonValue) -> int:
    """Return `value` as an integer of 0 ... 2**64 - 1; raises INTERNAL for others and `1.0`."""
    if type(value) is int and value >= 0:
        return value
    raise _mismatch("non-unsigned-integer as unsigned-integer")


def as_int64(value: JsonValue) -> int:
    """Return `value` as an integer within int64; raises INTERNAL for others and `1.0`."""
    if type(value) is int and value < 2**63:
        return value
    raise _mismatch("non-signed-integer as signed-integer")


def as_double(value: JsonValue) -> float:
    """Return `value`, a double or an integer, as a double; raises INTERNAL for other types."""
    if type(value) is float or type(value) is int:
        return float(value)
    raise _mismatch("non-number as double")


def parse_member(value: JsonValue, key: str, read: Callable[[JsonValue], _T]) -> _T:
    """Return `read(member(value, key))`; errors get the prefix `Unable to parse '<key>': `.

    `read` is one of the accessors: `parse_member(request_input, "shape", as_array)`.
    """
    try:
        return read(member(value, key))
    except ServerError as error:
        raise prefixed(f"Unable to parse '{key}'", error) from None


def c_string(text: str) -> str:
    """Return `text` up to its first NUL, as the real server reads a name in C."""
    return text.partition("\0")[0]


def prefixed(context: str, error: ServerError) -> ServerError:
    """Return `error` with `<context>: ` before its text, to be raised `from None`."""
    return ServerError(error.code, f"{context}: {error.message}")


def _mismatch(access: str) -> ServerError:
    return internal(f"attempt to access JSON {access}")


_Array = npt.NDArray[np.generic]

#: Doubles per piece: some milliseconds of work.
_DOUBLES = 1 << 15
#: Integers or strings per piece: some milliseconds of work.
_OTHERS = 1 << 17
#: The longest wire form that `write_packed_strings` writes: a millisecond of work.
_MOST_PACKED = 1 << 20


# -- writing


def write_array(array: _Array) -> bytes:
    """Return the elements of `array` in C order as a flat JSON array, such as `b"[1.0,2.5]"`.

    Args:
        array: BOOL is written as `true` and `false`. FP32 is widened to double. NaN and the
            infinities are bare words. Elements of an object or `S<n>` array become strings as
            `write_string` writes them: `bytes` as they are, others as the UTF-8 of their `str`.

    Raises:
        ValueError: The dtype has no JSON form, such as float16.
    """
    return b"[%b]" % b"".join(write_elements(array))


def write_elements(array: _Array) -> list[bytes]:
    """Return `write_array` without its brackets, in pieces of some milliseconds of work each."""
    write, most = _writer(array.dtype)
    flat = array.ravel()
    if flat.size <= most:
        return [write(flat)]
    written: list[bytes] = []
    for start in range(0, flat.size, most):
        written += (write(flat[start : start + most]), b",")
    written.pop()
    return written


def write_packed_strings(wire: memoryview, count: int) -> list[bytes] | None:
    """Return `write_elements` of a BYTES tensor given in its wire form.

    Returns None if the wire form is long, is malformed, has not `count` elements, or needs very
    many escapes; `write_elements` handles these.
    """
    if len(wire) > _MOST_PACKED:
        return None
    text = json_arrays.write_strings(wire, count)
    return None if text is None else [text]


@lru_cache(64)
def _writer(dtype: np.dtype[Any]) -> tuple[Callable[[_Array], bytes], int]:
    """Return the function that writes comma-separated elements, and the most elements per call."""
    if dtype.kind in "OS":
        return _write_strings, _OTHERS
    if dtype.kind == "f" and dtype.itemsize > 2:
        return _write_doubles, _DOUBLES
    if dtype.kind in "biu":
        return _write_integers, _OTHERS
    raise ValueError(f"{dtype} has no JSON form")


def _write_integers(elements: _Array) -> bytes:
    if elements.dtype.kind == "b":
        # Any byte but zero is true; orjson would write 2 as false.
        elements = elements.view(np.uint8) != 0
    return orjson.dumps(elements, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def _write_doubles(elements: _Array) -> bytes:
    if elements.size == 0:
        return b""
    if elements.dtype != np.float32:
        elements = elements.astype(np.float64, copy=False)
    return grisu.write_doubles(elements.tobytes(), elements.itemsize)


def _write_strings(elements: _Array) -> bytes:
    texts = [element_bytes(element) for element in elements.tolist()]
    if not texts:
        return b""
    # One search in all of them is much faster than one substitution for each.
    if _ESCAPED.search(b"".join(texts)):
        texts = [_escape(text) for text in texts]
    return b'"' + b'","'.join(texts) + b'"'


_ESCAPED = re.compile(rb'[\x00-\x1f"\\]')
_ESCAPES = {bytes([code]): b"\\u%04X" % code for code in range(0x20)} | {
    b"\b": b"\\b",
    b"\t": b"\\t",
    b"\n": b"\\n",
    b"\f": b"\\f",
    b"\r": b"\\r",
    b'"': b'\\"',
    b"\\": b"\\\\",
}


def write_string(text: str | bytes) -> bytes:
    """Return `text` in quotation marks with RapidJSON's escapes; other bytes stay as they are.

    A `str` is encoded with `surrogateescape`, the inverse of how `rapid_json.loads` decodes.
    """
    if isinstance(text, bytes):
        raw = text
    else:
        try:
            raw = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # a model's error text may contain any surrogate
            raw = text.encode("utf-8", "replace")
    return b'"' + _escape(raw) + b'"'


def _escape(raw: bytes) -> bytes:
    return _ESCAPED.sub(lambda match: _ESCAPES[match[0]], raw)
