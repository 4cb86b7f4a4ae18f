"""Admission: each request is checked by itself, and measured if it can join a batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from ge_runtime.batching.gears import Gears
from ge_runtime.batching.groups import kind_of
from ge_runtime.config import ValueRange
from ge_runtime.errors import GearOverflow, RequestFault, ShapeMismatch
from ge_runtime.relations import Relation
from ge_runtime.specs import ROWS, UNKNOWN, Array, Number, Tensors, TensorSpec


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
    needs: Mapping[str, int]
    """Axis: the size that a batch must have to hold these rows. Along axes that outputs carry the
    request's own, which its answer has; along others nothing that counts lies beyond the longest
    row."""
    kind: bytes = b""
    """Only blocks of one kind share an execution; see `contents.kind_of`."""
    state: Mapping[str, Array] | None = None
    """Graph input: [1, *dims] of the request's sequence, written once its execution has run; None
    if it belongs to none."""


class Admission:
    """The rules that a request of one model must keep. Immutable; safe from any thread."""

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        limits: Mapping[str, int],
        axis_lengths: Mapping[str, str],
        max_batch_size: int,
        *,
        rows_key: str = "max_batch_size",
        defaults: Mapping[str, Number] | None = None,
        outputs: Iterable[TensorSpec] = (),
        gears: Gears | None = None,
        minimums: Mapping[str, int] | None = None,
        steps: Mapping[str, int] | None = None,
        equal: Collection[str] = (),
        ranges: Mapping[str, ValueRange] | None = None,
        shared: Collection[str] = (),
    ) -> None:
        """limits: axis to largest size; axis_lengths: axis to the input with its lengths.

        max_batch_size: the most rows of a request; 0 if requests have no batch dimension.
        rows_key: the key in config.pbtxt that says so. defaults: of each input that a request may
        lack, the value of all its elements; an input in axis_lengths has the axis' size instead.
        outputs: what is answered. gears: those that a request must fit; None if any size will do.
        minimums, steps: axis to its smallest size, and to what sizes of executions are multiples
        of; by default 1. equal: the axes along which nothing is padded. ranges: input to the
        values of its elements. shared: inputs that the graph takes without rows.
        """
        minimums = minimums or dict.fromkeys(limits, 1)
        steps = steps or dict.fromkeys(limits, 1)
        most = max(1, max_batch_size)
        outputs = tuple(outputs)
        self._max_batch_size = max_batch_size
        self._rows_key = rows_key
        self._axis_lengths = axis_lengths
        self._inputs = tuple(_Input(spec, limits, minimums) for spec in inputs)
        self._names = {spec.name for spec in inputs}
        axis_of = {name: axis for axis, name in axis_lengths.items()}
        self._defaults = {
            spec.name: Default(spec, limits, most, defaults[spec.name], axis_of.get(spec.name))
            for spec in inputs
            if defaults and spec.name in defaults
        }
        self._ranges = [
            (spec, ranges[spec.name]) for spec in inputs if ranges and spec.name in ranges
        ]
        self._shared = [spec.name for spec in inputs if spec.name in shared]
        answered = {axis for spec in outputs for axis in spec.axes}
        self._cut = tuple(axis for axis in axis_lengths if axis not in answered)
        self._steps = [(axis, step) for axis, step in steps.items() if step > 1 and axis in equal]
        # What a batch has to have along an axis, where that is not the size itself.
        self._raised = [
            (axis, minimums[axis], step)
            for axis, step in steps.items()
            if axis not in equal and (step > 1 or (axis in self._cut and minimums[axis] > 1))
        ]
        # Relations never fall when an axis grows: most have a size wherever axes do.
        self._relations = tuple(
            (spec.name, dim)
            for spec in outputs
            for dim in spec.dims
            if isinstance(dim, Relation) and dim.size(dict.fromkeys(dim.axes, 1)) < 1
        )
        self._gears = gears
        # Requests of no more rows than this need not be asked about.
        self._fitting = most if gears is None else gears.rows_of_any_size

    def admit(self, tensors: Tensors, request_id: str = "") -> Block:
        """The request as a block of rows; its tensors are kept by reference.

        tensors: every input that has no default, [rows, *dims] with one number of rows, or [*dims]
        without a batch dimension, which makes a block of one row. Inputs that are not there become
        views of one element, of the request's own rows and sizes.
        Raises ShapeMismatch for a shape that the model does not take, GearOverflow for one that no
        gear holds, RequestFault for all else; the text names the input, and the request if
        it has an id.
        """
        try:
            return self._judge(tensors)
        except RequestFault as fault:
            if not request_id:
                raise
            # A new one of the same class, without the frames of the first.
            raise type(fault)(f"[request id: {request_id}] {fault}") from None

    def _judge(self, tensors: Tensors) -> Block:
        inputs = self._inputs
        missing: Collection[str] = ()
        if tensors.keys() != self._names:
            missing = self._missing(tensors)
            inputs = tuple(own for own in inputs if own.name not in missing)
        if not self._max_batch_size:
            tensors = {name: tensor[None] for name, tensor in tensors.items()}
        rows = self._rows(inputs[0].spec, tensors[inputs[0].name].shape)
        sizes: dict[str, int] = {}
        for own in inputs:
            tensor = tensors[own.name]
            # Identity first: it is nearly always the same object, and comparing dtypes is slow.
            if tensor.dtype is not own.dtype and tensor.dtype != own.dtype:
                raise RequestFault(
                    f"input '{own.name}': found elements of NumPy type {tensor.dtype}, "
                    f"expected {own.spec.dtype.value}"
                )
            self._measure(own, tensor.shape, rows, sizes)
        if missing:
            made = {name: self._defaults[name].of(rows, sizes) for name in missing}
            tensors = {**tensors, **made}
        lengths = {
            axis: read_lengths(axis, name, tensors[name], sizes[axis])
            for axis, name in self._axis_lengths.items()
        }
        needs = {**sizes, **{axis: max(lengths[axis]) for axis in self._cut}}
        for axis, step in self._steps:
            if sizes[axis] % step:
                self._refuse_unaligned(axis, step, sizes, tensors)
        for axis, minimum, step in self._raised:
            needs[axis] = -(-max(needs[axis], minimum) // step) * step
        for spec, within in self._ranges:
            batched = self._max_batch_size > 0
            check_range(spec, tensors[spec.name], within, lengths, batched=batched)
        kind = kind_of(self._shared, tensors) if self._shared else b""
        block = Block(rows, sizes, lengths, tensors, needs, kind)
        if rows > self._fitting:
            self._check_fits(block)
        for output, relation in self._relations:
            if relation.size(sizes) < 1:
                self._refuse_sizes(output, relation, block)
        return block

    def _missing(self, tensors: Tensors) -> set[str]:
        """The inputs that are not there, all of which have a default; anything else is refused."""
        missing = self._names - tensors.keys()
        if missing <= self._defaults.keys() and tensors.keys() <= self._names:
            return missing
        faults = [f"no input '{name}'" for name in sorted(missing - self._defaults.keys())]
        faults += [f"input '{name}'" for name in sorted(tensors.keys() - self._names)]
        expected = (
            f"{name} (optional)" if name in self._defaults else name for name in sorted(self._names)
        )
        raise RequestFault(f"found {', '.join(faults)}, expected {', '.join(expected)}")

    def _rows(self, spec: TensorSpec, shape: tuple[int, ...]) -> int:
        """The rows of one input, which the others must share."""
        if not shape:
            self._refuse_shape(spec, shape, "rows")
        most = max(1, self._max_batch_size)
        if not 1 <= shape[0] <= most:
            raise ShapeMismatch(
                f"input '{spec.name}': found {shape[0]} rows in shape {list(shape)}, "
                f"expected 1 to {most} ({self._rows_key})"
            )
        return shape[0]

    def _measure(
        self, own: _Input, shape: tuple[int, ...], rows: int, sizes: dict[str, int]
    ) -> None:
        """Checks one tensor's shape, and adds the sizes of its axes to those known."""
        if len(shape) != own.rank or shape[0] != rows:
            self._refuse_shape(own.spec, shape, rows)
        for position, size in own.fixed:
            if shape[position] != size:
                self._refuse_shape(own.spec, shape, rows)
        for position, axis, least, limit in own.axes:
            found = shape[position]
            if not least <= found <= limit:
                keys = f"limit.{axis}" if least == 1 else f"min.{axis}, limit.{axis}"
                raise ShapeMismatch(
                    f"input '{own.name}': found {axis} {found} in shape {self._shown(shape)}, "
                    f"expected {least} to {limit} ({keys})"
                )
            if sizes.setdefault(axis, found) != found:
                raise ShapeMismatch(
                    f"input '{own.name}': found {axis} {found} in shape {self._shown(shape)}, "
                    f"expected {sizes[axis]}, the size of axis '{axis}' elsewhere in the request"
                )

    def _check_fits(self, block: Block) -> None:
        """Refuses a request that no gear holds."""
        if self._gears is None or self._gears.fit(block.rows, block.needs) is not None:
            return
        axis, found, expected = self._gears.explain_overflow(block.rows, block.needs)
        own = next(own for own in self._inputs if axis == ROWS or axis in own.spec.axes)
        shape = self._shown(block.tensors[own.name].shape)
        raise GearOverflow(
            f"input '{own.name}': found {found} in shape {shape}, expected {expected}"
        )

    def _refuse_unaligned(
        self, axis: str, step: int, sizes: Mapping[str, int], tensors: Tensors
    ) -> NoReturn:
        own = next(own for own in self._inputs if axis in own.spec.axes)
        shape = self._shown(tensors[own.name].shape)
        raise ShapeMismatch(
            f"input '{own.name}': found {axis} {sizes[axis]} in shape {shape}, expected a multiple "
            f"of {step} (align.{axis}): nothing is padded along it (padding.{axis}: equal)"
        )

    def _refuse_sizes(self, output: str, relation: Relation, block: Block) -> NoReturn:
        own = next(own for own in self._inputs if {*own.spec.axes} & {*relation.axes})
        sizes = ", ".join(f"{axis} {block.sizes[axis]}" for axis in relation.axes)
        raise ShapeMismatch(
            f"input '{own.name}': found {sizes} in shape "
            f"{self._shown(block.tensors[own.name].shape)}, expected sizes of which "
            f"'{relation}', a size of output '{output}', is at least 1"
        )

    def _refuse_shape(self, spec: TensorSpec, shape: tuple[int, ...], rows: int | str) -> NoReturn:
        dims = ("*" if dim == UNKNOWN else dim for dim in spec.dims)
        expected = ", ".join(map(str, self._shown((rows, *dims))))
        raise ShapeMismatch(
            f"input '{spec.name}': found shape {self._shown(shape)}, expected [{expected}]"
        )

    def _shown(self, shape: Sequence[object]) -> list[object]:
        """A shape as the caller knows it: with rows only if requests have them."""
        return list(shape if self._max_batch_size else shape[1:])


class _Input:
    """An input with all that judging its shape needs at hand."""

    __slots__ = ("axes", "dtype", "fixed", "name", "rank", "spec")

    def __init__(
        self, spec: TensorSpec, limits: Mapping[str, int], minimums: Mapping[str, int]
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.dtype = spec.dtype.numpy
        self.rank = 1 + len(spec.dims)
        dims = list(enumerate(spec.dims, start=1))
        self.fixed = [(at, dim) for at, dim in dims if isinstance(dim, int) and dim != UNKNOWN]
        self.axes = [
            (at, dim, minimums[dim], limits[dim]) for at, dim in dims if isinstance(dim, str)
        ]


class Default:
    """One optional input of the size of any request. Immutable; safe from any thread."""

    def __init__(
        self,
        spec: TensorSpec,
        limits: Mapping[str, int],
        rows: int,
        value: Number,
        length_of: str | None = None,
    ) -> None:
        """spec: no UNKNOWN dims; rows: the most of a request; value: of all elements.

        length_of: the axis whose lengths the input holds; then the value is the axis' size.
        """
        shape = (rows, *spec.shape(limits))
        self._spec = spec
        self._length_of = length_of
        # Made once at its largest, and cut for each request: a third of broadcasting's time.
        self._largest: Array
        if length_of is None:
            self._largest = np.broadcast_to(spec.dtype.scalar(value), shape)
        else:
            sizes = np.arange(1 + limits[length_of], dtype=spec.dtype.numpy)
            self._largest = np.broadcast_to(
                sizes.reshape(-1, *[1] * len(shape)), (len(sizes), *shape)
            )

    def of(self, rows: int, sizes: Mapping[str, int]) -> Array:
        """[rows, *dims at these sizes], read-only: a view of one element."""
        largest = self._largest
        if self._length_of is not None:
            largest = largest[sizes[self._length_of]]
        return largest[(slice(rows), *map(slice, self._spec.shape(sizes)))]


def read_lengths(axis: str, name: str, tensor: Array, size: int) -> list[int]:
    """The lengths of rows along an axis that has this size; `tensor` holds one for each row."""
    # Python's integers, because most requests have a row or two: NumPy's calls cost more.
    lengths: list[int] = [tensor.item()] if tensor.size == 1 else tensor.ravel().tolist()
    if min(lengths) < 1 or max(lengths) > size:
        row = next(row for row, length in enumerate(lengths) if not 1 <= length <= size)
        raise RequestFault(
            f"input '{name}': found length {lengths[row]} in row {row}, "
            f"expected 1 to {size}, the size of axis '{axis}' in the request"
        )
    return lengths


def check_range(
    spec: TensorSpec,
    tensor: Array,
    within: ValueRange,
    lengths: Mapping[str, Sequence[int]],
    *,
    batched: bool,
) -> None:
    """Refuses an element of the data that is not in the range; NaN is in none.

    lengths: axis to where each row's data ends. batched: callers know the dimension for rows.
    """
    # Two passes that write nothing; what lies past the ends of rows is told apart only on a hit.
    if tensor.min() >= within.least and tensor.max() <= within.largest:
        return
    wrong = ~((tensor >= within.least) & (tensor <= within.largest))
    for position, dim in enumerate(spec.dims, start=1):
        if isinstance(dim, str) and dim in lengths:
            inside = np.arange(tensor.shape[position]) < np.array(lengths[dim])[:, None]
            others = [1] * (tensor.ndim - 2)
            wrong &= np.moveaxis(inside.reshape(*inside.shape, *others), 1, position)
    if wrong.any():
        index = tuple(int(at) for at in np.argwhere(wrong)[0])
        raise RequestFault(
            f"input '{spec.name}': found {tensor[index]} at {list(index[not batched :])}, expected "
            f"{within} (range.{spec.name})"
        )
