"""A compiled model as its driver describes it: tensors, and the gears that it was compiled with."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.specs import DType

GEAR_INPUT: Final = "ascend_mbatch_shape_data"
"""The last input of a model with gears: ACL_DYNAMIC_TENSOR_NAME."""
AIPP_INPUT: Final = "ascend_dynamic_aipp_data"
"""The input for the parameters of dynamic AIPP: ACL_DYNAMIC_AIPP_NAME."""

ACL_DTYPES: Final[Mapping[int, DType]] = {
    0: DType.FP32,
    1: DType.FP16,
    2: DType.INT8,
    3: DType.INT32,
    4: DType.UINT8,
    6: DType.INT16,
    7: DType.UINT16,
    8: DType.UINT32,
    9: DType.INT64,
    10: DType.UINT64,
    11: DType.FP64,
    12: DType.BOOL,
    27: DType.BF16,
}
"""aclDataType: those that Triton has a type for."""

PLAIN_FORMATS: Final = (-1, 0, 1, 2, 27, 30, 35, 47)
"""aclFormat: undefined, NCHW, NHWC, ND, NDHWC, NCDHW, NC and NCL, whose elements lie in order."""

_COMPILED: Final = re.compile(r"[^:]+:\d+:(.+)")
"""An output's name as compilers write it: node, port, and the name that it had."""


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """An input or output, as the driver tells it."""

    name: str
    dtype: int
    """An aclDataType."""
    format: int
    """An aclFormat."""
    dims: tuple[int, ...]
    """-1 where an input's size is that of a gear; an output's are those of the largest gear."""
    nbytes: int
    """That a buffer must have: for the largest gear, and more than its elements where the
    compiler wants it so."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model's tensors and the gears it was compiled with, in the file's order."""

    inputs: tuple[ModelTensor, ...]
    """The gear input, if there is one, last."""
    outputs: tuple[ModelTensor, ...]
    batches: tuple[int, ...] = ()
    """Gears of `--dynamic_batch_size`."""
    images: tuple[tuple[int, int], ...] = ()
    """Gears of `--dynamic_image_size`: height, width."""
    dims: tuple[tuple[int, ...], ...] = ()
    """Gears of `--dynamic_dims`: the dims of the data inputs that ATC's --input_shape names, one
    after another, in its order."""

    @property
    def data_inputs(self) -> tuple[ModelTensor, ...]:
        """Those that a caller feeds."""
        return tuple(tensor for tensor in self.inputs if tensor.name != GEAR_INPUT)

    @property
    def output_names(self) -> list[str]:
        """The outputs' names as the ONNX graph had them: compilers make node:port:name of them."""
        names = [tensor.name for tensor in self.outputs]
        # No document promises that form: names that end alike are left as they are.
        own = [found[1] if (found := _COMPILED.fullmatch(name)) else name for name in names]
        return own if len({*own}) == len(own) else names

    @property
    def family(self) -> str | None:
        """How gears are set: "batch", "image" or "dims"; None for a model of one shape."""
        if self.batches:
            return "batch"
        if self.images:
            return "image"
        return "dims" if self.dims else None

    def shapes(self, order: Sequence[int]) -> dict[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """What sets a gear: the dims of the data inputs at it; sorted by their elements.

        A model without gears has one, set by (). order: of the inputs in gears of dims, by index;
        others have one size.
        """
        inputs = self.data_inputs
        found: dict[tuple[int, ...], list[tuple[int, ...]]]
        if self.batches:
            found = {(rows,): [_filled(t.dims, [rows]) for t in inputs] for rows in self.batches}
        elif self.images:
            found = {size: [_filled(t.dims, size) for t in inputs] for size in self.images}
        elif self.dims:
            found = {dims: _cut(dims, inputs, order) for dims in self.dims}
        else:
            found = {(): [t.dims for t in inputs]}
        # Sorted here: the driver keeps the order in which they were compiled.
        ordered = sorted(found.items(), key=lambda item: (sum(map(math.prod, item[1])), item[0]))
        return {gear: tuple(dims) for gear, dims in ordered}


def _filled(dims: tuple[int, ...], sizes: Sequence[int]) -> tuple[int, ...]:
    """The dims with each -1 replaced by the next of the sizes; height is before width anywhere."""
    rest = iter(sizes)
    return tuple(next(rest) if dim == -1 else dim for dim in dims)


def _cut(
    dims: tuple[int, ...], inputs: Sequence[ModelTensor], order: Sequence[int]
) -> list[tuple[int, ...]]:
    """Dims of inputs in this order, one after another, cut into those of each input."""
    cut, start = [tensor.dims for tensor in inputs], 0
    for index in order:
        end = start + len(cut[index])
        cut[index] = dims[start:end]
        start = end
    return cut
