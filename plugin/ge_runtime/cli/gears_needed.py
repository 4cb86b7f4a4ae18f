"""Measures whether gears help a model on the CPU, where executions may have any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.assembly import assemble, with_parameters
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.cli.config_pbtxt import read_model_config, read_runtime_config
from ge_runtime.cli.inspect import version_folder
from ge_runtime.clock import SystemClock
from ge_runtime.engines.artifact import find_artifacts
from ge_runtime.errors import RuntimeFault
from ge_runtime.planning.size_demand import GearTable, SizeDemand
from ge_runtime.runtime import Runtime
from ge_runtime.scheduling.executor import execute_blank
from ge_runtime.specs import ROWS

_SIZES: Final = 12
"""Number of measured sizes, each of which stands for an equal share of the requests."""
_ROUNDS: Final = 5
"""Executions of each size, of which the fastest counts."""
_FASTER: Final = 0.9
"""Ratio of times below which gears are faster beyond doubt."""
_COST: Final = "launch_us=100, element_ns=1, element2_ns=0"
"""Replaces the calibration at load, because its result is not used."""


@dataclass(frozen=True, slots=True)
class GearsMeasured:
    """Mean times of executions of one request."""

    model: str
    engine: str
    own_s: float
    """Seconds at the size of the request."""
    geared_s: float
    """Seconds at the smallest gear that holds the request."""
    sizes: int
    """Number of measured sizes."""

    def lines(self) -> list[str]:
        """Return the answer as text."""
        where = f"{self.model} on the CPU, by {self.engine}"
        answer = "gears would help" if self.needed else "no gears needed"
        return [
            f"{answer}: {where}, which executes any size",
            f"measured with one request per execution, {self.sizes} requests of FILE, mean:",
            f"  at its own size  {self.own_s * 1e3:8.2f} ms",
            f"  at these gears   {self.geared_s * 1e3:8.2f} ms, {self.ratio:.2f} times as long",
            "the gears below are for engines that prepare sizes: .om files and CUDA graphs",
        ]

    @property
    def ratio(self) -> float:
        """The time at gears, divided by the time at the size of the request."""
        return self.geared_s / self.own_s

    @property
    def needed(self) -> bool:
        """True if executions at gears are faster by more than measurements differ."""
        return self.ratio < _FASTER

    def as_json(self) -> dict[str, object]:
        """Return the answer as values for JSON."""
        return {
            "needed": self.needed,
            "own_ms": self.own_s * 1e3,
            "geared_ms": self.geared_s * 1e3,
            "sizes": self.sizes,
        }


def measure(path: Path, demand: SizeDemand, gears: GearTable) -> GearsMeasured | None:
    """Execute a model's graph at the sizes of requests and at gears of the same axes.

    Returns None if the graph is not executed on the CPU of this process, or cannot be executed.
    """
    config = read_runtime_config(path)
    if config.device_kind != "cpu" or config.stages or config.service_share is not None:
        return None
    version_dir = path if path.is_dir() else path.parent
    try:
        version_dir = version_folder(version_dir, None)
        engine = find_artifacts(version_dir, config.engine)[0].engine
        derived = [spec.name for spec in config.derived]
        parts = assemble(
            version_dir, _without_gears(path), instance_name=config.model, derived=derived
        )
        with closing(Runtime(config.model, version_dir, parts, SystemClock())):
            pairs = [
                [_gear(demand.axes, each, parts.gears) for each in pair]
                for pair in _samples(demand, gears)
            ]
            seconds = np.full((len(pairs), 2), np.inf)
            # Sizes take turns, so that a disturbance of the machine affects all sizes alike.
            for _ in range(_ROUNDS):
                for at, pair in enumerate(pairs):
                    for which, own in enumerate(pair):
                        taken = execute_blank(parts.executors[0], parts.config, own).wall_s
                        seconds[at, which] = min(seconds[at, which], taken)
    except (RuntimeFault, OSError):
        return None
    own_s, geared_s = seconds.mean(axis=0).tolist()
    return GearsMeasured(config.model, engine, own_s, geared_s, len(pairs))


def _without_gears(path: Path) -> dict[str, object]:
    """Return the model's configuration without gears, checks and calibration."""
    model_config = read_model_config(path)
    given = model_config.get("parameters")
    own = given if isinstance(given, Mapping) else {}
    kept = {key: value for key, value in own.items() if not key.startswith("gears.")}
    settings = {"load_check": "off", "cost": _COST, "reproducible": "false"}
    return with_parameters({**model_config, "parameters": kept}, settings)


def _samples(demand: SizeDemand, gears: GearTable) -> list[Sequence[tuple[int, ...]]]:
    """Return pairs of a size and its gear, each for an equal share of the requests."""
    order = np.lexsort(demand.sizes.T[::-1])
    share = np.cumsum(demand.counts[order]) / demand.counts.sum()
    places = np.searchsorted(share, (np.arange(_SIZES) + 0.5) / _SIZES)
    chosen = demand.assign(gears)
    return [(tuple(demand.sizes[order[at]].tolist()), gears[chosen[order[at]]]) for at in places]


def _gear(axes: Sequence[str], size: Sequence[int], gears: Gears) -> Gear:
    """Return an execution of this size, as small as possible along other axes."""
    smallest = gears.smallest
    sizes = {ROWS: 1, **smallest.extents, **dict(zip(axes, size, strict=True))}
    return Gear(sizes.pop(ROWS), sizes)
