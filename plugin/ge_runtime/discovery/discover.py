"""Derives the configuration of an ONNX graph from its signature and from executions."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ge_runtime.discovery.configuration import Configuration, Tensor, written_dims
from ge_runtime.discovery.decoders import decide_decoder
from ge_runtime.discovery.graph import Graph, Port
from ge_runtime.discovery.limits import find_ids, find_limits, fit_together
from ge_runtime.discovery.outputs import Unfitted, fit
from ge_runtime.discovery.padding import decide_marks, decide_neutral
from ge_runtime.discovery.rows import find_rows
from ge_runtime.discovery.states import decide_states
from ge_runtime.discovery.study import Axis, Content, Rows, Study, Undecided, grouped
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

    `sample` has example values by graph input, in the graph's layout; other values are invented.
    Without `keep_states`, requests send the states, and no parameter `state.<input>` is derived.
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
        """Derive the configuration. Without `batched`, the first dim of inputs does not count rows.

        Raises:
            Undecided: A decision needs the user; the text has the choices.
            Unfitted: No relation gives the size of an output. Not raised without `batched`.
        """
        study = self.study = Study(self.graph, self.sample)
        for port in self.graph.inputs:
            if port.dtype is DType.BYTES:
                raise Undecided(
                    f"input '{port.name}': found strings, expected numbers: engines do not "
                    "accept strings. Remove the operators that read strings from the graph, and "
                    "compute their results in `prepare` of model.py (docs/model-api.md)"
                )
        decoder = decide_decoder(study, self.max_batch) if batched and self.keep_states else None
        if decoder is not None:
            return decoder
        found = Configuration(0)
        self.progress("rows")
        study.sizes, rows = self._find_first_sizes()
        if not batched:
            rows = Rows(evidence="Rows: none; the first dims of inputs are sizes of a request.")
        self._check_outputs()
        decide_constants(study, self.constants, found)
        study.rows = rows
        self.progress("axes")
        study.axes = self._axes()
        for axis in study.axes:
            self.progress(f"limits of {axis.name}")
            find_limits(study, axis, self.max_batch if rows.batched else 1)
        fit_together(study)
        self.progress("outputs")
        self._fit_outputs(found)
        found.max_batch_size = self._max_batch()
        found.notes.append(rows.evidence)
        self.progress("states")
        states = decide_states(study, found) if self.keep_states else {}
        self.progress("padding")
        generated = {*states}
        if rows.batched:
            generated |= decide_marks(study, found)
            decide_neutral(study, found)
            generated |= decide_positions(study, found)
        self.progress("ids")
        find_ids(study)
        self._add_inputs(generated, found)
        self._add_outputs({*states.values()}, found)
        self._add_limits(found)
        return found

    def _find_first_sizes(self) -> tuple[dict[str, int], Rows]:
        """Find first sizes, the rows, and values of scalars at which the graph executes."""
        study = self.study
        study.constants |= {name: float(value) for name, value in self.constants.items()}
        invented = []
        for port in self.graph.inputs:
            if port.dims or port.name in self.constants:
                continue
            if port.name in self.sample:
                study.constants[port.name] = float(self.sample[port.name])
            else:
                invented.append(port.name)
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

    def _check_outputs(self) -> None:
        """Compare outputs with their declarations, and two equal executions. Raises Undecided."""
        one, again = self.study.run() or {}, self.study.run() or {}
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

    def _axes(self) -> list[Axis]:
        """Return the axes, with names."""
        taken = {ROWS}
        axes = []
        for symbols in grouped(self.study):
            batched = self.study.rows.batched
            name = _axis_name(symbols[0], self.graph.inputs, taken, batched=batched)
            taken.add(name)
            axes.append(Axis(name, symbols, self.study.sizes[symbols[0]]))
        return axes

    def _fit_outputs(self, found: Configuration) -> None:
        """Store the relation of each output dim; -1 if it has no relation. Raises Unfitted."""
        study, rows = self.study, self.study.rows
        base = study.output_shapes(study.sizes) or {}
        for port in self.graph.outputs:
            dims: list[int | str] = []
            for at in range(len(base[port.name])):
                if at == rows.outputs.get(port.name):
                    continue

                def measure(
                    own: Mapping[str, int], name: str = port.name, at: int = at
                ) -> int | None:
                    sizes = {one: own[axis.name] for axis in study.axes for one in axis.symbols}
                    shapes = study.output_shapes({**study.sizes, **sizes})
                    return None if shapes is None else shapes[name][at]

                try:
                    dims.append(fit(study.axes, measure))
                except Unfitted as error:
                    if rows.batched:
                        raise
                    dims.append(-1)
                    note = f"Output '{port.name}', dim {len(dims) - 1}: {error}."
                    found.notes.append(f"{note} Its size is not checked.")
            study.relations[port.name] = tuple(written_dims(dims) if -1 in dims else dims)

    def _max_batch(self) -> int:
        rows = self.study.rows
        if not rows.batched or rows.fixed:
            return rows.fixed
        elements = self.study.most_elements(self.study.at_limits())
        most = self.max_batch
        while most > 1 and most * elements > _MOST_ELEMENTS:
            most //= 2
        return most

    def _add_inputs(self, generated: set[str], found: Configuration) -> None:
        study = self.study
        by_symbol = {symbol: axis for axis in study.axes for symbol in axis.symbols}
        for port in self.graph.inputs:
            if port.name in study.constants:
                continue
            at = study.rows.inputs.get(port.name)
            self._add_row_place(port.name, at, found)
            if port.name in generated:
                continue
            dims = [dim for place, dim in enumerate(port.dims) if place != at]
            dims = [_dim_of(by_symbol[dim]) if isinstance(dim, str) else dim for dim in dims]
            optional = study.contents[port.name] in (Content.TYPES, Content.INVERTED)
            tensor = Tensor(port.name, port.dtype, written_dims(dims), optional=optional)
            if _add_axes(port.name, dims, "Dims that differ between requests.", found):
                tensor = replace(tensor, ragged=study.rows.batched)
            found.inputs.append(tensor)
            if (most := study.ids.get(port.name)) is not None:
                why = f"The graph executes with id {most} and fails with {most + 1}."
                found.add(f"range.{port.name}", f"0..{most}", why)
            if axis := study.bounded_ids.get(port.name):
                found.notes.append(
                    f"The largest value of '{port.name}' depends on {axis}, so it has no range."
                )

    def _add_outputs(self, kept: set[str], found: Configuration) -> None:
        for port in self.graph.outputs:
            self._add_row_place(port.name, self.study.rows.outputs.get(port.name), found)
            if port.name not in kept:
                dims = self.study.relations[port.name]
                found.outputs.append(Tensor(port.name, port.dtype, written_dims(dims)))
                why = "Measured by executions, and verified at other sizes."
                _add_axes(port.name, dims, why, found)

    def _add_row_place(self, name: str, at: int | None, found: Configuration) -> None:
        """Add the dim of a tensor that counts rows, unless it is the first."""
        rows = self.study.rows
        if rows.batched and at != 0:
            found.add(f"batch_axis.{name}", "none" if at is None else str(at), rows.evidence)

    def _add_limits(self, found: Configuration) -> None:
        for axis in self.study.axes:
            if not axis.varies:
                continue
            why = (
                f"The graph fails above {axis.largest}: {axis.stopped}"
                if axis.stopped
                else f"The graph executes at {axis.largest}; larger sizes were not tried. Memory "
                "is planned for the limit: choose the largest size of your requests."
            )
            found.add(f"limit.{axis.name}", str(axis.largest), why)
            if axis.smallest > 1:
                why = f"The graph fails below {axis.smallest}."
                found.add(f"min.{axis.name}", str(axis.smallest), why)
            if axis.multiple > 1:
                why = f"The graph executes multiples of {axis.multiple} only."
                found.add(f"align.{axis.name}", str(axis.multiple), why)
        rows = self.study.rows
        if rows.fixed == 1 and rows.symbols:
            found.add("gears.batch", "1", rows.evidence)


def _axis_name(symbol: str, ports: Sequence[Port], taken: set[str], *, batched: bool) -> str:
    """Return a name for an axis: its symbol if that is a name, else a name by the input's type."""
    name = re.sub(r"\W+", "_", symbol).strip("_").lower()
    generic = "." in symbol or re.match(r"unk__|dynamic_axes|DynamicDimension|p2o|s\d+$", symbol)
    if generic or not name.isidentifier() or keyword.iskeyword(name) or len(name) == 1:
        port = next(port for port in ports if symbol in port.dims)
        place = port.dims.index(symbol)
        if place == 0 and len(port.dims) > 1 and not batched:
            name = "rows"
        elif port.dtype.is_integer and len(port.symbols) <= 2:
            name = "tokens"
        elif len(port.dims) == 4:
            channels_last = isinstance(port.dims[-1], int) and port.dims[-1] <= 4
            name = "width" if place == (2 if channels_last else 3) else "height"
        elif len(port.dims) <= 2:
            name = "samples"
        else:
            name = "frames"
    if name == ROWS:
        name = "rows"
    if name in ("min", "max"):
        name += "_size"
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique


def _add_axes(name: str, dims: Sequence[int | str], why: str, found: Configuration) -> bool:
    """Name the free dims of a tensor; return whether it has any."""
    free = [dim for dim in dims if isinstance(dim, str)]
    if free:
        found.add(f"axes.{name}", ", ".join(free), why)
    return bool(free)


def _dim_of(axis: Axis) -> int | str:
    """Return the name of an axis, or its only size."""
    return axis.name if axis.varies else axis.largest
