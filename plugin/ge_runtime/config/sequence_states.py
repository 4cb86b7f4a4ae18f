"""State that a graph carries from one request of a sequence to the next.

- `state.<graph input>`: the graph output that becomes this input at the sequence's next request. At
  its first the input is 0. Requests bring no such input, and answers have the output only where it
  is declared.

The model needs Triton's `sequence_batching`: then the requests of a sequence come in order, one at
a time, to one instance, which keeps the state. The server's own `state` is not used, as Triton
keeps none for models in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ge_runtime.config.generated_inputs import GeneratedInputs
from ge_runtime.config.triton_config import ConfigErrors, Parameters

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
