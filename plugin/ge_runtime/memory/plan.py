"""The memory plan of a model, in bytes, made before anything is allocated.

Gears are executed one at a time, so they share memory: the workspace, the memory for inputs and
each slot for answers are sized for the gear that needs most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from ge_runtime.memory.lifetimes import Intermediates, pack
from ge_runtime.specs import DType

ALIGNMENT: Final = 64
"""Bytes: a cache line, and the widest vector register of the CPUs that engines use."""

ANSWER_SLOTS: Final = 3
"""Number of slots for answers: one is being written, one is being sent, and one is waiting."""

TypedShape: TypeAlias = tuple[DType, tuple[int, ...]]
"""An element type of fixed size and a complete shape."""

_MOST_ROWS: Final = 12
"""Largest number of gears in a table."""


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that an execution at one gear needs, apart from weights."""

    sizes: Mapping[str, int]
    """The gear: the size of each axis and of the rows."""
    inputs: Mapping[str, TypedShape]
    outputs: Mapping[str, TypedShape]
    """Outputs that are written to planned memory."""
    intermediates: Intermediates | None
    """None if they are unknown."""
    copies: Mapping[str, int] = field(default_factory=dict)
    """By output, the largest number of parts, each of which is copied to make it contiguous."""
    pieces: int = 1
    """Largest number of executions that share a slot for answers; together they have the rows of
    the gear."""

    @property
    def io_bytes(self) -> int:
        """Size of one set of inputs and outputs."""
        return sum(map(_aligned_bytes, (*self.inputs.values(), *self.outputs.values())))


@dataclass(frozen=True, slots=True)
class GearPlan:
    """Bytes for one gear alone. Each tensor and copy is rounded up to ALIGNMENT."""

    sizes: Mapping[str, int]
    inputs_bytes: int
    answers_bytes: int
    """The outputs of the gear's rows, from one execution or several, and the copies of parts."""
    workspace_bytes: int
    """Intermediates, which share bytes if they are not live at the same time."""
    workspace_bound: int
    """The intermediates of the busiest step: no workspace can be smaller."""
    unsized: int
    """Number of intermediates whose size is only known after an execution; they are not planned."""
    measured_bytes: int | None = None
    """The engine's measured workspace, which replaces `workspace_bytes`; None if not measured."""

    @property
    def taken_bytes(self) -> int:
        """The workspace of one execution: measured, or else computed from the graph."""
        return self.workspace_bytes if self.measured_bytes is None else self.measured_bytes

    @classmethod
    def of(cls, need: Need) -> GearPlan:
        """Return the plan for a need."""
        intermediates = need.intermediates or Intermediates(())
        packing = pack(intermediates.lifetimes, ALIGNMENT)
        outputs = {name: _aligned_bytes(output) for name, output in need.outputs.items()}
        # Arenas align every tensor: each copied part, and each output of each execution that shares
        # the slot, may start up to ALIGNMENT bytes later.
        copied = sum(outputs[name] + ALIGNMENT * parts for name, parts in need.copies.items())
        pieces = ALIGNMENT * len(outputs) * (need.pieces - 1)
        return cls(
            need.sizes,
            inputs_bytes=sum(map(_aligned_bytes, need.inputs.values())),
            answers_bytes=sum(outputs.values()) + copied + pieces,
            workspace_bytes=packing.peak,
            workspace_bound=packing.lower_bound,
            unsized=intermediates.unsized,
        )

    @property
    def total_bytes(self) -> int:
        """Memory of one execution and its answers."""
        return self.inputs_bytes + self.answers_bytes + self.taken_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """The memory that one instance of a model needs on one device."""

    weights_bytes: int
    gears: tuple[GearPlan, ...]
    """At least one."""
    answer_slots: int
    """Number of executions whose answers fit into memory at the same time."""
    workspace_known: bool
    """False if the intermediates are unknown: then no total includes them."""
    device_io_bytes: int = 0
    """Inputs and outputs on a device with its own memory. They are copied from and to the host."""
    state_bytes: int = 0
    """States of sequences, once for all engines of the instance."""

    @classmethod
    def of(
        cls,
        needs: Iterable[Need],
        *,
        weights_bytes: int,
        answer_slots: int,
        device_io_bytes: int = 0,
        state_bytes: int = 0,
    ) -> Plan:
        """Return the plan for one execution at a time; `needs` has at least one gear."""
        needs = tuple(needs)
        known = all(need.intermediates is not None for need in needs)
        gears = tuple(map(GearPlan.of, needs))
        return cls(weights_bytes, gears, answer_slots, known, device_io_bytes, state_bytes)

    @property
    def workspace_bytes(self) -> int:
        """The workspace of the gear that needs most."""
        return max(gear.taken_bytes for gear in self.gears)

    def measured(self, workspaces: Sequence[int | None]) -> Plan:
        """Return the plan with measured workspaces by gear; None where nothing was measured."""
        gears = zip(self.gears, workspaces, strict=True)
        return replace(
            self, gears=tuple(replace(gear, measured_bytes=nbytes) for gear, nbytes in gears)
        )

    def workspace_at(self, sizes: Mapping[str, int]) -> int:
        """Return the workspace of an execution: of the smallest gear that holds the execution.

        Args:
            sizes: The size of each axis and of the rows. If no gear holds them, the result is the
                workspace of the gear that needs most.
        """
        # Executions may have other sizes: along axes without gears, or with oversize: fallback.
        holding = (
            gear.taken_bytes
            for gear in self.gears
            if all(gear.sizes[axis] >= size for axis, size in sizes.items())
        )
        return min(holding, default=self.workspace_bytes)

    def workspace_about(self, sizes: Mapping[str, int]) -> int:
        """Return an upper estimate of the workspace for these sizes.

        It is a gear's workspace times the ratio of the sizes, because intermediates grow in
        proportion to each axis, or faster.
        """
        shares = (
            gear.taken_bytes * math.prod(size / gear.sizes[axis] for axis, size in sizes.items())
            for gear in self.gears
            if all(gear.sizes[axis] >= size for axis, size in sizes.items())
        )
        return int(min(shares, default=self.workspace_bytes))

    @property
    def inputs_bytes(self) -> int:
        """The inputs of the gear that needs most."""
        return max(gear.inputs_bytes for gear in self.gears)

    @property
    def answers_bytes(self) -> int:
        """One slot, for the answers of the gear that needs most."""
        return max(gear.answers_bytes for gear in self.gears)

    @property
    def io_bytes(self) -> int:
        """Inputs and all slots for answers."""
        return self.inputs_bytes + self.answer_slots * self.answers_bytes

    @property
    def total_bytes(self) -> int:
        """All planned memory, on host and device together."""
        return self._unchanging + self.workspace_bytes + self.io_bytes

    @property
    def _unchanging(self) -> int:
        return self.weights_bytes + self.device_io_bytes + self.state_bytes

    @property
    def unshared_bytes(self) -> int:
        """The total if each gear had its own workspace, inputs and slots."""
        others = self.answer_slots - 1
        gears = sum(gear.total_bytes + others * gear.answers_bytes for gear in self.gears)
        return self._unchanging + gears

    @property
    def lower_bound(self) -> int:
        """The smallest possible total: one gear is executed, and all slots may be full."""
        execution = max(gear.workspace_bound + gear.inputs_bytes for gear in self.gears)
        answers = self.answer_slots * self.answers_bytes
        return self._unchanging + execution + answers

    @property
    def unsized(self) -> int:
        """Largest number of intermediates of a gear that are not planned."""
        return max(gear.unsized for gear in self.gears)

    def table(self) -> list[str]:
        """Return the plan as text, line by line: the gears that need most, then the sums."""
        return [*self._gear_lines(), "", *self._sum_lines()]

    def _gear_lines(self) -> list[str]:
        header = (*self.gears[0].sizes, "inputs", "answers", "workspace", "peak/bound")
        by_need = sorted(self.gears, key=lambda gear: gear.total_bytes, reverse=True)
        rows = [
            (
                *map(str, gear.sizes.values()),
                f"{gear.inputs_bytes:,}",
                f"{gear.answers_bytes:,}",
                f"{gear.workspace_bytes:,}" if self.workspace_known else "unknown",
                _ratio(gear.workspace_bytes, gear.workspace_bound),
            )
            for gear in by_need[:_MOST_ROWS]
        ]
        lines = aligned_columns([header, *rows], ">" * len(header))
        more = len(by_need) - len(rows)
        return [*lines, f"and {more} gear(s) that need less"] if more else lines

    def _sum_lines(self) -> list[str]:
        shared = f"one for all {len(self.gears)} gears" if len(self.gears) > 1 else ""
        answers = self.answer_slots * self.answers_bytes
        bound = _ratio(self.total_bytes, self.lower_bound)
        of_all = f"{bound} of the lower bound, {self.lower_bound:,}"
        if self._measured():  # may be below the bound, as fused kernels skip some intermediates
            of_all = ""
        sums = [
            ("weights", self.weights_bytes, ""),
            ("workspace", self.workspace_bytes, self._measured() or self._lack() or shared),
            ("inputs", self.inputs_bytes, shared),
            ("answers", answers, f"{self.answer_slots} slot(s) of {self.answers_bytes:,}"),
            self._staging_line(),
            *self._state_lines(),
            ("total", self.total_bytes, of_all if self.workspace_known else "without workspace"),
        ]
        if shared:
            sums.append(("not shared", self.unshared_bytes, "if each gear had memory of its own"))
        whole = max(1, self.total_bytes)
        rows = [
            (name, f"{nbytes:,}", in_binary_units(nbytes), f"{nbytes / whole:.1%}", note)
            for name, nbytes, note in sums
        ]
        return aligned_columns(rows, "<>>><")

    def _staging_line(self) -> tuple[str, int, str]:
        if not self.device_io_bytes:
            return ("staging", 0, "none: the device works in the host's memory")
        note = "on the device; inputs and answers are pinned memory of the host"
        return ("device I/O", self.device_io_bytes, note)

    def _state_lines(self) -> list[tuple[str, int, str]]:
        note = "of sequences, kept from one request to the next"
        return [("state", self.state_bytes, note)] if self.state_bytes else []

    def _measured(self) -> str:
        gear = max(self.gears, key=lambda gear: gear.taken_bytes)
        if gear.measured_bytes is None:
            return ""
        share = _ratio(gear.measured_bytes, gear.workspace_bytes)
        return f"measured, {share} of what the graph's own results take"

    def _lack(self) -> str:
        if not self.workspace_known:
            return "unknown: `pip install 'ge-runtime[plan]'` allows planning it"
        if self.unsized:
            return f"at least: {self.unsized} result(s) have a size only known after execution"
        return ""


def _aligned_bytes(tensor: TypedShape) -> int:
    dtype, shape = tensor
    nbytes = math.prod(shape) * dtype.numpy.itemsize
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _ratio(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"


# Text of tables, for this and other reports.
_UNITS: Final = ("", "KiB", "MiB", "GiB", "TiB")


def aligned_columns(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return one line per row, with aligned columns and two spaces between them.

    sides: "<" or ">" for each column, the side to which its cells are aligned.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def in_binary_units(nbytes: int) -> str:
    """Return the bytes in the largest unit of at least 1, e.g. 1.6 GiB; empty below a KiB."""
    power = min((max(nbytes, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{nbytes / 1024**power:.1f} {_UNITS[power]}" if power else ""
