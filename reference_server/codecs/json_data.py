"""The `data` field of a JSON input: any nesting of elements to one NumPy array."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reference_server.codecs.rapid_json import JsonValue
from reference_server.core.dtypes import DataType


def read(data: JsonValue, datatype: DataType, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """The tensor of `datatype` and `shape` whose elements stand in `data`, depth first.

    A shape of zero elements gives an empty array whatever `data` is. BYTES gives a *flat* object
    array of all the strings found (`bytes` elements): their number is checked with the request.

    Raises ServerError: INTERNAL `Unable to parse 'data': ...` (BYTES: `Unable to parse JSON bytes
    array: ...`) for elements of another type or a wrong count; INVALID_ARG for an integer outside
    the range of `datatype`, which the real server would wrap silently. FP16 and BF16 have no JSON
    form: the caller has refused them (ValueError).
    """
    raise NotImplementedError
