"""The order of an ensemble's steps, decided from what has finished: no requests, no threads.

A step is ready when every step that writes one of its tensors has finished, whether or not the
tensor was produced: Triton starts it all the same, and the step's model then says what it misses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from reference_server.config.schema import EnsembleStep


class EnsembleGraph:
    """The steps of one ensemble and who waits for whom. Immutable; any thread.

    `steps` by index; `outputs` are the ensemble's output tensors.
    """

    def __init__(self, steps: Sequence[EnsembleStep], outputs: Collection[str]) -> None:
        self.steps = tuple(steps)
        self._outputs = frozenset(outputs)
        writer = {
            tensor: index for index, step in enumerate(steps) for tensor in step.outputs.values()
        }
        self._sources = tuple(
            frozenset(writer[tensor] for tensor in step.inputs.values() if tensor in writer)
            for step in steps
        )
        self._writer = writer
        holders = Counter(chain(self._outputs, *(step.inputs.values() for step in steps)))
        self._shared = frozenset(tensor for tensor, count in holders.items() if count > 1)

    def is_shared(self, tensor: str) -> bool:
        """True if more than one step, or a step and the client, are given `tensor`."""
        return tensor in self._shared

    def needed_for(self, requested: Collection[str]) -> frozenset[int]:
        """The steps that must run to give `requested` outputs; all outputs if it is empty."""
        wanted = [
            self._writer[tensor]
            for tensor in (requested or self._outputs)
            if tensor in self._writer
        ]
        needed: set[int] = set()
        while wanted:
            index = wanted.pop()
            if index not in needed:
                needed.add(index)
                wanted.extend(self._sources[index])
        return frozenset(needed)

    def ready(
        self, needed: Iterable[int], started: Collection[int], finished: Collection[int]
    ) -> list[int]:
        """The steps among `needed` that can start now, in the order of the configuration."""
        return sorted(
            index
            for index in needed
            if index not in started and self._sources[index].issubset(finished)
        )
