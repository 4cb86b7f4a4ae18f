"""The order of an ensemble's steps, decided from what has finished: no requests, no threads.

A step is ready when every step that writes one of its tensors has finished, whether or not the
tensor was produced: Triton starts it all the same, and the step's model then says what it misses.

A decoupled step answers any number of times, and what follows it runs once for each answer. So the
steps fall into stages: a decoupled step is the last of its stage, and each of its answers begins
the next one. All that a step reads must come from one and the same answer, so the stages stand in
a row, and the ensemble's outputs come from the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from reference_server.config.schema import EnsembleStep

#: Where tensors come from that no decoupled step has answered with: the request itself.
_REQUEST = -1


class EnsembleGraph:
    """The steps of one ensemble and who waits for whom. Immutable; any thread.

    `steps` by index; `outputs` are the ensemble's output tensors; `decoupled` the steps whose
    models answer as often as they like.
    """

    def __init__(
        self,
        steps: Sequence[EnsembleStep],
        outputs: Collection[str],
        decoupled: Collection[int] = (),
    ) -> None:
        self.steps = tuple(steps)
        self.decoupled = frozenset(decoupled)
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
        self._origins, self._mixes = self._traced()
        self._stage = tuple(self._depth(index) for index in range(len(self.steps)))
        self._whole = self._staged(self.needed_for(()))

    def _traced(self) -> tuple[dict[int, int], bool]:
        """For each step whose answer its inputs belong to, and whether any has more than one."""
        origins: dict[int, int] = {}
        mixes = False
        while ready := self.ready(range(len(self.steps)), origins, origins):
            for index in ready:
                read = self._origins_of(self.steps[index].inputs.values(), origins)
                mixes = mixes or len(read) > 1
                origins[index] = min(read, default=_REQUEST)
        return origins, mixes or len(self._origins_of(self._outputs, origins)) > 1

    def _origins_of(self, tensors: Iterable[str], origins: dict[int, int]) -> set[int]:
        writers = {self._writer.get(tensor, _REQUEST) for tensor in tensors}
        return {
            writer if writer in self.decoupled else origins.get(writer, _REQUEST)
            for writer in writers
        }

    def _depth(self, index: int) -> int:
        origin = self._origins.get(index, _REQUEST)
        return 0 if origin == _REQUEST else 1 + self._depth(origin)

    @property
    def mixes_answers(self) -> bool:
        """True if a step, or the client, would be given tensors of different answers."""
        return self._mixes

    @property
    def last_stage(self) -> int:
        """The number of the stage that the outputs come from; 0 if no step is decoupled."""
        return len(self._whole) - 1

    def is_shared(self, tensor: str) -> bool:
        """True if more than one step, or a step and the client, are given `tensor`."""
        return tensor in self._shared

    def stages(self, requested: Collection[str]) -> tuple[frozenset[int], ...]:
        """The steps that must run to give `requested` outputs, by stage; all if it is empty."""
        return self._staged(self.needed_for(requested)) if requested else self._whole

    def _staged(self, needed: Iterable[int]) -> tuple[frozenset[int], ...]:
        last = max((self._stage[index] + 1 for index in self.decoupled), default=0)
        stages: list[set[int]] = [set() for _ in range(last + 1)]
        for index in needed:
            stages[self._stage[index]].add(index)
        return tuple(map(frozenset, stages))

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
