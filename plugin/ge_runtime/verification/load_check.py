"""The load check: seeded requests must get the same answers alone, padded and beside any others.

`plan` chooses the executions. Each is run several times at the same shapes with other contents of
everything but the requests whose answers are compared: the values of the other requests, and the
padding where the runtime may choose it. These answers must be equal to the bit, unless two equal
executions differ. Then the answer to each request alone is compared with its answer in the
execution. Rounding may change it: `arithmetic` says whether rounding did.

With `reproducible: true`, requests of several sizes are executed alone and beside each other, at
every place of every gear, and all bits of an answer must be the same.

The states that a request leaves to the next request of its sequence are compared like its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

from ge_runtime.batching.admission import Block
from ge_runtime.batching.feeds import Feed, Joined, Turned
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.config import PaddingRule, RuntimeConfig
from ge_runtime.engines.base import Engine, Perturbable
from ge_runtime.errors import ConfigFault, EngineFault, OutOfMemory, RuntimeFault
from ge_runtime.scheduling.executor import Executor
from ge_runtime.specs import ROWS, Tensors, TensorSpec
from ge_runtime.verification.arithmetic import Pair, exceeds_promise, persistent_change
from ge_runtime.verification.distance import (
    TOLERANCES,
    Difference,
    Rounding,
    Variants,
    beyond_chance,
    compare,
    compare_all,
)
from ge_runtime.verification.plan import Plan, Trial, plan_of, served_gear, sizes_within
from ge_runtime.verification.probes import Part, Values

_NUDGES: Final = 2
_REPEATED: Final = 3
"""Copies of one request that are executed together to see how rows change rounding."""
_EQUAL_EXECUTIONS: Final = 3
"""Equal executions that are compared with each other to see differences by chance."""
_ARITHMETICS: Final = 2
"""Engines with other roundings."""
_PARTS_OF_PROBES: Final = (Part.LOWER, Part.UPPER, Part.ENDS, Part.ONE)
"""Values of requests that are tried where the content of padding changes answers."""
_SPECIAL: Final = (
    (Part.CENTER, Part.CENTER, Part.ENDS),
    (Part.ONE, Part.LOWER, Part.UPPER),
)
"""Values of the compared requests, and of the others in two executions, that show a statistic of
all rows which the largest values alone determine, and a tie that others break."""
_UNMEASURED: Final = 100
"""Without a second arithmetic a change up to this many times the promise counts as rounding."""

_INDEPENDENT: Final = "answers do not depend on the values of other requests"
_BY_CHANCE: Final = (
    "equal executions differ, so answers cannot be compared to the bit; beyond that difference "
    "they do not depend on the values of other requests"
)
_SEPARATE_ROWS: Final = "rows that are independent of each other"
_REPRODUCIBLE: Final = "parameter 'reproducible'"

Parameters = Mapping[str, str]
"""Parameters of config.pbtxt, by key."""
Reconfigure = Callable[[Parameters], "tuple[RuntimeConfig, Gears] | None"]
"""Returns the model with these parameters added; None if they are not allowed."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check that found no fault."""

    report: str
    """One line for the log."""
    one_row: str = ""
    """The reason why the graph executes one row only; empty if it executes more."""


@dataclass(slots=True)
class _Progress:
    """Counts and measurements of one check."""

    executions: int = 0
    trials: int = 0
    rounding: float = 0.0
    """The largest distance between an answer alone and the answer padded beside others."""
    gears: int = 0
    """Gears at whose places all answers had the same bits."""
    failed: list[str] = field(default_factory=list)
    together: int = 0
    """Trials of several requests that succeeded."""
    together_fault: str = ""
    """The fault of the first trial of several requests that failed."""
    one: int = 0
    """Executions of one row."""
    by_chance: bool = False
    """True if equal executions gave different answers."""
    notes: list[str] = field(default_factory=list)


class _Refused(Exception):
    """Answers depend on more than the request."""

    def __init__(self, text: str, cures: Sequence[Parameters]) -> None:
        super().__init__(text)
        self.text = text
        self.cures = cures
        """Parameters that may cure it, the smallest change first."""


class LoadCheck:
    """Checks one model on one executor. For one thread; `run` may be called once."""

    def __init__(
        self,
        executor: Executor,
        config: RuntimeConfig,
        gears: Gears,
        *,
        others: Sequence[Executor] = (),
        states: Sequence[TensorSpec] = (),
        flops: Callable[[Gear], int | None] = lambda _: None,
        reconfigure: Reconfigure | None = None,
    ) -> None:
        """Prepare the check.

        Args:
            executor: Executes the trials.
            config: The model.
            gears: The sizes it executes.
            others: Further executors of the model; with `reproducible: true` their answers must
                have the same bits.
            states: Tensors kept between the requests of a sequence, by graph input.
            flops: See `plan_of`.
            reconfigure: Used to try cures; without it they are only named.
        """
        self._executor = executor
        self._executors = (executor, *others)
        self._config = config
        self._gears = gears
        self._flops = flops
        self._reconfigure = reconfigure
        self._values = Values(config, states)
        self._progress = _Progress()
        self._states = tuple(states)
        # States are compared like outputs, under names that no output has.
        self._results = (
            *config.outputs,
            *(replace(spec, name=_state_name(spec.name)) for spec in states),
        )
        self._specs = {spec.name: spec for spec in self._results}
        self._has_floats = any(spec.dtype in TOLERANCES for spec in self._results)
        # Compiled graphs have no sizes other than their gears.
        self._any_size = config.device_kind == "cpu"
        self._arithmetics: list[tuple[Engine, Executor]] | None = None  # opened at first use
        self._refilled = self._with_other_padding()

    def run(self) -> Checked:
        """Check the model.

        Raises:
            ConfigFault: Answers depend on padding, on other requests, or, with
                `reproducible: true`, on anything but the request. With a cure that was tried, if
                there is one.
        """
        try:
            return self._run()
        except _Refused as refused:
            text = f"{refused.text}. {self._cured(refused.cures)}"
            raise ConfigFault(self._config.model, [text]) from None
        finally:
            self._close_arithmetics()

    def _run(self) -> Checked:
        plan = plan_of(self._config, self._gears, self._flops)
        progress = self._progress
        for trial in plan.trials:
            try:
                self._try(trial, special=trial in plan.special)
            except (EngineFault, OutOfMemory) as fault:
                progress.failed.append(f"{trial.gear}: {fault}")
                if trial.company:
                    progress.together_fault = progress.together_fault or str(fault)
                    self._try_one_row(trial)
            else:
                progress.trials += 1
                progress.together += bool(trial.company)
        one_row = self._one_row()
        if not one_row and self._config.reproducible:
            self._check_bits()
        return Checked(self._report(plan), one_row)

    def _report(self, plan: Plan) -> str:
        progress = self._progress
        trials = ", ".join(dict.fromkeys(f"{trial.gear}" for trial in plan.trials))
        kind = "reduced plan" if plan.reduced else "plan"
        line = f"{progress.trials} of {len(plan.trials)} trial(s) in {progress.executions} "
        line += f"execution(s); {kind} of {plan.flops / 1e9:.3g} GFLOP: {trials or 'nothing'}"
        if progress.trials:
            line += f"; {_BY_CHANCE if progress.by_chance else _INDEPENDENT}"
            line += ", nor do the states of sequences" if self._states else ""
            line += f"; padding and rows change them by at most {progress.rounding:.2g}"
        if self._config.reproducible and progress.gears:
            line += f"; equal to the bit at all places of {progress.gears} gear(s)"
        left = [f"left out: {', '.join(plan.left_out)}"] if plan.left_out else []
        failed = (f"not checked: {each}" for each in progress.failed)
        return "; ".join((line, *progress.notes, *left, *failed))

    # -- one trial ------------------------------------------------------------------------------

    def _try(self, trial: Trial, *, special: bool) -> None:
        """Execute a trial. special: also with the values of `_SPECIAL`."""
        probes = self._probes(trial)
        answers = self._beside(trial, probes, Part.LOWER)
        if trial.company or self._refilled is not None:
            parts = (Part.UPPER, Part.ENDS) if trial.company else (Part.UPPER,)
            for part in parts:
                self._compare_contents(trial, probes, answers, Part.LOWER, part)
        self._compare_alone(trial, probes, answers)
        for part in (Part.LOWER, Part.UPPER) if special and trial.padded else ():
            # A maximum does not see a padding of 0 beside a positive number.
            probes = self._probes(trial, part)
            self._compare_alone(trial, probes, self._beside(trial, probes, Part.LOWER))
        for own, one, other in _SPECIAL if special and trial.company else ():
            probes = self._probes(trial, own)
            answers = self._beside(trial, probes, one)
            self._compare_contents(trial, probes, answers, one, other)

    def _probes(self, trial: Trial, part: Part = Part.ALL, seed: int = 0) -> list[Block]:
        return [
            self._values.block(sizes, (seed, at), part) for at, sizes in enumerate(trial.probes)
        ]

    def _beside(
        self, trial: Trial, probes: Sequence[Block], part: Part, executor: Executor | None = None
    ) -> list[Tensors]:
        """Execute the probes beside other requests with values of `part`; return their answers."""
        company = [
            self._values.block(sizes, (1, at), part) for at, sizes in enumerate(trial.company)
        ]
        blocks = [*company[:1], *probes, *company[1:]]
        answers = self._execute(blocks, trial.gear, executor)
        return answers[len(company[:1]) :][: len(probes)]

    def _compare_contents(
        self,
        trial: Trial,
        probes: Sequence[Block],
        answers: Sequence[Tensors],
        one: Part,
        other: Part,
    ) -> None:
        """Refuse answers that differ beside values of other parts, and with other padding.

        `answers` are those beside values of `one`.
        """
        others = self._beside(trial, probes, other, self._refilled)
        changed = self._beyond_chance(trial, probes, answers, others, one)
        if changed is None:
            return
        if trial.company and self._refilled is not None:
            # Which of the two is it?
            others = self._beside(trial, probes, other)
            leak = self._beyond_chance(trial, probes, answers, others, one)
        else:
            leak = changed if trial.company else None
        if leak is None:
            self._try_padding(trial)
            return
        at, difference, chance = leak
        raise _Refused(
            f"load check: found {_text(probes[at])} whose answer changes with the values of "
            f"another request, executed as {trial.gear}: {difference}, and equal executions "
            f"differ by {chance:.3g}; expected {_SEPARATE_ROWS}",
            self._cures_of_rows(trial),
        )

    def _beyond_chance(
        self,
        trial: Trial,
        probes: Sequence[Block],
        answers: Sequence[Tensors],
        others: Sequence[Tensors],
        one: Part,
    ) -> tuple[int, Difference, float] | None:
        """Return the probe, the difference and what equal executions differ by."""
        for at, (answer, other) in enumerate(zip(answers, others, strict=True)):

            def repeated(at: int = at) -> list[Tensors]:
                return [self._beside(trial, probes, one)[at] for _ in range(_EQUAL_EXECUTIONS)]

            differences = compare_all(self._results, answer, other)
            found = beyond_chance(self._results, differences, repeated)
            if found is not None:
                return (at, *found)
            self._progress.by_chance |= bool(differences)
        return None

    def _try_padding(self, trial: Trial) -> None:
        """Check more requests, as the content of padding changes answers.

        Serving always pads with the same value, with which the graph may compute correctly. Whether
        it does for all requests, one request does not show: a maximum does not see a 0 beside
        larger numbers.
        """
        for seed, part in enumerate(_PARTS_OF_PROBES, start=6):
            probes = self._probes(trial, part, seed)
            answers = self._beside(trial, probes, Part.LOWER)
            self._compare_alone(trial, probes, answers, ties=part is Part.ONE)
        note = "the graph computes with padding; its value is that of 'pad.<input>', by default 0"
        if note not in self._progress.notes:
            self._progress.notes.append(note)

    def _with_other_padding(self) -> Executor | None:
        """Return an executor with another padding value; None where padding is given.

        It is given along neutral axes, for which the user states that this value changes no answer,
        and for inputs with `pad.<input>`.
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
        if isinstance(feed, Turned):
            inner = self._refill(feed.feed)
            return feed if inner is feed.feed else replace(feed, feed=inner)
        if not isinstance(feed, Joined) or feed.spec.name in config.axis_lengths.values():
            return feed
        name, own = feed.spec.name, config.ranges.get(feed.spec.name)
        if name in config.pads and config.pads[name] != (own.nearest(0) if own else 0):
            return feed
        if any(config.padding[axis] is PaddingRule.NEUTRAL for axis in feed.spec.axes):
            return feed
        return replace(feed, pad=self._values.other_padding(feed.spec, feed.pad))

    # -- alone and together ---------------------------------------------------------------------

    def _compare_alone(
        self,
        trial: Trial,
        probes: Sequence[Block],
        answers: Sequence[Tensors],
        *,
        ties: bool = False,
    ) -> None:
        """Refuse answers that differ from those alone at the requests' own sizes.

        ties: elements are equal, so that rounding decides between integers.
        """
        for at, probe in enumerate(probes):
            own, alone = self._alone(probe)
            if own == trial.gear and not trial.company:
                continue
            for spec in self._results:
                if ties and spec.dtype not in TOLERANCES:
                    continue
                pair = Pair(alone[spec.name], answers[at][spec.name])
                difference = compare(spec, pair.padded, pair.alone)
                if difference is None:
                    continue
                if exceeds_promise(spec, pair):
                    change = self._unexplained(trial, probes, at, spec, pair, own)
                    if change is not None:
                        self._refuse_change(trial, probes, at, own, spec, *change)
                if spec.dtype in TOLERANCES:
                    self._progress.rounding = max(self._progress.rounding, difference.distance)

    def _unexplained(
        self,
        trial: Trial,
        probes: Sequence[Block],
        at: int,
        spec: TensorSpec,
        pair: Pair,
        own: Gear,
    ) -> tuple[Difference, float] | None:
        """Return a change that rounding does not explain, and the distance by rounding."""
        others: list[Pair] = []
        for _, executor in self._other_arithmetics():
            with suppress(EngineFault, OutOfMemory):
                alone = self._execute([probes[at]], own, executor)[0][spec.name]
                padded = self._beside(trial, probes, Part.LOWER, executor)[at][spec.name]
                others.append(Pair(alone, padded))
        if others:
            nudged = self._nudged(probes[at], own)
            return persistent_change(spec, pair, others, [each[spec.name] for each in nudged])
        if spec.dtype not in TOLERANCES and self._has_floats:
            return None  # rounding may swap the largest two values; the floats show more
        return self._unmeasured(probes[at], spec, pair, own)

    def _unmeasured(
        self, probe: Block, spec: TensorSpec, pair: Pair, own: Gear
    ) -> tuple[Difference, float] | None:
        """Return a change beyond rounding if there is no second arithmetic, as on devices."""
        difference = compare(spec, pair.padded, pair.alone)
        if difference is None:
            return None

        def variants() -> Variants:
            return Variants(self._nudged(probe, own), self._copies(probe, own))

        rounding = Rounding((spec,), {spec.name: pair.alone}, variants)
        allowed = max(rounding.allowed(spec.name), _UNMEASURED * rounding.promise(spec.name))
        if difference.distance <= allowed:
            return None
        return difference, rounding.seen(spec.name)

    def _alone(self, probe: Block) -> tuple[Gear, Tensors]:
        """Execute the probe alone at its own size, or at its gear if the graph has no other sizes.

        Returns the size and the answer.
        """
        own = Gear(1, probe.needs)
        fitted = self._gears.fit(1, probe.needs) or own
        if self._any_size and fitted != own:
            try:
                answer = self._execute([probe], own)[0]
            except EngineFault:
                self._any_size = False
            else:
                self._progress.one += 1
                return own, answer
        answer = self._execute([probe], fitted)[0]
        self._progress.one += fitted.rows == 1
        return fitted, answer

    def _nudged(self, probe: Block, own: Gear) -> list[Tensors]:
        """Execute the probe alone with its floats moved to their neighbours."""
        moved = (self._values.nudged(probe, (3, at)) for at in range(_NUDGES))
        return [self._execute([block], own)[0] for block in moved if block is not None]

    def _copies(self, probe: Block, own: Gear) -> list[Tensors]:
        """Execute several copies of the probe together, without padding."""
        more = min(_REPEATED, self._config.rows)
        gear = Gear(more, own.extents) if self._any_size else self._gears.fit(more, own.extents)
        if not self._config.batched or more == 1 or gear is None:
            return []
        return [self._execute([probe] * more, gear)[0]]

    def _other_arithmetics(self) -> list[tuple[Engine, Executor]]:
        """Return executors on the same graph with other roundings; none if there are none."""
        if self._arithmetics is None:
            self._arithmetics = []
            engine = getattr(self._executor, "engine", None)
            if not isinstance(engine, Perturbable):
                return self._arithmetics
            for seed in range(_ARITHMETICS):
                with suppress(RuntimeFault, MemoryError):
                    other = engine.perturbed(seed)
                    if other is not None:
                        executor = self._executor.variant(engine=other)
                        self._arithmetics.append((other, executor))
        return self._arithmetics

    def _close_arithmetics(self) -> None:
        for engine, _ in self._arithmetics or ():
            engine.close()
        self._arithmetics = None

    def _refuse_change(
        self,
        trial: Trial,
        probes: Sequence[Block],
        at: int,
        own: Gear,
        spec: TensorSpec,
        change: Difference,
        rounding: float,
    ) -> None:
        """Raise the refusal of an answer that padding, or the number of rows, changes."""
        probe = probes[at]
        lone = Trial(
            Gear(1 if self._any_size else trial.gear.rows, trial.gear.extents), (probe.sizes,)
        )
        padding = False
        if lone.padded or not trial.company:
            answer = self._beside(lone, [probe], Part.LOWER)[0]
            pair = Pair(self._alone(probe)[1][spec.name], answer[spec.name])
            padding = exceeds_promise(spec, pair) and (
                self._unexplained(lone, [probe], 0, spec, pair, own) is not None
            )
        field, when, expected = (
            self._padding_fault(probe, trial)
            if padding
            else ("load check", "when it is executed beside other requests", _SEPARATE_ROWS)
        )
        raise _Refused(
            f"{field}: found {_text(probe)} whose answer changes {when}, executed as {trial.gear}: "
            f"{change}, and rounding changes it by {rounding:.3g}; expected {expected}",
            self._cures_of_padding(trial) if padding else self._cures_of_rows(trial),
        )

    def _padding_fault(self, probe: Block, trial: Trial) -> tuple[str, str, str]:
        """Return the parameter that causes a change by padding, when it occurs, and the rule."""
        rules = self._config.padding
        padded = [axis for axis, own in trial.gear.extents.items() if own > probe.sizes[axis]]
        neutral = [axis for axis in padded if rules[axis] is PaddingRule.NEUTRAL]
        when = "when it is padded"
        if neutral:
            keys = ", ".join(f"'padding.{axis}'" for axis in neutral)
            return f"parameter {keys}", when, "padding that changes no answer"
        masks = [name for name, axes in self._config.masks.items() if {*axes} & {*padded}]
        keys = ", ".join(f"'mask.{name}'" for name in masks)
        keys = keys or ", ".join(f"'padding.{axis}'" for axis in padded)
        where = f"parameter {keys}" if keys else "parameter 'gears.batch'"
        return where, when, "a graph that uses its mask or lengths to ignore padding"

    # -- cures ----------------------------------------------------------------------------------

    def _cures_of_padding(self, trial: Trial) -> list[Parameters]:
        equal = [
            {f"padding.{axis}": "equal"}
            for axis, rule in self._config.padding.items()
            if rule is not PaddingRule.EQUAL
        ]
        every = {key: own for cure in equal for key, own in cure.items()}
        cures = [*equal, every] if len(equal) > 1 else [*equal]
        return [
            *cures,
            *([self._one_row_cure] if trial.company else []),
            self._one_row_cure | every,
        ]

    def _cures_of_rows(self, trial: Trial) -> list[Parameters]:
        padding = self._cures_of_padding(trial)
        one = self._one_row_cure
        return [one, *({**one, **cure} for cure in padding if cure != one)]

    @property
    def _one_row_cure(self) -> dict[str, str]:
        return {"gears.batch": "1"} if self._config.batched and self._config.rows > 1 else {}

    def _cured(self, cures: Sequence[Parameters]) -> str:
        """Try the cures on this executor; return a sentence with the first that passes."""
        cures = [cure for at, cure in enumerate(cures) if cure and cure not in cures[:at]]
        if self._reconfigure is None:
            return (
                f"Possible cure: {_shown(cures[0])}" if cures else "There is no cure by parameters"
            )
        for cure in cures:
            changed = self._reconfigure(cure)
            if changed is None:
                continue
            check = LoadCheck(
                self._executor,
                *changed,
                others=self._executors[1:],
                states=self._states,
                flops=self._flops,
            )
            try:
                checked = check._run()
            except (_Refused, RuntimeFault):
                continue
            finally:
                check._close_arithmetics()
            if check._progress.trials and not checked.one_row:
                return f"Cure, tried: with {_shown(cure)} it loads"
        return (
            "No parameter cures it: export the graph so that a request's answer depends on the "
            "request alone"
        )

    # -- graphs of one row ----------------------------------------------------------------------

    def _try_one_row(self, trial: Trial) -> None:
        """Execute the first probe alone, as several requests together failed."""
        with suppress(EngineFault, OutOfMemory):
            self._alone(self._probes(trial)[0])

    def _one_row(self) -> str:
        """Return why the graph executes no two rows; empty if it does, or executes nothing.

        Raises the refusal if the configuration demands more rows.
        """
        progress = self._progress
        if progress.together or not progress.together_fault or not progress.one:
            return ""
        reason = f"each execution of two or more rows failed: {progress.together_fault.strip()}"
        if any(ROWS in axes for axes in self._config.gears):
            raise _Refused(
                f"parameter 'gears.batch': found a graph that executes one row only: {reason}; "
                "expected one that executes the rows of its gears",
                [self._one_row_cure],
            )
        return reason

    # -- equal bits -----------------------------------------------------------------------------

    def _check_bits(self) -> None:
        """Check every gear, however long it takes: equal bits are a promise.

        Raises the refusal of an answer that depends on its place, on other requests or on chance.
        """
        for gear in self._gears.every():
            sizes = [
                own
                for own in sizes_within(self._config, gear.extents)
                if served_gear(self._config, self._gears, [own]) == gear
            ]
            try:
                self._check_places(gear, [*sizes[:2], gear.extents])
            except (EngineFault, OutOfMemory) as fault:
                raise _Refused(
                    f"{_REPRODUCIBLE}: found an execution of {gear} to fail: {fault}; "
                    "expected gears that the graph executes, for values within 'range.<input>'",
                    [self._one_row_cure],
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
        """Raise the refusal with the gear and the place."""
        again = (self._execute([probe], gear)[0] for _ in range(_EQUAL_EXECUTIONS))
        by_chance = any(compare_all(self._results, each, alone) for each in again)
        how = "equal executions" if by_chance else f"row {place} beside other requests and alone"
        expected = "an engine with deterministic results" if by_chance else "the same bits"
        cures = [{"reproducible": "false"}]
        raise _Refused(
            f"{_REPRODUCIBLE}: found {_text(probe)} whose answer has different bits in {how}, "
            f"executed as {gear}: {difference}; expected {expected}",
            cures if by_chance else [self._one_row_cure, *cures],
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


def _shown(parameters: Parameters) -> str:
    return " and ".join(f"'{key}: {value}'" for key, value in parameters.items())


def _text(probe: Block) -> str:
    sizes = ", ".join(f"{axis} {size}" for axis, size in probe.sizes.items())
    return f"a request of one row{f' of {sizes}' if sizes else ''}"


def _state_name(source: str) -> str:
    return f"state.{source}"


def _with_own_state(block: Block) -> Block:
    """Return the request with a copy of its state, which its execution overwrites."""
    if block.state is None:
        return block
    return block._replace(state={name: own.copy() for name, own in block.state.items()})
