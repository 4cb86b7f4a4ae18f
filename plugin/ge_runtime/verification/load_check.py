"""The load check: seeded requests get the same answers alone, padded, and in any company.

Compared bit by bit, company of one content with company of another, at equal shapes: nothing but
other requests' values differs, so what the answers differ by is leakage, and is refused unless two
equal executions differ by as much. Then a request by itself at its own size with the same request
in company, padded to the execution's: beyond what rounding does to it, padding is not neutral, or
the graph ignores what tells it of padding.

With `reproducible: true` requests of several sizes are executed alone and in each other's company,
at every place of every gear, and all bits of an answer are the same.

What a request leaves to the next of its sequence is compared as its answers are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

from ge_runtime.batching.admission import Block
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.config import PaddingRule, RuntimeConfig
from ge_runtime.errors import ConfigFault, EngineFault, OutOfMemory
from ge_runtime.scheduling.executor import Executor
from ge_runtime.specs import Tensors, TensorSpec
from ge_runtime.verification.distance import TOLERANCES, Apart, Rounding, Variants, apart
from ge_runtime.verification.probes import Part, Trial, Values, by_work, trials_of

CHECK_S: Final = 1.0
"""Spent on checking, at most; what it cannot pay for is left out, and the log says so. Where this
process computes it is CPU time: what else the machine does has no say in what is checked."""
BUSY_S: Final = 3.0
"""Of the clock, at most, where this process computes."""

_LEAPS: Final = 1.5
"""How much longer a trial may take than one of other sizes says: caches overflow."""
_NUDGES: Final = 2
_REPEATED: Final = 3
"""Rows of the same request, executed together to see what rows do to rounding."""
_EQUAL_EXECUTIONS: Final = 3
"""Compared with each other, to see by how much chance makes them differ."""
_APART: Final = (
    "rows that do not see each other: export the graph so, or execute one at a time, by "
    "'gears.batch: 1'"
)
_REPRODUCIBLE: Final = "parameter 'reproducible'"
_ONE_BY_ONE: Final = "'gears.batch: 1', which executes each row alone"
_COMPANY: Final = ("load check", "in company than alone", _APART)


@dataclass(slots=True)
class _Found:
    """What a check has seen so far."""

    executions: int = 0
    trials: int = 0
    rounding: float = 0.0
    """The most that an answer moved between alone and padded in company."""
    gears: int = 0
    """In all of whose places answers had the same bits."""
    left_out: list[str] = field(default_factory=list)


class _Budget:
    """What may still be spent on checking."""

    def __init__(self, clocks: Sequence[tuple[Callable[[], float], float]]) -> None:
        """clocks: each with the seconds that may pass on it, from now on."""
        self._clocks = [(clock, clock(), most) for clock, most in clocks]
        self._element_s = [0.0] * len(clocks)  # on each clock, of the last trial

    def affords(self, trial: Trial) -> bool:
        """Whether there is time for it, by what others took; the first is tried unseen."""
        return all(
            clock() - begun + _LEAPS * element_s * trial.elements <= most
            for (clock, begun, most), element_s in zip(self._clocks, self._element_s, strict=True)
        )

    @contextmanager
    def learning(self, trial: Trial) -> Iterator[None]:
        """Around a trial: what it takes tells what others will."""
        before = [clock() for clock, _, _ in self._clocks]
        yield
        self._element_s = [
            (clock() - start) / trial.elements
            for (clock, _, _), start in zip(self._clocks, before, strict=True)
        ]


class LoadCheck:
    """Checks one model on one executor. For one thread, once."""

    def __init__(
        self,
        executor: Executor,
        config: RuntimeConfig,
        gears: Gears,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
        *,
        others: Sequence[Executor] = (),
        states: Sequence[TensorSpec] = (),
    ) -> None:
        """others: executors of the model besides, whose answers are to have the same bits.

        states: what is kept of sequences, under the names of the graph's inputs.
        """
        self._executor = executor
        self._executors = (executor, *others)
        self._config = config
        self._gears = gears
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._values = Values(config, states)
        self._found = _Found()
        self._states = tuple(states)
        # A state is compared under a name that no output has.
        self._results = (
            *config.outputs,
            *(replace(spec, name=_state_name(spec.name)) for spec in states),
        )
        self._floats = {spec.name for spec in self._results if spec.dtype in TOLERANCES}
        # Compiled graphs have no other sizes than their gears.
        self._any_size = config.device_kind == "cpu"

    def run(self) -> str:
        """What was checked, in words. Raises ConfigFault for a difference that must not be."""
        found, begun = self._found, self._clock()
        here = self._config.device_kind == "cpu" and self._config.service_share is None
        clocks = [(self._cpu_clock, CHECK_S), (self._clock, BUSY_S)]
        budget = _Budget(clocks if here else [(self._clock, CHECK_S)])
        left = trials_of(self._config, self._gears)
        while trial := next(filter(budget.affords, left), None):
            left.remove(trial)
            try:
                with budget.learning(trial):
                    self._try(trial)
            except (EngineFault, OutOfMemory) as fault:
                found.left_out.append(f"{trial.gear}: {fault}")
            else:
                found.trials += 1
        found.left_out += [f"{trial.gear}: no time for it" for trial in by_work(left)]
        if self._config.reproducible:
            self._check_bits()
        seconds = self._clock() - begun
        told = f"{found.trials} size(s) in {found.executions} execution(s), {seconds:.2f} s"
        if found.trials:
            told += ": answers do not depend on the values of others"
            told += ", nor does what sequences leave behind" if self._states else ""
            told += f"; padding and rows move them by {found.rounding:.2g}"
        if self._config.reproducible:
            told += f"; equal to the bit at all places of {found.gears} gear(s)"
        return "; ".join((told, *(f"not checked: {each}" for each in found.left_out)))

    def _try(self, trial: Trial) -> None:
        probes = [self._values.block(sizes, (0, at)) for at, sizes in enumerate(trial.probes)]
        if not trial.company:
            for probe in probes:
                self._compare_alone(probe, trial, self._execute([probe], trial.gear)[0])
            return
        one = self._in_company(probes, trial, Part.LOWER)
        other = self._in_company(probes, trial, Part.UPPER)
        for at, probe in enumerate(probes):
            if differences := apart(self._results, one[at], other[at]):
                self._refuse_leakage(probes, trial, at, differences)
            self._compare_alone(probe, trial, one[at])

    def _in_company(self, probes: Sequence[Block], trial: Trial, part: Part) -> list[Tensors]:
        """The answers to the probes beside a request of the gear's own size, whose values vary."""
        company = self._values.block(trial.gear.extents, (1,), part)
        return self._execute([company, *probes], trial.gear)[1:]

    def _check_bits(self) -> None:
        """Every gear, whatever the time it takes: answers to the bit are a promise.

        Raises ConfigFault for an answer that depends on its place, on company or on chance.
        """
        for trial in trials_of(self._config, self._gears):
            try:
                self._check_places(trial.gear, [*trial.probes, trial.gear.extents])
            except (EngineFault, OutOfMemory) as fault:
                raise self._fault(
                    f"{_REPRODUCIBLE}: found an execution of {trial.gear} to fail: {fault}; "
                    "expected gears that the graph executes, for values within 'range.<input>'"
                ) from fault
            self._found.gears += 1

    def _check_places(self, gear: Gear, sizes: Sequence[Mapping[str, int]]) -> None:
        """Executes requests of these sizes alone, then together, each at all places in turn."""
        probes = [self._values.block(own, (5, at)) for at, own in enumerate(sizes)]
        alone = [self._execute([probe], gear)[0] for probe in probes]
        room = min(gear.rows, self._config.rows)
        for executor, turn in product(self._executors, range(len(probes))):
            places = [(turn + place) % len(probes) for place in range(room)]
            answers = self._execute([probes[at] for at in places], gear, executor)
            for place, (at, answer) in enumerate(zip(places, answers, strict=True)):
                if differences := apart(self._results, answer, alone[at]):
                    self._refuse_bits(probes[at], gear, place, alone[at], differences[0])

    def _refuse_bits(
        self, probe: Block, gear: Gear, place: int, alone: Tensors, difference: Apart
    ) -> None:
        """Raises ConfigFault with the gear, the place and the cure."""
        again = (self._execute([probe], gear)[0] for _ in range(_EQUAL_EXECUTIONS))
        by_chance = any(apart(self._results, each, alone) for each in again)
        how = "in equal executions" if by_chance else f"in row {place}, beside others, than alone"
        cure = "an engine whose results have no chance in them" if by_chance else _ONE_BY_ONE
        raise self._fault(
            f"{_REPRODUCIBLE}: found {self._told(probe)}, executed as {gear}, to get other bits "
            f"{how}: {difference}; expected {cure}, or 'reproducible: false'"
        )

    def _execute(
        self, blocks: Sequence[Block], gear: Gear, executor: Executor | None = None
    ) -> list[Tensors]:
        """executor: the first, if none is given."""
        executor = executor or self._executor
        blocks = [_with_own_state(block) for block in blocks]
        answers, _ = executor.execute(blocks, gear)
        executor.end_batch()
        self._found.executions += 1
        # Copies: a few of them are held at once, and slots are as many as serving needs.
        return [
            {name: array.copy() for name, array in answer.items()}
            | {_state_name(name): left for name, left in (block.state or {}).items()}
            for answer, block in zip(answers, blocks, strict=True)
        ]

    def _compare_alone(self, probe: Block, trial: Trial, answer: Tensors) -> None:
        """Refuses an answer that is not that of the probe by itself at its own size."""
        own, alone = self._alone(probe)
        differences = apart(self._results, answer, alone)
        if not differences:
            return
        rounding = Rounding(self._results, alone, lambda: self._again(probe, own))
        smooth = [each for each in differences if each.output in self._floats]
        # Rounding may turn the largest of two into the other: where there are floats, they tell.
        for difference in smooth if self._floats else differences:
            if difference.distance > rounding.allowed(difference.output):
                self._refuse_change(probe, trial, difference, alone, rounding)
            self._found.rounding = max(self._found.rounding, difference.distance)

    def _alone(self, probe: Block) -> tuple[Gear, Tensors]:
        """Its size, or gear if the graph executes no other, and the probe's answer there alone."""
        own = Gear(1, probe.needs)
        fitted = self._gears.fit(1, probe.needs) or own
        if self._any_size and fitted != own:
            try:
                return own, self._execute([probe], own)[0]
            except EngineFault:
                self._any_size = False
        return fitted, self._execute([probe], fitted)[0]

    def _again(self, probe: Block, own: Gear) -> Variants:
        """The answers to the probe nudged, and in more rows: all but padding and company."""
        nudged = (self._values.nudged(probe, (3, at)) for at in range(_NUDGES))
        answers = [self._execute([block], own)[0] for block in nudged if block is not None]
        together: list[Tensors] = []
        more = min(_REPEATED, self._config.rows)
        gear = Gear(more, own.extents) if self._any_size else self._gears.fit(more, own.extents)
        if self._config.batched and more > 1 and gear is not None:
            together.append(self._execute([probe] * more, gear)[0])
        return Variants(answers, together)

    def _refuse_leakage(
        self, probes: Sequence[Block], trial: Trial, at: int, differences: Sequence[Apart]
    ) -> None:
        """Raises ConfigFault unless two equal executions differ by as much."""
        equal = [self._in_company(probes, trial, Part.LOWER)[at] for _ in range(_EQUAL_EXECUTIONS)]
        chance: dict[str, float] = {}
        for repeated in equal[1:]:
            for each in apart(self._results, repeated, equal[0]):
                chance[each.output] = max(chance.get(each.output, 0.0), each.distance)
        for each in differences:
            by_chance = chance.get(each.output, 0.0)
            if each.distance > 2 * by_chance:
                raise self._fault(
                    f"load check: found {self._told(probes[at])}, executed as {trial.gear}, to get "
                    f"another answer where another request has other values: {each}, and equal "
                    f"executions differ by {by_chance:.3g}; expected {_APART}"
                )

    def _refuse_change(
        self, probe: Block, trial: Trial, change: Apart, alone: Tensors, rounding: Rounding
    ) -> None:
        """Raises ConfigFault with both answers, the gear and the cure."""
        output = [spec for spec in self._results if spec.name == change.output]
        rows = 1 if self._any_size else trial.gear.rows
        by_itself = self._execute([probe], Gear(rows, trial.gear.extents))[0]
        padding = any(
            each.distance > rounding.allowed(each.output)
            for each in apart(output, by_itself, alone)
        )
        field, how, cure = self._blame(probe, trial) if padding else _COMPANY
        raise self._fault(
            f"{field}: found {self._told(probe)}, executed as {trial.gear}, to get another answer "
            f"{how}: {change}, and rounding moves it by {rounding.seen(change.output):.3g}; "
            f"expected {cure}"
        )

    def _blame(self, probe: Block, trial: Trial) -> tuple[str, str, str]:
        """The key to blame for what padding does, what was done, and what to do about it."""
        rules = self._config.padding
        padded = [axis for axis, own in trial.gear.extents.items() if own > probe.sizes[axis]]
        neutral = [axis for axis in padded if rules[axis] is PaddingRule.NEUTRAL]
        equal = ", ".join(f"'padding.{axis}: equal'" for axis in neutral or padded)
        if neutral:
            keys = ", ".join(f"'padding.{axis}'" for axis in neutral)
            return f"parameter {keys}", "padded than alone", f"{equal}: padding is not neutral here"
        told = [name for name, axes in self._config.masks.items() if {*axes} & {*padded}]
        keys = ", ".join(f"'mask.{name}'" for name in told)
        keys = keys or ", ".join(f"'padding.{axis}'" for axis in padded)
        cure = f"a graph that heeds what tells it of padding, or {equal}"
        return f"parameter {keys}", "padded than alone", cure

    def _fault(self, text: str) -> ConfigFault:
        return ConfigFault(self._config.model, [text])

    def _told(self, probe: Block) -> str:
        sizes = ", ".join(f"{axis} {size}" for axis, size in probe.sizes.items())
        return f"a request of one row{f' of {sizes}' if sizes else ''}"


def _state_name(source: str) -> str:
    return f"state.{source}"


def _with_own_state(block: Block) -> Block:
    """The request with a copy of its state, which its execution writes."""
    if block.state is None:
        return block
    return replace(block, state={name: own.copy() for name, own in block.state.items()})
