"""Derives the configuration of an ONNX graph from its signature and from executions."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ge_runtime.discovery.configuration import Configuration, Parameter, Tensor
from ge_runtime.discovery.graph import Graph, Port
from ge_runtime.discovery.limits import find_ids, find_limits, fit_together
from ge_runtime.discovery.masks import candidates, confirm
from ge_runtime.discovery.outputs import Unfitted, fit
from ge_runtime.discovery.study import Axis, Content, Study, at_limits, first_sizes, grouped
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import ROWS, Array, DType

_SAMPLING_RATES: Final = ("sr", "sample_rate", "sampling_rate")
_MOST_ELEMENTS: Final = 2**24
"""Elements of all rows of the largest input: bounds max_batch_size."""


class Undecided(ArtifactFault):
    """The graph cannot be configured without an answer from the user."""


@dataclass(slots=True)
class Rows:
    """The dims that count the rows of a graph."""

    symbols: tuple[str, ...] = ()
    """Symbols of inputs that have the number of rows."""
    inputs: dict[str, int | None] = field(default_factory=dict)
    """Maps each input to its dim of rows; None if it has no rows."""
    outputs: dict[str, int | None] = field(default_factory=dict)
    fixed: int = 0
    """The only number of rows that the graph executes; 0 if it is free."""
    evidence: str = ""

    @property
    def batched(self) -> bool:
        """True if the graph has rows."""
        return bool(self.inputs)


@dataclass(slots=True)
class Discovery:
    """One derivation. For one thread.

    Attributes:
        graph: The open graph.
        constants: Graph input to the value that the user gave.
        progress: Called with a line for each step.
    """

    graph: Graph
    max_batch: int
    constants: Mapping[str, str] = field(default_factory=dict)
    progress: Callable[[str], None] = lambda line: None
    study: Study = field(init=False)
    """The experiments of the last configuration."""

    def configuration(self, *, batched: bool = True) -> Configuration:
        """Return the configuration.

        Args:
            batched: False to treat the first dim of the inputs as an axis, not as rows.

        Raises:
            Undecided: A decision needs the user; the text has the choices.
            ArtifactFault: The graph failed at all sizes that were tried.
        """
        study = self.study = Study(self.graph)
        for port in self.graph.inputs:
            if port.dtype is DType.BYTES:
                raise Undecided(
                    f"input '{port.name}': found texts, expected numbers; write config.pbtxt by "
                    "hand, or tokenize in model.py"
                )
        constants = self._constants(study)
        self.progress("rows")
        if batched:
            sizes, rows = self._rows(study)
        else:
            sizes, rows = first_sizes(study, ()) or {}, Rows(evidence="Rows: none.")
        study.rows = rows.symbols
        self.progress("axes")
        axes = self._axes(study, sizes, rows)
        for axis in axes:
            self.progress(f"limits of {axis.name}")
            find_limits(study, axis, sizes)
        fit_together(study, axes, sizes)
        self.progress("outputs")
        relations = self._relations(study, axes, sizes, rows)
        found = Configuration(self._max_batch(study, axes, sizes, rows))
        found.notes.append(rows.evidence)
        generated = self._marks(study, axes, sizes, relations, found, rows)
        self.progress("ids")
        find_ids(study, sizes)
        self._inputs(study, axes, rows, generated, found, constants)
        self._outputs(rows, relations, found)
        self._limits(axes, study, rows, found)
        return found

    def _constants(self, study: Study) -> dict[str, str]:
        """Return the inputs without dims, and their values. Raises Undecided."""
        found = {}
        for port in self.graph.inputs:
            if port.dims and port.name not in self.constants:
                continue
            value = self.constants.get(port.name)
            if value is None and port.name.lower() in _SAMPLING_RATES:
                value = "16000"
            if value is None:
                raise Undecided(
                    f"input '{port.name}' ({port.dtype.value}): found a single number for the "
                    f"whole execution; give its value with --constant {port.name}=VALUE"
                )
            found[port.name] = value
            study.constants[port.name] = float(value)
        return found

    def _row_symbols(self) -> list[tuple[str, ...]]:
        """Return the symbols that may count rows, the likeliest first.

        They are the first dims of the inputs, else a symbol that several inputs have at any place.
        """
        ports = [port for port in self.graph.inputs if port.symbols]
        firsts = (port.dims[0] for port in ports)
        likeliest = tuple(dict.fromkeys(dim for dim in firsts if isinstance(dim, str)))
        common = [
            (symbol,)
            for port in ports[:1]
            for symbol in port.symbols
            if all(symbol in other.symbols for other in ports) and (symbol,) != likeliest
        ]
        return [likeliest, *common] if likeliest else [()]

    def _rows(self, study: Study) -> tuple[dict[str, int], Rows]:
        """Find sizes at which the graph executes, and how it counts rows. Raises Undecided."""
        first: tuple[dict[str, int], Rows] | None = None
        for guessed in self._row_symbols():
            sizes = first_sizes(study, guessed)
            if sizes is None:
                continue
            rows = (
                self._counted(study, sizes, guessed) if guessed else self._fixed_rows(study, sizes)
            )
            # Outputs that do not count these rows are reasons to try another symbol first.
            if first is None or (rows.batched and not first[1].batched):
                first = sizes, rows
            if rows.batched and None not in rows.outputs.values():
                return sizes, rows
        if first is None:
            raise Undecided(
                "found no sizes at which the graph executes with random inputs; ONNX Runtime's "
                f"text: {self.graph.last_error}"
            )
        return first

    def _counted(self, study: Study, sizes: Mapping[str, int], guessed: Sequence[str]) -> Rows:
        """Determine by executions with more rows which dims of outputs count them."""
        inputs = {
            port.name: next((at for at, dim in enumerate(port.dims) if dim in guessed), None)
            for port in self.graph.inputs
            if port.name not in study.constants
        }
        one = study.run(sizes) or {}
        for count in (2, 3):
            more = study.run({**sizes, **dict.fromkeys(guessed, count)})
            if more is None:
                continue
            outputs = {name: _multiplied(one[name], more[name], count) for name in one}
            if all(at is None for at in outputs.values()):
                return Rows(evidence="Rows: none; no dim of an output follows the inputs'.")
            evidence = f"Rows: with {count} rows outputs have {count} times as many."
            return Rows(tuple(guessed), inputs, outputs, evidence=evidence)
        if any(array.shape[:1] != (1,) for array in one.values()):
            return Rows(evidence="Rows: none; the graph fails with 2 rows and with 3.")
        return Rows(
            tuple(guessed),
            inputs,
            dict.fromkeys(one, 0),
            fixed=1,
            evidence="Rows: the graph fails with 2 rows and with 3; each is executed alone. "
            f"ONNX Runtime's text: {self.graph.last_error}",
        )

    def _fixed_rows(self, study: Study, sizes: Mapping[str, int]) -> Rows:
        """Return the rows of a graph whose inputs begin with fixed sizes."""
        ports = [port for port in self.graph.inputs if port.name not in study.constants]
        one = study.run(sizes) or {}
        firsts = {port.dims[0] for port in ports if port.dims}
        results = {array.shape[0] if array.ndim else 0 for array in one.values()}
        if len(firsts) == 1 and firsts == results:
            (count,) = firsts
            return Rows(
                (),
                {port.name: 0 for port in ports},
                dict.fromkeys(one, 0),
                fixed=int(count),
                evidence=f"Rows: the graph has a fixed batch of {count}.",
            )
        return Rows(evidence="Rows: none; the first dims are not one batch.")

    def _axes(self, study: Study, sizes: Mapping[str, int], rows: Rows) -> list[Axis]:
        """Return the axes, with names."""
        taken = {ROWS}
        axes = []
        for symbols in grouped(study, sizes, rows.symbols):
            name = _axis_name(symbols[0], self.graph.inputs, taken)
            taken.add(name)
            axes.append(Axis(name, symbols, sizes[symbols[0]]))
        study.measured = axes[0].symbols if axes else ()
        return axes

    def _relations(
        self, study: Study, axes: Sequence[Axis], sizes: Mapping[str, int], rows: Rows
    ) -> dict[str, tuple[int | str, ...]]:
        """Return the dims of each output without rows. Raises Undecided."""
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
                    raise Undecided(
                        f"output '{port.name}', dim {at}: {error}; write the relation by hand "
                        "(docs/runtime.md, axes.<output>)"
                    ) from error
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

    def _inputs(
        self,
        study: Study,
        axes: Sequence[Axis],
        rows: Rows,
        generated: set[str],
        found: Configuration,
        constants: Mapping[str, str],
    ) -> None:
        by_symbol = {symbol: axis.name for axis in axes for symbol in axis.symbols}
        for name, value in constants.items():
            why = (
                "Given."
                if name in self.constants
                else "Assumed from the name; --constant changes it."
            )
            found.parameters.append(Parameter(f"constant.{name}", value, why))
        for port in self.graph.inputs:
            if port.name in constants:
                continue
            at = rows.inputs.get(port.name)
            if rows.batched and at != 0:
                text = "none" if at is None else str(at)
                found.parameters.append(Parameter(f"batch_axis.{port.name}", text, rows.evidence))
            if port.name in generated:
                continue
            dims = [dim for place, dim in enumerate(port.dims) if not rows.batched or place != at]
            free = [by_symbol[dim] for dim in dims if isinstance(dim, str)]
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

    def _outputs(
        self,
        rows: Rows,
        relations: Mapping[str, tuple[int | str, ...]],
        found: Configuration,
    ) -> None:
        for port in self.graph.outputs:
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
            at = rows.outputs.get(port.name)
            if rows.batched and at != 0:
                text = "none" if at is None else str(at)
                found.parameters.append(Parameter(f"batch_axis.{port.name}", text, rows.evidence))

    def _limits(self, axes: Sequence[Axis], study: Study, rows: Rows, found: Configuration) -> None:
        for axis in axes:
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


def _multiplied(few: Array, many: Array, count: int) -> int | None:
    """Return the dim that is `count` times as large in `many`."""
    sizes = zip(few.shape, many.shape, strict=False)
    return next((at for at, (one, more) in enumerate(sizes) if more == count * one), None)


def _axis_name(symbol: str, ports: Sequence[Port], taken: set[str]) -> str:
    """Return a name for an axis: its symbol where that is a name, else from the input's type."""
    name = re.sub(r"\W+", "_", symbol).strip("_").lower()
    generic = "." in symbol or symbol.startswith(
        ("unk__", "dynamic_axes", "DynamicDimension", "p2o")
    )
    if generic or not name.isidentifier() or keyword.iskeyword(name) or len(name) == 1:
        port = next(port for port in ports if symbol in port.dims)
        place = port.dims.index(symbol)
        if port.dtype.is_integer and len(port.symbols) <= 2:
            name = "tokens"
        elif len(port.dims) == 4:
            channels_last = isinstance(port.dims[-1], int) and port.dims[-1] <= 4
            name = "width" if place == (2 if channels_last else 3) else "height"
        elif len(port.dims) <= 2:
            name = "samples"
        else:
            name = "frames"
    if name in ("min", "max"):
        name += "_size"
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique


def _line(text: str) -> str:
    return " ".join(text.split())
