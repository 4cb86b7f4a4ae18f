"""Expected answers from a second implementation, and their comparison with the runtime's answers.

The graph is executed on one request alone, at the gear that the request has alone. Its inputs are
laid out row by row, straight from the configuration, and its results are cut the same way. The
runtime's code for batches is not used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.assembly import Assembly
from ge_runtime.batching.gears import Gear
from ge_runtime.config import Aipp, BatchInput, BatchInputKind, RuntimeConfig, read_number
from ge_runtime.scheduling.request_batch import Answer
from ge_runtime.specs import PAST, UNKNOWN, Array, TensorSpec
from ge_runtime.testing.random_requests import RandomRequest
from ge_runtime.verification.distance import TOLERANCES, Rounding, compare

_COUNTS: Final = (
    BatchInputKind.ELEMENT_COUNT,
    BatchInputKind.ACCUMULATED_ELEMENT_COUNT,
    BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO,
    BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE,
)


@dataclass(frozen=True, slots=True)
class GearBatch:
    """One request as a batch of the size of its gear."""

    gear: Gear
    ends: tuple[Mapping[str, int], ...]
    """Each row's end of data along every axis."""
    requests: tuple[range, ...]
    """The rows of each request. Each row that fills the gear counts as one more request."""


class Reference:
    """Answers requests one by one. For one thread, and not while the runtime executes."""

    def __init__(self, parts: Assembly) -> None:
        self._config = parts.config
        self._gears = parts.gears
        self._contract = parts.contract
        self._engine = parts.executors[0].engine
        self._sources = {spec.name: spec for spec in parts.config.sources}
        self._batch_inputs = {
            name: batch_input
            for batch_input in self._config.batch_inputs
            for name in batch_input.targets
        }

    def answer(self, request: RandomRequest) -> dict[str, Array]:
        """Return the outputs by name, [rows, *dims], or [*dims] without a batch dimension.

        Raises:
            EngineFault: The graph fails.
        """
        batch, complete = self._batch(request)
        feeds = [feed.spec for feed in self._contract.feeds]
        inputs = {spec.name: self._graph_input(spec, complete, batch) for spec in feeds}
        outputs = self._contract.outputs
        results = self._engine.run(
            inputs, {spec.name: self._planned(spec, batch) for spec in outputs}
        )
        answers = {
            spec.name: self._request_part(spec, results[spec.name], request) for spec in outputs
        }
        return {name: self._without_rows(answer) for name, answer in answers.items()}

    def _batch(self, request: RandomRequest) -> tuple[GearBatch, dict[str, Array]]:
        """Return the request's batch and tensors; copies of its last row fill the gear.

        A copy is as valid as the row itself, so no rule for padding rows is needed.
        """
        extent = request.extent
        rows = extent.rows
        gear = self._gears.fit(rows, extent.sizes) or Gear(rows, extent.sizes)
        taken = [*range(rows), *[rows - 1] * (gear.rows - rows)]
        complete = {
            name: tensor[taken]
            for name, tensor in request.complete.items()
            if name in self._sources
        }
        ends = tuple(extent.ends_of(row) for row in taken)
        more = (range(row, row + 1) for row in range(rows, gear.rows))
        return GearBatch(gear, ends, (range(rows), *more)), complete

    def _graph_input(
        self, spec: TensorSpec, complete: Mapping[str, Array], batch: GearBatch
    ) -> Array:
        """Return one graph input in the layout of the graph."""
        config, name = self._config, spec.name
        if name in config.constants:
            return self._constant(spec)
        if name in config.states.outputs:  # a single request is the first of its sequence
            rows = np.zeros((len(batch.ends), *spec.shape({PAST: 0})), spec.dtype.numpy)
        else:
            rows = self._input(spec, complete, batch)
        at = config.batch_axes.of(name)
        if name not in config.batch_axes.given:
            return self._without_rows(rows)
        return rows[0] if at is None else np.ascontiguousarray(np.moveaxis(rows, 0, at))

    def _constant(self, spec: TensorSpec) -> Array:
        numbers = [read_number(text, spec.dtype) for text in self._config.constants[spec.name]]
        elements = [spec.dtype.scalar(number) for number in numbers if number is not None]
        shape = spec.shape({})
        return np.resize(np.array(elements, spec.dtype.numpy), shape)

    def _input(self, spec: TensorSpec, complete: Mapping[str, Array], batch: GearBatch) -> Array:
        """Return one graph input, with a dimension for rows unless it is packed."""
        config, name, dtype = self._config, spec.name, spec.dtype.numpy
        ends = batch.ends
        if name in self._sources:
            length_input = name in config.axis_lengths.values()
            pad = config.pads.get(name, 1 if length_input else 0)
            aipp = config.aipp.get(name)
            if aipp is not None and spec != self._sources[name]:
                source = self._sources[name]
                filled = self._filled(source, complete[name], batch, np.uint8(pad))
                return _apply_aipp(aipp, filled).astype(dtype)
            return self._filled(spec, complete[name], batch, spec.dtype.scalar(pad))
        if name in config.masks:
            ones = np.ones((len(ends), *spec.shape({**batch.gear.extents, PAST: 0})), dtype)
            if PAST in spec.axes:  # along the other axes, nothing is padded
                return ones
            return self._filled(spec, ones, batch, dtype.type(0))
        if name in config.positions:
            steps = np.arange(batch.gear.extents[config.positions[name]], dtype=dtype)
            return self._filled(spec, np.stack([steps] * len(ends)), batch, dtype.type(0))
        if name in config.lengths:
            lengths = [own[config.lengths[name]] for own in ends]
            return np.array(lengths, dtype).reshape(len(ends), *spec.shape({}))
        if name in config.offsets:
            lengths = [own[config.offsets[name]] for own in ends]
            return np.array([sum(lengths[:row]) for row in range(len(ends) + 1)], dtype)
        return self._described(self._batch_inputs[name], batch).astype(dtype)

    def _filled(self, spec: TensorSpec, tensor: Array, batch: GearBatch, pad: np.generic) -> Array:
        """Return the tensor's data, row by row, in a padded batch; packed rows end to end."""
        rows = []
        for data, ends in zip(tensor, batch.ends, strict=True):
            row = np.full(spec.shape(batch.gear.extents), pad, spec.dtype.numpy)
            inside = tuple(map(slice, spec.shape(ends)))
            row[inside] = data[inside]
            rows.append(row[: ends[spec.axes[0]]] if self._packs(spec) else row)
        return np.concatenate(rows) if self._packs(spec) else np.stack(rows)

    def _described(self, batch_input: BatchInput, batch: GearBatch) -> Array:
        """Return the content of a `batch_input` of Triton."""
        source = self._sources[batch_input.source]
        shapes = [source.shape(ends) for ends in batch.ends]
        if batch_input.kind not in _COUNTS:
            sizes = np.array(shapes)
            return sizes if batch_input.kind is BatchInputKind.ITEM_SHAPE else sizes.ravel()
        counts = [sum(math.prod(shapes[row]) for row in own) for own in batch.requests]
        if batch_input.kind is BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE:
            return np.zeros(max(counts))
        if batch_input.kind is BatchInputKind.ELEMENT_COUNT:
            return np.array(counts)
        sums = [sum(counts[:number]) for number in range(len(counts) + 1)]
        zero = batch_input.kind is BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
        return np.array(sums if zero else sums[1:])

    def _planned(self, spec: TensorSpec, batch: GearBatch) -> Array | None:
        """Return memory for a result, or None if its size is only known after the execution."""
        if UNKNOWN in spec.dims:
            return None
        dims = spec.shape(batch.gear.extents)
        shape = (len(batch.ends), *dims)
        if self._packs(spec):
            shape = (sum(ends[spec.axes[0]] for ends in batch.ends), *dims[1:])
        if spec.name in self._config.batch_axes.given:
            rows, *others = shape
            at = self._config.batch_axes.of(spec.name)
            shape = tuple(others if at is None else [*others[:at], rows, *others[at:]])
            return np.zeros(shape, spec.dtype.numpy)
        return self._without_rows(np.zeros(shape, spec.dtype.numpy))

    def _request_part(self, spec: TensorSpec, result: Array, request: RandomRequest) -> Array:
        """Return the request's part of a result: [rows, *dims] at its own sizes."""
        extent = request.extent
        shape = spec.shape(extent.sizes)
        corner = tuple(slice(None if size == UNKNOWN else size) for size in shape)
        if not self._packs(spec):
            rows = result if self._config.batched else result[None]
            if spec.name in self._config.batch_axes.given:
                at = self._config.batch_axes.of(spec.name)
                alike = np.stack([result] * extent.rows) if at is None else result
                rows = np.moveaxis(alike, at or 0, 0)
            return rows[(slice(extent.rows), *corner)]
        own = np.zeros((extent.rows, *shape), result.dtype)  # past a row's end are zeros
        start = 0
        for row in range(extent.rows):
            end = extent.ends_of(row)[spec.axes[0]]
            own[row, :end] = result[start : start + end][(slice(None), *corner[1:])]
            start += end
        return own

    def _packs(self, spec: TensorSpec) -> bool:
        return self._config.packing is not None and spec.dims[:1] == (self._config.packing,)

    def _without_rows(self, array: Array) -> Array:
        """Remove the dimension for rows if the graph has no batch dimension."""
        return array if self._config.batched else array[0]


class AnswerChecker:
    """Compares answers of one model with expected answers. For one thread."""

    def __init__(self, config: RuntimeConfig, tolerance: float | None) -> None:
        """`tolerance` of floats is relative to the expected value plus 1; None: `TOLERANCES`."""
        self._config = config
        self._tolerance = tolerance
        self.moved = 0.0
        """The largest difference between an accepted output and the expected output."""
        self._specs = {spec.name: spec for spec in config.outputs}
        inputs = {spec.name: spec for spec in config.inputs}
        self._passthrough = {
            name: replace(inputs[source], name=name) for name, source in config.passthrough.items()
        }

    def mismatch(
        self,
        request: RandomRequest,
        answer: Answer,
        expected: Mapping[str, Array],
        *,
        data_only: bool,
        rounding: Rounding | None = None,
    ) -> str | None:
        """Return the first fault of the answer to `request`, or None.

        With `data_only`, elements past the ends of rows are ignored. Differences that `rounding`
        explains are accepted.
        """
        if isinstance(answer, Exception):
            kind = type(answer).__name__
            return f"found {kind} '{answer}', expected an answer, as to the request alone"
        passed = {name: request.originals[own] for name, own in self._config.passthrough.items()}
        wanted = {**expected, **passed}
        if sorted(answer) != sorted(wanted):
            return f"found outputs {', '.join(answer)}, expected {', '.join(wanted)}"
        for name, own in wanted.items():
            found = answer[name]
            if (found.dtype, found.shape) != (own.dtype, own.shape):
                return (
                    f"output '{name}': found {found.dtype}{list(found.shape)}, expected "
                    f"{own.dtype}{list(own.shape)}"
                )
            if name not in expected:
                if (difference := compare(self._passthrough[name], found, own)) is not None:
                    return str(difference)
                continue
            spec, inside = self._specs[name], self._inside(name, request)
            if text := self._difference_text(spec, inside, found, own, data_only, rounding):
                return text
            moved = compare(spec, found, own, where=inside)
            self.moved = max(self.moved, moved.distance if moved is not None else 0.0)
        return None

    def _inside(self, output: str, request: RandomRequest) -> NDArray[np.bool_]:
        """Return a mask of the output's elements that hold data; it broadcasts with the output."""
        inside = request.extent.inside(self._specs[output])
        return inside if self._config.batched else inside[0]

    def _difference_text(
        self,
        spec: TensorSpec,
        inside: NDArray[np.bool_],
        found: Array,
        expected: Array,
        data_only: bool,
        rounding: Rounding | None,
    ) -> str:
        """Describe the difference between an output and the expected output; empty if equal."""
        tolerance = self._tolerance
        tolerance = TOLERANCES.get(spec.dtype, 0.0) if tolerance is None else tolerance
        within, overall = (
            compare(spec, found, expected, tolerance=tolerance, where=where)
            for where in (inside, None)
        )
        difference = within if data_only else within or overall
        if difference is None:
            return ""
        if rounding is not None and difference.distance <= rounding.allowed(spec.name):
            return ""
        return str(within or f"{overall}; all differences are past the ends of rows")


def _apply_aipp(aipp: Aipp, images: Array) -> Array:
    """Apply AIPP's steps in order to images [rows, height, width, channels]."""
    if aipp.swaps:
        images = images[..., ::-1]
    if aipp.crop is not None:
        left, top, width, height = aipp.crop
        images = images[:, top : top + height, left : left + width]
    pixels = images.astype(np.float64) - np.array(aipp.mean) - np.array(aipp.minimum)
    scaled = np.moveaxis(pixels * np.array(aipp.factor), 3, 1).astype(np.float16)
    left, right, top, bottom = aipp.border
    return np.pad(scaled, ((0, 0), (0, 0), (top, bottom), (left, right)))
