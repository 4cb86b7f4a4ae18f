"""The memory of one execution, checked on the host before the execution is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ascend_simulator.codes import Code, Refused
from ascend_simulator.copies import OTHER_DEVICE
from ascend_simulator.memory.blocks import ALIGNMENT, Place, Range, slice_bytes
from ascend_simulator.models.datasets import DataBuffer, Dataset, data, lookup
from ascend_simulator.models.loaded import Model
from ascend_simulator.models.om import OmTensor
from ascend_simulator.models.regions import UNALIGNED, system_memory
from ascend_simulator.process import Process
from ascend_simulator.violations import declare, violate

SHORT = declare(
    "model.short-buffer",
    "A buffer must hold the whole tensor, although a device accepts 64 bytes less.",
)
NULL = declare("model.null-buffer", "Buffers of an execution must have an address.")
OVERLAP = declare(
    "model.overlapping-memory",
    "Inputs, outputs, workspace and weights of an execution must not overlap.",
)
NO_TAIL = declare(
    "model.no-tail",
    "After a part of a block, rounded up to 32 bytes, operators use 32 more: leave them free.",
)
OTHER_GEAR = declare(
    "model.other-gear",
    "Set the gear before each execution whose gear differs: a model has one current gear.",
)
GEAR_NOT_SET = declare(
    "model.gear-not-set", "Set the gear before the first execution.", caution=True
)

_SLACK: Final = 64
"""The number of bytes that may be missing from a buffer before a device reports an error."""


class Binding:
    """The checked memory of one execution.

    Checks SHORT, OTHER_GEAR, GEAR_NOT_SET, and the rules of `located` and `check_apart`.

    Raises Refused: GE_FAILURE if the number or size of buffers is wrong (the text contains GE's own
    code, 145000); INVALID_PARAM for a null address.
    """

    def __init__(
        self, now: Process, model: Model, inputs: Dataset, outputs: Dataset, *, allocates: bool
    ) -> None:
        """Check all buffers. With `allocates`, outputs without an address are allocated."""
        self._now = now
        self._model = model
        manifest = model.manifest
        tensors = len(manifest.inputs)
        gears = 1 if manifest.gear_values else 0
        self._check_count("inputs", inputs, tensors + gears)
        self._check_count("outputs", outputs, len(manifest.outputs))
        gear_buffer = inputs.buffers[tensors] if gears else None
        self.is_set: Final = gear_buffer is not None and gear_buffer.ptr in model.gear_at
        """True if a setter wrote a gear into this buffer."""
        self.expected: Final = self._expected(gear_buffer)
        """Index of the gear that the setters last set."""
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
        """Return the ranges that the execution reads."""
        weights = self._model.weights
        found = [place.range for place in self.inputs]
        if self.gear is not None:
            found.append(self.gear.range)
        if weights.nbytes:
            found.append((weights.ptr, self._model.image.nbytes))
        return found

    def writes(self) -> list[Range]:
        """Return the ranges that the execution writes."""
        return [*(place.range for place in self.outputs), self.work.range]

    def _check_count(self, what: str, given: Dataset, expected: int) -> None:
        name = f"execute: {self._model.name}"
        for handle in given.handles:
            lookup(data().buffers, handle, name)
        if len(given.buffers) != expected:
            raise _unfit(f"{name}: {what}: found {len(given.buffers)}, expected {expected}")

    def _expected(self, buffer: DataBuffer | None) -> int:
        model = self._model
        if buffer is None:
            return 0
        index = model.gear_at.get(buffer.ptr)
        if index != model.gear:
            found = "a different gear was set last, in another gear buffer"
            violate(OTHER_GEAR, f"execute: {model.name}: {found}")
        if index is None:
            found = "no gear was set for this dataset, so the largest gear runs"
            violate(GEAR_NOT_SET, f"execute: {model.name}: {found}")
            return model.manifest.largest
        return index

    def _place(self, tensor: OmTensor, exact: int, most: int, buffer: DataBuffer) -> Place:
        """Locate a tensor. `exact` is its bytes at the gear, `most` at any gear."""
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
    """Locate bytes that an execution uses.

    Checks NULL, `regions.UNALIGNED`, `copies.OTHER_DEVICE` and the rules of
    `AddressSpace.locate`. Raises Refused INVALID_PARAM for null.
    """
    if ptr == 0:
        violate(NULL, f"{what}: the address is null")
        raise Refused(Code.INVALID_PARAM, f"{what}: the address is null")
    past = ptr % ALIGNMENT
    if past:
        violate(UNALIGNED, f"{what}: {ptr:#x}: found {past} bytes past a multiple of {ALIGNMENT}")
    block = now.memory.locate(ptr, nbytes, want="device", what=what)
    assert block is not None  # `want="device"` refuses addresses outside blocks
    device = model.context.device
    if block.device != device:
        violate(OTHER_DEVICE, f"{what}: {block!r}: the context is of device {device}")
    return Place(ptr, nbytes, block)


def check_apart(what: str, reads: Sequence[Range], writes: Sequence[Range]) -> None:
    """Check OVERLAP and NO_TAIL for the ranges that one execution reads and writes."""
    uses = [(each, False) for each in reads] + [(each, True) for each in writes]
    read_to = written_to = tail_to = 0
    for (ptr, nbytes), write in sorted(uses):
        found = f"{what}: found {nbytes:,} bytes at {ptr:#x}"
        if ptr < written_to or (write and ptr < read_to):
            violate(OVERLAP, f"{found}, which overlap another tensor, the workspace or the weights")
        elif read_to <= ptr < tail_to:
            violate(NO_TAIL, f"{found}, {tail_to - ptr} bytes too close to the preceding range")
        read_to = max(read_to, ptr + nbytes)
        tail_to = max(tail_to, ptr + slice_bytes(nbytes))
        if write:
            written_to = max(written_to, ptr + nbytes)


def gear_bytes(buffer_size: int, values: int) -> int:
    """Return the bytes of each value in a gear buffer: 8 if all values fit then, else 4."""
    return 8 if buffer_size >= 8 * values else 4


def _unfit(text: str) -> Refused:
    # Inside GE the code is 145000. A macro replaces it, so the upper layer returns GE_FAILURE.
    return Refused(Code.GE_FAILURE, f"[E13025] {text} ({Code.GE_PARAM_INVALID:d})")
