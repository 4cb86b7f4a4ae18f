"""Gears for Ascend's compilers, as flags of ATC and options of the graph engine (GE).

Their rules: every dimension that changes is -1 in the input shapes; a gear lists one value for
each -1, in the order of the shapes; gears are listed one by one, never multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

from ge_runtime.config import ATC_FLAGS, RuntimeConfig
from ge_runtime.planning.size_demand import GearTable, gears_key
from ge_runtime.specs import ROWS, UNKNOWN, Dim, DType, TensorSpec

MIN_GEARS: Final = 2
MAX_GEARS: Final = 100
"""Of one model; 256 on Ascend 950."""

_IMAGE_RANK, _VOLUME_RANK = 4, 5
_MOST_DIMS: Final = 128
"""Of all inputs of a gear together: CANN's interface has room for no more."""


@dataclass(frozen=True, slots=True)
class CompileTarget:
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
    ) -> CompileTarget:
        """The graph that `config` describes, with these gears and its own of other axes.

        limits: of all axes, ROWS included; they may be others than the configuration's.
        The graph itself is not opened. So it is taken not to ask for lengths that config.pbtxt
        only names to tell rows from padding, and to want generated inputs as INT64.
        """
        not_fed = {*config.passthrough.values(), *config.axis_lengths.values()}
        inputs = [spec for spec in config.prepared or config.inputs if spec.name not in not_fed]
        inputs = [
            config.aipp[spec.name].made_of(spec, DType.FP32) if spec.name in config.aipp else spec
            for spec in inputs
        ]
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
                unlisted.append(f"{gears_key(others)}, which is derived at load")
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


@dataclass(frozen=True, slots=True)
class AscendOptions:
    """Both spellings of the same gears; empty where `note` says why there are none."""

    atc: tuple[str, ...] = ()
    """Flags, each ready for a shell."""
    ge: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def with_options(
    gears: AscendOptions, options: Mapping[str, str], flags: Mapping[str, str]
) -> AscendOptions:
    """The gears with further options of the compiler, of those in ATC_FLAGS, in both spellings.

    flags: of ATC alone, without their dashes.
    """
    both = (f'{ATC_FLAGS[name]}="{value}"' for name, value in options.items())
    own = (f'--{name}="{value}"' for name, value in flags.items())
    return replace(gears, atc=(*gears.atc, *both, *own), ge={**gears.ge, **options})


def ascend_options(target: CompileTarget) -> AscendOptions:
    """The options that compile all gears of `target`.

    `--dynamic_batch_size` where only rows have gears, `--dynamic_image_size` where only the height
    and width of one image do, else `--dynamic_dims`. GE has one form for all.
    """
    if target.unlisted:
        return AscendOptions(note=f"they cannot list {'; '.join(target.unlisted)}")
    if target.gear_count > MAX_GEARS:
        found = f"found {target.gear_count} combinations of gears, expected at most {MAX_GEARS}"
        return AscendOptions(note=found)
    axes = {axis for axes in target.tables for axis in axes}
    fixed = {axis: limit for axis, limit in target.limits.items() if axis not in axes}
    dims = {spec.name: _dims(spec, target) for spec in target.inputs}
    if target.gear_count < MIN_GEARS:
        shapes = _shapes(dims, next(target.gears()) | fixed)
        note = f"a single gear is a static shape; gears begin at {MIN_GEARS}"
        return AscendOptions((f'--input_shape="{shapes}"', *_layout(dims)), note=note)
    shapes = _shapes(dims, fixed)
    if (count := sum(map(len, dims.values()))) > _MOST_DIMS:
        found = f"found {count} dims of all inputs together, expected at most {_MOST_DIMS}"
        return AscendOptions(note=found)
    changing = [dim for tensor in dims.values() for dim in tensor if dim in axes]
    values = ";".join(
        ",".join(str(gear[str(axis)]) for axis in changing) for gear in target.gears()
    )
    # dynamicNodeType 1: sizes change at placeholders; 0 would be those of a dataset (GetNext).
    ge = {"ge.inputShape": shapes, "ge.dynamicDims": values, "ge.dynamicNodeType": "1"}
    if axes == {ROWS}:
        rows = ",".join(str(gear[ROWS]) for gear in target.gears())
        flags = [*_layout(dims), f'--dynamic_batch_size="{rows}"']
    elif _is_image(list(dims.values()), axes):
        flags = ["--input_format=NCHW", f'--dynamic_image_size="{values}"']
    else:
        # ATC takes --dynamic_dims with the format ND only.
        flags = ["--input_format=ND", f'--dynamic_dims="{values}"']
    return AscendOptions((f'--input_shape="{shapes}"', *flags), ge)


def _dims(spec: TensorSpec, target: CompileTarget) -> tuple[Dim, ...]:
    return (ROWS, *spec.dims) if target.batched else spec.dims


def _shapes(dims: Mapping[str, tuple[Dim, ...]], fixed: Mapping[str, int]) -> str:
    """All shapes as the compilers want them: "name:64,-1;other:64"."""
    return ";".join(
        f"{name}:"
        + ",".join(str(fixed.get(str(dim), -1) if isinstance(dim, str) else dim) for dim in tensor)
        for name, tensor in dims.items()
    )


def _layout(dims: Mapping[str, tuple[Dim, ...]]) -> list[str]:
    """The flag of the format that all inputs have: ATC takes one, by itself NCHW.

    Of an ONNX file it may be NCHW, NCDHW or ND, which says nothing of what a dim is.
    """
    ranks = {len(tensor) for tensor in dims.values()}
    if ranks == {_IMAGE_RANK}:
        return []
    return ["--input_format=NCDHW" if ranks == {_VOLUME_RANK} else "--input_format=ND"]


def _is_image(tensors: list[tuple[Dim, ...]], axes: set[str]) -> bool:
    """Whether only the H and W of one tensor in NCHW have gears."""
    # The option takes pairs of height and width, and nothing else that changes: rows neither. Of an
    # ONNX file ATC knows no NHWC, whose H and W are dims like others.
    changing = [dims for dims in tensors if axes & set(map(str, dims))]
    if len(changing) != 1 or len(changing[0]) != _IMAGE_RANK or len(axes) != 2:
        return False
    return {str(dim) for dim in changing[0][2:]} == axes
