"""What gears are compiled for: a graph's tensors, their limits, the gears of its other axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from ge_runtime.config import RuntimeConfig
from ge_runtime.planning.tables import GearTable, key_of
from ge_runtime.specs import ROWS, UNKNOWN, DType, TensorSpec


@dataclass(frozen=True, slots=True)
class Target:
    """A graph, as far as gears concern it."""

    inputs: tuple[TensorSpec, ...]
    """Of the graph, generated ones included."""
    outputs: tuple[TensorSpec, ...]
    batched: bool
    """Whether tensors have a batch dimension before their dims."""
    limits: Mapping[str, int]
    """The largest size of every axis, ROWS included."""
    tables: Mapping[tuple[str, ...], GearTable]
    """All gears, by their axes. Axes without gears are executed at their limit."""
    unlisted: tuple[str, ...] = ()
    """What cannot be listed: inputs whose shape is not that of rows, gears not yet derived."""

    @classmethod
    def of(
        cls,
        config: RuntimeConfig,
        limits: Mapping[str, int],
        axes: Sequence[str],
        gears: GearTable,
    ) -> Target:
        """The graph that `config` describes, with these gears and its own of other axes.

        limits: of all axes, ROWS included; they may be others than the configuration's.
        The graph itself is not opened. So it is taken not to ask for lengths that config.pbtxt
        only names to tell rows from padding, and to want generated inputs as INT64.
        """
        told = {*config.passthrough.values(), *config.axis_lengths.values()}
        inputs = [spec for spec in config.prepared or config.inputs if spec.name not in told]
        inputs += [TensorSpec(name, DType.INT64, dims) for name, dims in config.masks.items()]
        inputs += [TensorSpec(name, DType.INT64, ()) for name in config.lengths]
        inputs += [
            TensorSpec(name, DType.INT64, (axis,)) for name, axis in config.positions.items()
        ]
        unlisted = [f"input '{name}'" for name in config.offsets]
        unlisted += [f"input '{name}'" for entry in config.batch_inputs for name in entry.targets]
        tables = {tuple(axes): gears}
        for others, table in config.gears.items():
            if set(others) & set(axes):
                continue
            if isinstance(table, int):
                unlisted.append(f"{key_of(others)}, which is derived at load")
            else:
                tables[others] = table
        return cls(
            inputs=tuple(inputs),
            outputs=tuple(spec for spec in config.outputs if UNKNOWN not in spec.dims),
            batched=config.batched,
            limits=limits,
            tables=tables,
            unlisted=tuple(unlisted),
        )

    def gears(self) -> Iterator[dict[str, int]]:
        """Every combination of gears: the size of each axis that has any, ROWS included."""
        for combination in product(*self.tables.values()):
            yield {
                axis: size
                for axes, gear in zip(self.tables, combination, strict=True)
                for axis, size in zip(axes, gear, strict=True)
            }

    @property
    def gear_count(self) -> int:
        """How many combinations of gears there are: each is compiled."""
        return math.prod(map(len, self.tables.values()))

    def io_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes of all inputs and outputs at these sizes; axes not among them at their limit."""
        extents = {**self.limits, **sizes}
        rows = extents[ROWS] if self.batched else 1
        return rows * sum(
            math.prod(spec.shape(extents)) * spec.dtype.numpy.itemsize
            for spec in (*self.inputs, *self.outputs)
        )
