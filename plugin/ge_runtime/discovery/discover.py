"""Derives the configuration of an ONNX graph from its signature and from executions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ge_runtime.discovery.configuration import Configuration, Parameter, Tensor, one_line
from ge_runtime.discovery.graph import Graph
from ge_runtime.discovery.limits import find_ids, find_limits, fit_together
from ge_runtime.discovery.naming import axis_name
from ge_runtime.discovery.outputs import Unfitted, fit
from ge_runtime.discovery.padding import decide_marks, decide_neutral
from ge_runtime.discovery.rows import Rows, find_rows
from ge_runtime.discovery.states import decide_states
from ge_runtime.discovery.study import Axis, Content, Study, Undecided, at_limits, grouped
from ge_runtime.discovery.values import (
    RATES,
    SAMPLING_RATES,
    SCALARS,
    decide_constants,
    decide_positions,
)
from ge_runtime.specs import ROWS, Array, DType, TensorSpec
from ge_runtime.verification.distance import compare

_ALIKE: Final = 1e-5
"""Largest relative difference of equal executions that is not attributed to random numbers."""
_MOST_ELEMENTS: Final = 2**24
"""Maximum number of elements of all rows of the largest input; it limits max_batch_size."""


@dataclass(slots=True)
class Discovery:
    """The derivation of a graph's configuration. For one thread.

    Attributes:
        graph: The open graph.
        constants: Graph input to the value that the user gave.
        progress: Called with a line for each step.
        sample: Graph input to example values in the graph's layout; others are invented.
        keep_states: False if requests send the states, so that no `state.` is derived.
    """

    graph: Graph
    max_batch: int
    constants: Mapping[str, str] = field(default_factory=dict)
    progress: Callable[[str], None] = lambda line: None
    sample: Mapping[str, Array] = field(default_factory=dict)
    keep_states: bool = True
    study: Study = field(init=False)
    """The experiments of the last configuration."""

    def configuration(self, *, batched: bool = True) -> Configuration:
        """Return the configuration.

        Args:
            batched: False to treat the first dim of the inputs as an axis, not as rows.

        Raises:
            Undecided: A decision needs the user; the text has the choices.
            Unfitted: No relation gives the size of an output. Without rows no relation is needed.
        """
        study = self.study = Study(self.graph, self.sample)
        for port in self.graph.inputs:
            if port.dtype is DType.BYTES:
                raise Undecided(
                    f"input '{port.name}': found strings, expected numbers: engines do not "
                    "accept strings. Remove the operators that read strings from the graph, and "
                    "compute their results in `prepare` of model.py (docs/model-api.md)"
                )
        found = Configuration(0)
        self.progress("rows")
        sizes, rows = self._first(study)
        if not batched:
            rows = Rows(evidence="Rows: none; the first dims of inputs are sizes of a request.")
        self._check_outputs(study, sizes)
        decide_constants(study, self.constants, sizes, found)
        study.rows = rows.symbols
        self.progress("axes")
        axes = self._axes(study, sizes, rows)
        for axis in axes:
            self.progress(f"limits of {axis.name}")
            find_limits(study, axis, sizes, self.max_batch if rows.batched else 1)
        fit_together(study, axes, sizes)
        self.progress("outputs")
        relations = self._relations(study, axes, sizes, rows, found)
        found.max_batch_size = self._max_batch(study, axes, sizes, rows)
        found.notes.append(one_line(rows.evidence))
        self.progress("states")
        states: Mapping[str, str] = {}
        if self.keep_states:
            states = decide_states(study, axes, sizes, rows.inputs, found)
        self.progress("padding")
        generated = {*states}
        if rows.batched:
            generated |= decide_marks(study, axes, sizes, relations, found, rows)
            decide_neutral(study, axes, sizes, relations, found, rows)
            generated |= decide_positions(study, axes, sizes, found)
        self.progress("ids")
        find_ids(study, sizes, axes)
        self._inputs(study, axes, rows, generated, found)
        self._outputs(axes, rows, relations, {*states.values()}, found)
        self._limits(axes, rows, found)
        return found

    def _first(self, study: Study) -> tuple[dict[str, int], Rows]:
        """Find first sizes, the rows, and values of scalars at which the graph executes."""
        study.constants |= {name: float(value) for name, value in self.constants.items()}
        scalars = [
            port.name
            for port in self.graph.inputs
            if not port.dims and port.name not in self.constants
        ]
        for name in scalars:
            if name in self.sample:
                study.constants[name] = float(self.sample[name])
        invented = [name for name in scalars if name not in self.sample]
        tried = SCALARS if invented else SCALARS[:1]
        for value in tried:
            for name in invented:
                is_rate = name.lower() in SAMPLING_RATES
                study.constants[name] = RATES[0] if is_rate else value
            try:
                return find_rows(study)
            except Undecided:
                if value == tried[-1]:
                    raise
        raise AssertionError

    def _check_outputs(self, study: Study, sizes: Mapping[str, int]) -> None:
        """Compare outputs with their declarations, and two equal executions. Raises Undecided."""
        one, again = study.run(sizes) or {}, study.run(sizes) or {}
        for port in self.graph.outputs:
            if port.dims and len(port.dims) != one[port.name].ndim:
                raise Undecided(
                    f"output '{port.name}': found {one[port.name].ndim} dims in an execution, "
                    f"expected the {len(port.dims)} that the graph declares. Correct or delete the "
                    "declared shape of this output (`graph.output` in the package onnx)"
                )
            spec = TensorSpec(port.name, port.dtype, ())
            difference = compare(spec, again[port.name], one[port.name], tolerance=_ALIKE)
            if difference is not None:
                raise Undecided(
                    f"found equal executions with different answers ({difference}): the graph "
                    "draws random numbers, so no configuration can be proven. Make the random "
                    "numbers an input of the graph, or write config.pbtxt by hand"
                )

    def _axes(self, study: Study, sizes: Mapping[str, int], rows: Rows) -> list[Axis]:
        """Return the axes, with names."""
        taken = {ROWS}
        axes = []
        for symbols in grouped(study, sizes, rows.symbols):
            name = axis_name(symbols[0], self.graph.inputs, taken, batched=rows.batched)
            taken.add(name)
            axes.append(Axis(name, symbols, sizes[symbols[0]]))
        study.measured = axes[0].symbols if axes else ()
        return axes

    def _relations(
        self,
        study: Study,
        axes: Sequence[Axis],
        sizes: Mapping[str, int],
        rows: Rows,
        found: Configuration,
    ) -> dict[str, tuple[int | str, ...]]:
        """Return each output's dims without the dim of rows; -1 for a dim that needs no name.

        Raises:
            Unfitted: The graph has rows, and no relation gives the size of an output.
        """
        shapes: dict[tuple[int, ...], Mapping[str, tuple[int, ...]] | None] = {}

        def shapes_at(own: Mapping[str, int]) -> Mapping[str, tuple[int, ...]] | None:
            key = tuple(own[axis.name] for axis in axes)
            if key not in shapes:
                at = {**sizes, **{one: own[axis.name] for axis in axes for one in axis.symbols}}
                found = study.run(at, seed=len(shapes))
                shapes[key] = (
                    None if found is None else {name: array.shape for name, array in found.items()}
                )
            return shapes[key]

        relations: dict[str, tuple[int | str, ...]] = {}
        base = shapes_at({axis.name: axis.base for axis in axes})
        assert base is not None
        for port in self.graph.outputs:
            dims: list[int | str] = []
            for at in range(len(base[port.name])):
                if at == rows.outputs.get(port.name):
                    continue

                def measure(
                    own: Mapping[str, int], name: str = port.name, at: int = at
                ) -> int | None:
                    found = shapes_at(own)
                    return None if found is None else found[name][at]

                try:
                    dims.append(fit(axes, measure))
                except Unfitted as error:
                    if rows.batched:
                        raise
                    dims.append(-1)
                    note = f"Output '{port.name}', dim {len(dims) - 1}: {error}."
                    found.notes.append(one_line(f"{note} Its size is not checked."))
            if -1 in dims:
                dims = [-1 if isinstance(dim, str) else dim for dim in dims]
            relations[port.name] = tuple(dims)
        return relations

    def _max_batch(
        self, study: Study, axes: Sequence[Axis], sizes: Mapping[str, int], rows: Rows
    ) -> int:
        if not rows.batched:
            return 0
        if rows.fixed:
            return rows.fixed
        elements = study.most_elements(at_limits(axes, sizes))
        most = self.max_batch
        while most > 1 and most * elements > _MOST_ELEMENTS:
            most //= 2
        return most

    def _inputs(
        self,
        study: Study,
        axes: Sequence[Axis],
        rows: Rows,
        generated: set[str],
        found: Configuration,
    ) -> None:
        by_symbol = {symbol: axis for axis in axes for symbol in axis.symbols}
        for port in self.graph.inputs:
            if port.name in study.constants:
                continue
            at = rows.inputs.get(port.name)
            if rows.batched and at != 0:
                text = "none" if at is None else str(at)
                found.parameters.append(Parameter(f"batch_axis.{port.name}", text, rows.evidence))
            if port.name in generated:
                continue
            dims = [dim for place, dim in enumerate(port.dims) if not rows.batched or place != at]
            dims = [_fixed(by_symbol[dim]) if isinstance(dim, str) else dim for dim in dims]
            free = [dim for dim in dims if isinstance(dim, str)]
            types = study.contents[port.name] is Content.TYPES
            found.inputs.append(
                Tensor(
                    port.name,
                    port.dtype,
                    tuple(-1 if isinstance(dim, str) else dim for dim in dims),
                    ragged=bool(free) and rows.batched,
                    optional=types,
                )
            )
            if free:
                found.parameters.append(
                    Parameter(
                        f"axes.{port.name}", ", ".join(free), "Dims that differ between requests."
                    )
                )
            if port.name in study.ids:
                most = study.ids[port.name]
                found.parameters.append(
                    Parameter(
                        f"range.{port.name}",
                        f"0..{most}",
                        f"The graph executes with id {most} and fails with {most + 1}.",
                    )
                )
            if port.name in study.bounded_ids:
                axis = study.bounded_ids[port.name]
                note = f"The largest value of '{port.name}' depends on {axis}, so it has no range."
                found.notes.append(note)

    def _outputs(
        self,
        axes: Sequence[Axis],
        rows: Rows,
        relations: Mapping[str, tuple[int | str, ...]],
        kept: set[str],
        found: Configuration,
    ) -> None:
        for port in self.graph.outputs:
            at = rows.outputs.get(port.name)
            if rows.batched and at != 0:
                text = "none" if at is None else str(at)
                found.parameters.append(Parameter(f"batch_axis.{port.name}", text, rows.evidence))
            if port.name in kept:
                continue
            dims = relations[port.name]
            free = [dim for dim in dims if isinstance(dim, str)]
            found.outputs.append(
                Tensor(
                    port.name,
                    port.dtype,
                    tuple(-1 if isinstance(dim, str) else dim for dim in dims),
                )
            )
            if free:
                found.parameters.append(
                    Parameter(
                        f"axes.{port.name}",
                        ", ".join(free),
                        "Measured by executions, and verified at other sizes.",
                    )
                )

    def _limits(self, axes: Sequence[Axis], rows: Rows, found: Configuration) -> None:
        for axis in axes:
            if not axis.varies:
                continue
            why = (
                f"The graph fails above {axis.largest}: {axis.stopped}"
                if axis.stopped
                else f"The graph executes at {axis.largest}; larger sizes were not tried. Memory "
                "is planned for the limit: choose the largest size of your requests."
            )
            found.parameters.append(
                Parameter(f"limit.{axis.name}", str(axis.largest), one_line(why))
            )
            if axis.smallest > 1:
                found.parameters.append(
                    Parameter(
                        f"min.{axis.name}",
                        str(axis.smallest),
                        f"The graph fails below {axis.smallest}.",
                    )
                )
            if axis.multiple > 1:
                found.parameters.append(
                    Parameter(
                        f"align.{axis.name}",
                        str(axis.multiple),
                        f"The graph executes multiples of {axis.multiple} only.",
                    )
                )
        if rows.fixed == 1 and rows.symbols:
            found.parameters.append(Parameter("gears.batch", "1", one_line(rows.evidence)))


def _fixed(axis: Axis) -> int | str:
    """Return the name of an axis, or its size if it has only one."""
    return axis.name if axis.varies else axis.largest
