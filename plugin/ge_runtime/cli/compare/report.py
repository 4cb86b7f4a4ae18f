"""The difference of two tensors, and the result of a comparison as text, JSON and a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ge_runtime.errors import RuntimeFault
from ge_runtime.memory.plan import aligned_columns
from ge_runtime.specs import Array


class Difference(NamedTuple):
    """The difference between two arrays of one tensor."""

    cosine: float
    """Cosine of the angle between the arrays; NaN for types other than floating point."""
    relative: float
    """Norm of the difference, divided by the norm of the CPU's array. For types other than floating
    point, the share of different elements. Infinite if shapes or dtypes differ, or if only one of
    two elements is NaN or the same infinity."""
    largest: float
    """Largest difference of two elements; NaN for booleans."""

    def exceeds(self, limit: float) -> bool:
        """Return whether `relative` is above the limit or NaN."""
        return not self.relative <= limit


UNKNOWN = Difference(math.nan, math.nan, math.nan)


def difference(found: Array, expected: Array) -> Difference:
    """Compare two arrays. NaN equals NaN, and an infinity equals itself."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return Difference(math.nan, math.inf, math.inf)
    if found.size == 0:
        return Difference(1.0, 0.0, 0.0)
    if found.dtype.kind != "f":
        share = float(np.mean(found != expected))
        if found.dtype.kind == "b":
            return Difference(math.nan, share, math.nan)
        errors = np.abs(found.astype(np.float64) - expected.astype(np.float64))
        return Difference(math.nan, share, float(errors.max()))
    one, other = found.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    finite = np.isfinite(one) & np.isfinite(other)
    equal = (one == other) | (np.isnan(one) & np.isnan(other))
    if not (finite | equal).all():
        return Difference(_cosine(one[finite], other[finite]), math.inf, math.inf)
    one, other = one[finite], other[finite]
    errors = np.abs(one - other)
    norm = float(np.linalg.norm(other))
    distance = float(np.linalg.norm(errors))
    relative = distance / norm if norm else (math.inf if distance else 0.0)
    return Difference(_cosine(one, other), relative, float(errors.max(initial=0.0)))


def _cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    if norms:
        return float(np.dot(one, other)) / norms
    return 1.0 if np.array_equal(one, other) else 0.0


_COLUMNS = ("cosine", "relative", "largest")


@dataclass(frozen=True, slots=True)
class Layer:
    """A tensor inside the graph, computed from the graph's inputs."""

    place: int
    """Index among all tensors that depend on the inputs, in computation order."""
    tensor: str
    node: str
    operator: str
    difference: Difference

    def __str__(self) -> str:
        return f"{self.node} ({self.operator})"


@dataclass(frozen=True, slots=True)
class First:
    """The first layer that exceeds the limit while all its inputs are within it."""

    layer: Layer
    alone: Difference | None
    """The layer's own error, on equal inputs; None if the layer cannot be computed alone."""
    inputs: str = "CPU"
    """Source of the inputs for `alone`: CPU or card."""
    unmeasured: Sequence[Layer] = ()
    """Unmeasured layers directly before `layer`; one of them may cause the error."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing a compiled file on a device with its graph on the CPU."""

    title: str
    inputs: str
    """Description of the inputs."""
    limit: float
    outputs: Mapping[str, Difference]
    layers: Sequence[Layer] = ()
    """The measured layers."""
    count: int = 0
    """Number of all layers."""
    compiled: int = 0
    """Number of compiled parts of the graph."""
    first: First | None = None
    dumped: bool = False
    """True if the layers are from the card's dump, False if they are from compiled parts."""
    unmatched_layers: Sequence[Layer] = ()
    """Layers that are not in the dump."""
    unmatched_operators: Sequence[str] = ()
    """Operators of the dump that are not in the graph."""

    @property
    def exceeds_limit(self) -> bool:
        """True if any output exceeds the limit."""
        return any(each.exceeds(self.limit) for each in self.outputs.values())

    def lines(self) -> list[str]:
        """Return the report as text."""
        rows = [("output", *_COLUMNS, "")]
        rows += [(name, *self._cells(each)) for name, each in self.outputs.items()]
        lines = [self.title, self.inputs, "", *aligned_columns(rows, "<>>><")]
        if self.layers:
            head = ("place", "tensor", "node", "operator", *_COLUMNS, "")
            table = [
                (str(own.place), own.tensor, own.node, own.operator, *self._cells(own.difference))
                for own in self.layers
            ]
            source = "the card's dump" if self.dumped else f"{self.compiled} parts of the graph"
            count = f"{len(self.layers)} of {self.count} layers, by {source}"
            lines += ["", count, "", *aligned_columns([head, *table], "><<<>>><")]
        if self.unmatched_layers:
            layers = ", ".join(map(str, self.unmatched_layers))
            lines += ["", f"not found on the card, because fused or folded: {layers}"]
        if self.unmatched_operators:
            lines += ["", f"only on the card: {', '.join(self.unmatched_operators)}"]
        return [*lines, "", *self._verdict()]

    def as_json(self) -> dict[str, object]:
        """Return the report as values for JSON."""
        first = self.first
        return {
            "title": self.title,
            "inputs": self.inputs,
            "limit": self.limit,
            "beyond": self.exceeds_limit,
            "outputs": {name: _json(each) for name, each in self.outputs.items()},
            "layers": [_layer_json(layer) for layer in self.layers],
            "layer_count": self.count,
            "compiled": self.compiled,
            "dumped": self.dumped,
            "unmatched_layers": [layer.tensor for layer in self.unmatched_layers],
            "unmatched_operators": [*self.unmatched_operators],
            "first": first
            and {
                **_layer_json(first.layer),
                "alone": first.alone and _json(first.alone),
                "unmeasured": [layer.tensor for layer in first.unmeasured],
            },
        }

    def draw(self, path: Path) -> None:
        """Write a PNG. Raises RuntimeFault without matplotlib, and OSError."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise RuntimeFault(
                "--plot: matplotlib is not installed. `pip install 'ge-runtime[plot]'`"
            ) from error
        figure = Figure((8, 3.6), layout="constrained")
        axes = figure.subplots()
        finite = [each for each in self.layers if math.isfinite(each.difference.relative)]
        floor = min((e.difference.relative for e in finite if e.difference.relative), default=1)
        places = [each.place for each in finite]
        # A logarithmic axis has no 0: layers without an error are drawn at the bottom.
        errors = [max(each.difference.relative, floor / 10) for each in finite]
        axes.semilogy(places, errors, "o-", color="tab:blue", markersize=4, label="relative error")
        for layer in self.layers:
            if not math.isfinite(layer.difference.relative):
                axes.axvline(layer.place, color="tab:red", linewidth=1, linestyle=":")
        axes.axhline(self.limit, color="tab:orange", linestyle="--", linewidth=1, label="limit")
        if self.first is not None:
            layer = self.first.layer
            axes.axvline(layer.place, color="tab:red", linewidth=1, label=f"first: {layer.node}")
        axes.set_xlabel("place of the layer in the graph")
        axes.set_ylabel("relative error")
        axes.set_title(self.title, fontsize=9, loc="left")
        axes.legend(fontsize=8)
        figure.savefig(path, format="png", dpi=130)

    def _verdict(self) -> list[str]:
        if not self.exceeds_limit and self.first is None:
            return [f"all outputs are within {self.limit:g}"]
        if self.first is None:
            names = [name for name, each in self.outputs.items() if each.exceeds(self.limit)]
            return [f"beyond {self.limit:g}: {', '.join(names)}"]
        layer, alone, unmeasured = self.first.layer, self.first.alone, self.first.unmeasured
        before = "all measured layers before it" if unmeasured else "all its inputs"
        lines = [
            f"first layer beyond {self.limit:g}: {layer}, tensor {layer.tensor}, relative error "
            f"{layer.difference.relative:.3g}; {before} are within the limit"
        ]
        if unmeasured:
            layers = ", ".join(map(str, unmeasured))
            lines.append(f"or a layer that the card has fused with it: {layers}")
        if alone is not None:
            line = f"computed alone, on the {self.first.inputs}'s inputs: {alone.relative:.3g}"
            amplifies = "" if alone.exceeds(self.limit) else ", so it amplifies earlier errors"
            lines.append(line + amplifies)
        return lines

    def _cells(self, own: Difference) -> tuple[str, str, str, str]:
        cosine = "-" if math.isnan(own.cosine) else f"{own.cosine:.6f}"
        largest = "-" if math.isnan(own.largest) else f"{own.largest:.3g}"
        return cosine, f"{own.relative:.3g}", largest, "beyond" if own.exceeds(self.limit) else ""


def _layer_json(own: Layer) -> dict[str, object]:
    names = {"place": own.place, "tensor": own.tensor, "node": own.node}
    return {**names, "operator": own.operator, **_json(own.difference)}


def _json(own: Difference) -> dict[str, float | None]:
    """Return the values, with None for infinity and NaN, which JSON lacks."""
    return {name: value if math.isfinite(value) else None for name, value in own._asdict().items()}
