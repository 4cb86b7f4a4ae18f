"""Gears as flags of ATC and options of the graph engine (GE), Ascend's compilers.

Rules of both compilers: every variable dimension is -1 in the input shapes. A gear lists a value
for each -1, in the order of the shapes. Every combination of gears is listed.
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
"""The largest number of gears of a model; 256 on Ascend 950."""

_IMAGE_RANK, _VOLUME_RANK = 4, 5
_MAX_DIMS: Final = 128
"""The largest number of dims of all inputs together, a limit of CANN's interface."""


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """The properties of a graph that its gears depend on."""

    inputs: tuple[TensorSpec, ...]
    """The graph's inputs, including generated inputs."""
    outputs: tuple[TensorSpec, ...]
    batched: bool
    """True if tensors have a batch dimension before their dims."""
    limits: Mapping[str, int]
    """The largest size of every axis, including ROWS."""
    tables: Mapping[tuple[str, ...], GearTable]
    """All gears, by the axes that they set. Axes without gears are executed at their limit."""
    unlisted: tuple[str, ...] = ()
    """Inputs without rows, and gears that are chosen at load. ATC cannot list them."""

    @classmethod
    def of(
        cls,
        config: RuntimeConfig,
        limits: Mapping[str, int],
        axes: Sequence[str],
        gears: GearTable,
    ) -> CompileTarget:
        """Return the target of `config` with `gears` instead of its own gears of `axes`.

        The graph is not opened. Generated inputs are assumed to be INT64, and inputs for
        `axis_lengths` are assumed not to be inputs of the graph. `limits` has the limit of every
        axis, including ROWS; limits may differ from those of `config`.
        """
        not_fed = {*config.passthrough.values(), *config.axis_lengths.values()}
        inputs = [spec for spec in config.prepared or config.inputs if spec.name not in not_fed]
        inputs = [
            config.aipp[spec.name].output(spec, DType.FP32) if spec.name in config.aipp else spec
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
                unlisted.append(f"{gears_key(others)}, which is chosen at load")
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
        """Yield the size of each axis, including ROWS, for every combination of gears."""
        for combination in product(*self.tables.values()):
            yield {
                axis: size
                for axes, gear in zip(self.tables, combination, strict=True)
                for axis, size in zip(axes, gear, strict=True)
            }

    @property
    def gear_count(self) -> int:
        """Number of combinations of gears; each is compiled."""
        return math.prod(map(len, self.tables.values()))

    def io_bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the bytes of all inputs and outputs. Axes not in `sizes` are at their limit."""
        extents = {**self.limits, **sizes}
        rows = extents[ROWS] if self.batched else 1
        return rows * sum(
            math.prod(spec.shape(extents)) * spec.dtype.numpy.itemsize
            for spec in (*self.inputs, *self.outputs)
        )


@dataclass(frozen=True, slots=True)
class AscendOptions:
    """Gears as options of both compilers; if options are missing, `note` has the reason."""

    atc: tuple[str, ...] = ()
    """Flags, quoted for a shell."""
    ge: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def with_options(
    gears: AscendOptions, options: Mapping[str, str], flags: Mapping[str, str]
) -> AscendOptions:
    """Add `options`, by GE's names, for both compilers, and `flags` for ATC only."""
    both = (f'{ATC_FLAGS[name]}="{value}"' for name, value in options.items())
    own = (f'--{name}="{value}"' for name, value in flags.items())
    return replace(gears, atc=(*gears.atc, *both, *own), ge={**gears.ge, **options})


def ascend_options(target: CompileTarget) -> AscendOptions:
    """Return the options that compile all gears of `target`.

    ATC gets `--dynamic_batch_size` if only rows have gears, `--dynamic_image_size` if only the
    height and width of one image have gears, and otherwise `--dynamic_dims`. GE gets the same
    options in all three cases.
    """
    if target.unlisted:
        return AscendOptions(note=f"not supported: {'; '.join(target.unlisted)}")
    if target.gear_count > MAX_GEARS:
        found = f"found {target.gear_count} combinations of gears, expected at most {MAX_GEARS}"
        return AscendOptions(note=found)
    axes = {axis for axes in target.tables for axis in axes}
    fixed = {axis: limit for axis, limit in target.limits.items() if axis not in axes}
    first = (ROWS,) if target.batched else ()
    dims = {spec.name: (*first, *spec.dims) for spec in target.inputs}
    if target.gear_count < MIN_GEARS:
        shapes = _shapes(dims, next(target.gears()) | fixed)
        note = f"a single gear is a static shape; ATC needs at least {MIN_GEARS} gears"
        return AscendOptions((f'--input_shape="{shapes}"', *_layout(dims)), note=note)
    shapes = _shapes(dims, fixed)
    if (count := sum(map(len, dims.values()))) > _MAX_DIMS:
        found = f"found {count} dims of all inputs together, expected at most {_MAX_DIMS}"
        return AscendOptions(note=found)
    changing = [dim for tensor in dims.values() for dim in tensor if dim in axes]
    values = ";".join(
        ",".join(str(gear[str(axis)]) for axis in changing) for gear in target.gears()
    )
    # dynamicNodeType 1: placeholders have variable sizes; 0 would be a dataset (GetNext).
    ge = {"ge.inputShape": shapes, "ge.dynamicDims": values, "ge.dynamicNodeType": "1"}
    if axes == {ROWS}:
        rows = ",".join(str(gear[ROWS]) for gear in target.gears())
        flags = [*_layout(dims), f'--dynamic_batch_size="{rows}"']
    elif _is_image(list(dims.values()), axes):
        flags = ["--input_format=NCHW", f'--dynamic_image_size="{values}"']
    else:
        # ATC accepts --dynamic_dims only with format ND.
        flags = ["--input_format=ND", f'--dynamic_dims="{values}"']
    return AscendOptions((f'--input_shape="{shapes}"', *flags), ge)


def _shapes(dims: Mapping[str, tuple[Dim, ...]], fixed: Mapping[str, int]) -> str:
    """Return all shapes in the compilers' form, e.g. "name:64,-1;other:64"."""
    return ";".join(
        f"{name}:"
        + ",".join(str(fixed.get(str(dim), -1) if isinstance(dim, str) else dim) for dim in tensor)
        for name, tensor in dims.items()
    )


def _layout(dims: Mapping[str, tuple[Dim, ...]]) -> list[str]:
    """Return the flag for the common format of all inputs; none for ATC's default, NCHW.

    For an ONNX file ATC accepts NCHW, NCDHW and ND. ND gives the dims no meaning.
    """
    ranks = {len(tensor) for tensor in dims.values()}
    if ranks == {_IMAGE_RANK}:
        return []
    return ["--input_format=NCDHW" if ranks == {_VOLUME_RANK} else "--input_format=ND"]


def _is_image(tensors: list[tuple[Dim, ...]], axes: set[str]) -> bool:
    """Return whether only H and W of one NCHW tensor have gears."""
    # The option lists pairs of height and width; nothing else may be variable, not even rows. ATC
    # does not support NHWC for ONNX files.
    changing = [dims for dims in tensors if axes & set(map(str, dims))]
    if len(changing) != 1 or len(changing[0]) != _IMAGE_RANK or len(axes) != 2:
        return False
    return {str(dim) for dim in changing[0][2:]} == axes
