"""Parameters that let CANN record executions on a card: `profile` and `dump`.

- `profile`: `dir=/var/prof, batches=20, from=100`: msprof profiles executions 100 to 119, counted
  from the start of serving, into that existing folder. Defaults: `batches=10`, `from=1`. `metrics`
  is what AI Core counts: `pipe` (default), `arithmetic`, `memory`, `l0`, `conflict`, `ub`, `l2` or
  `none`.
- `dump`: `dir=/var/dump, batches=1, from=1, mode=output, layers=conv1;pool1`: the outputs of
  operators, their inputs (`mode=input`) or both (`mode=all`) in these executions; all operators
  without `layers`.

Both apply to one card and to the whole process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.config.npu_ge import executes_om
from ge_runtime.config.parameter_table import DUMP, PLACEMENT, PROFILE
from ge_runtime.config.parameters import Parameters
from ge_runtime.config.values import ConfigErrors, split_pairs

METRICS: Final[Mapping[str, int]] = {
    "arithmetic": 0,
    "pipe": 1,
    "memory": 2,
    "l0": 3,
    "conflict": 4,
    "ub": 5,
    "l2": 6,
    "none": 0xFF,
}
"""The values are those of aclprofAicoreMetrics."""
_MODES: Final = ("output", "input", "all")
_EXAMPLES: Final = {
    "profile": "dir=/var/prof, batches=20, from=100",
    "dump": "dir=/var/dump, batches=1, layers=conv1;pool1",
}
_KEYS: Final = {
    "profile": ("dir", "batches", "from", "metrics"),
    "dump": ("dir", "batches", "from", "mode", "layers"),
}


@dataclass(frozen=True, slots=True)
class Window:
    """The executions of a model that are recorded, and where."""

    parameter: str
    """"profile" or "dump"."""
    folder: str
    first: int
    """Number of the first execution, from 1; executions of the load are not counted."""
    count: int
    metrics: str = "pipe"
    mode: str = "output"
    layers: tuple[str, ...] = ()
    """Operators of a dump; empty for all."""

    @property
    def last(self) -> int:
        """Number of the last execution."""
        return self.first + self.count - 1

    def __str__(self) -> str:
        return f"{self.parameter} of executions {self.first} to {self.last}"


def read_window(parameters: Parameters, devices: Sequence[str], *, engine: str) -> Window | None:
    """Return what to record, or None."""
    texts = {own.key: parameters.get(own) for own in (PROFILE, DUMP)}
    given = {key: text for key, text in texts.items() if text is not None}
    if not given:
        return None
    errors = parameters.errors
    if len(given) > 1:
        expected = "one of the two: CANN cannot record both at the same time"
        errors.add("parameter 'dump'", "'profile' as well", expected)
    name, text = next(iter(given.items()))
    field, example = f"parameter '{name}'", f"as in '{_EXAMPLES[name]}'"
    if not executes_om(devices, engine):
        found = f"'{text}' for engine {engine} on {', '.join(devices)}"
        errors.add(field, found, "an .om file on a card: devices: npu:0")
    if parameters.text(PLACEMENT) == "service":
        expected = "placement: local: the service executes for all models of the card"
        errors.add(field, "placement: service", expected)
    parts = dict(split_pairs(text))
    if unknown := sorted(parts.keys() - {*_KEYS[name]}):
        errors.add(field, f"'{unknown[0]}'", f"{', '.join(_KEYS[name])}, {example}")
    folder = parts.get("dir", "")
    if not folder.startswith("/"):
        errors.add(field, f"dir '{folder}'", f"a folder from / on, {example}")
    batches = _count(field, "batches", parts, 10 if name == "profile" else 1, errors)
    first = _count(field, "from", parts, 1, errors)
    metrics, mode = parts.get("metrics", "pipe"), parts.get("mode", "output")
    for key, found, known in (("metrics", metrics, tuple(METRICS)), ("mode", mode, _MODES)):
        if found not in known:
            errors.add(field, f"{key} '{found}'", f"one of {', '.join(known)}")
    layers = tuple(layer for layer in parts.get("layers", "").split(";") if layer)
    return Window(name, folder, first, batches, metrics, mode, layers)


def _count(
    field: str, key: str, parts: Mapping[str, str], default: int, errors: ConfigErrors
) -> int:
    text = parts.get(key, str(default))
    if not text.isdecimal() or not int(text):
        errors.add(field, f"{key} '{text}'", "a whole number of at least 1")
        return default
    return int(text)
