"""Admission: checks each request separately, and measures it for a batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from ge_runtime.batching.gears import Gears
from ge_runtime.batching.groups import kind_of
from ge_runtime.config import ValueRange
from ge_runtime.errors import GearOverflow, RequestFault, ShapeMismatch
from ge_runtime.specs import PAST, ROWS, UNKNOWN, Array, Number, Relation, Tensors, TensorSpec


class Block(NamedTuple):
    """The rows of one request, checked and measured."""

    rows: int
    sizes: Mapping[str, int]
    """Size of each axis in this request's tensors."""
    lengths: Mapping[str, Sequence[int]]
    """For each axis with lengths, the end of each row's data, at most the axis' size."""
    tensors: Tensors
    """Tensors of shape [rows, ...]."""
    needs: Mapping[str, int]
    """Size along each axis that a batch needs for these rows: along axes of outputs the request's
    own size, which its answer has; along other axes the length of the longest row."""
    kind: bytes = b""
    """Only blocks with equal kinds share an execution; see `groups.kind_of`."""
    state: Mapping[str, Array] | None = None
    """State of the request's sequence, [1, *dims] by graph input, which the execution updates;
    None without a sequence."""

    def with_state(self, state: Mapping[str, Array], past: int | None = None) -> Block:
        """Return the request with the state of its sequence. Raises RequestFault for several rows.

        past: the size of the states that grow; None if no state grows.
        """
        if self.rows != 1:
            raise RequestFault(f"found {self.rows} rows in a request of a sequence, expected 1")
        if past is None:
            return self._replace(state=state)
        sizes, needs = {**self.sizes, PAST: past}, {**self.needs, PAST: past}
        return self._replace(state=state, sizes=sizes, needs=needs)


class Admission:
    """The rules for requests of one model. Immutable; safe from any thread."""

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
        one_row: bool = False,
        grows: bool = False,
    ) -> None:
        """Prepare the rules.

        Args:
            inputs: The inputs of requests.
            limits: Axis to its largest size.
            axis_lengths: Axis to the input with its lengths.
            max_batch_size: Largest number of rows of a request; 0 if requests have no batch
                dimension.
            rows_key: The key in config.pbtxt that limits the rows.
            defaults: Optional input to the value of all its elements; an input in `axis_lengths`
                has the axis' size instead.
            outputs: The outputs of the model.
            gears: The gears that a request must fit; None if any size is executed.
            minimums: Axis to its smallest size; by default 1.
            steps: Axis to the step of the sizes of executions; by default 1.
            equal: The axes along which nothing is padded.
            ranges: Input to the allowed values of its elements.
            shared: Inputs that the graph takes without rows.
            one_row: True if `gears` have one row because the graph executes no more.
            grows: True if states of sequences grow. A block then has the size 0 along PAST.
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
        # Axes along which a batch must be larger than the request.
        self._raised = [
            (axis, minimums[axis], step)
            for axis, step in steps.items()
            if axis not in equal and (step > 1 or (axis in self._cut and minimums[axis] > 1))
        ]
        # A relation never decreases when an axis grows: most are at least 1 for all sizes.
        self._relations = tuple(
            (spec.name, dim)
            for spec in outputs
            for dim in spec.dims
            if isinstance(dim, Relation) and dim.size(dict.fromkeys(dim.axes, 1)) < 1
        )
        self._gears = gears
        self._one_row = one_row
        self._before = {PAST: 0} if grows else {}
        # Requests with at most this many rows fit a gear in any size.
        self._fitting = most if gears is None else gears.rows_of_any_size

    def admit(self, tensors: Tensors, request_id: str = "") -> Block:
        """Check a request and return it as a block of rows, which refers to its tensors.

        Args:
            tensors: Every input without a default, [rows, *dims] with the same number of rows, or
                [*dims] without a batch dimension, which becomes a block of one row. Missing inputs
                become views of one element, with the request's own rows and sizes.
            request_id: The client's id, for the message; may be empty.

        Raises:
            ShapeMismatch: A shape is not accepted.
            GearOverflow: No gear holds the request.
            RequestFault: Another rule is violated. All messages name the input.
        """
        try:
            return self._admit(tensors)
        except RequestFault as fault:
            if not request_id:
                raise
            # A new exception of the same class, without the frames of the first.
            raise type(fault)(f"[request id: {request_id}] {fault}") from None

    def _admit(self, tensors: Tensors) -> Block:
        inputs = self._inputs
        missing: Collection[str] = ()
        if tensors.keys() != self._names:
            missing = self._missing(tensors)
            inputs = tuple(own for own in inputs if own.name not in missing)
        if not self._max_batch_size:
            tensors = {name: tensor[None] for name, tensor in tensors.items()}
        # This method runs once for each request: loops take half the time of comprehensions here.
        rows = self._rows(inputs[0].spec, tensors[inputs[0].name].shape)
        sizes = self._before.copy()
        for own in inputs:
            tensor = tensors[own.name]
            shape = tensor.shape
            # Identity first: it is nearly always the same object, and dtype comparison is slow.
            if tensor.dtype is not own.dtype and tensor.dtype != own.dtype:
                raise RequestFault(
                    f"input '{own.name}': found elements of NumPy type {tensor.dtype}, "
                    f"expected {own.spec.dtype.value}"
                )
            if len(shape) != own.rank or shape[0] != rows:
                self._refuse_shape(own.spec, shape, rows)
            for position, size in own.fixed:
                if shape[position] != size:
                    self._refuse_shape(own.spec, shape, rows)
            for position, axis, least, limit in own.axes:
                found = shape[position]
                if not least <= found <= limit:
                    keys = f"limit.{axis}" if least == 1 else f"min.{axis}, limit.{axis}"
                    self._refuse_axis(own, axis, found, shape, f"{least} to {limit} ({keys})")
                if sizes.setdefault(axis, found) != found:
                    other = f"{sizes[axis]}, the size of axis '{axis}' elsewhere in the request"
                    self._refuse_axis(own, axis, found, shape, other)
        if missing:
            made = {name: self._defaults[name].of(rows, sizes) for name in missing}
            tensors = {**tensors, **made}
        lengths: dict[str, Sequence[int]] = {}
        for axis, name in self._axis_lengths.items():
            lengths[axis] = read_lengths(axis, name, tensors[name], sizes[axis])
        needs = sizes.copy()
        for axis in self._cut:
            needs[axis] = max(lengths[axis])
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
        """Return the missing inputs, which all have a default; otherwise raise RequestFault."""
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
        """Return the rows of one input, which the others must have too."""
        if not shape:
            self._refuse_shape(spec, shape, "rows")
        most = max(1, self._max_batch_size)
        if not 1 <= shape[0] <= most:
            raise ShapeMismatch(
                f"input '{spec.name}': found {shape[0]} rows in shape {list(shape)}, "
                f"expected 1 to {most} ({self._rows_key})"
            )
        return shape[0]

    def _check_fits(self, block: Block) -> None:
        if self._gears is None or self._gears.fit(block.rows, block.needs) is not None:
            return
        axis, found, expected = self._gears.explain_overflow(block.rows, block.needs)
        if self._one_row and axis == ROWS:
            expected = "1: the graph executes one row only"
        own = next(own for own in self._inputs if axis == ROWS or axis in own.spec.axes)
        shape = self._shown(block.tensors[own.name].shape)
        raise GearOverflow(
            f"input '{own.name}': found {found} in shape {shape}, expected {expected}"
        )

    def _refuse_axis(
        self, own: _Input, axis: str, found: int, shape: tuple[int, ...], expected: str
    ) -> NoReturn:
        raise ShapeMismatch(
            f"input '{own.name}': found {axis} {found} in shape {self._shown(shape)}, "
            f"expected {expected}"
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
        """Return a shape for messages: with rows only if requests have them."""
        return list(shape if self._max_batch_size else shape[1:])


class _Input:
    """An input with precomputed values for checking its shape."""

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
    """One optional input for requests of any size. Immutable; safe from any thread."""

    def __init__(
        self,
        spec: TensorSpec,
        limits: Mapping[str, int],
        rows: int,
        value: Number,
        length_of: str | None = None,
    ) -> None:
        """Prepare the value.

        Args:
            spec: The input; no dims are UNKNOWN.
            limits: Axis to its largest size.
            rows: Largest number of rows of a request.
            value: The value of all elements.
            length_of: The axis whose lengths the input holds; its size then replaces `value`.
        """
        shape = (rows, *spec.shape(limits))
        self._spec = spec
        self._length_of = length_of
        # Created once at its largest size and sliced for each request: a third of the time of
        # broadcasting.
        self._largest: Array
        if length_of is None:
            self._largest = np.broadcast_to(spec.dtype.scalar(value), shape)
        else:
            sizes = np.arange(1 + limits[length_of], dtype=spec.dtype.numpy)
            self._largest = np.broadcast_to(
                sizes.reshape(-1, *[1] * len(shape)), (len(sizes), *shape)
            )

    def of(self, rows: int, sizes: Mapping[str, int]) -> Array:
        """Return [rows, *dims at these sizes], read-only: a view of one element."""
        largest = self._largest
        if self._length_of is not None:
            largest = largest[sizes[self._length_of]]
        return largest[(slice(rows), *map(slice, self._spec.shape(sizes)))]


def read_lengths(axis: str, name: str, tensor: Array, size: int) -> list[int]:
    """Return the lengths of rows along an axis of this size; `tensor` has one for each row."""
    # Python integers, as most requests have one or two rows: NumPy calls cost more.
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
    """Raise RequestFault for an element of the data outside of the range, or NaN.

    lengths: axis to the end of each row's data. batched: whether callers have the dimension for
    rows.
    """
    # Two passes that write nothing; elements past the ends of rows are excluded only on a hit.
    # For small tensors `argmin` takes half of the time of `np.minimum.reduce`; both find NaN.
    lowest, highest = tensor.item(tensor.argmin()), tensor.item(tensor.argmax())
    if lowest >= within.least and highest <= within.largest:
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
