"""What a single text means: a whole number, or a number of some type."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ge_runtime.config.faults import Faults
from ge_runtime.specs import DType, Number

_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}


def read_whole(place: str, value: object, faults: Faults, *, least: int) -> int:
    """A whole number of at least `least`, given as one or as text; else a fault, and `least`."""
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, int) and not isinstance(number, bool) and number >= least:
        return number
    faults.add(place, repr(value), f"a whole number of at least {least}")
    return least


def read_number(text: str, dtype: DType) -> Number | None:
    """The element of `dtype` that `text` writes, or None if it is none; BYTES have none.

    Floats may be infinite or nan.
    """
    if dtype is DType.BYTES:
        return None
    if dtype is DType.BOOL:
        return _TRUTHS.get(text.lower())
    try:
        if dtype.is_integer:
            whole, range_ = int(text), np.iinfo(dtype.numpy)
            return whole if range_.min <= whole <= range_.max else None
        value = float(text)
    except ValueError:
        return None
    return None if dtype.largest < abs(value) < math.inf else value
