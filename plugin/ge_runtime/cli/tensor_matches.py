"""Describe how config.pbtxt uses the inputs and outputs of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ge_runtime.config import BatchAxes, RuntimeConfig
from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.specs import TensorSpec

_NONE: Final = "-"


class TensorMatch(NamedTuple):
    """A tensor of the graph, of config.pbtxt, or of both."""

    name: str
    graph: str
    """Type and dims in the graph; `-` if the graph has no such tensor."""
    config: str
    """Use in config.pbtxt."""


TENSOR_HEADER: Final = TensorMatch("", "in the graph", "in config.pbtxt")


def inputs_of(config: RuntimeConfig, signature: Signature) -> list[TensorMatch]:
    """Return the graph's inputs with their sources, then other inputs of requests."""
    fed, axes = _inputs(config), config.batch_axes
    return _matched(
        signature.inputs, _with_row_positions(fed, axes), _other_inputs(config), "nothing"
    )


def outputs_of(config: RuntimeConfig, signature: Signature) -> list[TensorMatch]:
    """Return the graph's outputs with their uses, then outputs from other sources."""
    uses = {spec.name: f"output {spec}" for spec in config.outputs}
    for source, output in config.states.outputs.items():
        words = f"the next state of '{source}'"
        uses[output] = f"{uses[output]}, {words}" if output in uses else words
    others = {spec.name: f"output {spec}, by the model's own code" for spec in config.derived}
    others |= {
        name: f"output, the request's '{source}'" for name, source in config.passthrough.items()
    }
    uses = _with_row_positions(uses, config.batch_axes)
    return _matched(signature.outputs, uses, others, "nothing: not an output")


def _with_row_positions(words: Mapping[str, str], axes: BatchAxes) -> dict[str, str]:
    """Add the position of the rows if it is not the first dim."""
    given = {
        name: "no rows" if at is None else f"rows along dim {at}" for name, at in axes.given.items()
    }
    return {name: f"{own}, {given[name]}" if name in given else own for name, own in words.items()}


def _matched(
    tensors: Sequence[GraphTensor],
    declared: Mapping[str, str],
    others: Mapping[str, str],
    otherwise: str,
) -> list[TensorMatch]:
    """Return the graph's tensors with their declarations, then tensors that the graph lacks.

    `otherwise` is the text for a tensor of the graph without a declaration.
    """
    names = {tensor.name for tensor in tensors}
    return [
        *(TensorMatch(t.name, str(t), declared.get(t.name, otherwise)) for t in tensors),
        *(
            TensorMatch(n, _NONE, words)
            for n, words in declared.items()
            if n not in names | {*others}
        ),
        *(TensorMatch(n, _NONE, words) for n, words in others.items() if n not in names),
    ]


def _inputs(config: RuntimeConfig) -> dict[str, str]:
    """Return the source of each graph input by name."""
    fed = {
        spec.name: _source(config, spec)
        + (f", padded with {config.pads.get(spec.name, 0)}" if spec.axes else "")
        for spec in config.sources
    }
    fed |= {name: f"mask of {', '.join(map(str, axes))}" for name, axes in config.masks.items()}
    fed |= {name: f"true lengths along {axis}" for name, axis in config.lengths.items()}
    fed |= {name: f"positions along {axis}" for name, axis in config.positions.items()}
    fed |= {name: f"where rows begin along {axis}" for name, axis in config.offsets.items()}
    fed |= {
        name: f"state of the sequence, '{output}' of the execution before"
        for name, output in config.states.outputs.items()
    }
    fed |= {name: f"constant {', '.join(texts)}" for name, texts in config.constants.items()}
    for batch_input in config.batch_inputs:
        words = f"{batch_input.kind.value} of {batch_input.source}"
        fed |= dict.fromkeys(batch_input.targets, words)
    return fed


def _other_inputs(config: RuntimeConfig) -> dict[str, str]:
    """Return the uses of request inputs that need not be inputs of the graph."""
    used: dict[str, str] = {}
    if config.prepared:
        used |= {spec.name: f"input {spec}, for the model's own code" for spec in config.inputs}
    specs = {spec.name: spec for spec in (*config.inputs, *config.sources)}
    for output, name in config.passthrough.items():
        used[name] = f"input {specs[name]}, returned as output '{output}'"
    for axis, name in config.axis_lengths.items():
        used[name] = f"{_source(config, specs[name])}, true lengths along {axis}"
    return used


def _source(config: RuntimeConfig, spec: TensorSpec) -> str:
    """Describe an input of a batch and its source."""
    words = f"{spec}, by the model's own code" if config.prepared else f"input {spec}"
    return f"{words}, {config.ranges[spec.name]}" if spec.name in config.ranges else words
