"""What a graph is fed and asked for, once it and config.pbtxt are found to agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ge_runtime.batching.feeds import Feed, Joined, Lengths, Mask
from ge_runtime.config import Faults, RuntimeConfig
from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.specs import UNKNOWN, Dim, DType, TensorSpec

_ROWS: Final = "*"
"""The batch dimension among the axes; no axis can have this name."""


@dataclass(frozen=True, slots=True)
class Contract:
    """One feed per graph input, and the outputs that are asked for."""

    feeds: tuple[Feed, ...]
    outputs: tuple[TensorSpec, ...]

    @classmethod
    def between(cls, config: RuntimeConfig, signature: Signature) -> Contract:
        """The contract between `config` and the graph of `signature`.

        Every input and generated input of the configuration must be the graph's and the other
        way round, save length inputs that the graph does not ask for. Every output must be the
        graph's; results that config.pbtxt does not declare are not asked for. Types, ranks and
        sizes must be equal. Raises ConfigFault with all that is not so.
        """
        faults = Faults(config.model)
        for section, specs in {"input": config.inputs, "output": config.outputs}.items():
            if not specs:
                faults.add(section, "nothing", "at least one tensor of the graph")
        inputs = _Ports("graph input", signature.inputs, config, faults)
        feeds: list[Feed] = []
        for spec in config.inputs:
            if spec.name in inputs or spec.name not in config.axis_lengths.values():
                inputs.match(f"input '{spec.name}'", spec)
                pad = spec.dtype.numpy.type(config.pads.get(spec.name, 0))
                feeds.append(Joined(spec, pad))
        for name, axes in config.masks.items():
            spec = TensorSpec(name, inputs.mask_dtype(name), axes)
            inputs.match(f"parameter 'mask.{name}'", spec)
            feeds.append(Mask(spec))
        for name, axis in config.lengths.items():
            spec = TensorSpec(name, inputs.lengths_dtype(name, axis), inputs.lengths_dims(name))
            inputs.match(f"parameter 'lengths.{name}'", spec)
            feeds.append(Lengths(spec, axis))
        inputs.refuse_unmatched()
        outputs = _Ports("graph output", signature.outputs, config, faults)
        for spec in config.outputs:
            outputs.match(f"output '{spec.name}'", spec)
        faults.raise_any()
        return cls(tuple(feeds), config.outputs)


class _Ports:
    """The graph's inputs, or its outputs, held one by one against what is expected of them."""

    def __init__(
        self, kind: str, tensors: Sequence[GraphTensor], config: RuntimeConfig, faults: Faults
    ) -> None:
        self._kind = kind
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._unmatched = dict(self._tensors)
        self._batch: tuple[Dim, ...] = (_ROWS,) if config.max_batch_size else ()
        self._limits = {**config.limits, _ROWS: config.rows}
        self._faults = faults

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def match(self, place: str, spec: TensorSpec) -> None:
        """A fault unless the graph has a tensor of this name, type, rank and size."""
        tensor = self._unmatched.pop(spec.name, None)
        expected = TensorSpec(spec.name, spec.dtype, (*self._batch, *spec.dims))
        if tensor is None:
            self._faults.add_unknown(place, self._kind, spec.name, self._tensors)
        elif tensor.dtype is not spec.dtype or not self._fit(tensor.dims, expected.dims):
            self._faults.add(place, f"{tensor} in the graph", str(expected))

    def refuse_unmatched(self) -> None:
        """A fault for each tensor that was never matched."""
        for name, tensor in self._unmatched.items():
            cure = f"an input in config.pbtxt, or a parameter 'mask.{name}' or 'lengths.{name}'"
            self._faults.add(f"{self._kind} '{name}' {tensor}", "nothing that feeds it", cure)

    def mask_dtype(self, name: str) -> DType:
        """The graph's own type, or what to expect instead if it holds no mask."""
        dtype = self._tensors[name].dtype if name in self else DType.FP32
        return DType.FP32 if dtype in (DType.BYTES, DType.BF16) else dtype

    def lengths_dtype(self, name: str, axis: str) -> DType:
        """The graph's own type, or what to expect instead if it cannot hold all lengths."""
        dtype = self._tensors[name].dtype if name in self else DType.INT64
        holds = dtype.is_integer and np.iinfo(dtype.numpy).max >= self._limits[axis]
        return dtype if holds else DType.INT64

    def lengths_dims(self, name: str) -> tuple[int, ...]:
        """One length per row, in a dimension of its own if the graph has one for it."""
        dims = self._tensors[name].dims if name in self else None
        return (1,) if len(dims or ()) > len(self._batch) else ()

    def _fit(self, found: tuple[int | None, ...] | None, expected: Sequence[Dim]) -> bool:
        """Whether a graph's dims take all sizes that the expected ones may have, and no others."""
        return found is None or (
            len(found) == len(expected)
            and all(
                size is None or size == self._only_size(dim)
                for size, dim in zip(found, expected, strict=True)
            )
        )

    def _only_size(self, dim: Dim) -> int | None:
        """The one size that a dimension can have; None if there are more."""
        if isinstance(dim, str):
            return 1 if self._limits[dim] == 1 else None
        return None if dim == UNKNOWN else dim
