"""The configuration that was found for a graph: config.pbtxt, and the evidence for each line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ge_runtime.specs import UNKNOWN, DType


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or an output of config.pbtxt."""

    name: str
    dtype: DType
    dims: tuple[int, ...]
    ragged: bool = False
    optional: bool = False
    label_filename: str = ""


def written_dims(dims: Sequence[int | str]) -> tuple[int, ...]:
    """Return dims as in config.pbtxt: -1 for a named dim."""
    return tuple(UNKNOWN if isinstance(dim, str) else dim for dim in dims)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of config.pbtxt and why it has its value."""

    key: str
    value: str
    evidence: str

    @property
    def family(self) -> str:
        """The key up to its first dot."""
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        """The key behind its first dot: the name of a tensor or an axis."""
        return self.key.partition(".")[2]


@dataclass(frozen=True, slots=True)
class Question:
    """A decision that experiments cannot make; comments of config.pbtxt show its two choices."""

    text: str
    current: str
    """The choice that the written configuration makes."""
    other: str
    added: tuple[Parameter, ...] = ()
    """Parameters of the other choice, written as comments."""


STRATEGIES: Final = ("latency", "throughput")
"""Goals that batching can be configured for."""

BATCHING_FIELDS: Final = ("preferred_batch_size", "max_queue_delay_microseconds")
"""The fields of `dynamic_batching` that a strategy sets."""


def batching_fields(strategy: str, max_batch_size: int) -> tuple[str, ...]:
    """Return the fields of `dynamic_batching` for a strategy; no fields without a strategy."""
    if strategy == "throughput":
        # npu_ge's manual advises 10 ms for high throughput.
        sizes = f"preferred_batch_size: [ {max_batch_size} ]"
        return (sizes, "max_queue_delay_microseconds: 10000")
    return ("max_queue_delay_microseconds: 0",) if strategy else ()


def early_answers(strategy: str) -> str:
    """Return the value of `early_answers` for a strategy."""
    return "false" if strategy == "throughput" else "true"


@dataclass(slots=True)
class Configuration:
    """A configuration; `text` is its config.pbtxt."""

    max_batch_size: int
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Evidence for findings that are not parameters."""
    questions: list[Question] = field(default_factory=list)
    keeps_states: bool = False
    """True if requests belong to sequences."""
    strategy: str = ""
    """One of STRATEGIES, or "" for the defaults."""

    def add(self, key: str, value: str, evidence: str) -> None:
        """Add a parameter."""
        self.parameters.append(Parameter(key, value, evidence))

    def text(self, source: str) -> str:
        """Return config.pbtxt; `source` names the graph in its first comment."""
        lines = [f"# Written by `ge-runtime init {source}`.", 'backend: "python"']
        lines += [f"max_batch_size: {self.max_batch_size}", ""]
        lines += [f"# {note}" for note in self.notes]
        lines += tensor_section("input", self.inputs)
        lines += tensor_section("output", self.outputs)
        if self.keeps_states:
            most = max(self.max_batch_size, _SEQUENCES_LEAST)
            lines.append(f"sequence_batching {{ oldest {{ max_candidate_sequences: {most} }} }}")
        elif self.max_batch_size > 1:
            fields = batching_fields(self.strategy, self.max_batch_size)
            lines.append(" ".join(("dynamic_batching {", *fields, "}")))
        parameters = list(self.parameters)
        if self.strategy:
            chosen = early_answers(self.strategy)
            parameters.append(Parameter("early_answers", chosen, f"--strategy {self.strategy}"))
        evidence = ""
        for own in sorted(parameters, key=_order):
            if own.evidence and own.evidence != evidence:
                lines += ["", f"# {own.evidence}"]
            evidence = own.evidence
            lines.append(_parameter(own.key, own.value))
        for question in self.questions:
            lines += ["", f"# Question: {question.text}"]
            lines += [f"#   a) {question.current}.", f"#   b) {question.other}."]
            lines += [f"# {_parameter(own.key, own.value)}" for own in question.added]
        return "\n".join(lines) + "\n"


MARKS: Final = ("mask", "lengths")
"""Families of parameters that mark the end of the data."""
_SEQUENCES_LEAST: Final = 16
"""Least `max_candidate_sequences`, also for a model that executes one request at a time."""
_FAMILIES: Final = (
    *("axes", "limit", "min", "align", "mask", "lengths", "positions", "state", "constant"),
    *("range", "batch_axis", "pad", "padding", "gears", "warmup", "cost"),
)
"""The order in which the parameters are written."""


def _order(parameter: Parameter) -> tuple[int, str]:
    # Families that are never derived come last; they are from the given config.pbtxt.
    return [*_FAMILIES, parameter.family].index(parameter.family), parameter.evidence


def tensor_section(kind: str, tensors: Sequence[Tensor]) -> list[str]:
    """Return the lines of the field `kind` of config.pbtxt, "input" or "output"."""
    lines = [f"{kind} ["]
    for at, tensor in enumerate(tensors):
        dims = ", ".join(map(str, tensor.dims or (1,)))
        extra = "" if tensor.dims else " reshape { shape: [ ] }"
        extra += " allow_ragged_batch: true" if tensor.ragged else ""
        extra += " optional: true" if tensor.optional else ""
        extra += f' label_filename: "{tensor.label_filename}"' if tensor.label_filename else ""
        comma = "," if at + 1 < len(tensors) else ""
        lines.append(
            f'  {{ name: "{_escaped(tensor.name)}" data_type: {tensor.dtype.config_name} '
            f"dims: [ {dims} ]{extra} }}{comma}"
        )
    return [*lines, "]"]


def _parameter(key: str, value: str) -> str:
    value = f'value {{ string_value: "{_escaped(value)}" }}'
    return f'parameters {{ key: "{_escaped(key)}" {value} }}'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
