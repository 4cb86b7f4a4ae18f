"""`ge-runtime gears`: plans gears from a histogram, and writes the lines that configure them."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ge_runtime.cli.arguments import axis_sizes, new_command, whole
from ge_runtime.cli.gears_plan import Plan
from ge_runtime.cli.model_config import read_runtime_config
from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import RuntimeFault
from ge_runtime.planning.ascend_gears import MAX_GEARS
from ge_runtime.planning.gear_plot import draw
from ge_runtime.planning.gear_report import compare
from ge_runtime.planning.histogram_files import read_histogram
from ge_runtime.planning.size_demand import SizeDemand
from ge_runtime.specs import ROWS

if TYPE_CHECKING:
    from ge_runtime.cli.arguments import Subparsers

_AXIS: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NO_AXIS: Final = "_"

_DESCRIPTION: Final = """\
Choose the gears of least expected padding.

A gear is a size that executions are prepared for: compiled, warmed up, planned in memory. A
request runs in the gear of fewest elements that holds it, and what the gear is larger is padding:
computed and thrown away. So gears should lie where requests are; with the same number of gears,
well-chosen ones often halve the padding of evenly spaced ones.

FILE says which sizes requests have, in one of these forms:
  CSV        a header of axis names, then a line per size; a column `count` says how often
  JSON       what the runtime recorded live (parameter `histogram`); or a plain list of sizes,
             [12, 97, 33] or [[480, 640], [512, 512]], whose axes --axes names
  JSON       input data of perf_analyzer (--input-data), with --config or --axes INPUT=...
"""

_EPILOG: Final = """\
Waste is padded elements / all executed elements, if every request ran alone. Elements are the
product of the axes. The lower bound is what any number of gears would waste, as gears are
multiples of --align.

Along one axis the gears are the best there are. Along two (height,width or batch,tokens) they are
never worse than the best bands, nested boxes or grid. An axis `batch` stands for the rows of an
execution: its sizes are those of batches, not of requests.

examples:
  A text encoder whose lengths were logged to lengths.csv (`tokens`, then a number per line): how
  much does each further gear save, and which 4 gears are best as multiples of 16?
    ge-runtime gears lengths.csv --count 1-8 --plot curve.png
    ge-runtime gears lengths.csv --count 4 --align 16 --config model_repository/text_encoder

  An image model fed by perf_analyzer, whose input `image` has dims [3, height, width]: 6 gears of
  height and width together, and a picture of them.
    ge-runtime gears images.json --axes image=_,height,width --count 6 --align 16 \\
        --limit height=1280,width=1280 --plot gears.png

Exit codes: 0 planned, 2 arguments or input that cannot be used.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `gears` to the commands."""
    parser = new_command(
        subparsers,
        "gears",
        help_="choose the gears of least expected padding",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="sizes of requests: CSV or JSON, see above")
    add(
        "--axes",
        action="append",
        default=[],
        type=_axes,
        metavar="[INPUT=]AXIS,...",
        help="the axes that get gears together (all of the file's); with INPUT=, the axes of that "
        "input's dims in perf_analyzer's data, `_` for a dim that is none",
    )
    add(
        "--count",
        type=_counts,
        default=range(4, 5),
        metavar="K",
        help="how many gears (4), or a range such as 1-8 to see what each further gear saves",
    )
    add("--align", type=whole, default=1, metavar="N",
        help="gears are multiples of N along all axes but batch (1); 16 suits Ascend")  # fmt: skip
    add(
        "--limit",
        action="append",
        default=[],
        type=axis_sizes,
        metavar="AXIS=SIZE,...",
        help="the largest size that must be held, itself a gear (the config's, else the largest "
        "that occurs); larger sizes are left out",
    )
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument(
        "--config",
        type=Path,
        metavar="MODEL",
        help="the model's folder or config.pbtxt: its axes, limits, tensors and other gears",
    )
    memory.add_argument(
        "--bytes-per-element",
        type=whole,
        metavar="N",
        help="bytes of all inputs and outputs per element, to estimate memory without --config",
    )
    add("--plot", type=Path, metavar="PNG",
        help="draw sizes and gears, or the curve; needs matplotlib")  # fmt: skip
    add("--format", choices=("text", "json"), default="text", help="of what is printed (text)")
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    config = None if given.config is None else read_runtime_config(given.config)
    limits = {} if config is None else {ROWS: config.rows, **config.limits}
    for more in given.limit:
        limits |= more
    tensors, axes = _selection(given.axes, config)
    histogram = read_histogram(given.file, axes=axes, tensors=tensors)
    known = {ROWS, *histogram.axes, *(config.limits if config else ())}
    if unknown := sorted(limits.keys() - known):
        raise RuntimeFault(
            f"--limit: found no axis '{unknown[0]}', expected one of: {', '.join(sorted(known))}"
        )
    demand = SizeDemand.of(histogram, limits=limits, align=given.align)
    plan = Plan(
        source=str(given.file),
        demand=demand,
        comparisons=compare(demand, given.count),
        limits={**limits, **dict(zip(demand.axes, demand.limit, strict=True))},
        config=config,
        bytes_per_element=given.bytes_per_element,
    )
    if given.plot is not None:
        draw(given.plot, demand, plan.comparisons)
    if given.format == "json":
        print(json.dumps(plan.as_json(), indent=2))
    else:
        print("\n".join(plan.lines()))
    return 0


def _selection(
    given: Sequence[tuple[str, tuple[str, ...]]], config: RuntimeConfig | None
) -> tuple[dict[str, tuple[str | None, ...]], tuple[str, ...]]:
    """Which dims of which input are axes, and which axes are wanted; empty for all of the file's.

    given: of each --axes the input, empty for none, and the names.
    """
    wanted = tuple(axis for name, axes in given if not name for axis in axes)
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
    return tensors, wanted


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
