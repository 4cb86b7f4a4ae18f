"""Proves a configuration: compares the model's answers with direct executions of its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.config import RuntimeConfig
from ge_runtime.discovery.graph import Graph, Port
from ge_runtime.discovery.study import Content, Study
from ge_runtime.errors import RuntimeFault
from ge_runtime.runtime import Runtime
from ge_runtime.scheduling.request_batch import Caller
from ge_runtime.scheduling.sequences import SequenceStep
from ge_runtime.specs import PAST, Array, Tensors, TensorSpec
from ge_runtime.verification.distance import TOLERANCES, compare

_REQUESTS: Final = 6
_EQUAL_REQUESTS: Final = 3
"""Number of requests to a model without axes and states: the requests differ in values only."""
_SEQUENCES: Final = 2
"""Sequences that the requests of a model with states belong to."""
_MARGIN: Final = 10
"""Allowed difference of answers, in multiples of their type's tolerance.

Differences are relative to the largest absolute value of the answer.
"""
_SMALL: Final = 256
"""Largest size of requests along an axis, or twice the axis's minimum if that is larger."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a proof."""

    requests: int
    executions: int
    """Executions of the graph for all requests together."""
    distance: float
    """The largest relative difference between an answer and a result of the graph."""
    engine: str
    """The name of the library that executed the graph."""

    def __str__(self) -> str:
        return (
            f"{self.requests} requests answered alone, and together in {self.executions} "
            f"execution(s): equal to {self.engine} within {self.distance:.2g}"
        )


def prove(study: Study, version_dir: Path, model_config: Mapping[str, object]) -> Proof:
    """Open the model, answer requests alone and together, and compare with the graph.

    Opening includes the load check.

    Raises:
        RuntimeFault: The model does not load, or an answer differs.
    """
    runtime = Runtime.open(version_dir, model_config, instance_name="init")
    try:
        config = runtime.config
        count = _REQUESTS if config.limits or config.states.outputs else _EQUAL_REQUESTS
        requests = [_request(study, config, seed) for seed in range(count)]
        expected = _expected(study.graph, config, requests)
        before = runtime.counts()
        together = _answers(runtime, requests, _SEQUENCES if config.states.outputs else _REQUESTS)
        launches = runtime.counts().since(before).launches
        alone = _answers(runtime, requests, 1)
        distance = max(
            _distance(config.outputs, answer, truth, study.graph.engine)
            for answers in (alone, together)
            for answer, truth in zip(answers, expected, strict=True)
        )
    finally:
        runtime.close()
    return Proof(len(requests), launches, distance, study.graph.engine)


def _answers(
    runtime: Runtime, requests: Sequence[tuple[Tensors, Mapping[str, int]]], count: int
) -> list[object]:
    """Send `count` requests at a time, and return the answers to all requests.

    With states, request i belongs to sequence i modulo `_SEQUENCES`.
    """
    answers: list[object] = []
    for start in range(0, len(requests), count):
        some = range(start, min(start + count, len(requests)))
        callers = None
        if runtime.config.states.outputs:
            callers = [
                Caller(
                    sequence=SequenceStep(
                        f"{count}.{place % _SEQUENCES}",
                        starts=place < _SEQUENCES,
                        ends=place + _SEQUENCES >= len(requests),
                    )
                )
                for place in some
            ]
        answers += runtime.infer([requests[place][0] for place in some], callers)
    return answers


def _request(
    study: Study, config: RuntimeConfig, seed: int
) -> tuple[dict[str, Array], dict[str, int]]:
    """Return a request of one row with random sizes, and the sizes of its axes."""
    rng = np.random.default_rng(11 if seed % 2 else (7, seed))
    # Half of the requests have the same size, so that they can share an execution even along
    # `equal` axes.
    sizes = {}
    for axis, limit in config.limits.items():
        low, step = config.axis_sizes.minimums[axis], config.axis_sizes.steps[axis]
        high = min(limit, max(_SMALL, 2 * low))
        low = -(-low // step)
        sizes[axis] = int(rng.integers(low, high // step + 1)) * step
    by_name = {port.name: port for port in study.graph.inputs}
    given = {}
    for spec in config.inputs:
        shape = (1, *spec.shape(sizes)) if config.batched else spec.shape(sizes)
        if study.contents[spec.name] is Content.TYPES:
            given[spec.name] = np.zeros(shape, spec.dtype.numpy)
        else:
            given[spec.name] = study.random(by_name[spec.name], shape, (seed, 3))
    return given, sizes


def _expected(
    graph: Graph, config: RuntimeConfig, requests: Sequence[tuple[Tensors, Mapping[str, int]]]
) -> list[dict[str, Array]]:
    """Execute the graph directly for each request, with the states of its sequence."""
    answers = []
    states: list[dict[str, Array]] = [{} for _ in range(_SEQUENCES)]
    pasts = [0] * _SEQUENCES
    for place, (given, own) in enumerate(requests):
        state = states[place % _SEQUENCES]
        sizes = {**own, PAST: pasts[place % _SEQUENCES]}
        if (growth := config.states.growth) is not None:
            pasts[place % _SEQUENCES] = growth.size_after.size(sizes)
        found = graph.run(plain_inputs(graph.inputs, config, {**given, **state}, sizes))
        if found is None:
            raise RuntimeFault(f"{graph.engine} fails at {sizes}: {graph.last_error}")
        state |= {name: found[output] for name, output in config.states.outputs.items()}
        answers.append({name: _row(array, config, name) for name, array in found.items()})
    return answers


def _row(output: Array, config: RuntimeConfig, name: str) -> Array:
    """Return the first row of an output, [1, *dims]; the whole output if it has no rows."""
    place = config.batch_axes.of(name) if config.batched else None
    return output if place is None else np.moveaxis(output, place, 0)[:1]


def plain_inputs(
    ports: Sequence[Port], config: RuntimeConfig, given: Tensors, sizes: Mapping[str, int]
) -> dict[str, Array]:
    """Return the inputs of a graph that is executed for one row, without padding.

    `given` has the tensors of a request of one row, and states; missing states are 0. Raises
    RuntimeFault if the value of an input is in neither `given` nor `config`.
    """
    return {port.name: _plain_input(port, config, given, sizes) for port in ports}


def _plain_input(
    port: Port, config: RuntimeConfig, given: Tensors, sizes: Mapping[str, int]
) -> Array:
    name, dtype = port.name, port.dtype.numpy
    fixed = [dim if isinstance(dim, int) else 1 for dim in port.dims]
    if name in config.constants:
        return np.resize(np.array([float(text) for text in config.constants[name]]), fixed).astype(
            dtype
        )
    if name in config.states.outputs:
        start = [0 if at and isinstance(dim, str) else 1 for at, dim in enumerate(port.dims)]
        if config.states.growth is not None:  # the past is empty: its free dim has size 0
            fixed = [own * first for own, first in zip(fixed, start, strict=True)]
        return given[name] if name in given else np.zeros(fixed, dtype)
    if name in given:
        value = given[name]
    elif name in config.masks:
        lead = (1,) if config.batched else ()
        value = np.ones(
            (*lead, *TensorSpec(name, port.dtype, config.masks[name]).shape(sizes)), dtype
        )
    elif name in config.lengths:
        value = np.full((1,) * len(port.dims), sizes[config.lengths[name]], dtype)
    elif name in config.positions:
        first = sizes.get(PAST, 0)
        value = np.arange(first, first + sizes[config.positions[name]], dtype=dtype)[np.newaxis]
    else:
        raise RuntimeFault(
            f"graph input '{name}': found no source of its values, expected data, a state, a "
            "constant, a mask, a length or positions"
        )
    if not config.batched:
        return value
    place = config.batch_axes.of(name)
    if place is None:
        return np.asarray(value[0])
    # A graph with a fixed number of rows gets copies of the row.
    return np.repeat(np.moveaxis(value, 0, place), fixed[place], place)


def _distance(specs: Sequence[TensorSpec], answer: object, truth: Tensors, engine: str) -> float:
    """Return the largest relative difference. Raises RuntimeFault if it is not allowed."""
    if isinstance(answer, RuntimeFault):
        raise answer
    assert isinstance(answer, Mapping)
    largest = 0.0
    for spec in specs:
        expected = truth[spec.name].reshape(answer[spec.name].shape)
        distance = relative_distance(spec, answer[spec.name], expected, f"{engine}'s")
        largest = max(largest, distance)
    return largest


def relative_distance(spec: TensorSpec, found: Array, expected: Array, source: str) -> float:
    """Return the largest difference, relative to the largest absolute value.

    Raises RuntimeFault if the difference is not allowed; the text names `source`, the origin of
    `expected`.
    """
    difference = compare(spec, found, expected)
    if difference is None:
        return 0.0
    numbers = np.abs(expected[np.isfinite(expected)]) if spec.dtype in TOLERANCES else ()
    relative = difference.distance / max(float(np.max(numbers, initial=0.0)), 1e-30)
    if relative > _MARGIN * TOLERANCES.get(spec.dtype, 0.0):
        raise RuntimeFault(f"found an answer that differs from {source}: {difference}")
    return relative
