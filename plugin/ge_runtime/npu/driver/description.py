"""The description of a compiled model: its tensors, and the gears that it was compiled for."""

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
"""aclDataType: type, for the types that Triton has."""

PLAIN_FORMATS: Final = (-1, 0, 1, 2, 27, 30, 35, 47)
"""Values of aclFormat whose elements are stored in C order.

Undefined, NCHW, NHWC, ND, NDHWC, NCDHW, NC and NCL.
"""

_COMPILED: Final = re.compile(r"[^:]+:\d+:(.+)")
"""The name of an output in a compiled file: node, port and original name."""


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """An input or output, as the driver describes it."""

    name: str
    dtype: int
    """A value of aclDataType."""
    format: int
    """A value of aclFormat."""
    dims: tuple[int, ...]
    """-1 for sizes of inputs that differ between gears; sizes of outputs are the largest gear's."""
    nbytes: int
    """Required buffer size at the largest gear; may be larger than the elements."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model's tensors and the gears it was compiled for, in the file's order."""

    inputs: tuple[ModelTensor, ...]
    """The inputs; the gear input, if there is one, is the last."""
    outputs: tuple[ModelTensor, ...]
    batches: tuple[int, ...] = ()
    """Gears of `--dynamic_batch_size`."""
    images: tuple[tuple[int, int], ...] = ()
    """Gears of `--dynamic_image_size`: height, width."""
    dims: tuple[tuple[int, ...], ...] = ()
    """Gears of `--dynamic_dims`: the concatenated dims of the data inputs, in the order in which
    ATC's --input_shape names them."""

    @property
    def data_inputs(self) -> tuple[ModelTensor, ...]:
        """The inputs that a caller provides."""
        return tuple(tensor for tensor in self.inputs if tensor.name != GEAR_INPUT)

    @property
    def output_names(self) -> list[str]:
        """The outputs' names in the ONNX graph; compilers change them to node:port:name."""
        names = [tensor.name for tensor in self.outputs]
        # This form is not documented. Names that would not be unique are not changed.
        own = [found[1] if (found := _COMPILED.fullmatch(name)) else name for name in names]
        return own if len({*own}) == len(own) else names

    @property
    def family(self) -> str | None:
        """The type of the gears: "batch", "image" or "dims"; None for a model of one shape."""
        if self.batches:
            return "batch"
        if self.images:
            return "image"
        return "dims" if self.dims else None

    def shapes(self, order: Sequence[int]) -> dict[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Return setting of a gear: dims of the data inputs, sorted by the number of elements.

        A model without gears has one entry with the setting ().

        Args:
            order: Indexes of the data inputs in gears of dims, in order; other inputs have one
                shape.
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
        # The driver has them in the order in which they were compiled.
        ordered = sorted(found.items(), key=lambda item: (sum(map(math.prod, item[1])), item[0]))
        return {gear: tuple(dims) for gear, dims in ordered}


def _filled(dims: tuple[int, ...], sizes: Sequence[int]) -> tuple[int, ...]:
    """Replace each -1 by the next size; height comes before width in all formats."""
    rest = iter(sizes)
    return tuple(next(rest) if dim == -1 else dim for dim in dims)


def _cut(
    dims: tuple[int, ...], inputs: Sequence[ModelTensor], order: Sequence[int]
) -> list[tuple[int, ...]]:
    """Split concatenated dims of inputs, which are in this order, into the dims of each input."""
    cut, start = [tensor.dims for tensor in inputs], 0
    for index in order:
        end = start + len(cut[index])
        cut[index] = dims[start:end]
        start = end
    return cut
