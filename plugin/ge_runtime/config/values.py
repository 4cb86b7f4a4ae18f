"""Texts of config.pbtxt: collecting errors, splitting lists, and reading numbers."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from ge_runtime.errors import ConfigFault
from ge_runtime.specs import DType, Number


class ConfigErrors:
    """Collects all errors in one model's configuration. For one thread."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._found: list[str] = []

    def add(self, field: str, found: object, expected: str) -> None:
        """Add an error: `field` of config.pbtxt holds `found` instead of `expected`."""
        self._found.append(f"{field}: found {found}, expected {expected}")

    def add_unknown(self, field: str, kind: str, found: str, known: Iterable[str]) -> None:
        """Add an error for a name of some `kind` that is not in `known`; suggest the nearest."""
        names = sorted(known)
        expected = f"one of: {', '.join(names)}" if names else f"none: this model has no {kind}"
        hint = did_you_mean(found, dict(zip(names, names, strict=True)))
        self.add(field, f"no {kind} '{found}'", expected + hint)

    def raise_any(self) -> None:
        """Raise ConfigFault with all errors, if there are any."""
        if self._found:
            raise ConfigFault(self._model, self._found)


def did_you_mean(found: str, known: Mapping[str, str]) -> str:
    """Return "; did you mean ...?" for the known name nearest to `found`, or "" if none is near.

    Args:
        found: The unknown name.
        known: Known name to the text that is suggested for it.
    """
    # First as written, then in lower case, as most names are.
    near = difflib.get_close_matches(found, known, n=1)
    near = near or difflib.get_close_matches(found.lower(), known, n=1)
    return f"; did you mean '{known[near[0]]}'?" if near else ""


def split_names(text: str) -> tuple[str, ...]:
    """Split a comma-separated text; commas within parentheses do not separate."""
    names, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth <= 0:
            names.append("")
        else:
            names[-1] += character
    return tuple(name.strip() for name in names)


def split_pairs(text: str) -> list[tuple[str, str]]:
    """Split `name=value, name=value`; the value is "" where there is no =."""
    parts = [part.partition("=") for part in split_names(text)]
    return [(name.strip(), value.strip()) for name, _, value in parts]


def read_whole(field: str, value: object, errors: ConfigErrors, *, least: int) -> int:
    """Read a whole number of at least `least`, given as a number or as text.

    Anything else adds an error and returns `least`.
    """
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    # Python counts True and False as integers, a configuration does not.
    if isinstance(number, int) and not isinstance(number, bool) and number >= least:
        return number
    errors.add(field, repr(value), f"a whole number of at least {least}")
    return least


_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}


def read_number(text: str, dtype: DType) -> Number | None:
    """Read one element of type `dtype`; floats may be infinite or NaN.

    Returns None if the text is not such an element; BYTES has none.
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
    # Every float type has infinity and NaN; a finite number may be too large for it.
    return None if dtype.largest < abs(value) < math.inf else value


def is_inside(path: str) -> bool:
    """Return whether a relative path cannot leave the folder that it is relative to."""
    return bool(path) and not path.startswith("/") and ".." not in path.split("/")
