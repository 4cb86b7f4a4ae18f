"""What config.pbtxt says of single tensors of the graph, beyond their types and dims.

- `batch_axis.<tensor>`: which dim of the graph's input or output counts rows, from 0; default 0. Of
  recurrent graphs it is often 1, e.g. of states [layers, batch, features]. `none`: the tensor has
  no such dim. An input without rows is the same for all rows of an execution: only requests that
  bring equal values share one. Requests and answers have their rows first, whatever the graph has.
- `range.<input>`: the least and the largest value of an element, e.g. `0..30521` for ids of a
  vocabulary of 30522. A request with another element in its data is refused before the graph sees
  it: a graph may fail on it, for all requests of the execution, or read what lies beside its table.
- `state.<graph input>`: the graph output that becomes this input at the sequence's next request. At
  its first the input is 0. Requests bring no such input, and answers have the output only where it
  is declared. The model needs Triton's `sequence_batching`: then the requests of a sequence come in
  order, one at a time, to one instance, which keeps the state. The server's own `state` is not
  used, as Triton keeps none for models in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ge_runtime.config.generated_inputs import GeneratedInputs
from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.triton_config import ConfigErrors, Parameters, read_number, read_whole
from ge_runtime.specs import ROWS, Dim, DType, Number


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """The dim of each graph tensor that counts rows."""

    batched: bool = True
    """Whether any tensor has such a dim."""
    given: Mapping[str, int | None] = field(default_factory=dict)
    """Those of config.pbtxt; None for a tensor without."""

    @classmethod
    def read(
        cls,
        parameters: Parameters,
        tensors: ModelTensors,
        errors: ConfigErrors,
        *,
        batched: bool,
        packing: str | None,
    ) -> BatchAxes:
        """What config.pbtxt says. Which tensors the graph has is not known here."""
        given: dict[str, int | None] = {}
        for name, text in parameters.families["batch_axis"].items():
            place = f"parameter 'batch_axis.{name}'"
            if not batched:
                errors.add(place, "max_batch_size 0", "at least 1: without it there are no rows")
            elif packing is not None:
                found = f"packing: {packing} as well"
                errors.add(place, found, "one of the two: packed rows lie along that axis")
            given[name] = None if text == "none" else read_whole(place, text, errors, least=0)
            spec = tensors.sources.get(name)
            if given[name] is None and spec is not None and spec.axes:
                found = f"none and dims {list(map(str, spec.dims))} of input '{name}'"
                errors.add(place, found, "fixed dims: it is the same for requests of all sizes")
        return cls(batched, given)

    def of(self, name: str) -> int | None:
        """The dim of this graph tensor that counts rows, None for one without."""
        return self.given.get(name, 0) if self.batched else None

    def dims(self, name: str, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The graph's dims of a tensor that has these for each row."""
        at = self.of(name)
        return dims if at is None else (*dims[:at], ROWS, *dims[at:])

    @property
    def without(self) -> frozenset[str]:
        """The tensors of which config.pbtxt says that they have no rows."""
        return frozenset(name for name, at in self.given.items() if at is None)


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The least and the largest value of an element."""

    least: Number
    largest: Number

    def __contains__(self, value: Number) -> bool:
        return self.least <= value <= self.largest

    def nearest(self, value: Number) -> Number:
        """The value of the range that is nearest."""
        return min(max(value, self.least), self.largest)

    def span(self, dtype: DType) -> tuple[float, float]:
        """The range as elements of this type are drawn from it: high excluded for integers."""
        return float(self.least), float(self.largest + dtype.is_integer)

    def __str__(self) -> str:
        return f"{self.least} to {self.largest}"


def read_ranges(
    parameters: Parameters,
    tensors: ModelTensors,
    laid: Mapping[str, Mapping[str, Number]],
    errors: ConfigErrors,
) -> dict[str, ValueRange]:
    """Input or prepared tensor: the values of its elements.

    laid: what is laid into batches besides data, by `pad` and `default`: input to its value, which
    must be in the range too.
    """
    ranges = {}
    for name, text in parameters.families["range"].items():
        field = f"parameter 'range.{name}'"
        spec = tensors.sources.get(name)
        if spec is None:
            errors.add_unknown(field, "input", name, tensors.sources)
            continue
        low, high = (read_number(own.strip(), spec.dtype) for own in text.partition("..")[::2])
        if spec.dtype in _NO_ORDER:
            errors.add(field, f"input '{name}' {spec}", "an input of numbers, not of BF16")
            continue
        if low is None or high is None or not low < high:
            expected = f"two numbers of type {spec.dtype.value}, the lower one first, e.g. 0..9"
            errors.add(field, f"'{text}'", expected)
            continue
        own = ranges[name] = ValueRange(low, high)
        for family, values in laid.items():
            if name in values and values[name] not in own:
                errors.add(f"parameter '{family}.{name}'", values[name], f"{own} (range.{name})")
    return ranges


_NO_ORDER: Final = (DType.BOOL, DType.BYTES, DType.BF16)
"""Types without an order, and the one that is kept as its bits."""


_SPARE: Final = 2
"""Sequences kept for each that the server runs. It tells nobody when it ends an idle one: half of
those kept may be such. One that runs has a request at least every `max_sequence_idle_microseconds`,
and in twice that time at most twice as many sequences can have come."""


@dataclass(frozen=True, slots=True)
class SequenceStates:
    """What is kept of sequences, and of how many."""

    outputs: Mapping[str, str] = field(default_factory=dict)
    """Graph input: the graph output that it is next time."""
    kept: int = 0
    """The most sequences of which the state is kept."""

    @classmethod
    def read(
        cls,
        model_config: Mapping[str, object],
        parameters: Parameters,
        generated: GeneratedInputs,
        errors: ConfigErrors,
        *,
        max_batch_size: int,
    ) -> SequenceStates:
        """What config.pbtxt says. Which tensors the graph has is not known here."""
        outputs = dict(parameters.families["state"])
        if not outputs:
            return cls()
        taken: dict[str, str] = {}
        for name, output in outputs.items():
            place = f"parameter 'state.{name}'"
            generated.add_name(place, f"'state.{name}'", name)
            if output in taken:
                found = f"'{output}', the state of '{taken[output]}' as well"
                errors.add(place, found, "an output for each")
            taken[output] = name
        batching = model_config.get("sequence_batching")
        if not isinstance(batching, Mapping):
            place = f"parameter 'state.{next(iter(outputs))}'"
            expected = "it: then requests of a sequence come in order, to one instance"
            errors.add(place, "no sequence_batching", expected)
            return cls(outputs)
        for own, cure in _REFUSED.items():
            if batching.get(own):
                errors.add(f"sequence_batching.{own}", "entries", cure)
        oldest = batching.get("oldest")
        most = oldest.get("max_candidate_sequences") if isinstance(oldest, Mapping) else 0
        running = int(most or 0) or max(1, max_batch_size)
        return cls(outputs, _SPARE * running)


_REFUSED: Final = {
    "state": "none: what parameters 'state.<graph input>' name is kept by the model, not by Triton",
    "control_input": "none: starts and ends are read from the requests' flags",
}
