"""Converts the `data` of an input in JSON to its tensor.

Faults are reported in Triton's order: the first surplus element or the first element of a wrong
type. Long lists are checked and converted as a whole, at the speed of C; only a list with a fault
is walked element by element to find the first one.
"""

from __future__ import annotations

import array
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

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
from reference_server.core import byte_strings, gil
from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.tensor import DataType

_MAX_INT64 = 2**63 - 1
#: A size of -1 as an unsigned number of 64 bits.
_UNKNOWN = 2**64 - 1
_Array = npt.NDArray[np.generic]

#: Datatypes that have no JSON form.
BINARY_ONLY = frozenset({DataType.FP16, DataType.BF16})


class _Element(NamedTuple):
    """The JSON values that an element may be, and the conversion of a whole list of them."""

    access: Callable[[JsonValue], object]
    types: frozenset[type]  # the types that `access` accepts
    typecode: str  # of an `array.array`, which refuses the integers that `access` refuses
    dtype: npt.DTypeLike  # of the items of that array


#: The JSON form of elements, by the kind of their NumPy dtype.
_ELEMENTS = {
    "b": _Element(as_bool, frozenset({bool}), "b", np.bool_),
    "i": _Element(as_int64, frozenset({int}), "q", np.int64),
    "u": _Element(as_uint64, frozenset({int}), "Q", np.uint64),
    "f": _Element(as_double, frozenset({int, float}), "d", np.float64),
}


def element_count(name: str, datatype: DataType | None, shape: tuple[int, ...]) -> int:
    """Return the number of elements of an input; 2**64 - 1 if a size is -1, which means unknown.

    Raises:
        ServerError: INVALID_ARG for a size, a number of elements or of bytes beyond int64.
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


def read_tensor(
    data: JsonValue, datatype: DataType, shape: tuple[int, ...], *, reports_missing: bool = False
) -> _Array:
    """Convert the `data` of an input to a tensor.

    Args:
        data: An array of elements, which may contain arrays; elements are taken depth first.
        datatype: Any datatype but FP16 and BF16, which have no JSON form.
        shape: The shape, which has at least one element.
        reports_missing: Whether too few elements, or no string at all, get the error texts of newer
            Triton releases.

    Returns:
        The tensor of `datatype` and `shape`. For BYTES a flat object array of all strings found, as
        `bytes`; their number is checked later, with the request.

    Raises:
        ServerError: INTERNAL `Unable to parse 'data': ...` (BYTES: `Unable to parse JSON bytes
            array: ...`) for elements of another type or a wrong count; INVALID_ARG for an integer
            outside the range of `datatype`, which Triton would wrap silently.
        ValueError: The datatype has no JSON form.
    """
    if datatype in BINARY_ONLY:
        raise ValueError(f"{datatype.value} has no JSON form")
    count = math.prod(shape)
    try:
        elements, types = _flatten(as_array(data))
    except ServerError as error:
        raise prefixed("Unable to parse 'data'", error) from None
    if datatype.is_bytes:
        if reports_missing and not elements:
            raise internal("Failed to parse 'data' field: output buffer unavailable")
        return _strings(elements, types)
    if reports_missing and len(elements) < count:
        kind = _ELEMENTS[np.dtype(datatype.numpy).kind]
        if types <= kind.types:
            raise internal("Failed to parse 'data' field: shape does not match true shape")
    return _numbers(elements, types, datatype, count).reshape(shape)


def _flatten(data: list[JsonValue]) -> tuple[list[JsonValue], set[type]]:
    """Return the elements, depth first, and the set of their types."""
    elements = data
    while (types := _types(elements)) == {list}:
        elements = gil.concatenate(cast("list[list[JsonValue]]", elements))
    if list in types:
        return _flatten(list(_depth_first(elements)))
    return elements, types


def _types(elements: list[JsonValue]) -> set[type]:
    found: set[type] = set()
    for some in gil.slices(elements):
        found.update(map(type, some))
    return found


def _depth_first(data: list[JsonValue]) -> Iterator[JsonValue]:
    """Yield the elements of an array that contains both elements and arrays."""
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
        for some in gil.slices(elements):
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
    """Return the error for the first number outside the range of the datatype, if any."""
    limits = np.iinfo(np.dtype(datatype.numpy))
    outside = np.flatnonzero((numbers < limits.min) | (numbers > limits.max))
    if not outside.size:
        return None
    return invalid_arg(
        f"Unable to parse 'data': value {numbers[outside[0]]} is out of range for datatype "
        f"{datatype.value}"
    )


def _first_fault(
    context: str, access: Callable[[JsonValue], object], elements: list[JsonValue], count: int
) -> ServerError:
    """Return the error for the first element that `access` refuses, else for the count."""
    try:
        for element in elements[:count]:
            access(element)
    except ServerError as error:
        return prefixed(context, error)
    return internal(f"{context}: Shape does not match true shape of 'data' field")
