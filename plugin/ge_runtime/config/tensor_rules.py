"""Rules for single tensors of the graph beyond their types and dims: rows, value ranges, states.

An input without rows (`batch_axis.<input>: none`) has one value for all rows of an execution, so
only requests with equal values share an execution. Requests and answers have their rows first,
whatever the graph has.

A request with an element outside of `range.<input>` is refused before the graph receives it: the
graph could fail, for all requests of the execution, or read memory outside of its table.

With `state.<graph input>`, requests bring no such input, and answers have the output only if it is
declared. The model needs Triton's `sequence_batching`: the requests of a sequence then arrive in
order, one at a time, at one instance, which keeps the state. The server's own `state` is not used,
as Triton keeps none for models in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ge_runtime.config.generated_inputs import GeneratedInputs
from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.parameter_table import BATCH_AXIS, RANGE, STATE
from ge_runtime.config.parameters import Parameters
from ge_runtime.config.values import read_number
from ge_runtime.specs import ROWS, Dim, DType, Number


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """The dim of each graph tensor that counts rows."""

    batched: bool = True
    """Whether any tensor has such a dim."""
    given: Mapping[str, int | None] = field(default_factory=dict)
    """The dims that config.pbtxt gives; None for a tensor without rows."""

    @classmethod
    def read(
        cls, parameters: Parameters, tensors: ModelTensors, *, batched: bool, packing: str | None
    ) -> BatchAxes:
        """Read config.pbtxt. Which tensors the graph has is not known here."""
        given: dict[str, int | None] = {}
        errors = parameters.errors
        for place, name, dim in parameters.entries(BATCH_AXIS):
            if not batched:
                errors.add(place, "max_batch_size 0", "at least 1: without it there are no rows")
            elif packing is not None:
                found = f"packing: {packing} as well"
                errors.add(place, found, "one of the two: packed rows are joined along that axis")
            given[name] = dim
            spec = tensors.sources.get(name)
            if dim is None and spec is not None and spec.axes:
                found = f"none and dims {list(map(str, spec.dims))} of input '{name}'"
                errors.add(place, found, "fixed dims: it is the same for requests of all sizes")
        return cls(batched, given)

    def of(self, name: str) -> int | None:
        """Return the dim of a graph tensor that counts rows, or None if it has no rows."""
        return self.given.get(name, 0) if self.batched else None

    def dims(self, name: str, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return the graph's dims of a tensor, given the dims of one row."""
        at = self.of(name)
        return dims if at is None else (*dims[:at], ROWS, *dims[at:])

    @property
    def without(self) -> frozenset[str]:
        """The tensors that have no rows according to config.pbtxt."""
        return frozenset(name for name, at in self.given.items() if at is None)


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The lowest and the highest value of an element, both included."""

    least: Number
    largest: Number

    def __contains__(self, value: Number) -> bool:
        return self.least <= value <= self.largest

    def nearest(self, value: Number) -> Number:
        """Return the value of the range nearest to `value`."""
        return min(max(value, self.least), self.largest)

    def span(self, dtype: DType) -> tuple[float, float]:
        """Return the range from which to draw elements, the highest excluded for integers."""
        return float(self.least), float(self.largest + dtype.is_integer)

    def __str__(self) -> str:
        return f"{self.least} to {self.largest}"


def read_ranges(
    parameters: Parameters, tensors: ModelTensors, fillers: Mapping[str, Mapping[str, Number]]
) -> dict[str, ValueRange]:
    """Return the value range of inputs or prepared tensors.

    Args:
        parameters: The model's parameters.
        tensors: The model's tensors.
        fillers: "pad" and "default", each with the values by input that batches hold besides data;
            they must be in the range too.
    """
    ranges = {}
    errors = parameters.errors
    for place, name, text in parameters.entries(RANGE, "input", tensors.sources):
        spec = tensors.sources[name]
        low, high = (read_number(own.strip(), spec.dtype) for own in text.partition("..")[::2])
        if spec.dtype in _NO_ORDER:
            errors.add(place, f"input '{name}' {spec}", "an input of numbers, not of BF16")
            continue
        if low is None or high is None or not low < high:
            expected = f"two numbers of type {spec.dtype.value}, the lower one first, e.g. 0..9"
            errors.add(place, f"'{text}'", expected)
            continue
        own = ranges[name] = ValueRange(low, high)
        for family, values in fillers.items():
            if name in values and values[name] not in own:
                errors.add(f"parameter '{family}.{name}'", values[name], f"{own} (range.{name})")
    return ranges


_NO_ORDER: Final = (DType.BOOL, DType.BYTES, DType.BF16)
"""Types without an order, and the type that is kept as its bits."""

_SPARE: Final = 2
"""Sequences kept for each that the server runs. The server does not report when it ends an idle
sequence: half of the kept ones may have ended. A running sequence has a request at least every
`max_sequence_idle_microseconds`, and in twice that time at most twice as many can have started."""

_REFUSED: Final = {
    "state": "none: the model keeps the states of 'state.<graph input>', not Triton",
    "control_input": "none: starts and ends are read from the requests' flags",
}
"""Field of sequence_batching that must be empty to the expected value."""


@dataclass(frozen=True, slots=True)
class SequenceStates:
    """The states kept from one request of a sequence to the next."""

    outputs: Mapping[str, str] = field(default_factory=dict)
    """Graph input to the graph output that is its next value."""
    kept: int = 0
    """Largest number of sequences whose state is kept."""

    @classmethod
    def read(
        cls,
        model_config: Mapping[str, object],
        parameters: Parameters,
        generated: GeneratedInputs,
        *,
        max_batch_size: int,
    ) -> SequenceStates:
        """Read config.pbtxt. Which tensors the graph has is not known here."""
        errors, outputs, source = parameters.errors, dict[str, str](), dict[str, str]()
        for place, name, output in parameters.entries(STATE):
            generated.add_name(place, f"'state.{name}'", name)
            if output in source:
                found = f"'{output}', the state of '{source[output]}' as well"
                errors.add(place, found, "an output for each")
            source[output] = name
            outputs[name] = output
        if not outputs:
            return cls()
        batching = model_config.get("sequence_batching")
        if not isinstance(batching, Mapping):
            place = f"parameter 'state.{next(iter(outputs))}'"
            expected = "it: then requests of a sequence arrive in order, at one instance"
            errors.add(place, "no sequence_batching", expected)
            return cls(outputs)
        for own, expected in _REFUSED.items():
            if batching.get(own):
                errors.add(f"sequence_batching.{own}", "entries", expected)
        oldest = batching.get("oldest")
        most = oldest.get("max_candidate_sequences") if isinstance(oldest, Mapping) else 0
        running = int(most or 0) or max(1, max_batch_size)
        return cls(outputs, _SPARE * running)
