"""Finds by experiments the outputs that become inputs of the next request of a sequence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ge_runtime.discovery.configuration import Configuration, Parameter, Question
from ge_runtime.discovery.graph import Graph, Port
from ge_runtime.discovery.study import Study

_WORDS: Final = re.compile(
    "in|out|input|output|new|next|past|present|prev|previous|cur|current|updated|init|initial|final"
    "|last|old"
)
"""Words that distinguish the names of a state's input and output."""
_STEPS: Final = 4
"""Number of consecutive executions whose answers must be finite."""


@dataclass(frozen=True, slots=True)
class State:
    """An input that gets an output of the previous request."""

    input: str
    output: str
    named: bool
    """True if the names show that input and output belong together."""

    @property
    def evidence(self) -> str:
        """The results of the experiments."""
        return (
            f"'{self.input}' starts as 0 and changes the answer; '{self.output}' has its type and "
            f"dims and depends on the data and on '{self.input}'; {_STEPS} steps stay finite"
        )


def decide_states(study: Study, found: Configuration) -> dict[str, str]:
    """Return the states that are kept between requests: the output of each input."""
    states = _find_states(study)
    named = [state for state in states if state.named]
    for state in named:
        why = f"Names, and confirmed by experiment: {state.evidence}."
        found.add(f"state.{state.input}", state.output, why)
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


def named_pairs(graph: Graph) -> list[tuple[str, str]]:
    """Return pairs of an input and an output whose types, dims and names suggest a state."""
    return [
        (given.name, result.name)
        for given in graph.inputs
        for result in graph.outputs
        if _fits(given, result) and _belong(given.name, result.name)
    ]


def _find_states(study: Study) -> list[State]:
    """Return the states of a graph that experiments do not reject.

    A state has fixed dims except its rows, is 0 at first, changes other outputs, and its next value
    depends on the data and on its value. The graph must have other inputs and other outputs.
    """
    named = dict(named_pairs(study.graph))
    shapes = study.output_shapes(study.sizes) or {}
    pairs = [
        (given, result)
        for given in study.graph.inputs
        for result in study.graph.outputs
        if _fits(given, result)
        and given.name not in study.constants
        and all(
            isinstance(dim, int) or at == study.rows.inputs.get(given.name)
            for at, dim in enumerate(given.dims)
        )
        and shapes.get(result.name) == given.shape(study.sizes)
        and named.get(given.name, result.name) == result.name
    ]
    # If names do not match, input and output must be each other's only possible partners.
    chosen = [
        (given, result)
        for given, result in pairs
        if given.name in named
        or (
            sum(own is given for own, _ in pairs) == 1
            and sum(other is result for _, other in pairs) == 1
        )
    ]
    inputs = {given.name for given, _ in chosen}
    results = {result.name for _, result in chosen}
    if not chosen or len(inputs) == len(study.graph.inputs) - len(study.constants):
        return []
    if len(results) == len(study.graph.outputs) or len(results) < len(chosen):
        return []
    # A small request may not change a state.
    larger = study.sizes | {
        one: min(4 * axis.base, axis.largest) // axis.multiple * axis.multiple
        for axis in study.axes
        for one in axis.symbols
    }
    return [
        State(given.name, result.name, given.name in named)
        for given, result in chosen
        if any(
            _confirmed(study, sizes, given, result, inputs, results)
            for sizes in (study.sizes, larger)
        )
    ]


def _confirmed(
    study: Study,
    sizes: Mapping[str, int],
    given: Port,
    result: Port,
    inputs: set[str],
    results: set[str],
) -> bool:
    """Return whether the pair behaves as a state in all experiments."""
    values = study.values(sizes, seed=1)
    values |= {name: np.zeros_like(values[name]) for name in inputs}
    first = study.graph.run(values)
    if first is None:
        return False
    changed = study.graph.run({**values, given.name: first[result.name]})
    other = study.graph.run({**study.values(sizes, seed=2), **{n: values[n] for n in inputs}})
    if changed is None or other is None:
        return False
    outputs = [port.name for port in study.graph.outputs if port.name not in results]
    if all(np.array_equal(first[name], changed[name]) for name in outputs):
        return False  # no answer depends on the input
    if np.array_equal(first[result.name], other[result.name]):
        return False  # the output does not depend on the data
    if np.array_equal(first[result.name], changed[result.name]):
        return False  # the output does not depend on the input
    state = first
    for seed in range(_STEPS):
        values = {**study.values(sizes, seed=seed), given.name: state[result.name]}
        following = study.graph.run(values)
        if following is None or not np.isfinite(following[result.name]).all():
            return False
        state = following
    return True


def _fits(given: Port, result: Port) -> bool:
    """Return whether both ports may have equal types and dims, with at most one free dim."""
    if given.dtype is not result.dtype or given.dtype.is_integer or not given.dims:
        return False
    if len(given.symbols) > 1 or (result.dims and len(result.dims) != len(given.dims)):
        return False
    pairs = zip(given.dims, result.dims, strict=False)
    fixed = (
        (one, other) for one, other in pairs if isinstance(one, int) and isinstance(other, int)
    )
    return all(one == other for one, other in fixed)


def _belong(given: str, result: str) -> bool:
    """Return whether the names are a pair such as `h0` and `hn`."""
    one, other = _stem(given), _stem(result)
    if not re.search("[a-z]", one):
        return False
    return other in (one, f"{one}n", f"{one}out") or (
        one.endswith("0") and other in (f"{one[:-1]}n", f"{one[:-1]}1", one[:-1])
    )


def _stem(name: str) -> str:
    """Return a name in lower case without `_WORDS`."""
    words = re.findall(r"[a-z]+|[0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    return "".join(word for word in words if not _WORDS.fullmatch(word))
