"""Graph inputs that no request brings: the runtime generates them for each batch.

- `mask.<graph input>`: axes; [batch, *axes] of the graph's own type, 1 where a row has data along
  all of them and 0 where there is padding.
- `lengths.<graph input>`: one axis; [batch] or [batch, 1], each row's true length.
- `positions.<graph input>`: one axis; [batch, axis], 0, 1, 2, ... where a row has data and 0 in
  padding.
- `offsets.<graph input>`: one axis; [batch + 1], the true lengths accumulated, from 0.

What Triton's own `batch_input` asks for is in `batch_inputs`.
"""

from __future__ import annotations

from ge_runtime.config.faults import Faults
from ge_runtime.config.parameters import Parameters, split_names
from ge_runtime.config.tensors import Tensors


class Generated:
    """The graph inputs that are generated, each under a name of its own. For one thread."""

    def __init__(
        self, parameters: Parameters, tensors: Tensors, faults: Faults, *, batched: bool
    ) -> None:
        """batched: executions have a batch dimension."""
        self._batched = batched
        self._families = parameters.families
        self._tensors = tensors
        self._faults = faults
        self._taken: dict[str, str] = {}

    def masks(self) -> dict[str, tuple[str, ...]]:
        """Graph input: the axes of its mask."""
        masks = {name: split_names(text) for name, text in self._families["mask"].items()}
        for name, axes in masks.items():
            self._check(f"mask.{name}", name, axes)
        return masks

    def lengths(self) -> dict[str, str]:
        """Graph input: the axis along which it gets the lengths of rows."""
        return self._of("lengths")

    def positions(self) -> dict[str, str]:
        """Graph input: the axis along which it gets positions."""
        return self._of("positions")

    def offsets(self) -> dict[str, str]:
        """Graph input: the axis of which it gets the accumulated lengths of rows."""
        offsets = self._of("offsets")
        for name in offsets if not self._batched else ():
            expected = "at least 1: without it there is no batch"
            self._faults.add(f"parameter 'offsets.{name}'", "max_batch_size 0", expected)
        return offsets

    def _of(self, family: str) -> dict[str, str]:
        given = dict(self._families[family])
        for name, axis in given.items():
            self._check(f"{family}.{name}", name, (axis,))
        return given

    def _check(self, key: str, name: str, axes: tuple[str, ...]) -> None:
        for axis in axes:
            self._tensors.knows_axis(f"parameter '{key}'", axis, self._faults)
        self.take(f"parameter '{key}'", f"'{key}'", name)

    def take(self, place: str, label: str, name: str) -> None:
        """A fault at `place` unless the name is new; `label` is what later ones are told of."""
        if name in self._tensors.inputs or name in self._tensors.prepared:
            self._faults.add(place, f"'{name}' among the inputs", "a graph input requests lack")
        if name in self._taken:
            self._faults.add(place, f"{self._taken[name]} as well", "one of the two")
        self._taken.setdefault(name, label)
