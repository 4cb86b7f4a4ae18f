"""The `data` field of a JSON input: any nesting of elements to one NumPy array.

Elements are judged in their order, as the real server does: the first one too many or of another
type is the fault that is reported. Lists of a million elements are judged and converted by C code;
only a list with a fault is walked once more to find the first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reference_server.codecs.rapid_json import (
    JsonValue,
    as_array,
    as_bool,
    as_double,
    as_int64,
    as_string,
    as_uint64,
    prefixed,
)
from reference_server.core import byte_strings
from reference_server.core.dtypes import DataType
from reference_server.core.errors import ServerError, internal, invalid_arg

_CONTEXT = "Unable to parse 'data'"


class _Element(NamedTuple):
    """What the elements of a tensor must be: the accessor, and the Python types it accepts."""

    access: Callable[[JsonValue], object]
    types: frozenset[type]


#: By the kind of the NumPy type.
_ELEMENTS = {
    "b": _Element(as_bool, frozenset({bool})),
    "i": _Element(as_int64, frozenset({int})),
    "u": _Element(as_uint64, frozenset({int})),
    "f": _Element(as_double, frozenset({int, float})),
}


def read(data: JsonValue, datatype: DataType, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """The tensor of `datatype` and `shape` whose elements stand in `data`, depth first.

    A shape of zero elements gives an empty array whatever `data` is. BYTES gives a *flat* object
    array of all the strings found (`bytes` elements): their number is checked with the request.

    Raises ServerError: INTERNAL `Unable to parse 'data': ...` (BYTES: `Unable to parse JSON bytes
    array: ...`) for elements of another type or a wrong count; INVALID_ARG for an integer outside
    the range of `datatype`, which the real server would wrap silently. FP16 and BF16 have no JSON
    form: the caller has refused them (ValueError).
    """
    if datatype in (DataType.FP16, DataType.BF16):
        raise ValueError(f"{datatype.value} has no JSON form")
    count = math.prod(shape)
    if count == 0:
        return np.empty(shape, datatype.numpy)
    try:
        elements, types = _flatten(as_array(data))
    except ServerError as error:
        raise prefixed(_CONTEXT, error) from None
    if datatype.is_bytes:
        return _strings(elements)

    dtype = np.dtype(datatype.numpy)
    element = _ELEMENTS[dtype.kind]
    if len(elements) != count or not types <= element.types:
        raise _first_fault(elements, count, element)
    if dtype.kind in "iu":
        try:
            array = _integers(elements, unsigned=dtype.kind == "u")
        except OverflowError:
            raise _first_fault(elements, count, element) from None
        _check_range(array, datatype)
        return array.astype(dtype).reshape(shape)
    with np.errstate(over="ignore"):  # a double beyond FP32 is an infinity
        ...


def _flatten(array: list[JsonValue]) -> tuple[list[JsonValue], set[type]]:
    """The elements, depth first, and their types."""
    elements = array
    while (types := set(map(type, elements))) == {list}:
        elements = list(itertools.chain.from_iterable(elements))
    if list in types:
        return _flatten(list(_depth_first(elements)))
    return elements, types


def _depth_first(array: list[JsonValue]) -> Iterator[JsonValue]:
    """The elements of arrays that hold elements and arrays side by side."""
    pending = [iter(array)]
    while pending:
        for element in pending[-1]:
            if type(element) is list:
                pending.append(iter(element))
                break
            yield element
        else:
            pending.pop()
