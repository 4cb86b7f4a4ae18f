"""Executions of seeded requests in all the ways that the load check compares."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ge_runtime.batching.admission import Block
from ge_runtime.batching.feeds import Feed, Joined, RowsLater
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.config import PaddingRule, RuntimeConfig
from ge_runtime.engines.base import Engine, Perturbable
from ge_runtime.errors import EngineFault, RuntimeFault
from ge_runtime.scheduling.executor import Executor
from ge_runtime.specs import Tensors, TensorSpec
from ge_runtime.verification.plan import Trial
from ge_runtime.verification.probes import Part, Values

_NUDGES: Final = 2
_REPEATED: Final = 3
"""Copies of one request that are executed together to see how rows change rounding."""
_ARITHMETICS: Final = 2
"""Engines with other roundings."""
_MOST_KEPT_BYTES: Final = 2**26
"""Limit of the kept answers to requests alone."""


class Executions:
    """Executes requests of one model. For one thread.

    Attributes:
        values: Makes the requests.
        results: The compared tensors: the outputs, and the next states of sequences.
        count: Number of executions.
        of_one_row: Number of successful executions of one request alone.
    """

    def __init__(
        self,
        executor: Executor,
        config: RuntimeConfig,
        gears: Gears,
        states: Sequence[TensorSpec] = (),
        *,
        like: Executions | None = None,
    ) -> None:
        """Prepare for one configuration.

        `states` are the states of sequences, named by graph input. `like` executes the same model
        with other parameters; its engines with other roundings are used here too.
        """
        self._executor = executor
        self._config = config
        self._gears = gears
        self._like = like
        self._arithmetics: list[tuple[Engine, Executor]] | None = None  # None: not needed yet
        self._answers: dict[tuple[str, str], Tensors] = {}  # alone, by size and content
        self._kept_bytes = 0
        self.values = Values(config, states)
        # States are compared like outputs, under names that no output has.
        self.results = (
            *config.outputs,
            *(replace(spec, name=_state_name(spec.name)) for spec in states),
        )
        self.count = 0
        self.of_one_row = 0
        # Compiled graphs have no sizes other than their gears.
        self.any_size = config.device_kind == "cpu"
        self._refilled = self._with_other_padding()

    @property
    def refills(self) -> bool:
        """True if an execution may have another padding value."""
        return self._refilled is not None

    def probes(self, trial: Trial, part: Part = Part.ALL, seed: int = 0) -> list[Block]:
        """Return the compared requests of a trial."""
        return [self.values.block(sizes, (seed, at), part) for at, sizes in enumerate(trial.probes)]

    def beside(
        self,
        trial: Trial,
        probes: Sequence[Block],
        part: Part,
        executor: Executor | None = None,
        *,
        refilled: bool = False,
    ) -> list[Tensors]:
        """Execute the probes beside the trial's other requests; return the probes' answers.

        The other requests have values of `part`. With `refilled`, the padding has another value if
        `refills` is true.
        """
        company = [
            self.values.block(sizes, (1, at), part) for at, sizes in enumerate(trial.company)
        ]
        blocks = [*company[:1], *probes, *company[1:]]
        answers = self.execute(blocks, trial.gear, self._refilled if refilled else executor)
        return answers[len(company[:1]) :][: len(probes)]

    def alone(self, probe: Block) -> tuple[Gear, Tensors]:
        """Execute the probe alone, at its own size or else at its gear; return size and answer."""
        own = Gear(1, probe.needs)
        fitted = self._gears.fit(1, probe.needs) or own
        if self.any_size and fitted != own:
            try:
                return own, self._alone_at(probe, own)
            except EngineFault:
                self.any_size = False
        return fitted, self._alone_at(probe, fitted)

    def nudged(self, probe: Block) -> Iterator[Block]:
        """Yield requests that differ from the probe in the last bits of their floats."""
        for at in range(_NUDGES):
            block = self.values.nudged(probe, (3, at))
            if block is not None:
                yield block

    def copies(self, probe: Block, own: Gear) -> list[Tensors]:
        """Execute several copies of the probe together, without padding.

        Returns the answer to the first copy; empty if no execution has several rows of this size.
        """
        more = min(_REPEATED, self._config.rows)
        gear = Gear(more, own.extents) if self.any_size else self._gears.fit(more, own.extents)
        if not self._config.batched or more == 1 or gear is None:
            return []
        return [self.execute([probe] * more, gear)[0]]

    def arithmetics(self) -> list[Executor]:
        """Return executors of the same graph with other roundings; empty if it has none."""
        if self._like is not None:
            return self._like.arithmetics()
        if self._arithmetics is None:
            self._arithmetics = []
            engine = getattr(self._executor, "engine", None)
            if not isinstance(engine, Perturbable):
                return []
            for seed in range(_ARITHMETICS):
                with suppress(RuntimeFault, MemoryError):
                    other = engine.perturbed(seed)
                    if other is not None:
                        executor = self._executor.variant(engine=other)
                        self._arithmetics.append((other, executor))
        return [executor for _, executor in self._arithmetics]

    def close(self) -> None:
        """Close the engines with other roundings."""
        for engine, _ in self._arithmetics or ():
            engine.close()
        self._arithmetics = None

    def execute(
        self, blocks: Sequence[Block], gear: Gear, executor: Executor | None = None
    ) -> list[Tensors]:
        """Execute on `executor`, by default that of the constructor; return copied answers."""
        executor = executor or self._executor
        blocks = [_with_own_state(block) for block in blocks]
        answers, _ = executor.execute(blocks, gear)
        executor.end_batch()
        self.count += 1
        # Several answers are held at once, and there are only the slots that serving needs.
        return [
            {name: array.copy() for name, array in answer.items()}
            | {_state_name(name): left for name, left in (block.state or {}).items()}
            for answer, block in zip(answers, blocks, strict=True)
        ]

    def _alone_at(self, probe: Block, gear: Gear) -> Tensors:
        key = str(gear), _digest(probe)
        answer = self._answers.get(key)
        if answer is None:
            answer = self.execute([probe], gear)[0]
            nbytes = sum(array.nbytes for array in answer.values())
            if self._kept_bytes + nbytes <= _MOST_KEPT_BYTES:
                self._kept_bytes += nbytes
                self._answers[key] = answer
        self.of_one_row += gear.rows == 1
        return answer

    def _with_other_padding(self) -> Executor | None:
        """Return an executor with other padding values; None if all padding values are fixed.

        The value is fixed for inputs with `pad.<input>` and along neutral axes: for these the user
        states that the configured value changes no answer.
        """
        contract = getattr(self._executor, "contract", None)
        if contract is None:
            return None
        feeds = tuple(map(self._refill, contract.feeds))
        if feeds == contract.feeds:
            return None
        return self._executor.variant(contract=replace(contract, feeds=feeds))

    def _refill(self, feed: Feed) -> Feed:
        config = self._config
        if isinstance(feed, RowsLater):
            inner = self._refill(feed.feed)
            return feed if inner is feed.feed else replace(feed, feed=inner)
        if not isinstance(feed, Joined) or feed.spec.name in config.axis_lengths.values():
            return feed
        name, own = feed.spec.name, config.ranges.get(feed.spec.name)
        if name in config.pads and config.pads[name] != (own.nearest(0) if own else 0):
            return feed
        if any(config.padding[axis] is PaddingRule.NEUTRAL for axis in feed.spec.axes):
            return feed
        return replace(feed, pad=self.values.other_padding(feed.spec, feed.pad))


def _digest(block: Block) -> str:
    """Return a hash of a request's content."""
    digest = hashlib.blake2b()
    for name, array in sorted({**block.tensors, **(block.state or {})}.items()):
        digest.update(f"{name} {array.dtype} {array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _state_name(source: str) -> str:
    return f"state.{source}"


def _with_own_state(block: Block) -> Block:
    """Return the request with a copy of its state, because an execution overwrites the state."""
    if block.state is None:
        return block
    return block._replace(state={name: own.copy() for name, own in block.state.items()})
