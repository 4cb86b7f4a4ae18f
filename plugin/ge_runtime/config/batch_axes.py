"""Where the rows of a batch lie in the graph's tensors.

- `batch_axis.<tensor>`: which dim of the graph's input or output counts rows, from 0; default 0. Of
  recurrent graphs it is often 1, e.g. of states [layers, batch, features]. `none`: the tensor has
  no such dim. An input without rows is the same for all rows of an execution: only requests that
  bring equal values share one.

Requests and answers have their rows first, whatever the graph has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.triton_config import ConfigErrors, Parameters, read_whole
from ge_runtime.specs import ROWS, Dim


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
