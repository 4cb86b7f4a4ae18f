"""What `ge-runtime gears` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ge_runtime.config import RuntimeConfig
from ge_runtime.planning.ascend_gears import (
    AscendOptions,
    CompileTarget,
    ascend_options,
    with_options,
)
from ge_runtime.planning.gear_report import (
    Comparison,
    as_json,
    choice_lines,
    curve_lines,
    use_lines,
)
from ge_runtime.planning.size_demand import GearTable, SizeDemand, gears_key, pbtxt_lines, size_text
from ge_runtime.specs import ROWS, DType, TensorSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """Gears of one count, with all that configures them; or a curve of several counts."""

    source: str
    demand: SizeDemand
    comparisons: Sequence[Comparison]
    limits: Mapping[str, int]
    """Of all axes that have one, those of the demand among them."""
    config: RuntimeConfig | None
    bytes_per_element: int | None

    @property
    def is_curve(self) -> bool:
        """Whether it is of several counts."""
        return len(self.comparisons) > 1

    @property
    def gears(self) -> GearTable:
        """The optimum, if it is not a curve."""
        return self.comparisons[0].best.gears

    def lines(self) -> list[str]:
        """The plan for people."""
        if self.is_curve:
            hint = "--count with one number gives the lines for config.pbtxt and ATC"
            return [*self._head(), "", *curve_lines(self.demand, self.comparisons), "", hint]
        target = self._target()
        memory = self._io_bytes(target)
        sections = [
            self._head(),
            choice_lines(self.demand, self.comparisons[0]),
            use_lines(self.demand, self.gears, memory),
            self._cost_lines(target, memory),
            ["config.pbtxt:", *self._pbtxt_lines()],
            _ascend_lines(self._options(target), named=self.config is not None),
        ]
        return "\n\n".join("\n".join(section) for section in sections).split("\n")

    def as_json(self) -> dict[str, object]:
        """The same for programs."""
        plan = as_json(self.demand, self.comparisons)
        if self.is_curve:
            return plan
        target = self._target()
        memory = self._io_bytes(target)
        options = self._options(target)
        return {
            **plan,
            "io_bytes": memory and [memory[gear] for gear in self.gears],
            "compiled_gears": target.gear_count,
            "config_pbtxt": self._pbtxt_lines(),
            "atc": options.atc,
            "ge": options.ge,
            "ascend_note": options.note,
        }

    def _head(self) -> list[str]:
        demand = self.demand
        axes = " x ".join(demand.axes)
        lines = [
            f"{self.source}: {demand.total:,} size(s) of {axes}, {len(demand.sizes):,} distinct",
            f"gears of {axes} up to {size_text(demand.limit)}",
        ]
        if demand.align > 1:
            lines[1] += f", multiples of {demand.align}"
        if demand.beyond:
            lines[0] += f"; {demand.beyond:,} more over the limit are left out"
        return lines

    def _target(self) -> CompileTarget:
        axes = self.demand.axes
        if self.config is not None:
            return CompileTarget.of(self.config, self.limits, axes, self.gears)
        # A stand-in: one input that has the axes and nothing else.
        dims = tuple(axis for axis in axes if axis != ROWS)
        return CompileTarget(
            inputs=(TensorSpec("INPUT", DType.FP32, dims),),
            outputs=(),
            batched=ROWS in self.limits,
            limits=self.limits,
            tables={axes: self.gears},
        )

    def _pbtxt_lines(self) -> list[str]:
        rows_key = "max_batch_size" if self.config is None else self.config.rows_key
        return pbtxt_lines(self.demand.axes, self.gears, self.limits, rows_key)

    def _options(self, target: CompileTarget) -> AscendOptions:
        """The gears for Ascend's compiler, with what else config.pbtxt asks of it."""
        if self.config is not None and self.config.stages:
            return AscendOptions(note="each stage has its own; `ge-runtime build` compiles them")
        return with_options(ascend_options(target), self.config.ge_options if self.config else {})

    def _io_bytes(self, target: CompileTarget) -> dict[tuple[int, ...], int] | None:
        """Gear: bytes of the inputs and outputs of one execution, if they are known."""
        axes = self.demand.axes
        if self.config is not None:
            return {
                gear: target.io_bytes(dict(zip(axes, gear, strict=True))) for gear in self.gears
            }
        if self.bytes_per_element is None:
            return None
        rows = 1 if ROWS in axes else self.limits.get(ROWS, 1)
        return {gear: rows * math.prod(gear) * self.bytes_per_element for gear in self.gears}

    def _cost_lines(
        self, target: CompileTarget, memory: Mapping[tuple[int, ...], int] | None
    ) -> list[str]:
        lines = []
        if memory is not None:
            rows = "" if ROWS in self.demand.axes else f" of {self.limits.get(ROWS, 1)} row(s)"
            lines.append(
                f"memory: {max(memory.values()):,} bytes of inputs and outputs in the largest "
                f"gear{rows}; the others use the same"
            )
        parts = [f"{len(table)} of {gears_key(axes)}" for axes, table in target.tables.items()]
        lines.append(f"compiled: {target.gear_count} gear(s): {' x '.join(parts)}")
        return lines


def _ascend_lines(options: AscendOptions, *, named: bool) -> list[str]:
    """named: whether the inputs are the model's own."""
    lines = ["ATC:", " \\\n".join(options.atc)] if options.atc else []
    if options.ge:
        lines += ["", "GE options:", *(f'"{key}": "{text}",' for key, text in options.ge.items())]
    if options.note:
        lines.append(f"no gears for ATC and GE: {options.note}")
    if options.atc and not named:
        lines += ["", "INPUT stands for the graph's inputs; --config MODEL writes them all"]
    return lines
