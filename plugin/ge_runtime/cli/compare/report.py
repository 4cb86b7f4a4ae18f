"""What a comparison found: for people, for programs, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ge_runtime.cli.compare.differences import Difference
from ge_runtime.errors import RuntimeFault
from ge_runtime.memory.plan import aligned_columns

_COLUMNS = ("cosine", "relative", "largest")


@dataclass(frozen=True, slots=True)
class Layer:
    """A tensor inside of the graph, computed from the graph's inputs."""

    place: int
    """Of all that depend on the inputs, in the order in which they are computed."""
    tensor: str
    node: str
    operator: str
    difference: Difference


@dataclass(frozen=True, slots=True)
class First:
    """The first layer that is beyond the limit, while all that it takes is within."""

    layer: Layer
    alone: Difference | None
    """By itself, on inputs that both have; None where it cannot be cut out."""
    inputs: str = "the CPU computed"
    """Which those are."""
    unseen: Sequence[Layer] = ()
    """Directly before it, and told by nothing: it may be one of them that loses the accuracy."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A file on a device against its graph on the CPU."""

    title: str
    inputs: str
    limit: float
    outputs: Mapping[str, Difference]
    layers: Sequence[Layer]
    """Those that were measured."""
    count: int
    """Of all layers."""
    compiled: int
    """Parts of the graph that were compiled."""
    first: First | None
    dumped: bool = False
    """Whether the layers are of the card's dump, and not of compiled parts."""
    untold: Sequence[Layer] = ()
    """Those that the dump does not have."""
    others: Sequence[str] = ()
    """Operators in the dump that are no layer."""

    @property
    def beyond(self) -> bool:
        """Whether an output is."""
        return any(own.beyond(self.limit) for own in self.outputs.values())

    def lines(self) -> list[str]:
        rows = [("output", *_COLUMNS, "")]
        rows += [(name, *self._cells(own)) for name, own in self.outputs.items()]
        lines = [self.title, self.inputs, "", *aligned_columns(rows, "<>>><")]
        if self.layers:
            head = ("place", "tensor", "node", "operator", *_COLUMNS, "")
            table = [
                (str(own.place), own.tensor, own.node, own.operator, *self._cells(own.difference))
                for own in self.layers
            ]
            source = "the card's dump" if self.dumped else f"{self.compiled} parts of the graph"
            told = f"{len(self.layers)} of {self.count} layers, by {source}"
            lines += ["", told, "", *aligned_columns([head, *table], "><<<>>><")]
        if self.untold:
            untold = ", ".join(f"{own.node} ({own.operator})" for own in self.untold)
            lines += ["", f"without a counterpart on the card, fused or folded: {untold}"]
        if self.others:
            lines += ["", f"on the card alone: {', '.join(self.others)}"]
        return [*lines, "", *self._verdict()]

    def as_json(self) -> dict[str, object]:
        return {
            "title": self.title,
            "inputs": self.inputs,
            "limit": self.limit,
            "beyond": self.beyond,
            "outputs": {name: _json(own) for name, own in self.outputs.items()},
            "layers": [self._layer_json(own) for own in self.layers],
            "layer_count": self.count,
            "compiled": self.compiled,
            "dumped": self.dumped,
            "untold": [own.tensor for own in self.untold],
            "others": [*self.others],
            "first": self.first
            and {
                **self._layer_json(self.first.layer),
                "alone": self.first.alone and _json(self.first.alone),
                "unseen": [own.tensor for own in self.first.unseen],
            },
        }

    def draw(self, path: Path) -> None:
        """Write a PNG. Raises RuntimeFault without matplotlib, OSError."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise RuntimeFault("a plot needs matplotlib: pip install 'ge-runtime[plot]'") from error
        figure = Figure((8, 3.6), layout="constrained")
        axes = figure.subplots()
        shown = [own for own in self.layers if math.isfinite(own.difference.relative)]
        infinite = [own.place for own in self.layers if own not in shown]
        floor = min(
            (own.difference.relative for own in shown if own.difference.relative), default=1
        )
        places = [own.place for own in shown]
        # A logarithm has no 0: what is equal lies at the bottom.
        errors = [max(own.difference.relative, floor / 10) for own in shown]
        axes.semilogy(places, errors, "o-", color="tab:blue", markersize=4, label="relative error")
        for place in infinite:
            axes.axvline(place, color="tab:red", linewidth=1, linestyle=":")
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
        if self.first is None:
            if not self.beyond:
                return [f"all outputs are within {self.limit:g}"]
            names = [name for name, own in self.outputs.items() if own.beyond(self.limit)]
            return [f"beyond {self.limit:g}: {', '.join(names)}"]
        layer, alone = self.first.layer, self.first.alone
        lines = [
            f"first layer beyond {self.limit:g}: {layer.node} ({layer.operator}), tensor "
            f"{layer.tensor}, relative error {layer.difference.relative:.3g}; "
            + ("all that it takes is within" if not self.first.unseen else "all before is within")
        ]
        if self.first.unseen:
            unseen = ", ".join(f"{own.node} ({own.operator})" for own in self.first.unseen)
            lines.append(f"or one that the card has fused with it: {unseen}")
        if alone is not None:
            lines.append(
                f"by itself, on the inputs that {self.first.inputs}: {alone.relative:.3g}"
                + ("" if alone.beyond(self.limit) else ", so it makes more of small errors before")
            )
        return lines

    def _cells(self, own: Difference) -> tuple[str, str, str, str]:
        cosine = "-" if math.isnan(own.cosine) else f"{own.cosine:.6f}"
        largest = "-" if math.isnan(own.largest) else f"{own.largest:.3g}"
        return cosine, f"{own.relative:.3g}", largest, "beyond" if own.beyond(self.limit) else ""

    def _layer_json(self, own: Layer) -> dict[str, object]:
        names = {"place": own.place, "tensor": own.tensor, "node": own.node}
        return {**names, "operator": own.operator, **_json(own.difference)}


def _json(own: Difference) -> dict[str, float | None]:
    """JSON has no infinity, and no nan."""
    return {name: value if math.isfinite(value) else None for name, value in own._asdict().items()}
