"""States of sequences: the graph inputs that keep their values from one request to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ge_runtime.config import parameter_table as table
from ge_runtime.config.generated_inputs import GeneratedInputs
from ge_runtime.config.model_tensors import ModelTensors, read_dim
from ge_runtime.config.parameters import Parameters
from ge_runtime.config.tensor_rules import PaddingRule
from ge_runtime.specs import PAST, Relation

_SPARE: Final = 2
"""Number of kept sequences per sequence that the server runs. The server does not report the end of
an idle sequence, so half of the kept sequences may have ended. A running sequence has a request at
least every `max_sequence_idle_microseconds`, and in twice that time at most twice as many sequences
can have started."""

_REFUSED: Final = {
    "state": "none: the model keeps the states of 'state.<graph input>', not Triton",
    "control_input": "none: starts and ends are read from the requests' flags",
}
"""Fields of sequence_batching that must be empty, each with what is expected."""


@dataclass(frozen=True, slots=True)
class SequenceStates:
    """The states kept from one request of a sequence to the next."""

    outputs: Mapping[str, str] = field(default_factory=dict)
    """The graph output that is the next value of each graph input."""
    kept: int = 0
    """Largest number of sequences whose state is kept."""
    growth: GrowingStates | None = None
    """The rules for states that grow along PAST; None if all sizes are fixed."""

    @classmethod
    def read(
        cls,
        model_config: Mapping[str, object],
        parameters: Parameters,
        tensors: ModelTensors,
        generated: GeneratedInputs,
        limits: Mapping[str, int],
        *,
        max_batch_size: int,
    ) -> SequenceStates:
        """Read config.pbtxt. Which tensors the graph has is not known here."""
        errors, outputs, source = parameters.errors, dict[str, str](), dict[str, str]()
        for place, name, output in parameters.entries(table.STATE):
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
            expected = "one, so that requests of a sequence arrive in order, at one instance"
            errors.add(place, "no sequence_batching", expected)
            return cls(outputs)
        for own, expected in _REFUSED.items():
            if batching.get(own):
                errors.add(f"sequence_batching.{own}", "entries", expected)
        oldest = batching.get("oldest")
        most = oldest.get("max_candidate_sequences") if isinstance(oldest, Mapping) else 0
        running = int(most or 0) or max(1, max_batch_size)
        idle = batching.get("max_sequence_idle_microseconds")
        growth = GrowingStates.read(parameters, tensors, limits, max(1, max_batch_size))
        if growth is not None:
            growth = replace(growth, idle_s=_SPARE * int(str(idle or 0) or 0) * 1e-6 or _IDLE_S)
        return cls(outputs, _SPARE * running, growth)


BLOCK: Final = 16
"""Elements along PAST in a block of memory."""
_IDLE_S: Final = 2.0
"""Twice the idle time after which Triton ends a sequence by default."""


@dataclass(frozen=True, slots=True)
class GrowingStates:
    """The rules for states that grow along PAST with each request."""

    growth: str | Relation
    """The size by which a request makes the states of its sequence larger."""
    blocks: int
    """The number of blocks for all sequences; each has BLOCK elements along PAST."""
    evicts: bool = False
    """True if the longest idle sequence is ended when no block is free."""
    idle_s: float = _IDLE_S
    """A sequence without a request for this time has ended."""

    @property
    def size_after(self) -> Relation:
        """The size along PAST after a request."""
        return Relation.parse(f"{PAST} + {self.growth}")

    @classmethod
    def read(
        cls, parameters: Parameters, tensors: ModelTensors, limits: Mapping[str, int], rows: int
    ) -> GrowingStates | None:
        """Read config.pbtxt; `rows` is the largest number of rows of an execution."""
        errors, text = parameters.errors, parameters.get(table.STATE_GROWTH)
        blocks, evicts = parameters.get(table.STATE_BLOCKS), parameters.get(table.STATE_FULL)
        axes = [axis for axis in tensors.axes if axis != PAST]
        field = "parameter 'state_growth'"
        if not tensors.grows:
            if text is not None or blocks is not None:
                errors.add(f"parameter 'limit.{PAST}'", "nothing", "the largest size of the states")
            return None
        if text is None and len(axes) != 1:
            errors.add(field, f"nothing and {len(axes)} axes", "a relation of axes, e.g. tokens")
            return None
        try:
            growth = read_dim(text or axes[0])
        except ValueError as error:
            errors.add(field, f"'{text}'", str(error))
            return None
        own = (growth,) if isinstance(growth, str) else growth.axes
        known = [axis for axis in own if axis in axes and axis in limits and PAST in limits]
        for axis in own:
            if axis not in axes:
                errors.add_unknown(field, "axis", axis, axes)
        if len(known) < len(own):
            return None
        least = cls(growth, 1)
        largest = least.size_after.size(limits)
        if blocks is not None and blocks * BLOCK < largest:
            expected = f"at least {-(-largest // BLOCK)}, for one sequence (limit.{PAST})"
            errors.add("parameter 'state_blocks'", blocks, expected)
        return cls(growth, blocks or rows * -(-largest // BLOCK), evicts)


def check_growing_states(
    states: SequenceStates,
    padding: Mapping[str, PaddingRule],
    devices: Sequence[str],
    parameters: Parameters,
    *,
    batched: bool,
) -> None:
    """Add errors for parameters that cannot be combined with states that grow."""
    if states.growth is None:
        return
    errors, growth = parameters.errors, states.growth.growth
    for axis in (growth,) if isinstance(growth, str) else growth.axes:
        if padding.get(axis, PaddingRule.EQUAL) is not PaddingRule.EQUAL:
            expected = "'equal': padding would become part of the states"
            errors.add(f"parameter 'padding.{axis}'", f"'{padding[axis].value}'", expected)
    place = f"parameter 'limit.{PAST}'"
    if not batched:
        errors.add(place, "max_batch_size 0", "at least 1: growing states have rows")
    if tuple(devices) != ("cpu",):
        found = f"devices: {', '.join(devices)}"
        errors.add(place, found, "one cpu: growing states are in the host's memory")
    for setting in (table.PACKING, table.PLACEMENT):
        given = parameters.text(setting)
        if given not in (None, "local"):
            errors.add(place, f"{setting.key}: {given}", f"no {setting.key}")
