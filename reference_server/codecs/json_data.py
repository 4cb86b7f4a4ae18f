"""The elements of tensors as JSON, both ways: the `data` of an input, the `data` of an output.

What is read is judged in its order, as in the real server: the first element too many or of another
type is the fault that is told. Long lists are judged and converted as a whole, at the speed of C;
only a list with a fault is walked element by element, to find the first.
"""

from __future__ import annotations

import array
import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import orjson

from reference_server.codecs import grisu, grisu_numpy, json_strings, number_reader
from reference_server.codecs.json_exact_reader import JsonValue
from reference_server.codecs.rapid_json import (
    as_array,
    as_bool,
    as_double,
    as_int64,
    as_string,
    as_uint64,
    prefixed,
)
from reference_server.core import byte_strings, turns
from reference_server.core.byte_strings import element_bytes
from reference_server.core.dtypes import DataType
from reference_server.core.errors import ServerError, internal, invalid_arg

_MAX_INT64 = 2**63 - 1
#: What -1 is as an unsigned number of 64 bits.
_UNKNOWN = 2**64 - 1
_Array = npt.NDArray[np.generic]
#: Whether the modules were compiled that read and print numbers and strings.
IS_COMPILED = grisu.IS_COMPILED and number_reader.IS_COMPILED and json_strings.IS_COMPILED


#: No number of JSON is one of theirs.
BINARY_ONLY = frozenset({DataType.FP16, DataType.BF16})


class _Element(NamedTuple):
    """What an element may be, by its accessor, and how a whole list of them is converted."""

    access: Callable[[JsonValue], object]
    types: frozenset[type]  # that `access` accepts
    typecode: str  # of an `array.array`, which refuses the integers that `access` refuses
    dtype: npt.DTypeLike  # of its items


#: By the kind of the tensor's NumPy type.
_ELEMENTS = {
    "b": _Element(as_bool, frozenset({bool}), "b", np.bool_),
    "i": _Element(as_int64, frozenset({int}), "q", np.int64),
    "u": _Element(as_uint64, frozenset({int}), "Q", np.uint64),
    "f": _Element(as_double, frozenset({int, float}), "d", np.float64),
}


class _Items(NamedTuple):
    """The type of a tensor as NumPy has it, and how its elements are read without `number_reader`.

    That is by an `array.array` whose items are those of the tensor, which refuses what is out of
    its range, of what they may be in JSON.
    """

    kind: str
    size: int
    typecode: str
    types: frozenset[type]


#: The types whose elements need no judgement of their own.
PACKED = {
    datatype: _Items(kind, datatype.byte_size, typecode, _ELEMENTS[kind].types)
    for datatype, kind, typecode in (
        (DataType.BOOL, "b", "b"),
        (DataType.INT8, "i", "b"),
        (DataType.INT16, "i", "h"),
        (DataType.INT32, "i", "i"),
        (DataType.INT64, "i", "q"),
        (DataType.UINT8, "u", "B"),
        (DataType.UINT16, "u", "H"),
        (DataType.UINT32, "u", "I"),
        (DataType.UINT64, "u", "Q"),
        (DataType.FP32, "f", "f"),  # a double beyond it becomes an infinity
        (DataType.FP64, "f", "d"),
    )
}


#: Levels of arrays within the array: as many as shapes have that anybody sends.
_DEEPEST_PACKED = 8


def packed(text: bytes, datatype: DataType, count: int) -> memoryview | None:
    """The bytes of the tensor of a type in `PACKED` whose `count` elements are the array `text`.

    None for all that is not as simple as that, be it a fault or not: `read` tells.
    """
    kind, size, typecode, types = PACKED[datatype]
    if _pack is not None:
        found = _pack(text, count, kind, size)
        return None if found is None else memoryview(found)
    try:
        elements = orjson.loads(text)
        for _ in range(_DEEPEST_PACKED):
            if type(elements[0]) is not list:
                break
            elements = list(chain.from_iterable(elements))
        if len(elements) == count and types.issuperset(map(type, elements)):
            return memoryview(array.array(typecode, elements)).cast("B")
    except (ValueError, OverflowError, TypeError, IndexError):
        pass
    return None


_pack = number_reader.packed if number_reader.IS_COMPILED else None


def strings(text: bytes, count: int) -> _Array | None:
    """The same of BYTES: their strings, as a flat object array."""
    elements = json_strings.strings(text, len(text), count) if json_strings.IS_COMPILED else None
    return None if elements is None else byte_strings.as_array(elements, (count,))


def element_count(name: str, datatype: DataType | None, shape: tuple[int, ...]) -> int:
    """How many elements the shape of input `name` has; 2**64 - 1 if a size is -1, as is unknown.

    Raises ServerError INVALID_ARG for a size, a number of elements or of bytes beyond int64.
    """
    if _UNKNOWN in shape and 0 not in shape:
        return _UNKNOWN
    shown = ",".join(str(dim if dim <= _MAX_INT64 else dim - 2**64) for dim in shape)
    invalid = f"invalid shape for input '{name}': shape [{shown}]"
    count = 1
    for dim in shape:  # the first fault, or the first 0, from left to right
        if dim == 0:
            return 0
        if dim > _MAX_INT64:
            raise invalid_arg(f"{invalid} contains one or more invalid dimensions")
        count *= dim
        if count > _MAX_INT64:
            raise invalid_arg(
                f"{invalid} causes total element count to exceed maximum size of {_MAX_INT64}"
            )
    size = 1 if datatype is None else datatype.byte_size
    if size > 1 and count * size > _MAX_INT64:
        raise invalid_arg(
            f"byte size overflow for input '{name}': element count ({count}) * data type size "
            f"({size}) exceeds maximum allowed size ({_MAX_INT64})"
        )
    return count


def read(
    data: JsonValue, datatype: DataType, shape: tuple[int, ...], *, tells_missing: bool = False
) -> _Array:
    """The tensor of `datatype` and `shape` whose elements stand in `data`, depth first.

    The shape has elements. BYTES gives a *flat* object
    array of all the strings found (`bytes` elements): their number is checked with the request.
    `tells_missing`: too few elements, and no string at all, are told as newer releases tell it.

    Raises ServerError: INTERNAL `Unable to parse 'data': ...` (BYTES: `Unable to parse JSON bytes
    array: ...`) for elements of another type or a wrong count; INVALID_ARG for an integer outside
    the range of `datatype`, which the real server would wrap silently. FP16 and BF16 have no JSON
    form: the caller has refused them (ValueError).
    """
    if datatype in BINARY_ONLY:
        raise ValueError(f"{datatype.value} has no JSON form")
    count = math.prod(shape)
    try:
        elements, types = _flatten(as_array(data))
    except ServerError as error:
        raise prefixed("Unable to parse 'data'", error) from None
    if datatype.is_bytes:
        if tells_missing and not elements:
            raise internal("Failed to parse 'data' field: output buffer unavailable")
        return _strings(elements, types)
    if tells_missing and len(elements) < count:
        kind = _ELEMENTS[np.dtype(datatype.numpy).kind]
        if types <= kind.types:
            raise internal("Failed to parse 'data' field: shape does not match true shape")
    return _numbers(elements, types, datatype, count).reshape(shape)


def _flatten(data: list[JsonValue]) -> tuple[list[JsonValue], set[type]]:
    """The elements, depth first, and the types among them."""
    elements = data
    while (types := _types(elements)) == {list}:
        elements = turns.joined(cast("list[list[JsonValue]]", elements))
    if list in types:
        return _flatten(list(_depth_first(elements)))
    return elements, types


def _types(elements: list[JsonValue]) -> set[type]:
    found: set[type] = set()
    for some in turns.slices(elements):
        found.update(map(type, some))
    return found


def _depth_first(data: list[JsonValue]) -> Iterator[JsonValue]:
    """The elements of an array that holds elements and arrays side by side."""
    pending = [iter(data)]
    while pending:
        for element in pending[-1]:
            if type(element) is list:
                pending.append(iter(element))
                break
            yield element
        else:
            pending.pop()


def _strings(elements: list[JsonValue], types: set[type]) -> _Array:
    if not types <= {str}:
        raise _first_fault("Unable to parse JSON bytes array", as_string, elements, len(elements))
    strings = [text.encode("utf-8", "surrogateescape") for text in cast("list[str]", elements)]
    return byte_strings.as_array(strings, (len(strings),))


def _numbers(elements: list[JsonValue], types: set[type], datatype: DataType, count: int) -> _Array:
    dtype = np.dtype(datatype.numpy)
    element = _ELEMENTS[dtype.kind]
    if len(elements) != count or not types <= element.types:
        raise _first_fault("Unable to parse 'data'", element.access, elements, count)
    numbers = np.empty(count, dtype)
    outside: ServerError | None = None
    start = 0
    with np.errstate(over="ignore"):  # A double beyond FP32 becomes an infinity.
        for some in turns.slices(elements):
            try:
                items = array.array(element.typecode, cast("list[int]", some))
            except OverflowError:
                context = "Unable to parse 'data'"
                raise _first_fault(context, element.access, elements, count) from None
            part = np.frombuffer(items, element.dtype)
            if dtype.kind in "iu":
                outside = outside or _outside(part, datatype)
            numbers[start : start + len(some)] = part
            start += len(some)
    if outside is not None:
        raise outside
    return numbers


def _outside(numbers: npt.NDArray[np.integer[Any]], datatype: DataType) -> ServerError | None:
    """The refusal of the first number that does not fit the type."""
    limits = np.iinfo(np.dtype(datatype.numpy))
    outside = np.flatnonzero((numbers < limits.min) | (numbers > limits.max))
    if not outside.size:
        return None
    return invalid_arg(
        f"Unable to parse 'data': value {numbers[outside[0]]} is out of range for datatype "
        f"{datatype.value}"
    )


def _first_fault(
    context: str,
    access: Callable[[JsonValue], object],
    elements: list[JsonValue],
    count: int,
) -> ServerError:
    """The refusal of the first element that `access` refuses, else that of their number."""
    try:
        for element in elements[:count]:
            access(element)
    except ServerError as error:
        return prefixed(context, error)
    return internal(f"{context}: Shape does not match true shape of 'data' field")


# -- tensors to JSON: byte for byte as RapidJSON's writer prints it. orjson prints what needs no
# rounding, integers above all; `grisu` prints doubles.

#: Doubles per piece: some milliseconds' work in NumPy, and few enough for the processor's cache.
_ROUND = 32768


#: Integers or strings per piece: some milliseconds' work.
_PIECE = 1 << 17
#: Bytes of strings that are written in one go: a millisecond's work.
_MOST_QUOTED = 1 << 20


def encode(array: npt.NDArray[np.generic]) -> bytes:
    """The flat JSON array of the elements of `array` in C order, such as `b"[1.0,2.5]"`.

    BOOL gives `true` and `false`; FP32 is widened to double first; NaN and the infinities are bare
    words. Elements of an object or `S<n>` array become strings as `encode_string` writes them
    (bytes as they are, anything else as the UTF-8 of its `str`). FP16 raises ValueError: it has no
    JSON form.
    """
    return b"[%b]" % b"".join(pieces(array))


def pieces(array: npt.NDArray[np.generic]) -> list[bytes]:
    """`encode` without its brackets, in pieces, of which each is made in some milliseconds."""
    write, most = _writer(array.dtype)
    flat = array.ravel()
    if flat.size <= most:
        return [write(flat)]
    written: list[bytes] = []
    for start in range(0, flat.size, most):
        written += (write(flat[start : start + most]), b",")
    written.pop()
    return written


def string_pieces(wire: memoryview, count: int) -> list[bytes] | None:
    """`pieces` of the `count` strings in this wire form, if that can be told at once."""
    if not json_strings.IS_COMPILED or len(wire) > _MOST_QUOTED:
        return None
    text = json_strings.quoted(wire, count)
    return None if text is None else [text]


@lru_cache(64)
def _writer(dtype: np.dtype[Any]) -> tuple[Callable[[_Array], bytes], int]:
    """What writes elements with commas between, and how many at a time."""
    if dtype.kind in "OS":
        return _strings_text, _PIECE
    if dtype.kind == "f" and dtype.itemsize > 2:
        return _doubles_text, _ROUND
    if dtype.kind in "biu":
        return _integers_text, _PIECE
    raise ValueError(f"{dtype} has no JSON form")


def _integers_text(elements: _Array) -> bytes:
    if elements.dtype.kind == "b":
        # Any byte but zero is true; orjson would take 2 for false.
        elements = elements.view(np.uint8) != 0
    return orjson.dumps(elements, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def _doubles_text(elements: _Array) -> bytes:
    if elements.size == 0:
        return b""
    if elements.dtype != np.float32:
        elements = elements.astype(np.float64, copy=False)
    if _print_doubles is None:
        return grisu_numpy.texts(cast("grisu_numpy.Floats", elements))
    return _print_doubles(elements.tobytes(), elements.itemsize)


_print_doubles = grisu.texts if grisu.IS_COMPILED else None


def _strings_text(elements: _Array) -> bytes:
    texts = [element_bytes(element) for element in elements.tolist()]
    if not texts:
        return b""
    # One search through all of them is much faster than one substitution for each.
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


def encode_string(text: str | bytes) -> bytes:
    """`text` in quotation marks with RapidJSON's escapes; all other bytes stay as they are.

    A `str` is encoded with `surrogateescape`, the inverse of how `rapid_json.loads` decodes.
    """
    if isinstance(text, bytes):
        raw = text
    else:
        try:
            raw = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # a model's error text may hold any surrogate
            raw = text.encode("utf-8", "replace")
    return b'"' + _escape(raw) + b'"'


def _escape(raw: bytes) -> bytes:
    return _ESCAPED.sub(lambda match: _ESCAPES[match[0]], raw)
