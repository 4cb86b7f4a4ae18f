"""Seeded requests of a model, and the answers of plain ONNX Runtime to each of their rows.

A second implementation, independent of ge_runtime's execution: it reads the configuration and
executes the graph once for each row of a request, at the request's own sizes. A float may differ
from the expected one by the tolerance of its type, relative to the largest number of the output,
or by eight times what ONNX Runtime without graph optimizations, or with three copies of the row,
differs, but by at most a hundred tolerances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from ge_runtime.cli.config_pbtxt import read_runtime_config
from ge_runtime.config import PaddingRule, RuntimeConfig
from ge_runtime.discovery.graph import PT2, Graph, Port, ports_of
from ge_runtime.discovery.proof import plain_inputs
from ge_runtime.scheduling.sequences import SequenceStep
from ge_runtime.specs import ROWS, TensorSpec
from ge_runtime.verification.distance import TOLERANCES
from ge_runtime.verification.elements import element_ranges, random_elements

Arrays = dict[str, np.ndarray]

SEQUENCE_STEPS = 3
"""Requests of a sequence, for models with state."""
_MOST_ROWS = 3
_ROUNDING_MARGIN, _ROUNDING_MOST = 8, 100


@dataclass
class Played:
    """Requests of one model, with their expected answers."""

    config: RuntimeConfig
    requests: list[Arrays]
    steps: list[SequenceStep | None]
    """The sequence of each request; None for models without state."""
    expected: list[tuple[Arrays, dict[str, float]]]
    """The outputs of each request, and the distance by which rounding may move each output."""

    @classmethod
    def drawn(cls, folder: Path, count: int, seed: int) -> Played:
        """Draw requests of the model in `folder`, and execute them in ONNX Runtime."""
        config = read_runtime_config(folder)
        requests = _draw(config, np.random.default_rng(seed), count)
        steps: list[SequenceStep | None] = [None] * count
        sequences = count
        if config.states.outputs:  # request i belongs to sequence i % sequences
            sequences = -(-count // SEQUENCE_STEPS)
            steps = [
                SequenceStep(1 + i % sequences, starts=i < sequences, ends=i + sequences >= count)
                for i in range(count)
            ]
        plain = _Plain(folder, config)
        states: list[Arrays] = [{} for _ in range(sequences)]
        expected = [plain.answer(own, states[i % sequences]) for i, own in enumerate(requests)]
        return cls(config, requests, steps, expected)

    def batches(self, size: int) -> Iterator[range]:
        """Yield the places of requests to play together, at most one of each sequence."""
        sequences = sum(step is not None and step.starts for step in self.steps)
        size = min(size, sequences or size)
        for start in range(0, len(self.requests), size):
            yield range(start, min(start + size, len(self.requests)))

    def count(self, answers: Sequence[object]) -> str:
        """Return "right/all", and the first wrong answer if there is one."""
        texts = [self._fault(place, answer) for place, answer in enumerate(answers)]
        wrong = [text for text in texts if text]
        first = f" ({one_line(wrong[0], 200)})" if wrong else ""
        return f"{len(texts) - len(wrong)}/{len(texts)}{first}"

    def _fault(self, place: int, answer: object) -> str:
        if not isinstance(answer, Mapping):
            return f"request {place}: {answer}"
        outputs, allowed = self.expected[place]
        for name, expected in outputs.items():
            distance = _distance(answer[name], expected)
            if distance > allowed[name]:
                return f"request {place}: output '{name}': distance {distance:.2g}"
        return ""


def one_line(text: object, most: int) -> str:
    """Return the first characters of a text without line breaks."""
    return " ".join(str(text).split())[:most]


# -- requests


def _draw(config: RuntimeConfig, rng: np.random.Generator, count: int) -> list[Arrays]:
    """Return requests. Axes of equal sizes have few sizes, so that some requests can share."""
    ranges = element_ranges(config, config.sources)
    gears = config.gears.get((ROWS,))
    most_rows = min(_MOST_ROWS, config.rows)
    if isinstance(gears, Sequence):
        most_rows = min(most_rows, max(size for (size,) in gears))
    few = [_sizes(config, rng) for _ in range(3)]
    requests = []
    for _ in range(count):
        common, sizes = few[rng.integers(len(few))], _sizes(config, rng)
        sizes |= {axis: common[axis] for axis in config.equal_axes}
        single = bool(config.states.outputs) or rng.random() < 0.6
        rows = 1 if single else int(rng.integers(1, most_rows + 1))
        lead = (rows,) if config.batched else ()
        requests.append(
            {
                spec.name: random_elements(
                    rng, spec.dtype, (*lead, *spec.shape(sizes)), ranges[spec.name]
                )
                for spec in config.sources
            }
        )
        for name, tensor in requests[-1].items():
            if lead and config.batch_axes.of(name) is None:  # all rows have one value
                tensor[1:] = tensor[:1]
    return requests


def _sizes(config: RuntimeConfig, rng: np.random.Generator) -> dict[str, int]:
    """Draw for every axis the smallest size, the limit, or a size between."""
    sizes = config.axis_sizes.smallest(config.outputs)
    for axis, limit in config.limits.items():
        between = int(sizes[axis] * (limit / sizes[axis]) ** rng.random())
        size = int(rng.choice([sizes[axis], limit, between, between]))
        is_equal = config.padding[axis] is PaddingRule.EQUAL
        sizes[axis] = config.axis_sizes.executed(axis, size) if is_equal else size
    return sizes


# -- answers


class _Plain:
    """The graph of a model in ONNX Runtime, with and without optimizations."""

    def __init__(self, folder: Path, config: RuntimeConfig) -> None:
        self._config = config
        levels = onnxruntime.GraphOptimizationLevel
        path = folder / "1" / "model.onnx"
        self._ports: Sequence[Port]
        self._sessions: list[Any]
        if path.exists():
            self._sessions = [
                _session(path, level) for level in (levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL)
            ]
            self._ports = ports_of(path, self._sessions[0].get_inputs())
        else:
            graph = Graph(path.with_suffix(PT2), threads=1)
            self._sessions = [_Program(path.with_suffix(PT2))] * 2
            self._ports = graph.inputs

    def answer(self, request: Arrays, states: Arrays) -> tuple[Arrays, dict[str, float]]:
        """Return the outputs of one request, and how far rounding may move each of them.

        Args:
            request: The inputs.
            states: Graph input to the sequence's state, replaced by the next state.
        """
        config = self._config
        ones = [request]
        if config.batched:
            rows = len(next(iter(request.values())))
            ones = [
                {name: tensor[row : row + 1] for name, tensor in request.items()}
                for row in range(rows)
            ]
        feeds = [self._feeds(one, states) for one in ones]
        first, second = ([self._run(own, each) for each in feeds] for own in self._sessions)
        copies = [self._run(self._sessions[0], self._repeated(each)) for each in feeds]
        states |= {name: first[-1][output] for name, output in config.states.outputs.items()}
        answer, *others = (self._joined(results) for results in (first, second, copies))
        return answer, {
            spec.name: max(_rounding(spec, answer[spec.name], own[spec.name]) for own in others)
            for spec in config.outputs
        }

    def _repeated(self, feeds: Arrays) -> Arrays:
        """Return feeds with three copies of the row; as they are if the graph may have one row."""
        config = self._config
        free = all(isinstance(port.dims[at], str) for port, at in self._row_dims(feeds))
        one_row = config.gears.get((ROWS,)) == ((1,),)
        if not config.batched or one_row or not free or config.states.outputs:
            return feeds
        repeated = dict(feeds)
        for port, at in self._row_dims(feeds):
            repeated[port.name] = np.repeat(feeds[port.name], 3, at)
        return repeated

    def _row_dims(self, feeds: Arrays) -> list[tuple[Port, int]]:
        """Return the inputs that have rows, with their dim of rows."""
        config = self._config
        places = ((port, config.batch_axes.of(port.name)) for port in self._ports)
        return [
            (port, at)
            for port, at in places
            if at is not None and port.name not in config.constants and port.dims
        ]

    def _joined(self, results: Sequence[Arrays]) -> Arrays:
        """Return the answer to a request, given the results of its rows in the graph's layout."""
        joined = {}
        for spec in self._config.outputs:
            place = self._config.batch_axes.of(spec.name)
            rows = [each[spec.name] for each in results]
            joined[spec.name] = (
                rows[0]
                if place is None
                else np.concatenate([np.moveaxis(row, place, 0)[:1] for row in rows])
            )
        return joined

    def _feeds(self, request: Arrays, states: Arrays) -> Arrays:
        config = self._config
        sizes: dict[str, int] = {}
        for spec in config.sources:
            shape = request[spec.name].shape[1 if config.batched else 0 :]
            named = zip(spec.dims, shape, strict=True)
            sizes |= {dim: size for dim, size in named if isinstance(dim, str)}
        return plain_inputs(self._ports, config, request | states, sizes)

    def _run(self, session: onnxruntime.InferenceSession, feeds: Arrays) -> Arrays:
        names = self._config.results
        return dict(zip(names, session.run(names, feeds), strict=True))


class _Program:
    """A program of torch.export with the method of a session."""

    def __init__(self, path: Path) -> None:
        import torch

        self._torch = torch
        self._program = torch.export.load(path)
        self._module = self._program.module()

    def run(self, names: Sequence[str], feeds: Arrays) -> list[np.ndarray]:
        """Execute the program; a result without a name is the only one of `names`."""
        inputs = [
            self._torch.from_numpy(feeds[name])
            for name in self._program.graph_signature.user_inputs
        ]
        with self._torch.inference_mode():
            results = self._module(*inputs)
        named = results if isinstance(results, dict) else {names[0]: results}
        return [named[name].numpy() for name in names]


def _session(path: Path, level: onnxruntime.GraphOptimizationLevel) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = level
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _rounding(spec: TensorSpec, answer: np.ndarray, other: np.ndarray) -> float:
    """Return the distance by which rounding may move an output."""
    if spec.dtype not in TOLERANCES or not answer.size:
        return 0.0
    largest = np.abs(answer, where=np.isfinite(answer), out=np.zeros_like(answer)).max()
    tolerance = TOLERANCES[spec.dtype] * max(float(largest), 1e-3)
    moved = _ROUNDING_MARGIN * _distance(other, answer)
    return max(tolerance, min(moved, _ROUNDING_MOST * tolerance))


def _distance(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest distance of two elements. It is infinite if the sizes or NaNs differ.

    Shapes may differ by dims of 1, which `reshape` of config.pbtxt adds.
    """
    if found.size != expected.size:
        return float("inf")
    found, expected = found.ravel().astype(np.float64), expected.ravel().astype(np.float64)
    differ = (found != expected) & ~(np.isnan(found) & np.isnan(expected))
    distances = np.abs(found[differ] - expected[differ])
    return float(np.where(np.isnan(distances), np.inf, distances).max(initial=0.0))
