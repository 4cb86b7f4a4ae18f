"""Readers of single parameters: each turns the text of a parameter into its value.

A reader takes the parameter's name for errors, the text, and the errors to add to. After an error
it returns a valid value, so that reading goes on and all errors are reported together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Final, NamedTuple, TypeAlias, TypeVar

from ge_runtime.config.values import ConfigErrors, read_whole, split_names, split_pairs

T = TypeVar("T")

Reader: TypeAlias = Callable[[str, str, ConfigErrors], T]

_STAGE_NAME: Final = re.compile(r"\w[\w.-]*", re.ASCII)
_COSTS: Final = {"launch_us": 1e-6, "element_ns": 1e-9, "element2_ns": 1e-9}
"""Required part of a cost to its unit in seconds."""
_GROWTH: Final = {"growth_ns": 1e-9}
"""Optional part of a cost to its unit in seconds."""
_MOST_WEIGHT: Final = 1000.0


class GivenCost(NamedTuple):
    """The cost of executions as config.pbtxt gives it, in seconds."""

    launch_s: float
    element_s: float
    element2_s: float
    growth_s: float = 0.0


def text(field: str, given: str, errors: ConfigErrors) -> str:
    """Return the text as it is."""
    return given


def names(field: str, given: str, errors: ConfigErrors) -> tuple[str, ...]:
    """Read names separated by commas."""
    return split_names(given)


def whole(least: int) -> Reader[int]:
    """Return a reader of whole numbers of at least `least`."""
    return lambda field, given, errors: read_whole(field, given, errors, least=least)


def choice(*choices: str) -> Reader[str]:
    """Return a reader of one of two texts; after an error it returns the first."""

    def read(field: str, given: str, errors: ConfigErrors) -> str:
        if given in choices:
            return given
        errors.add(field, f"'{given}'", " or ".join(f"'{each}'" for each in choices))
        return choices[0]

    return read


def switch(on: str, off: str, *, default: bool) -> Reader[bool]:
    """Return a reader of one of two texts, as a bool."""
    read = choice(on, off) if default else choice(off, on)
    return lambda field, given, errors: read(field, given, errors) == on


def weight(field: str, given: str, errors: ConfigErrors) -> float:
    """Read a weight from 1/1000 to 1000."""
    number = _number(given)
    if 1 / _MOST_WEIGHT <= number <= _MOST_WEIGHT:
        return number
    errors.add(field, f"'{given}'", f"a number from {1 / _MOST_WEIGHT:g} to {_MOST_WEIGHT:g}")
    return 1.0


def batch_dim(field: str, given: str, errors: ConfigErrors) -> int | None:
    """Read the index of a dimension; `none` is None."""
    return None if given == "none" else read_whole(field, given, errors, least=0)


def stages(field: str, given: str, errors: ConfigErrors) -> tuple[str, ...]:
    """Read the names of graphs in order of execution."""
    found = split_names(given)
    if len(set(found)) < len(found) or not all(map(_STAGE_NAME.fullmatch, found)):
        expected = "the names of files without their endings, each once, e.g. encoder, classifier"
        errors.add(field, f"'{given}'", expected)
    return found


def cost(field: str, given: str, errors: ConfigErrors) -> GivenCost | None:
    """Read the cost of executions; `calibrate` is None."""
    if given == "calibrate":
        return None
    units = _COSTS | _GROWTH
    pairs = split_pairs(given)
    parts = {name for name, _ in pairs}
    if len(parts) == len(pairs) and _COSTS.keys() <= parts <= units.keys():
        costs = {name: _number(number) * units[name] for name, number in pairs}
        if all(0 <= cost < math.inf for cost in costs.values()):  # NaN fails the comparison
            return GivenCost(*(costs.get(name, 0.0) for name in units))
    expected = "'calibrate', or numbers of at least 0 as in 'launch_us=120, element_ns=35.2, "
    errors.add(field, f"'{given}'", expected + "element2_ns=0.01'")
    return None


def cost_cache(field: str, given: str, errors: ConfigErrors) -> str:
    """Read "auto", "off", or a folder without `..`."""
    path = PurePosixPath(given)
    if not path.name or ".." in path.parts:
        expected = "auto, off, a folder, or one inside the version folder, e.g. costs"
        errors.add(field, f"'{given}'", expected)
    return given


def histogram(field: str, given: str, errors: ConfigErrors) -> str:
    """Read the path of a file inside the version folder."""
    path = PurePosixPath(given)
    if path.is_absolute() or ".." in path.parts or not path.name:
        expected = "a path inside the version folder, e.g. histogram.json"
        errors.add(field, f"'{given}'", expected)
    return str(path)


def card_ids(field: str, given: str, errors: ConfigErrors) -> tuple[int, ...] | None:
    """Read the numbers of cards, each once; None after an error."""
    found = split_names(given)
    # Compared as numbers: 1 and 01 are the same card.
    if all(map(str.isdecimal, found)) and len({*map(int, found)}) == len(found):
        return tuple(map(int, found))
    errors.add(field, f"'{given}'", "the numbers of cards, each once, e.g. 0, 1")
    return None


def _number(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        return math.nan
