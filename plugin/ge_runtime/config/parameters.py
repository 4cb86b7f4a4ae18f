"""Parameters of config.pbtxt: errors, readers of values, declarations, lookup and documentation.

`parameter_table` declares each parameter once, with its reader, default and help. From this table
come the values, the errors for unknown parameters, and the tables of the documentation.

A reader takes the parameter's name for errors, the text, and the errors to add to. After an error
it returns a valid value, so that reading goes on and all errors are reported together.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

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
        """Add an error for a name of a `kind` that is not in `known`; suggest the nearest name."""
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
        known: The text to suggest for each known name.
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


MOST_THREADS: Final = 1024
"""The largest number of threads that a configuration may request for one model instance."""


def read_whole(
    field: str, value: object, errors: ConfigErrors, *, least: int, most: float = math.inf
) -> int:
    """Read a whole number from `least` to `most`, given as a number or as text.

    Anything else adds an error and returns `least`.
    """
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    # Python counts True and False as integers, a configuration does not.
    if isinstance(number, int) and not isinstance(number, bool) and least <= number <= most:
        return number
    limits = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
    errors.add(field, repr(value), f"a whole number {limits}")
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


T = TypeVar("T")

Reader: TypeAlias = Callable[[str, str, ConfigErrors], T]

_STAGE_NAME: Final = re.compile(r"\w[\w.-]*", re.ASCII)
_COSTS: Final = {"launch_us": 1e-6, "element_ns": 1e-9, "element2_ns": 1e-9}
"""The required parts of a cost, with their units in seconds."""
_GROWTH: Final = {"growth_ns": 1e-9}
"""The optional part of a cost, with its unit in seconds."""
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


def whole(least: int, most: float = math.inf) -> Reader[int]:
    """Return a reader of whole numbers from `least` to `most`."""
    return lambda field, given, errors: read_whole(field, given, errors, least=least, most=most)


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
    """Read the index of a dimension, or None from the text `none`."""
    return None if given == "none" else read_whole(field, given, errors, least=0)


def stages(field: str, given: str, errors: ConfigErrors) -> tuple[str, ...]:
    """Read the names of graphs in order of execution."""
    found = split_names(given)
    if len(set(found)) < len(found) or not all(map(_STAGE_NAME.fullmatch, found)):
        expected = "the names of files without their endings, each once, e.g. encoder, classifier"
        errors.add(field, f"'{given}'", expected)
    return found


def cost(field: str, given: str, errors: ConfigErrors) -> GivenCost | None:
    """Read the cost of executions, or None from the text `calibrate`."""
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


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A parameter of the whole model."""

    key: str
    read: Reader[T]
    default: T
    help: str
    """The meaning of the value, in Markdown."""
    shown: str = ""
    """The default, in Markdown."""


@dataclass(frozen=True)
class Family(Generic[T]):
    """Parameters `<name>.<target>`, each about one tensor, axis or option."""

    pattern: str
    """The key as documentation shows it, e.g. "limit.<axis>"."""
    read: Reader[T]
    help: str
    shown: str = ""

    @property
    def name(self) -> str:
        """The part of the key before the first dot."""
        return self.pattern.partition(".")[0]


class Parameters:
    """The parameters of one model. For one thread."""

    def __init__(
        self,
        settings: Mapping[str, str],
        families: Mapping[str, Mapping[str, str]],
        errors: ConfigErrors,
    ) -> None:
        """Keep parameters as text.

        Args:
            settings: The texts by key.
            families: The texts by target of each family, by name of the family.
            errors: Receives the errors in values when they are read.
        """
        self.settings = settings
        self._families = families
        self.errors = errors

    @classmethod
    def read(
        cls,
        model_config: Mapping[str, object],
        settings: Sequence[Setting[Any]],
        families: Sequence[Family[Any]],
        errors: ConfigErrors,
    ) -> Parameters:
        """Read the parameters in Triton's JSON form, all of which the tables must declare.

        Unknown keys and values that are not strings become errors.
        """
        keys = {setting.key for setting in settings}
        given: dict[str, str] = {}
        found: dict[str, dict[str, str]] = {family.name: {} for family in families}
        entries = model_config.get("parameters") or {}
        if not isinstance(entries, Mapping):
            errors.add("parameters", repr(entries), "keys with string values")
            entries = {}
        # Sorted, because Triton passes them in the order of a hash table: neither errors nor
        # anything else may change from one start to the next.
        for key, entry in sorted(entries.items()):
            if str(key).isupper():  # the server's own, e.g. EXECUTION_ENV_PATH
                continue
            family, _, target = str(key).partition(".")
            value = entry.get("string_value") if isinstance(entry, Mapping) else None
            if key not in keys and not (family in found and target):
                known = ", ".join((*(own.key for own in settings), *(o.pattern for o in families)))
                hint = did_you_mean(family, _suggestions(settings, families, target))
                errors.add(f"parameter '{key}'", "no such parameter", f"one of: {known}{hint}")
            elif not isinstance(value, str):
                errors.add(f"parameter '{key}'", repr(entry), 'value { string_value: "..." }')
            elif key in keys:
                given[key] = value.strip()
            else:
                found[family][target] = value.strip()
        return cls(given, found, errors)

    def text(self, setting: Setting[Any]) -> str | None:
        """Return the text of a setting, or None if it is not given."""
        return self.settings.get(setting.key)

    def get(self, setting: Setting[T]) -> T:
        """Read a setting; its default if it is not given. Call once, as errors are added."""
        given = self.settings.get(setting.key)
        if given is None:
            return setting.default
        return setting.read(f"parameter '{setting.key}'", given, self.errors)

    def texts(self, family: Family[Any]) -> Mapping[str, str]:
        """Return the targets of a family with their texts."""
        return self._families[family.name]

    def entries(
        self, family: Family[T], kind: str = "", known: Collection[str] | None = None
    ) -> Iterator[tuple[str, str, T]]:
        """Read a family. Call once, as errors are added.

        Args:
            family: The family.
            kind: The word for a target in errors, e.g. "axis".
            known: All possible targets; any other target is skipped, with an error. None accepts
                every target.

        Yields:
            The name of the parameter for errors, its target and its value.
        """
        for target, given in self._families[family.name].items():
            field = f"parameter '{family.name}.{target}'"
            if known is not None and target not in known:
                self.errors.add_unknown(field, kind, target, known)
            else:
                yield field, target, family.read(field, given, self.errors)


def _suggestions(
    settings: Iterable[Setting[Any]], families: Iterable[Family[Any]], target: str
) -> dict[str, str]:
    suggestions = {setting.key: setting.key for setting in settings}
    for family in families:
        suggestions[family.name] = f"{family.name}.{target}" if target else family.pattern
    return suggestions


def markdown_table(entries: Iterable[Setting[Any] | Family[Any]]) -> str:
    """Render parameters as a Markdown table of key, value and default."""
    lines = ["| Key | Value | Default |", "| --- | --- | --- |"]
    for entry in entries:
        key = entry.key if isinstance(entry, Setting) else entry.pattern
        lines.append(f"| `{key}` | {entry.help} | {entry.shown} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"
