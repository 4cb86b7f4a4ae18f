"""The gears of a model: those that config.pbtxt declares, and those it leaves to be derived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.config import RuntimeConfig
from ge_runtime.config.gear_sizes import GearSizes
from ge_runtime.planning.gear_optimizer import derive_gears
from ge_runtime.planning.histogram import Histogram, HistogramFault
from ge_runtime.specs import ROWS


@dataclass(frozen=True, slots=True)
class Gearing:
    """The gears, and how they came about."""

    tables: Mapping[tuple[str, ...], GearSizes]
    """Axes, ROWS for the rows among them: their gears."""
    gears: Gears
    planned: tuple[Gear, ...]
    """What memory has to be planned for: no execution is larger than all of these."""
    histogram: Histogram | None
    """The sizes recorded so far, along rows and all axes; None if nothing usable is there."""
    report: tuple[str, ...]
    """What is worth knowing of the histogram and the derived gears, line by line."""

    @classmethod
    def of(cls, config: RuntimeConfig, version_dir: Path) -> Gearing:
        """The gears of a configuration whose model is in `version_dir`.

        A histogram that cannot be read, or is of other axes, is told in the report and not used.
        """
        report: list[str] = []
        histogram = _recorded(config, version_dir, report)
        limits = {ROWS: config.rows, **config.limits}
        tables: dict[tuple[str, ...], GearSizes] = {}
        for axes, table in config.gears.items():
            if isinstance(table, int):
                derived = derive_gears(axes, limits, table, histogram)
                report.append(derived.how)
                table = derived.gears
            tables[axes] = table
        gears = Gears(tuple(config.limits), config.limits, config.rows, tables)
        planned = gears.every()
        if config.oversize == "fallback":  # what no gear holds is executed at its own size
            largest = Gear(config.rows, config.limits)
            planned = planned if largest in planned else (*planned, largest)
        return cls(tables, gears, planned, histogram, tuple(report))


def _recorded(config: RuntimeConfig, version_dir: Path, report: list[str]) -> Histogram | None:
    if config.histogram is None:
        return None
    path, axes = version_dir / config.histogram, (ROWS, *config.limits)
    try:
        histogram = Histogram.load(path)
    except FileNotFoundError:
        return None
    except (HistogramFault, OSError) as error:
        report.append(f"the histogram is not used: {error}")
        return None
    if histogram.axes != axes:
        found, expected = ", ".join(histogram.axes), ", ".join(axes)
        report.append(f"the histogram is not used: found axes {found}, expected {expected}")
        return None
    return histogram
