"""The memory of one execution, as the host checks it before a stream gets the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ascend_simulator.codes import Code, Refused
from ascend_simulator.copies import OTHER_DEVICE
from ascend_simulator.memory.blocks import ALIGNMENT, Place, slice_bytes
from ascend_simulator.memory.ordering import Range
from ascend_simulator.models.datasets import DataBuffer, Dataset, data, living
from ascend_simulator.models.loaded import Model
from ascend_simulator.models.om import OmTensor
from ascend_simulator.models.regions import UNALIGNED, system_memory
from ascend_simulator.process import Process
from ascend_simulator.violations import declare, violate

SHORT = declare(
    "model.short-buffer", "Buffers have all bytes of their tensor: a device lets 64 be missing."
)
NULL = declare("model.null-buffer", "Buffers of an execution have an address.")
OVERLAP = declare(
    "model.overlapping-memory",
    "Inputs, outputs, workspace and weights of an execution lie apart from each other.",
)
NO_TAIL = declare(
    "model.no-tail",
    "Behind a part of a block, rounded up to 32 bytes, 32 more are nobody's: operators use them.",
)
OTHER_GEAR = declare(
    "model.other-gear",
    "A gear is set before every execution: a model has one, whatever its gear buffers hold.",
)
GEAR_NOT_SET = declare(
    "model.gear-not-set", "The gear is set before the first execution.", caution=True
)

_SLACK: Final = 64
"""Bytes that may be missing of a buffer before a device notices."""


class Binding:
    """The memory of one execution, checked.

    Violates SHORT, OTHER_GEAR, GEAR_NOT_SET as a caution, and what `located` and `check_apart`
    violate. Raises Refused: GE_FAILURE for counts and lengths (GE's own code 145000 is in the
    text), INVALID_PARAM for null.
    """

    def __init__(
        self,
        now: Process,
        model: Model,
        inputs: Dataset,
        outputs: Dataset,
        *,
        allocates: bool,
    ) -> None:
        """Check it all.

        allocates: outputs without an address get memory of the system.
        """
        self._now = now
        self._model = model
        manifest = model.manifest
        tensors = len(manifest.inputs)
        gears = 1 if manifest.gear_values else 0
        self._check_count("inputs", inputs, tensors + gears)
        self._check_count("outputs", outputs, len(manifest.outputs))
        gear_buffer = inputs.buffers[tensors] if gears else None
        self.is_set: Final = gear_buffer is not None and gear_buffer.ptr in model.gear_at
        """Whether a setter wrote a gear there."""
        self.expected: Final = self._expected(gear_buffer)
        """Place of the gear that the setters say it has."""
        shapes = manifest.shapes[self.expected]
        self.inputs: Final = [
            self._place(tensor, tensor.nbytes(dims), manifest.input_bytes(index), buffer)
            for index, (tensor, dims, buffer) in enumerate(
                zip(manifest.inputs, shapes.inputs, inputs.buffers[:tensors], strict=True)
            )
        ]
        if allocates:
            for index, buffer in enumerate(outputs.buffers):
                self._allocate(index, buffer)
        self.outputs: Final = [
            self._place(tensor, tensor.nbytes(dims), manifest.output_bytes(index), buffer)
            for index, (tensor, dims, buffer) in enumerate(
                zip(manifest.outputs, shapes.outputs, outputs.buffers, strict=True)
            )
        ]
        self.gear: Final = None if gear_buffer is None else self._gear_place(gear_buffer)
        self.work: Final = model.work
        check_apart(f"execute: {model.name}", self.reads(), self.writes())

    def reads(self) -> list[Range]:
        """What the execution reads."""
        weights = self._model.weights
        found = [place.range for place in self.inputs]
        if self.gear is not None:
            found.append(self.gear.range)
        if weights.nbytes:
            found.append((weights.ptr, self._model.image.nbytes))
        return found

    def writes(self) -> list[Range]:
        """What the execution writes."""
        return [*(place.range for place in self.outputs), self.work.range]

    def _check_count(self, what: str, given: Dataset, expected: int) -> None:
        name = f"execute: {self._model.name}"
        for handle in given.handles:
            living(data().buffers, handle, name)
        if len(given.buffers) != expected:
            raise _unfit(f"{name}: {what}: found {len(given.buffers)}, expected {expected}")

    def _expected(self, buffer: DataBuffer | None) -> int:
        model = self._model
        if buffer is None:
            return 0
        index = model.gear_at.get(buffer.ptr)
        if index != model.gear:
            found = "the gear that was set last was another, in another gear buffer"
            violate(OTHER_GEAR, f"execute: {model.name}: {found}")
        if index is None:
            found = "found no gear set for this dataset, so the largest runs"
            violate(GEAR_NOT_SET, f"execute: {model.name}: {found}")
            return model.manifest.largest
        return index

    def _place(self, tensor: OmTensor, exact: int, most: int, buffer: DataBuffer) -> Place:
        """Where a tensor lies. exact: bytes at the gear; most: at any."""
        what = f"execute: {self._model.name}: '{tensor.name}'"
        needed = exact + self._now.settings.size_slack
        if buffer.size + _SLACK < needed:
            raise _unfit(f"{what}: found {buffer.size:,} bytes, expected {needed:,}")
        if buffer.ptr and buffer.size < needed:
            violate(SHORT, f"{what}: found {buffer.size:,} bytes, expected {needed:,}")
        nbytes = max(exact, min(buffer.size, most))
        return located(self._now, self._model, buffer.ptr, nbytes, what)

    def _allocate(self, index: int, buffer: DataBuffer) -> None:
        if buffer.ptr == 0:
            nbytes = self._model.manifest.output_bytes(index) + self._now.settings.size_slack
            what = f"execute: {self._model.name}: output {index}"
            buffer.ptr = system_memory(nbytes, 0, what)
            buffer.size = nbytes

    def _gear_place(self, buffer: DataBuffer) -> Place:
        what = f"execute: {self._model.name}: gear buffer"
        values = self._model.manifest.gear_values
        if buffer.size < 4 * values:
            raise _unfit(f"{what}: found {buffer.size:,} bytes, expected {8 * values}")
        return located(self._now, self._model, buffer.ptr, min(buffer.size, 8 * values), what)


def located(now: Process, model: Model, ptr: int, nbytes: int, what: str) -> Place:
    """Where bytes that an execution uses lie.

    Violates NULL, `regions.UNALIGNED`, `copies.OTHER_DEVICE` and what `AddressSpace.locate` does.
    Raises Refused INVALID_PARAM for null.
    """
    if ptr == 0:
        violate(NULL, f"{what}: found a null address")
        raise Refused(Code.INVALID_PARAM, f"{what}: found a null address")
    past = ptr % ALIGNMENT
    if past:
        violate(UNALIGNED, f"{what}: {ptr:#x}: found {past} bytes past a multiple of {ALIGNMENT}")
    block = now.memory.locate(ptr, nbytes, want="device", what=what)
    assert block is not None  # what is wanted on a device is in a block or refused
    device = model.context.device
    if block.device != device:
        violate(OTHER_DEVICE, f"{what}: {block!r}: found a context of device {device}")
    return Place(ptr, nbytes, block)


def check_apart(what: str, reads: Sequence[Range], writes: Sequence[Range]) -> None:
    """What one execution reads and writes. Violates OVERLAP and NO_TAIL."""
    uses = [(each, False) for each in reads] + [(each, True) for each in writes]
    read_to = written_to = tail_to = 0
    for (ptr, nbytes), write in sorted(uses):
        found = f"{what}: found {nbytes:,} bytes at {ptr:#x}"
        if ptr < written_to or (write and ptr < read_to):
            violate(
                OVERLAP, f"{found}, which another tensor, the workspace or the weights also have"
            )
        elif read_to <= ptr < tail_to:
            violate(NO_TAIL, f"{found}, {tail_to - ptr} too close behind what lies before")
        read_to = max(read_to, ptr + nbytes)
        tail_to = max(tail_to, ptr + slice_bytes(nbytes))
        if write:
            written_to = max(written_to, ptr + nbytes)


def gear_bytes(buffer_size: int, values: int) -> int:
    """Bytes of each value in a gear buffer: 8 where all have room, else 4."""
    return 8 if buffer_size >= 8 * values else 4


def _unfit(text: str) -> Refused:
    # GE raises 145000 below a macro that replaces it; the layer above knows no such number.
    return Refused(Code.GE_FAILURE, f"[E13025] {text} ({Code.GE_PARAM_INVALID:d})")
