"""Compares a rewritten graph with the original: outputs, and the time of executions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.engines.onnx import signature_of
from ge_runtime.engines.onnx_session import GraphExecution, Session, open_session
from ge_runtime.errors import ArtifactFault
from ge_runtime.rewriting.unpad import Unpadded
from ge_runtime.specs import Array, TensorSpec
from ge_runtime.verification.arithmetic import MARGIN
from ge_runtime.verification.distance import TOLERANCES, Difference, compare
from ge_runtime.verification.elements import readable

LENGTHS: Final = ((12, 7, 1, 3), (5,), (9, 9))
"""The valid tokens of the rows in each trial."""
TIMED: Final = {
    "one row": (32,),
    "equal rows": (16,) * 8,
    "different rows": (8, 8, 9, 10, 12, 14, 16, 20, 24, 32, 48, 64),
}
"""The valid tokens of the rows in timed executions."""
_REPETITIONS: Final = 7


@dataclass(frozen=True, slots=True)
class Gain:
    """The time of an execution of the original graph, relative to the rewritten graph."""

    ratios: Mapping[str, float]
    """For each name in TIMED, the ratio of the least CPU times of alternating executions.

    Other processes disturb CPU time less than the wall clock.
    """

    def __str__(self) -> str:
        return ", ".join(f"{name} {ratio:.2f}x" for name, ratio in self.ratios.items())


class Proof:
    """An original and a rewritten graph, open on the CPU. Not thread-safe."""

    def __init__(self, original: Path, rewritten: Path, unpadded: Unpadded, threads: int) -> None:
        """Open both graphs. Raises ArtifactFault."""
        self._path = original
        self._unpadded = unpadded
        self._original = open_session(original, threads, _CPU)
        self._rewritten = open_session(rewritten, threads, _CPU)
        self._signature: Signature = signature_of(original, self._original)
        self._rng = np.random.default_rng(7)

    def verify(self) -> None:
        """Compare answers to random inputs, with and without padding.

        Raises ArtifactFault if an answer differs by more than rounding.
        """
        # An unoptimized execution of the original graph shows how much rounding changes an answer.
        slow = GraphExecution(optimization="ORT_DISABLE_ALL")
        unoptimized = open_session(self._path, 1, _CPU, execution=slow)
        for lengths in LENGTHS:
            feed = self._feed(lengths)
            expected = self._original.run(None, feed)
            found = self._rewritten.run(None, feed)
            rounded = unoptimized.run(None, feed)
            for tensor, *answers in zip(
                self._signature.outputs, found, expected, rounded, strict=True
            ):
                difference = self._difference(tensor, lengths, *answers)
                if difference is not None:
                    raise ArtifactFault(
                        f"{self._path}: cannot be unpadded: found another answer to rows of "
                        f"{', '.join(map(str, lengths))} token(s): {difference}; expected the "
                        "answer of the original graph. Padding may change the answers of this "
                        "graph"
                    )

    def measure(self) -> Gain:
        """Time alternating executions of both graphs."""
        ratios = {}
        for name, lengths in TIMED.items():
            feed = self._feed(lengths)
            sessions = (self._original, self._rewritten)
            seconds = [
                [_cpu_seconds(session, feed) for session in sessions] for _ in range(_REPETITIONS)
            ]
            before, after = map(min, zip(*seconds, strict=True))
            ratios[name] = before / after
        return Gain(ratios)

    def _difference(
        self,
        tensor: GraphTensor,
        lengths: Sequence[int],
        found: Array,
        expected: Array,
        rounded: Array,
    ) -> Difference | None:
        """Return a difference of an output at valid tokens that exceeds rounding, or None."""
        spec = TensorSpec(tensor.name, tensor.dtype, expected.shape)
        where = None
        if tensor.name in self._unpadded.tokens and found.shape == expected.shape:
            valid = np.arange(expected.shape[1]) < self._valid(lengths, expected.shape[1])
            where = valid.reshape(*valid.shape, *(1,) * (expected.ndim - 2))
        if tensor.dtype not in TOLERANCES or found.shape != expected.shape:
            return compare(spec, found, expected, where=where)
        numbers = [readable(tensor.dtype, one).astype(np.float64) for one in (rounded, expected)]
        noise = np.abs(numbers[0] - numbers[1])
        noise = noise if where is None else np.where(where, noise, 0)
        most = float(np.max(noise[np.isfinite(noise)], initial=0.0))
        tolerance = max(TOLERANCES[tensor.dtype], MARGIN * most)
        return compare(spec, found, expected, tolerance=tolerance, where=where)

    def _valid(self, lengths: Sequence[int], places: int) -> Array:
        """Return the number of certainly valid places of each row, as a column."""
        share = np.array(lengths).reshape(-1, 1) / max(lengths)
        return np.maximum(1, np.floor(share * places)).astype(np.int64)

    def _feed(self, lengths: Sequence[int]) -> dict[str, Array]:
        """Return random inputs of rows with these valid tokens, padded to the longest."""
        return {tensor.name: self._array(tensor, lengths) for tensor in self._signature.inputs}

    def _array(self, tensor: GraphTensor, lengths: Sequence[int]) -> Array:
        scale = self._unpadded.samples
        rows, tokens = len(lengths), max(lengths) * scale
        sizes = (rows, *[tokens] * max(0, len(tensor.dims or ()) - 1))
        shape = tuple(
            size if dim is None else dim for size, dim in zip(sizes, tensor.dims or (), strict=True)
        )
        dtype = tensor.dtype.numpy
        valid = np.arange(tokens) < np.array(lengths).reshape(-1, 1) * scale
        if tensor.name == self._unpadded.mask:
            return valid.astype(dtype)
        if np.issubdtype(dtype, np.floating):
            return self._rng.standard_normal(shape).astype(dtype)
        if len(shape) == 1 or shape[1:] == (1,):  # lengths
            return (np.array(lengths) * scale).reshape(shape).astype(dtype)
        return self._rng.integers(0, self._unpadded.limits.get(tensor.name, 2), shape).astype(dtype)


_CPU: Final = ("CPUExecutionProvider",)


def _cpu_seconds(session: Session, feed: Mapping[str, Array]) -> float:
    start = time.process_time()
    session.run(None, feed)
    return max(time.process_time() - start, 1e-9)
