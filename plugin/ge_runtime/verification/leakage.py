"""Leakage: answers that depend on the contents of other requests, on padding or on rows.

A trial is executed several times at the same shapes. The compared requests stay the same. The
values of the other requests change, and so does the padding value if the runtime may choose it. The
answers must be equal to the bit, unless two equal executions differ. After that, the answer to each
request alone is compared with its answer in the trial: `arithmetic` decides whether rounding
explains a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ge_runtime.batching.admission import Block
from ge_runtime.batching.gears import Gear
from ge_runtime.config import PaddingRule, RuntimeConfig
from ge_runtime.errors import EngineFault, OutOfMemory
from ge_runtime.specs import Array, DType, Tensors, TensorSpec
from ge_runtime.verification.arithmetic import Pair, exceeds_tolerance, persistent_change
from ge_runtime.verification.cures import Refused, cures_of_padding, cures_of_rows
from ge_runtime.verification.distance import (
    TOLERANCES,
    Difference,
    Rounding,
    Variants,
    beyond_chance,
    compare,
    compare_all,
)
from ge_runtime.verification.executions import Executions
from ge_runtime.verification.plan import Trial
from ge_runtime.verification.probes import Part, request_text

_EQUAL_EXECUTIONS: Final = 3
"""Equal executions that are compared with each other to see differences by chance."""
_PARTS_OF_PROBES: Final = (Part.LOWER, Part.UPPER, Part.ENDS, Part.ONE)
"""Values of the compared requests that are tried after the padding value changed an answer."""
_SPECIAL: Final = (
    (Part.CENTER, Part.CENTER, Part.ENDS),
    (Part.ONE, Part.LOWER, Part.UPPER),
)
"""Values of the compared requests, and of the other requests in two executions. The first line
reveals statistics over all rows that only the largest values determine, the second reveals ties
that other rows break."""
_UNMEASURED: Final = 100
"""Largest change, in tolerances, that counts as rounding if no execution shows any rounding."""
_SEPARATE_ROWS: Final = "rows that are independent of each other"


class Leakage:
    """Checks trials of one model.

    Attributes:
        rounding: The largest distance between an answer alone and the answer in a trial.
        by_chance: True if equal executions gave different answers.
        computes_with_padding: True if another padding value changed an answer.
    """

    def __init__(self, executions: Executions, config: RuntimeConfig) -> None:
        self._executions = executions
        self._config = config
        self._specs = executions.results
        self._has_floats = any(spec.dtype in TOLERANCES for spec in self._specs)
        self.rounding = 0.0
        self.by_chance = False
        self.computes_with_padding = False

    def check(self, trial: Trial, *, special: bool) -> None:
        """Execute a trial and compare its answers; with `special`, also for special values.

        Raises:
            Refused: Answers depend on more than the request.
        """
        executions = self._executions
        probes = executions.probes(trial)
        answers = executions.beside(trial, probes, Part.LOWER)
        if trial.company or executions.refills:
            parts = (Part.UPPER, Part.ENDS) if trial.company else (Part.UPPER,)
            for part in parts:
                self._compare_contents(trial, probes, answers, Part.LOWER, part)
        self._compare_alone(trial, probes, answers)
        for part in (Part.LOWER, Part.UPPER) if special and trial.padded else ():
            # A padding of 0 beside a positive number does not change a maximum.
            probes = executions.probes(trial, part)
            self._compare_alone(trial, probes, executions.beside(trial, probes, Part.LOWER))
        for own, one, other in _SPECIAL if special and trial.company else ():
            probes = executions.probes(trial, own)
            answers = executions.beside(trial, probes, one)
            self._compare_contents(trial, probes, answers, one, other)

    # -- equal shapes ---------------------------------------------------------------------------

    def _compare_contents(
        self,
        trial: Trial,
        probes: Sequence[Block],
        answers: Sequence[Tensors],
        one: Part,
        other: Part,
    ) -> None:
        """Refuse answers that depend on the values of other requests, or on the padding value.

        `answers` are the answers beside other requests with values of `one`.
        """
        executions = self._executions
        others = executions.beside(trial, probes, other, refilled=True)
        changed = self._beyond_chance(trial, probes, answers, others, one)
        if changed is None:
            return
        if trial.company and executions.refills:
            # Distinguish other values from other padding.
            others = executions.beside(trial, probes, other)
            leak = self._beyond_chance(trial, probes, answers, others, one)
        else:
            leak = changed if trial.company else None
        if leak is None:
            self._try_padding(trial)
            return
        at, difference, chance = leak
        raise Refused(
            f"load check: found {request_text(probes[at])} whose answer changes with the values of "
            f"another request, executed as {trial.gear}: {difference}, and equal executions "
            f"differ by {chance:.3g}; expected {_SEPARATE_ROWS}",
            cures_of_rows(self._config, trial),
        )

    def _beyond_chance(
        self,
        trial: Trial,
        probes: Sequence[Block],
        answers: Sequence[Tensors],
        others: Sequence[Tensors],
        one: Part,
    ) -> tuple[int, Difference, float] | None:
        """Find a changed answer: the index of its probe, the change, and the change by chance."""
        for at, (answer, other) in enumerate(zip(answers, others, strict=True)):

            def repeated(at: int = at) -> list[Tensors]:
                return [
                    self._executions.beside(trial, probes, one)[at]
                    for _ in range(_EQUAL_EXECUTIONS)
                ]

            differences = compare_all(self._specs, answer, other)
            found = beyond_chance(self._specs, differences, repeated)
            if found is not None:
                return (at, *found)
            self.by_chance |= bool(differences)
        return None

    def _try_padding(self, trial: Trial) -> None:
        """Check more requests after the padding value changed answers.

        Serving always pads with the same value, and answers padded with it may be correct. One
        request does not prove that: a padding of 0 beside larger numbers does not change a maximum.
        """
        for seed, part in enumerate(_PARTS_OF_PROBES, start=6):
            probes = self._executions.probes(trial, part, seed)
            answers = self._executions.beside(trial, probes, Part.LOWER)
            self._compare_alone(trial, probes, answers, ties=part is Part.ONE)
        self.computes_with_padding = True

    # -- alone and together ---------------------------------------------------------------------

    def _compare_alone(
        self,
        trial: Trial,
        probes: Sequence[Block],
        answers: Sequence[Tensors],
        *,
        ties: bool = False,
    ) -> None:
        """Refuse answers that differ from the answers to the requests alone at their own sizes.

        With `ties`, the elements of a request are equal. Then rounding decides which integers an
        answer has, so that only floats are compared.
        """
        for at, probe in enumerate(probes):
            own, alone = self._executions.alone(probe)
            if own == trial.gear and not trial.company:
                continue
            evidence = _Evidence(self._executions, trial, probes, at, own)
            for spec in self._specs:
                if ties and spec.dtype not in TOLERANCES:
                    continue
                pair = Pair(alone[spec.name], answers[at][spec.name])
                difference = compare(spec, pair.padded, pair.alone)
                if difference is None:
                    continue
                change = self._unexplained(spec, pair, evidence)
                if change is not None:
                    raise self._refusal(trial, probe, own, spec, *change)
                if spec.dtype in TOLERANCES:
                    self.rounding = max(self.rounding, difference.distance)

    def _unexplained(
        self, spec: TensorSpec, pair: Pair, evidence: _Evidence
    ) -> tuple[Difference, float] | None:
        """Return a change that rounding does not explain, and how much rounding changes."""
        if not exceeds_tolerance(spec, pair):
            return None
        others = evidence.pairs(spec)
        if others:
            return persistent_change(spec, pair, others, evidence.nudged_alone(spec))
        if spec.dtype not in TOLERANCES and self._has_floats:
            return None  # rounding may swap the largest two values; the floats show more
        return evidence.change_of_inputs(spec, pair)

    def _refusal(
        self,
        trial: Trial,
        probe: Block,
        own: Gear,
        spec: TensorSpec,
        change: Difference,
        rounding: float,
    ) -> Refused:
        """Return the refusal of an answer that padding, or the number of rows, changes."""
        rows = 1 if self._executions.any_size else trial.gear.rows
        lone = Trial(Gear(rows, trial.gear.extents), (probe.sizes,))
        padding = False
        if lone.padded or not trial.company:
            answer = self._executions.beside(lone, [probe], Part.LOWER)[0]
            pair = Pair(self._executions.alone(probe)[1][spec.name], answer[spec.name])
            evidence = _Evidence(self._executions, lone, [probe], 0, own)
            padding = self._unexplained(spec, pair, evidence) is not None
        where, when, expected = (
            self._padding_fault(probe, trial)
            if padding
            else ("load check", "when it is executed beside other requests", _SEPARATE_ROWS)
        )
        cures = cures_of_padding if padding else cures_of_rows
        return Refused(
            f"{where}: found {request_text(probe)} whose answer changes {when}, executed as "
            f"{trial.gear}: {change}, and rounding changes it by {rounding:.3g}; expected "
            f"{expected}",
            cures(self._config, trial),
        )

    def _padding_fault(self, probe: Block, trial: Trial) -> tuple[str, str, str]:
        """Return the texts for a change by padding: parameter, condition, expected behaviour."""
        rules = self._config.padding
        padded = [axis for axis, own in trial.gear.extents.items() if own > probe.sizes[axis]]
        neutral = [axis for axis in padded if rules[axis] is PaddingRule.NEUTRAL]
        when = "when it is padded"
        if neutral:
            keys = ", ".join(f"'padding.{axis}'" for axis in neutral)
            return f"parameter {keys}", when, "padding that changes no answer"
        masks = [
            name
            for name, dims in self._config.masks.items()
            if {*TensorSpec(name, DType.BOOL, dims).axes} & {*padded}
        ]
        keys = ", ".join(f"'mask.{name}'" for name in masks)
        keys = keys or ", ".join(f"'padding.{axis}'" for axis in padded)
        where = f"parameter {keys}" if keys else "parameter 'gears.batch'"
        return where, when, "a graph that uses its mask or lengths to ignore padding"


@dataclass(frozen=True, eq=False)
class _Evidence:
    """Answers to one request of a trial in other arithmetics, each executed at first use.

    `at` is the index of the request in `probes`, `own` the size of its execution alone.
    """

    executions: Executions
    trial: Trial
    probes: Sequence[Block]
    at: int
    own: Gear

    def pairs(self, spec: TensorSpec) -> list[Pair]:
        """Return the answers of engines with other roundings, alone and in the trial."""
        return [Pair(alone[spec.name], padded[spec.name]) for alone, padded in self._engines]

    def nudged_alone(self, spec: TensorSpec) -> list[Array]:
        """Return answers alone with the last bits of the inputs changed."""
        return [alone[spec.name] for alone in self._nudged]

    def change_of_inputs(self, spec: TensorSpec, pair: Pair) -> tuple[Difference, float] | None:
        """Return a change beyond rounding for an engine without other arithmetics.

        Changes in the last bits of the inputs measure the rounding. If they change no answer, or
        all inputs are integers, `_UNMEASURED` applies.
        """
        change = compare(spec, pair.padded, pair.alone), 0.0
        others = [
            Pair(alone[spec.name], padded[spec.name])
            for alone, padded in zip(self._nudged, self._nudged_in_trial, strict=True)
        ]
        if others:
            change = persistent_change(spec, pair, others) or (None, 0.0)
        difference, _ = change
        if difference is None:
            return None
        if spec.dtype not in TOLERANCES:
            return difference, 0.0
        variants = Variants(self._nudged, self.executions.copies(self._probe, self.own))
        rounding = Rounding((spec,), {spec.name: pair.alone}, lambda: variants)
        allowed = rounding.allowed(spec.name)
        if not any(compare(spec, alone, pair.alone) for alone in self.nudged_alone(spec)):
            allowed = max(allowed, _UNMEASURED * rounding.tolerance(spec.name))
        if difference.distance <= allowed:
            return None
        return difference, rounding.seen(spec.name)

    @property
    def _probe(self) -> Block:
        return self.probes[self.at]

    @cached_property
    def _engines(self) -> list[tuple[Tensors, Tensors]]:
        """The answers of engines with other roundings, alone and in the trial."""
        found = []
        for executor in self.executions.arithmetics():
            with suppress(EngineFault, OutOfMemory):
                alone = self.executions.execute([self._probe], self.own, executor)[0]
                padded = self.executions.beside(self.trial, self.probes, Part.LOWER, executor)
                found.append((alone, padded[self.at]))
        return found

    @cached_property
    def _nudged_blocks(self) -> list[Block]:
        return [*self.executions.nudged(self._probe)]

    @cached_property
    def _nudged(self) -> list[Tensors]:
        return [self.executions.execute([own], self.own)[0] for own in self._nudged_blocks]

    @cached_property
    def _nudged_in_trial(self) -> list[Tensors]:
        before, after = self.probes[: self.at], self.probes[self.at + 1 :]
        return [
            self.executions.beside(self.trial, [*before, own, *after], Part.LOWER)[self.at]
            for own in self._nudged_blocks
        ]
