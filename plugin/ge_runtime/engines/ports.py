"""The inputs or outputs of a graph, matched one by one with the tensors of config.pbtxt."""

from __future__ import annotations

from collections.abc import Sequence

from ge_runtime.config import ConfigErrors, RuntimeConfig
from ge_runtime.engines.base import GraphTensor
from ge_runtime.specs import ROWS, UNKNOWN, Dim, DType, Relation, TensorSpec


class GraphPorts:
    """The inputs or the outputs of a graph. Not thread-safe."""

    def __init__(
        self, kind: str, tensors: Sequence[GraphTensor], config: RuntimeConfig, faults: ConfigErrors
    ) -> None:
        self._kind = kind
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._unmatched = dict(self._tensors)
        self._batch: tuple[Dim, ...] = (ROWS,) if config.batched else ()
        self._axes = config.batch_axes
        self._packed = config.packing
        self._only = _only_sizes(config)
        self._faults = faults

    def get(self, name: str) -> GraphTensor | None:
        """Return the tensor of this name; None if the graph lacks it."""
        return self._tensors.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def match(self, place: str, spec: TensorSpec, dims: tuple[Dim, ...] | None = None) -> None:
        """Add a fault unless the graph has a tensor of this name, type, rank and size.

        Args:
            place: The field of config.pbtxt, for the fault.
            spec: The expected tensor.
            dims: Its dims including the batch dimension. Default: the batch dimension and the dims
                of `spec`; packed tensors have no batch dimension.
        """
        if dims is None:
            packed = self._packed is not None and spec.dims[:1] == (self._packed,)
            dims = spec.dims if packed else self._axes.dims(spec.name, spec.dims)
        # `refuse_unmatched` reports the remaining tensors.
        tensor = self._unmatched.pop(spec.name, None)
        if tensor is None:
            self._faults.add_unknown(place, self._kind, spec.name, self._tensors)
        elif tensor.dtype is not spec.dtype or not self._fit(tensor.dims, dims):
            expected = TensorSpec(spec.name, spec.dtype, dims)
            hint = self._batch_hint(tensor.dims, dims) if tensor.dtype is spec.dtype else ""
            self._faults.add(place, f"{tensor} in the graph", f"{expected}{hint}")

    def skip(self, name: str) -> None:
        """Exempt a tensor from all checks."""
        self._unmatched.pop(name, None)

    def refuse_unmatched(self) -> None:
        """Add a fault for each tensor that was never matched."""
        families = ("mask", "lengths", "positions", "offsets", "constant", "state", "prepared")
        for name, tensor in self._unmatched.items():
            keys = ", ".join(f"'{family}.{name}'" for family in families)
            cure = f"an input in config.pbtxt, one of the parameters {keys}, or a batch_input"
            self._faults.add(f"{self._kind} '{name}' {tensor}", "no source", cure)

    def takes_images(self, name: str) -> bool:
        """Return whether the engine converts images to the graph's input."""
        return name in self and self._tensors[name].aipp

    def image_dtype(self, name: str) -> DType:
        """Return the graph's type, or the type to expect if AIPP cannot produce it."""
        dtype = self._tensors[name].dtype if name in self else DType.FP32
        return dtype if dtype is DType.FP16 else DType.FP32

    def mask_dtype(self, name: str) -> DType:
        """Return the graph's type, or the type to expect if it is unsuitable for a mask."""
        dtype = self._tensors[name].dtype if name in self else DType.FP32
        return DType.FP32 if dtype in (DType.BYTES, DType.BF16) else dtype

    def integer_dtype(self, name: str, largest: int) -> DType:
        """Return the graph's type, or the type to expect if it cannot represent `largest`."""
        dtype = self._tensors[name].dtype if name in self else DType.INT64
        return dtype if dtype.is_integer and dtype.largest >= largest else DType.INT64

    def lengths_dims(self, name: str) -> tuple[int, ...]:
        """Return the dims of one length per row: (1,) if the graph has a dimension for it."""
        dims = self._tensors[name].dims if name in self else None
        return (1,) if len(dims or ()) > len(self._batch) else ()

    def _batch_hint(self, found: tuple[int | None, ...] | None, expected: Sequence[Dim]) -> str:
        if self._batch or found is None or found[:1] != (None,):
            return ""
        fits = self._fit(found[1:], expected)
        return "; or max_batch_size above 0, if the first * is the batch" if fits else ""

    def _fit(self, found: tuple[int | None, ...] | None, expected: Sequence[Dim]) -> bool:
        """Return whether each dim of a graph is free, or fixed to the only size of `expected`."""
        return found is None or (
            len(found) == len(expected)
            and all(
                size is None or size == self._only_size(dim)
                for size, dim in zip(found, expected, strict=True)
            )
        )

    def _only_size(self, dim: Dim) -> int | None:
        if isinstance(dim, Relation):
            known = self._only.keys() >= {*dim.axes}
            return dim.size(self._only) if known else None
        return self._only.get(dim) if isinstance(dim, str) else None if dim == UNKNOWN else dim


def _only_sizes(config: RuntimeConfig) -> dict[str, int]:
    """Return the sizes of axes, including ROWS, that have the same size in all executions."""
    own = config.axis_sizes
    only = {axis: limit for axis, limit in own.limits.items() if own.executed(axis, 1) == limit}
    if config.oversize == "error":  # with "fallback" executions may have sizes without a gear
        for axes, table in config.gears.items():
            columns = zip(*table, strict=True) if isinstance(table, tuple) else ()
            sizes = dict(zip(axes, map(set, columns), strict=False))
            only.update((axis, own.pop()) for axis, own in sizes.items() if len(own) == 1)
    if config.rows == 1:
        only.setdefault(ROWS, 1)
    elif config.packing in only:  # its size is the total of all rows
        del only[config.packing]
    return only
