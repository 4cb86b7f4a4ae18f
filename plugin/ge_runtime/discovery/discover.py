"""Derives the configuration of an ONNX graph from its signature and from executions."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ge_runtime.discovery.configuration import Configuration, Parameter, Question, Tensor
from ge_runtime.discovery.graph import Graph, Port
from ge_runtime.discovery.limits import find_ids, find_limits, fit_together
from ge_runtime.discovery.masks import candidates, confirm, confirm_neutral
from ge_runtime.discovery.outputs import Unfitted, fit
from ge_runtime.discovery.rows import Rows, find_rows
from ge_runtime.discovery.states import find_states
from ge_runtime.discovery.study import Axis, Content, Study, Undecided, at_limits, grouped
from ge_runtime.specs import ROWS, Array, DType, TensorSpec
from ge_runtime.verification.distance import compare

_SAMPLING_RATES: Final = ("sr", "sample_rate", "sampling_rate")
_RATES: Final = (16000.0, 8000.0)
_SCALARS: Final = (1.0, 0.0, 2.0)
"""Values of inputs without dims that are tried."""
_ALIKE: Final = 1e-5
"""Relative difference of equal executions that is not a random number."""
_MOST_ELEMENTS: Final = 2**24
"""Elements of all rows of the largest input: bounds max_batch_size."""


@dataclass(slots=True)
class Discovery:
    """One derivation. For one thread.

    Attributes:
        graph: The open graph.
        constants: Graph input to the value that the user gave.
        progress: Called with a line for each step.
        sample: Graph input to example values in the graph's layout; others are invented.
        keep_states: False if requests send the states that `state.` would keep.
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
            Unfitted: The size of an output follows no relation; without rows it needs none.
        """
        study = self.study = Study(self.graph, self.sample)
        for port in self.graph.inputs:
            if port.dtype is DType.BYTES:
                raise Undecided(
                    f"input '{port.name}': found texts, expected numbers: an engine gets no texts. "
                    "Cut the operators that read texts off the graph, and compute their results "
                    "in `prepare` of model.py (docs/model-api.md)"
                )
        found = Configuration(0)
        self.progress("rows")
        sizes, rows = self._first(study)
        if not batched:
            rows = Rows(evidence="Rows: none; the first dims are sizes of a request.")
        self._check_outputs(study, sizes)
        self._constants(study, sizes, found)
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
        found.notes.append(_line(rows.evidence))
        self.progress("states")
        states = self._states(study, axes, sizes, rows, found)
        self.progress("padding")
        generated = {*states}
        if rows.batched:
            generated |= self._marks(study, axes, sizes, relations, found, rows)
            self._neutral(study, axes, sizes, relations, found, rows)
            generated |= self._positions(study, axes, sizes, found)
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
        tried = _SCALARS if invented else _SCALARS[:1]
        for value in tried:
            for name in invented:
                is_rate = name.lower() in _SAMPLING_RATES
                study.constants[name] = _RATES[0] if is_rate else value
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

    def _constants(self, study: Study, sizes: Mapping[str, int], found: Configuration) -> None:
        """Decide which inputs are the same in all executions. Raises Undecided."""
        for name, value in self.constants.items():
            found.parameters.append(Parameter(f"constant.{name}", value, "Given."))
        one = study.run(sizes) or {}
        for name in [name for name in study.constants if name not in self.constants]:
            value = study.constants[name]
            others = _RATES if name.lower() in _SAMPLING_RATES else _SCALARS
            results = {}
            for other in others:
                if other != value:
                    study.constants[name] = other
                    results[other] = study.run(sizes)
            study.constants[name] = value
            alike = all(
                result is not None
                and all(np.array_equal(result[key], one[key], equal_nan=True) for key in one)
                for result in results.values()
            )
            line = f"constant.{name}", f"{value:g}"
            if alike:
                why = f"The answer does not depend on it: equal with {_listed([value, *results])}."
                found.parameters.append(Parameter(*line, why))
            elif name.lower() in _SAMPLING_RATES:
                (other,) = results
                effect = "fails" if results[other] is None else "answers differently"
                why = f"Assumed from the name; the graph executes with {value:g}, and {effect} "
                found.parameters.append(Parameter(*line, f"{why}with {other:g}."))
                found.questions.append(
                    Question(
                        f"Which sampling rate do your requests have? With {other:g} the graph "
                        f"{effect} at the size of this trial.",
                        f"{value:g}: leave the file as it is",
                        f"another: change `constant.{name}`, or run init with "
                        f"--constant {name}={other:g}",
                    )
                )
            else:
                del study.constants[name]
                if not all(study.run(sizes, seed=seed) for seed in range(4)):
                    raise Undecided(
                        f"input '{name}': found a single number for the whole execution, of which "
                        f"the graph accepts {value:g} and not every value; give it with "
                        f"--constant {name}=VALUE"
                    )
                found.questions.append(
                    Question(
                        f"Has '{name}' the same value in all requests?",
                        "no: each request sends it, and only requests of equal values share an "
                        "execution; leave the file as it is",
                        f"yes: run init again with --constant {name}=VALUE",
                    )
                )

    def _axes(self, study: Study, sizes: Mapping[str, int], rows: Rows) -> list[Axis]:
        """Return the axes, with names."""
        taken = {ROWS}
        axes = []
        for symbols in grouped(study, sizes, rows.symbols):
            name = _axis_name(symbols[0], self.graph.inputs, taken, batched=rows.batched)
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
        """Return the dims of each output without rows; -1 for one that needs no name.

        Raises:
            Unfitted: The graph has rows, and a size follows no relation.
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
                    note = f"Output '{port.name}', dim {len(dims) - 1}: {error}. It has any size."
                    found.notes.append(_line(note))
            if -1 in dims:
                dims = [-1 if isinstance(dim, str) else dim for dim in dims]
            relations[port.name] = tuple(dims)
        return relations

    def _max_batch(
        self, study: Study, axes: Sequence[Axis], sizes: Mapping[str, int], rows: Rows
    ) -> int:
        if not rows.batched:
            return 0
        elements = study.most_elements(at_limits(axes, sizes))
        most = self.max_batch
        while most > 1 and most * elements > _MOST_ELEMENTS:
            most //= 2
        return most

    def _marks(
        self,
        study: Study,
        axes: Sequence[Axis],
        sizes: Mapping[str, int],
        relations: Mapping[str, tuple[int | str, ...]],
        found: Configuration,
        rows: Rows,
    ) -> set[str]:
        """Confirm masks and lengths; return the inputs that are generated."""
        generated: set[str] = set()
        for port, content, own in candidates(study, axes) if rows.batched else ():
            named = study.contents[port.name]
            unnamed = named is Content.VALUES or port.name in study.unnamed
            if unnamed and generated:
                continue  # the end of the data is marked already
            study.contents[port.name] = content
            family = "mask" if content is Content.MASK else "lengths"
            verdict = confirm(study, port, own, sizes, relations, rows.outputs)
            if verdict.confirmed:
                generated.add(port.name)
                names = ", ".join(axis.name for axis in own)
                why = _line(f"Confirmed by experiment: {verdict.evidence}.")
                found.parameters.append(Parameter(f"{family}.{port.name}", names, why))
                continue
            study.contents[port.name] = Content.VALUES if unnamed else named
            if not unnamed and named is content:
                note = f"Input '{port.name}' is not generated as a {family}: {verdict.evidence}."
                found.notes.append(_line(note))
        return generated

    def _neutral(
        self,
        study: Study,
        axes: Sequence[Axis],
        sizes: Mapping[str, int],
        relations: Mapping[str, tuple[int | str, ...]],
        found: Configuration,
        rows: Rows,
    ) -> None:
        """Find axes without a mask along which padding changes no answer."""
        marked = {
            axis
            for own in found.parameters
            if own.key.split(".")[0] in ("mask", "lengths")
            for axis in own.value.split(", ")
        }
        marks = (Content.MASK, Content.LENGTH)
        if found.max_batch_size < 2 or rows.fixed == 1:
            return
        for axis in axes:
            given = {port.name for port in self.graph.inputs if {*axis.symbols} & {*port.symbols}}
            if axis.name in marked or any(study.contents[name] in marks for name in given):
                continue
            if any(content is Content.LENGTH for content in study.contents.values()) and not marked:
                continue
            verdict, zeros = confirm_neutral(study, axis, sizes, relations, rows.outputs)
            line = Parameter(f"padding.{axis.name}", "neutral", "")
            if verdict.confirmed:
                why = _line(f"Confirmed by experiment: {verdict.evidence}.")
                found.parameters.append(replace(line, evidence=why))
            elif zeros:
                found.questions.append(
                    Question(
                        f"Is padding with 0 along {axis.name} neutral? It changed no answer of "
                        f"this trial, but other padding did: {_line(verdict.evidence)}.",
                        "no, or not sure: only requests of equal sizes share an execution; leave "
                        "the file as it is",
                        "yes: requests of all sizes share; add this line",
                        (line,),
                    )
                )

    def _states(
        self,
        study: Study,
        axes: Sequence[Axis],
        sizes: Mapping[str, int],
        rows: Rows,
        found: Configuration,
    ) -> dict[str, str]:
        """Return the states that are kept between requests: input to output."""
        larger = {
            **sizes,
            **{
                one: min(4 * axis.base, axis.largest) // axis.multiple * axis.multiple
                for axis in axes
                for one in axis.symbols
            },
        }
        states = find_states(study, sizes, larger, rows.inputs) if self.keep_states else []
        named = [state for state in states if state.named]
        for state in named:
            why = f"Names, and confirmed by experiment: {state.evidence}."
            found.parameters.append(Parameter(f"state.{state.input}", state.output, why))
        if named:
            inputs = " and ".join(f"'{state.input}'" for state in named)
            found.keeps_states = True
            found.questions.append(
                Question(
                    f"Does the server keep {inputs} between the requests of a sequence?",
                    "yes: requests have a sequence id, and flags for its start and end; leave the "
                    "file as it is",
                    "no: each request sends them; run init again with --no-states",
                )
            )
        others = [state for state in states if not state.named]
        for state in others:
            found.questions.append(
                Question(
                    f"Does output '{state.output}' become input '{state.input}' at the next "
                    f"request of a sequence? {state.evidence}.",
                    "no: each request sends it; leave the file as it is",
                    f"yes: delete input '{state.input}' and output '{state.output}', replace "
                    "dynamic_batching by `sequence_batching { oldest { } }`, and add this line",
                    (Parameter(f"state.{state.input}", state.output, ""),),
                )
            )
        return {state.input: state.output for state in named}

    def _positions(
        self,
        study: Study,
        axes: Sequence[Axis],
        sizes: Mapping[str, int],
        found: Configuration,
    ) -> set[str]:
        """Return the inputs whose positions are generated."""
        generated = set()
        one = study.run(sizes) or {}
        for port in self.graph.inputs:
            own = [axis for axis in axes if {*axis.symbols} & {*port.symbols}]
            if (
                study.contents[port.name] is not Content.POSITIONS
                or len(own) != 1
                or len(port.dims) != 2
                or port.dims[0] not in study.rows
            ):
                continue
            values = study.values(sizes)
            changed = self.graph.run({**values, port.name: np.zeros_like(values[port.name])})
            if changed is None or all(np.array_equal(changed[name], one[name]) for name in one):
                continue
            generated.add(port.name)
            why = (
                f"Named as positions, and confirmed: 0 to {own[0].largest - 1} are accepted, and "
                "the answer depends on them."
            )
            found.parameters.append(Parameter(f"positions.{port.name}", own[0].name, why))
            found.questions.append(
                Question(
                    f"Do all requests count '{port.name}' from 0?",
                    "yes: leave the file as it is",
                    f"no: delete the line `positions.{port.name}`, and add the input with the "
                    "same dims and axes as the ids",
                )
            )
        return generated

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
                note = (
                    f"Values of '{port.name}' must be below a size that follows {axis}: no range."
                )
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
            found.parameters.append(Parameter(f"limit.{axis.name}", str(axis.largest), _line(why)))
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
            found.parameters.append(Parameter("gears.batch", "1", _line(rows.evidence)))


def _fixed(axis: Axis) -> int | str:
    """Return the name of an axis, or its size if it has only one."""
    return axis.name if axis.varies else axis.largest


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _axis_name(symbol: str, ports: Sequence[Port], taken: set[str], *, batched: bool) -> str:
    """Return a name for an axis: its symbol where that is a name, else from the input's type."""
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


def _line(text: str) -> str:
    return " ".join(text.split())
