"""`ge-runtime gears`: chooses gears from a histogram and prints their configuration."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ge_runtime.cli.command import Command, axis_sizes, whole
from ge_runtime.cli.config_pbtxt import read_runtime_config
from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import RuntimeFault
from ge_runtime.planning.ascend_gears import (
    MAX_GEARS,
    AscendOptions,
    CompileTarget,
    ascend_options,
    with_options,
)
from ge_runtime.planning.gear_report import (
    Comparison,
    as_json,
    choice_lines,
    compare,
    curve_lines,
    draw,
    use_lines,
)
from ge_runtime.planning.histogram import read_histogram
from ge_runtime.planning.size_demand import GearTable, SizeDemand, gears_key, pbtxt_lines, size_text
from ge_runtime.specs import ROWS, DType, TensorSpec

if TYPE_CHECKING:
    from ge_runtime.cli.gears_needed import GearsMeasured

_AXIS: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NO_AXIS: Final = "_"

_DESCRIPTION: Final = """\
Choose the gears with the least expected padding.

A gear is a size that executions are prepared for: compiled, warmed up and planned in memory. A
request runs in the smallest gear that holds it, and the rest of the gear is padding, which is
computed and discarded. With the same number of gears, well-chosen gears often have half the padding
of evenly spaced gears.

FILE contains the sizes of requests in one of these formats:
  numbers    12 97 33, separated by spaces, commas or lines; with several axes, a line for each
             size. --axes names the axes (default: the only axis of --config)
  CSV        a header of axis names, then a line for each size; the optional column `count` is the
             number of requests
  JSON       a histogram that the runtime recorded (parameter `histogram`); or a list of sizes,
             [12, 97, 33] or [[480, 640], [512, 512]], whose axes --axes names
  JSON       input data of perf_analyzer (--input-data), with --config or --axes INPUT=...
"""

_EPILOG: Final = """\
Waste is padding / executed elements, if every request runs alone. Elements are the product of the
axes. The lower bound is the waste with a gear for each size; gears are multiples of --align.

Along one axis the gears are optimal. Along two axes (height,width or batch,tokens) the gears are
never worse than the best bands, nested boxes or grid. The axis `batch` is the number of rows of an
execution; its sizes are those of batches, not of requests.

Gears help engines that prepare executions for certain sizes: .om files on Ascend cards and CUDA
graphs. ONNX Runtime and torch on the CPU execute any size, so gears only add padding. With a model
folder on the CPU the command executes its graph at both sizes and prints the times.

examples:
  Text lengths, one number per line, for a model with one axis:
    ge-runtime gears lengths.txt --config model_repository/text_encoder

  Text lengths in lengths.csv (`tokens`, then one number per line). How much does each additional
  gear save? Which 4 gears are best as multiples of 16?
    ge-runtime gears lengths.csv --count 1-8 --plot curve.png
    ge-runtime gears lengths.csv --count 4 --align 16 --config model_repository/text_encoder

  Input data of perf_analyzer for an image model whose input `image` has dims [3, height, width]:
  6 gears of height and width together, and a plot.
    ge-runtime gears images.json --axes image=_,height,width --count 6 --align 16 \\
        --limit height=1280,width=1280 --plot gears.png

Exit codes: 0 success, 2 invalid arguments or input.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="sizes of requests, see above")
    add(
        "--axes",
        action="append",
        default=[],
        type=_axes,
        metavar="[INPUT=]AXIS,...",
        help="axes that get gears together (default: all axes of the file); with INPUT=, the axes "
        "of this input's dims in perf_analyzer's data, `_` for a dim that is no axis",
    )
    add(
        "--count",
        type=_counts,
        default=range(4, 5),
        metavar="K",
        help="number of gears (default: 4), or a range such as 1-8 to compare numbers",
    )
    add("--align", type=whole, default=1, metavar="N",
        help="gears are multiples of N, except along batch (default: 1)")  # fmt: skip
    add(
        "--limit",
        action="append",
        default=[],
        type=axis_sizes,
        metavar="AXIS=SIZE,...",
        help="largest size, which is always a gear (default: the limit in the config, otherwise "
        "the largest observed size); larger sizes are ignored",
    )
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument(
        "--config",
        type=Path,
        metavar="MODEL",
        help="model folder or config.pbtxt with axes, limits, tensors and other gears",
    )
    memory.add_argument(
        "--bytes-per-element",
        type=whole,
        metavar="N",
        help="bytes of all inputs and outputs per element, to estimate memory without --config",
    )
    add("--plot", type=Path, metavar="PNG",
        help="plot sizes and gears, or the curve; needs matplotlib")  # fmt: skip
    add("--format", choices=("text", "json"), default="text", help="output format (default: text)")


def _run(given: argparse.Namespace) -> int:
    config = None if given.config is None else read_runtime_config(given.config)
    limits = {} if config is None else {ROWS: config.rows, **config.limits}
    for more in given.limit:
        limits |= more
    tensors, axes = _selection(given.axes, config)
    # Numbers without names belong to the only axis of the model.
    only = tuple(config.limits) if config is not None and len(config.limits) == 1 else ()
    histogram = read_histogram(given.file, axes=axes, unnamed=only, tensors=tensors)
    known = {ROWS, *histogram.axes, *(config.limits if config else ())}
    if unknown := sorted(limits.keys() - known):
        raise RuntimeFault(
            f"--limit: found no axis '{unknown[0]}', expected one of: {', '.join(sorted(known))}"
        )
    demand = SizeDemand.of(histogram, limits=limits, align=given.align)
    plan = GearPlan(
        source=str(given.file),
        demand=demand,
        comparisons=compare(demand, given.count),
        limits={**limits, **dict(zip(demand.axes, demand.limit, strict=True))},
        config=config,
        bytes_per_element=given.bytes_per_element,
    )
    if config is not None and not plan.is_curve:
        # Imported here because the module loads the runtime, which is not needed otherwise.
        from ge_runtime.cli.gears_needed import measure

        plan = replace(plan, measured=measure(given.config, demand, plan.gears))
    if given.plot is not None:
        draw(given.plot, demand, plan.comparisons)
    if given.format == "json":
        print(json.dumps(plan.as_json(), indent=2))
    else:
        print("\n".join(plan.lines()))
    return 0


COMMAND: Final = Command(
    name="gears",
    help="choose the gears with the least expected padding",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


def _selection(
    given: Sequence[tuple[str, tuple[str, ...]]], config: RuntimeConfig | None
) -> tuple[dict[str, tuple[str | None, ...]], tuple[str, ...]]:
    """Return the axes of each input's dims, and the axes to plan, which are () for all.

    `given` has the input (or "") and the axes of each --axes.
    """
    planned = tuple(axis for name, axes in given if not name for axis in axes)
    tensors = {
        name: tuple(None if axis == _NO_AXIS else axis for axis in axes)
        for name, axes in given
        if name
    }
    if config is not None and not tensors:
        tensors = {
            spec.name: tuple(dim if isinstance(dim, str) else None for dim in spec.dims)
            for spec in config.inputs
            if spec.axes
        }
    return tensors, planned


def _axes(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, names = text.rpartition("=")
    axes = tuple(axis.strip() for axis in names.split(","))
    named = [axis for axis in axes if axis != _NO_AXIS or not equals]
    if not named or len(set(named)) < len(named) or not all(map(_AXIS.fullmatch, named)):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected different axis names, e.g. tokens or image=_,height,width"
        )
    return name.strip(), axes


def _counts(text: str) -> range:
    first, dash, last = text.partition("-")
    if first.isdecimal() and (last.isdecimal() or not dash):
        counts = range(int(first), int(last or first) + 1)
        if counts and counts[0] >= 1 and counts[-1] <= MAX_GEARS:
            return counts
    raise argparse.ArgumentTypeError(
        f"found {text!r}, expected a number from 1 to {MAX_GEARS} or a range such as 1-8"
    )


@dataclass(frozen=True, slots=True)
class GearPlan:
    """Gears of one count and their configuration, or a comparison of several counts."""

    source: str
    demand: SizeDemand
    comparisons: Sequence[Comparison]
    limits: Mapping[str, int]
    """Largest sizes of all axes, including the axes of the demand."""
    config: RuntimeConfig | None
    bytes_per_element: int | None
    measured: GearsMeasured | None = None
    """The times with and without gears; None if they were not measured."""

    @property
    def is_curve(self) -> bool:
        """True for several counts."""
        return len(self.comparisons) > 1

    @property
    def gears(self) -> GearTable:
        """The optimal gears, for one count."""
        return self.comparisons[0].best.gears

    def lines(self) -> list[str]:
        """Return the plan as text."""
        if self.is_curve:
            hint = "use --count with one number for the lines of config.pbtxt and ATC"
            return [*self._head(), "", *curve_lines(self.demand, self.comparisons), "", hint]
        target = self._target()
        memory = self._io_bytes(target)
        sections = [
            self._head(),
            *([] if self.measured is None else [self.measured.lines()]),
            choice_lines(self.demand, self.comparisons[0]),
            use_lines(self.demand, self.gears, memory),
            self._cost_lines(target, memory),
            ["config.pbtxt:", *self._pbtxt_lines()],
            _ascend_lines(self._options(target), named=self.config is not None),
        ]
        return "\n\n".join("\n".join(section) for section in sections).split("\n")

    def as_json(self) -> dict[str, object]:
        """Return the plan as values for JSON."""
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
            "measured": None if self.measured is None else self.measured.as_json(),
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
            lines[0] += f"; {demand.beyond:,} more over the limit are ignored"
        return lines

    def _target(self) -> CompileTarget:
        axes = self.demand.axes
        if self.config is not None:
            return CompileTarget.of(self.config, self.limits, axes, self.gears)
        # A placeholder: one input with only these axes.
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
        """Return the options for Ascend's compiler, including those in config.pbtxt."""
        if self.config is not None and self.config.stages:
            return AscendOptions(
                note="each stage has its own gears; `ge-runtime build` compiles them"
            )
        gears = ascend_options(target)
        if self.config is None:
            return gears
        return with_options(gears, self.config.ge_options, self.config.atc_flags)

    def _io_bytes(self, target: CompileTarget) -> dict[tuple[int, ...], int] | None:
        """Return the bytes of inputs and outputs of an execution by gear, if they are known."""
        axes = self.demand.axes
        if self.config is not None:
            return {
                gear: target.io_bytes(dict(zip(axes, gear, strict=True))) for gear in self.gears
            }
        if self.bytes_per_element is None:
            return None
        rows = (
            1 if ROWS in axes else self.limits.get(ROWS, 1)
        )  # a gear of `batch` contains the rows
        return {gear: rows * math.prod(gear) * self.bytes_per_element for gear in self.gears}

    def _cost_lines(
        self, target: CompileTarget, memory: Mapping[tuple[int, ...], int] | None
    ) -> list[str]:
        lines = []
        if memory is not None:
            rows = "" if ROWS in self.demand.axes else f" of {self.limits.get(ROWS, 1)} row(s)"
            lines.append(
                f"memory: {max(memory.values()):,} bytes of inputs and outputs in the largest "
                f"gear{rows}; other gears share them"
            )
        parts = [f"{len(table)} of {gears_key(axes)}" for axes, table in target.tables.items()]
        lines.append(f"compiled: {target.gear_count} gear(s): {' x '.join(parts)}")
        return lines


def _ascend_lines(options: AscendOptions, *, named: bool) -> list[str]:
    """Return the flags and options. `named` is true if flags have the model's input names."""
    lines = ["ATC:", " \\\n".join(options.atc)] if options.atc else []
    if options.ge:
        lines += ["", "GE options:", *(f'"{key}": "{text}",' for key, text in options.ge.items())]
    if options.note:
        lines.append(f"no gears for ATC and GE: {options.note}")
    if options.atc and not named:
        lines += ["", "INPUT is a placeholder; use --config MODEL for the graph's inputs"]
    return lines
