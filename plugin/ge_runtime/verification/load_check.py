"""The load check: seeded requests must get the same answers alone, padded and beside any others.

First the answers beside some requests are compared with the answers beside others, bit by bit, at
equal shapes. Only the values of the other requests differ, so a difference is leakage and refuses
the model, unless two equal executions differ by as much. Then a request executed alone at its own
size is compared with the same request beside others, padded to the size of the execution. If the
answers differ by more than rounding, padding is not neutral, or the graph ignores the input that
marks padding.

With `reproducible: true`, requests of several sizes are executed alone and beside each other, at
every place of every gear, and all bits of an answer must be the same.

The states that a request leaves to the next request of its sequence are compared like its outputs.
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
from ge_runtime.verification.distance import (
    TOLERANCES,
    Difference,
    Rounding,
    Variants,
    beyond_chance,
    compare_all,
)
from ge_runtime.verification.probes import Part, Trial, Values, by_work, trials_of

CHECK_S: Final = 1.0
"""Seconds spent on checking, at most. Sizes that do not fit into that time are skipped, and the log
names them. Where this process computes it is CPU time, so that the load of the machine does not
decide which sizes are checked."""
BUSY_S: Final = 3.0
"""Seconds of wall-clock time, at most, where this process computes."""

_LEAPS: Final = 1.5
"""A trial may take this many times as long as its size suggests: larger tensors overflow caches."""
_NUDGES: Final = 2
_REPEATED: Final = 3
"""Copies of one request that are executed together to see how rows change rounding."""
_EQUAL_EXECUTIONS: Final = 3
"""Equal executions that are compared with each other to see differences by chance."""
_SEPARATE_ROWS: Final = (
    "rows that are independent of each other: export the graph so, or execute one row at a time "
    "with 'gears.batch: 1'"
)
_REPRODUCIBLE: Final = "parameter 'reproducible'"
_ONE_BY_ONE: Final = "'gears.batch: 1', which executes each row alone"
_OTHER_REQUESTS: Final = ("load check", "when it is executed beside other requests", _SEPARATE_ROWS)


@dataclass(slots=True)
class _Progress:
    """Counts and measurements of one check."""

    executions: int = 0
    trials: int = 0
    rounding: float = 0.0
    """The largest distance between an answer alone and the answer padded beside others."""
    gears: int = 0
    """Gears at whose places all answers had the same bits."""
    skipped: list[str] = field(default_factory=list)


class _Budget:
    """The time that is left for checking."""

    def __init__(self, clocks: Sequence[tuple[Callable[[], float], float]]) -> None:
        """clocks: each with the seconds that may pass on it from now on."""
        self._clocks = [(clock, clock(), most) for clock, most in clocks]
        self._element_s = [0.0] * len(clocks)  # of the last trial, by clock

    def affords(self, trial: Trial) -> bool:
        """Return whether the trial should fit, judged by the last one; the first always does."""
        return all(
            clock() - start + _LEAPS * element_s * trial.elements <= most
            for (clock, start, most), element_s in zip(self._clocks, self._element_s, strict=True)
        )

    @contextmanager
    def measuring(self, trial: Trial) -> Iterator[None]:
        """Measure a trial, from which the next ones are estimated."""
        before = [clock() for clock, _, _ in self._clocks]
        yield
        self._element_s = [
            (clock() - start) / trial.elements
            for (clock, _, _), start in zip(self._clocks, before, strict=True)
        ]


class LoadCheck:
    """Checks one model on one executor. For one thread; `run` may be called once."""

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
        """Prepare the check.

        Args:
            executor: Executes the trials.
            config: The model.
            gears: The sizes it executes.
            clock: Wall-clock seconds.
            cpu_clock: CPU seconds of this process.
            others: Further executors of the model; with `reproducible: true` their answers must
                have the same bits.
            states: Tensors kept between the requests of a sequence, by graph input.
        """
        self._executor = executor
        self._executors = (executor, *others)
        self._config = config
        self._gears = gears
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._values = Values(config, states)
        self._progress = _Progress()
        self._states = tuple(states)
        # States are compared like outputs, under names that no output has.
        self._results = (
            *config.outputs,
            *(replace(spec, name=_state_name(spec.name)) for spec in states),
        )
        self._floats = {spec.name for spec in self._results if spec.dtype in TOLERANCES}
        # Compiled graphs have no sizes other than their gears.
        self._any_size = config.device_kind == "cpu"

    def run(self) -> str:
        """Check the model, and return one line for the log about what was checked.

        Raises:
            ConfigFault: Answers depend on padding, on other requests, or, with
                `reproducible: true`, on anything but the request.
        """
        progress, start = self._progress, self._clock()
        here = self._config.device_kind == "cpu" and self._config.service_share is None
        clocks = [(self._cpu_clock, CHECK_S), (self._clock, BUSY_S)]
        budget = _Budget(clocks if here else [(self._clock, CHECK_S)])
        left = trials_of(self._config, self._gears)
        while trial := next(filter(budget.affords, left), None):
            left.remove(trial)
            try:
                with budget.measuring(trial):
                    self._try(trial)
            except (EngineFault, OutOfMemory) as fault:
                progress.skipped.append(f"{trial.gear}: {fault}")
            else:
                progress.trials += 1
        progress.skipped += [f"{trial.gear}: no time left" for trial in by_work(left)]
        if self._config.reproducible:
            self._check_bits()
        return self._report(self._clock() - start)

    def _report(self, seconds: float) -> str:
        progress = self._progress
        line = f"{progress.trials} size(s) in {progress.executions} execution(s), {seconds:.2f} s"
        if progress.trials:
            line += ": answers do not depend on the values of other requests"
            line += ", nor do the states of sequences" if self._states else ""
            line += f"; padding and rows change them by at most {progress.rounding:.2g}"
        if self._config.reproducible:
            line += f"; equal to the bit at all places of {progress.gears} gear(s)"
        return "; ".join((line, *(f"not checked: {each}" for each in progress.skipped)))

    def _try(self, trial: Trial) -> None:
        probes = [self._values.block(sizes, (0, at)) for at, sizes in enumerate(trial.probes)]
        if not trial.mixed:
            for probe in probes:
                self._compare_alone(probe, trial, self._execute([probe], trial.gear)[0])
            return
        one = self._beside_another(probes, trial, Part.LOWER)
        other = self._beside_another(probes, trial, Part.UPPER)
        for at, probe in enumerate(probes):
            self._refuse_leakage(probes, trial, at, compare_all(self._results, one[at], other[at]))
            self._compare_alone(probe, trial, one[at])

    def _beside_another(self, probes: Sequence[Block], trial: Trial, part: Part) -> list[Tensors]:
        """Execute the probes beside a request of the gear's own size, with values of `part`."""
        other = self._values.block(trial.gear.extents, (1,), part)
        return self._execute([other, *probes], trial.gear)[1:]

    def _check_bits(self) -> None:
        """Check every gear, however long it takes: equal bits are a promise.

        Raises ConfigFault for an answer that depends on its place, on other requests or on chance.
        """
        for trial in trials_of(self._config, self._gears):
            try:
                self._check_places(trial.gear, [*trial.probes, trial.gear.extents])
            except (EngineFault, OutOfMemory) as fault:
                raise self._fault(
                    f"{_REPRODUCIBLE}: found an execution of {trial.gear} to fail: {fault}; "
                    "expected gears that the graph executes, for values within 'range.<input>'"
                ) from fault
            self._progress.gears += 1

    def _check_places(self, gear: Gear, sizes: Sequence[Mapping[str, int]]) -> None:
        """Execute requests of these sizes alone, then together, each at all places in turn."""
        probes = [self._values.block(own, (5, at)) for at, own in enumerate(sizes)]
        alone = [self._execute([probe], gear)[0] for probe in probes]
        room = min(gear.rows, self._config.rows)
        for executor, first in product(self._executors, range(len(probes))):
            places = [(first + place) % len(probes) for place in range(room)]
            answers = self._execute([probes[at] for at in places], gear, executor)
            for place, (at, answer) in enumerate(zip(places, answers, strict=True)):
                if differences := compare_all(self._results, answer, alone[at]):
                    self._refuse_bits(probes[at], gear, place, alone[at], differences[0])

    def _refuse_bits(
        self, probe: Block, gear: Gear, place: int, alone: Tensors, difference: Difference
    ) -> None:
        """Raise ConfigFault with the gear, the place and the remedy."""
        again = (self._execute([probe], gear)[0] for _ in range(_EQUAL_EXECUTIONS))
        by_chance = any(compare_all(self._results, each, alone) for each in again)
        how = "equal executions" if by_chance else f"row {place} beside other requests and alone"
        remedy = "an engine with deterministic results" if by_chance else _ONE_BY_ONE
        raise self._fault(
            f"{_REPRODUCIBLE}: found {_text(probe)} whose answer has different bits in {how}, "
            f"executed as {gear}: {difference}; expected {remedy}, or 'reproducible: false'"
        )

    def _execute(
        self, blocks: Sequence[Block], gear: Gear, executor: Executor | None = None
    ) -> list[Tensors]:
        """Execute on `executor`, by default the first, and return copies of the answers."""
        executor = executor or self._executor
        blocks = [_with_own_state(block) for block in blocks]
        answers, _ = executor.execute(blocks, gear)
        executor.end_batch()
        self._progress.executions += 1
        # Copies, as several answers are held at once and there are only as many slots as serving
        # needs.
        return [
            {name: array.copy() for name, array in answer.items()}
            | {_state_name(name): left for name, left in (block.state or {}).items()}
            for answer, block in zip(answers, blocks, strict=True)
        ]

    def _compare_alone(self, probe: Block, trial: Trial, answer: Tensors) -> None:
        """Refuse an answer that differs from the probe's answer alone at its own size."""
        own, alone = self._alone(probe)
        differences = compare_all(self._results, answer, alone)
        if not differences:
            return
        rounding = Rounding(self._results, alone, lambda: self._again(probe, own))
        smooth = [each for each in differences if each.output in self._floats]
        # Rounding may swap the largest two values and so change an integer output; where there are
        # float outputs, only they are compared.
        for difference in smooth if self._floats else differences:
            if difference.distance > rounding.allowed(difference.output):
                self._refuse_change(probe, trial, difference, alone, rounding)
            self._progress.rounding = max(self._progress.rounding, difference.distance)

    def _alone(self, probe: Block) -> tuple[Gear, Tensors]:
        """Execute the probe alone at its own size, or at its gear if the graph has no other sizes.

        Returns the size and the answer.
        """
        own = Gear(1, probe.needs)
        fitted = self._gears.fit(1, probe.needs) or own
        if self._any_size and fitted != own:
            try:
                return own, self._execute([probe], own)[0]
            except EngineFault:
                self._any_size = False
        return fitted, self._execute([probe], fitted)[0]

    def _again(self, probe: Block, own: Gear) -> Variants:
        """Execute the nudged probe, and several copies of the probe together, without padding."""
        moved = (self._values.nudged(probe, (3, at)) for at in range(_NUDGES))
        answers = [self._execute([block], own)[0] for block in moved if block is not None]
        together: list[Tensors] = []
        more = min(_REPEATED, self._config.rows)
        gear = Gear(more, own.extents) if self._any_size else self._gears.fit(more, own.extents)
        if self._config.batched and more > 1 and gear is not None:
            together.append(self._execute([probe] * more, gear)[0])
        return Variants(answers, together)

    def _refuse_leakage(
        self, probes: Sequence[Block], trial: Trial, at: int, differences: Sequence[Difference]
    ) -> None:
        """Raise ConfigFault if equal executions differ by less than `differences`."""

        def repeated() -> list[Tensors]:
            return [
                self._beside_another(probes, trial, Part.LOWER)[at]
                for _ in range(_EQUAL_EXECUTIONS)
            ]

        leak = beyond_chance(self._results, differences, repeated)
        if leak is not None:
            difference, chance = leak
            raise self._fault(
                f"load check: found {_text(probes[at])} whose answer changes with the values of "
                f"another request, executed as {trial.gear}: {difference}, and equal executions "
                f"differ by {chance:.3g}; expected {_SEPARATE_ROWS}"
            )

    def _refuse_change(
        self, probe: Block, trial: Trial, change: Difference, alone: Tensors, rounding: Rounding
    ) -> None:
        """Raise ConfigFault with both answers, the gear and the remedy."""
        output = [spec for spec in self._results if spec.name == change.output]
        rows = 1 if self._any_size else trial.gear.rows
        padded = self._execute([probe], Gear(rows, trial.gear.extents))[0]
        padding = any(
            each.distance > rounding.allowed(each.output)
            for each in compare_all(output, padded, alone)
        )
        field, when, remedy = self._padding_fault(probe, trial) if padding else _OTHER_REQUESTS
        raise self._fault(
            f"{field}: found {_text(probe)} whose answer changes {when}, executed as {trial.gear}: "
            f"{change}, and rounding changes it by {rounding.seen(change.output):.3g}; "
            f"expected {remedy}"
        )

    def _padding_fault(self, probe: Block, trial: Trial) -> tuple[str, str, str]:
        """Return the parameter that causes a change by padding, when it occurs, and the remedy."""
        rules = self._config.padding
        padded = [axis for axis, own in trial.gear.extents.items() if own > probe.sizes[axis]]
        neutral = [axis for axis in padded if rules[axis] is PaddingRule.NEUTRAL]
        equal = ", ".join(f"'padding.{axis}: equal'" for axis in neutral or padded)
        when = "when it is padded"
        if neutral:
            keys = ", ".join(f"'padding.{axis}'" for axis in neutral)
            return f"parameter {keys}", when, f"{equal}: padding is not neutral for this graph"
        masks = [name for name, axes in self._config.masks.items() if {*axes} & {*padded}]
        keys = ", ".join(f"'mask.{name}'" for name in masks)
        keys = keys or ", ".join(f"'padding.{axis}'" for axis in padded)
        remedy = f"a graph that uses its mask or lengths to ignore padding, or {equal}"
        return f"parameter {keys}", when, remedy

    def _fault(self, text: str) -> ConfigFault:
        return ConfigFault(self._config.model, [text])


def _text(probe: Block) -> str:
    sizes = ", ".join(f"{axis} {size}" for axis, size in probe.sizes.items())
    return f"a request of one row{f' of {sizes}' if sizes else ''}"


def _state_name(source: str) -> str:
    return f"state.{source}"


def _with_own_state(block: Block) -> Block:
    """Return the request with a copy of its state, which its execution overwrites."""
    if block.state is None:
        return block
    return replace(block, state={name: own.copy() for name, own in block.state.items()})
