"""Parameters that have CANN record what a card does: a profile, or a dump, of some executions.

- `profile`: `dir=/var/prof, batches=20, from=100`: msprof profiles executions 100 to 119 since the
  model serves into that folder, which is there. `batches` is 10 and `from` 1 unless told. `metrics`
  is what AI Core counts: `pipe` (default), `arithmetic`, `memory`, `l0`, `conflict`, `ub`, `l2` or
  `none`.
- `dump`: `dir=/var/dump, batches=1, from=1, mode=output, layers=conv1;pool1`: what operators gave,
  took (`mode=input`) or both (`mode=all`) in these executions; without `layers` all operators.

Neither is on by default. Both are of one card and of the whole process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from ge_runtime.config.npu_ge import executes_om
from ge_runtime.config.triton_config import ConfigErrors, Parameters, split_pairs

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
"""The values are aclprofAicoreMetrics'."""
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
    """Which executions of a model are recorded, and where."""

    parameter: str
    """"profile" or "dump"."""
    folder: str
    first: int
    """From 1; those of the load are not counted."""
    count: int
    metrics: str = "pipe"
    mode: str = "output"
    layers: tuple[str, ...] = ()
    """Of a dump; empty for all."""

    @property
    def last(self) -> int:
        """The last execution of it."""
        return self.first + self.count - 1

    def __str__(self) -> str:
        return f"{self.parameter} of executions {self.first} to {self.last}"


def read_window(
    parameters: Parameters, devices: Sequence[str], errors: ConfigErrors, *, engine: str
) -> Window | None:
    """What is to be recorded; None: nothing."""
    given = [name for name in _KEYS if name in parameters.settings]
    if not given:
        return None
    if len(given) > 1:
        expected = "one of the two: CANN does not record both at a time"
        errors.add("parameter 'dump'", "'profile' as well", expected)
    name = given[0]
    field, text = f"parameter '{name}'", parameters.settings[name]
    if not executes_om(devices, engine):
        found = f"'{text}' for engine {engine} on {', '.join(devices)}"
        errors.add(field, found, "an .om file on a card: devices: npu:0")
    if parameters.settings.get("placement") == "service":
        expected = "placement: local: the service executes for all models of the card"
        errors.add(field, "placement: service", expected)
    parts = dict(split_pairs(text))
    if unknown := sorted(parts.keys() - {*_KEYS[name]}):
        expected = f"{', '.join(_KEYS[name])}, as in '{_EXAMPLES[name]}'"
        errors.add(field, f"'{unknown[0]}'", expected)
    folder = parts.get("dir", "")
    if not PurePosixPath(folder).is_absolute():
        errors.add(field, f"dir '{folder}'", f"a folder from / on, as in '{_EXAMPLES[name]}'")
    counts = {}
    for key, default in (("batches", 10 if name == "profile" else 1), ("from", 1)):
        counts[key] = _count(field, key, parts.get(key), default, errors)
    metrics, mode = parts.get("metrics", "pipe"), parts.get("mode", "output")
    for key, found, known in (("metrics", metrics, tuple(METRICS)), ("mode", mode, _MODES)):
        if found not in known:
            errors.add(field, f"{key} '{found}'", f"one of {', '.join(known)}")
    layers = tuple(layer for layer in parts.get("layers", "").split(";") if layer)
    return Window(name, folder, counts["from"], counts["batches"], metrics, mode, layers)


def _count(field: str, key: str, text: str | None, default: int, errors: ConfigErrors) -> int:
    if text is None:
        return default
    if not text.isdecimal() or not int(text):
        errors.add(field, f"{key} '{text}'", "a whole number of at least 1")
        return default
    return int(text)
