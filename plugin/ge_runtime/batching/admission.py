"""Whether one request can join a batch, judged by itself, and its measures if it can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ge_runtime.errors import RequestFault, ShapeMismatch
from ge_runtime.specs import Array, Tensors, TensorSpec


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of one request, checked and measured."""

    rows: int
    sizes: Mapping[str, int]
    """Axis: its size in this request's tensors."""
    lengths: Mapping[str, Sequence[int]]
    """Axis with its own lengths: where each row's data ends, at most the axis' size."""
    tensors: Tensors
    """Each [rows, ...]."""


class Admission:
    """The rules that a request of one model must keep. Immutable; safe from any thread."""

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        limits: Mapping[str, int],
        axis_lengths: Mapping[str, str],
        max_batch_size: int,
    ) -> None:
        """limits: axis to largest size; axis_lengths: axis to the input with its lengths.

        max_batch_size: the most rows of a request; 0 if requests have no batch dimension.
        """
        self._inputs = tuple((spec, spec.dtype.numpy) for spec in inputs)
        self._names = {spec.name for spec in inputs}
        self._limits = limits
        self._axis_lengths = axis_lengths
        self._max_batch_size = max_batch_size

    def admit(self, tensors: Tensors) -> Block:
        """The request as a block of rows; its tensors are kept by reference.

        tensors: every input, [rows, *dims] with one number of rows, or [*dims] without a batch
        dimension, which makes a block of one row. Raises ShapeMismatch for a shape that the
        model does not take, RequestFault for all else; the text names the input.
        """
        if tensors.keys() != self._names:
            self._refuse_names(tensors)
        if not self._max_batch_size:
            tensors = {name: tensor[None] for name, tensor in tensors.items()}
        rows = self._rows(tensors)
        sizes: dict[str, int] = {}
        for spec, dtype in self._inputs:
            tensor = tensors[spec.name]
            if tensor.dtype != dtype:
                raise RequestFault(
                    f"input '{spec.name}': found elements of NumPy type {tensor.dtype}, "
                    f"expected {spec.dtype.value}"
                )
            self._measure(spec, tensor.shape, rows, sizes)
        lengths = {
            axis: _lengths(axis, name, tensors[name], sizes[axis])
            for axis, name in self._axis_lengths.items()
        }
        return Block(rows, sizes, lengths, tensors)

    def _refuse_names(self, tensors: Tensors) -> NoReturn:
        missing = [f"no input '{name}'" for name in sorted(self._names - tensors.keys())]
        surplus = [f"input '{name}'" for name in sorted(tensors.keys() - self._names)]
        raise RequestFault(
            f"found {', '.join(missing + surplus)}, expected {', '.join(sorted(self._names))}"
        )

    def _rows(self, tensors: Tensors) -> int:
        """The rows of the first input, which the others must share."""
        spec, _ = self._inputs[0]
        shape = tensors[spec.name].shape
        if not shape:
            self._refuse_shape(spec, shape, "rows")
        most = max(1, self._max_batch_size)
        if not 1 <= shape[0] <= most:
            raise ShapeMismatch(
                f"input '{spec.name}': found {shape[0]} rows in shape {list(shape)}, "
                f"expected 1 to {most} (max_batch_size)"
            )
        rows: int = shape[0]
        return rows

    def _measure(
        self, spec: TensorSpec, shape: tuple[int, ...], rows: int, sizes: dict[str, int]
    ) -> None:
        """Checks one tensor's shape, and adds the sizes of its axes to those known."""
        if len(shape) != len(spec.dims) + 1 or shape[0] != rows:
            self._refuse_shape(spec, shape, rows)
        for found, dim in zip(shape[1:], spec.dims, strict=True):
            if isinstance(dim, int):
                if found != dim:
                    self._refuse_shape(spec, shape, rows)
            elif not 1 <= found <= self._limits[dim]:
                raise ShapeMismatch(
                    f"input '{spec.name}': found {dim} {found} in shape {self._shown(shape)}, "
                    f"expected 1 to {self._limits[dim]} (limit.{dim})"
                )
            elif sizes.setdefault(dim, found) != found:
                raise ShapeMismatch(
                    f"input '{spec.name}': found {dim} {found} in shape {self._shown(shape)}, "
                    f"expected {sizes[dim]}, the size of axis '{dim}' elsewhere in the request"
                )

    def _refuse_shape(self, spec: TensorSpec, shape: tuple[int, ...], rows: int | str) -> NoReturn:
        expected = ", ".join(map(str, self._shown((rows, *spec.dims))))
        raise ShapeMismatch(
            f"input '{spec.name}': found shape {self._shown(shape)}, expected [{expected}]"
        )

    def _shown(self, shape: tuple[int | str, ...]) -> list[int | str]:
        """A shape as the caller knows it: with rows only if requests have them."""
        return list(shape if self._max_batch_size else shape[1:])


def _lengths(axis: str, name: str, tensor: Array, size: int) -> list[int]:
    # Python's integers, because most requests have a row or two: NumPy's calls cost more.
    lengths: list[int] = tensor.ravel().tolist()
    if min(lengths) < 1 or max(lengths) > size:
        row = next(row for row, length in enumerate(lengths) if not 1 <= length <= size)
        raise RequestFault(
            f"input '{name}': found length {lengths[row]} in row {row}, "
            f"expected 1 to {size}, the size of axis '{axis}' in the request"
        )
    return lengths
