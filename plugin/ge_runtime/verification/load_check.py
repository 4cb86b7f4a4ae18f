"""The load check: seeded requests must get the same answers alone, padded and beside others.

`plan` chooses the trials, `executions` executes them, and `leakage` compares the answers. With
`reproducible: true`, `equal_bits` checks that all bits of an answer are the same in every row of
every gear. `cures` finds the parameters with which a refused model loads.

The states that a request passes to the next request of its sequence are compared like its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final, TypeAlias

from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import ConfigFault, EngineFault, OutOfMemory, RuntimeFault
from ge_runtime.scheduling.executor import Executor
from ge_runtime.specs import ROWS, TensorSpec
from ge_runtime.verification.cures import Parameters, Refused, advice, one_row_cure
from ge_runtime.verification.equal_bits import check_bits
from ge_runtime.verification.executions import Executions
from ge_runtime.verification.leakage import Leakage
from ge_runtime.verification.plan import Plan, plan_of

_INDEPENDENT: Final = "answers do not depend on the values of other requests"
_BY_CHANCE: Final = (
    "equal executions differ, so answers cannot be compared to the bit; beyond that difference "
    "they do not depend on the values of other requests"
)

_PADDING_COMPUTES: Final = (
    "the graph computes with padding, whose value is 'pad.<input>', by default 0"
)

Reconfigure: TypeAlias = Callable[[Parameters], "tuple[RuntimeConfig, Gears] | None"]
"""Returns the configuration with these parameters added; None if they are not allowed."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check that found no fault."""

    report: str
    """One line for the log that depends only on the model, its configuration and the libraries."""
    measured: str
    """One line with the size of rounding, which depends on the number of threads."""
    one_row: str = ""
    """The reason why the graph executes one row only; empty if it executes more."""


@dataclass(slots=True, eq=False)
class LoadCheck:
    """Checks one model on one executor. For one thread; `run` may be called once.

    For `flops` and `weights_bytes` see `plan_of`, for `states` and `like` see `Executions`.
    """

    executor: Executor
    config: RuntimeConfig
    gears: Gears
    _: KW_ONLY
    others: Sequence[Executor] = ()
    """With `reproducible: true`, the answers of these executors must have the same bits."""
    states: Sequence[TensorSpec] = ()
    flops: Callable[[Gear], int | None] = lambda _: None
    weights_bytes: int = 0
    reconfigure: Reconfigure | None = None
    """Used to try cures; without it, cures are named but not tried."""
    like: Executions | None = None
    _executions: Executions = field(init=False)
    _leakage: Leakage = field(init=False)
    _passed: int = field(init=False, default=0)  # trials
    _together: int = field(init=False, default=0)  # trials of several requests that succeeded
    _together_fault: str = field(init=False, default="")  # the first failure of such a trial
    _failed: list[str] = field(init=False, default_factory=list)
    _equal_gears: int = field(init=False, default=0)  # gears with equal bits in all rows

    def __post_init__(self) -> None:
        """Prepare the executions."""
        self._executions = Executions(
            self.executor, self.config, self.gears, self.states, like=self.like
        )
        self._leakage = Leakage(self._executions, self.config)

    def run(self) -> Checked:
        """Check the model.

        Raises:
            ConfigFault: Answers depend on padding, on other requests, or, with
                `reproducible: true`, on anything but the request. The text names a cure if one
                was found.
        """
        try:
            return self._run()
        except Refused as refused:
            found = advice(refused.cures, self._passes if self.reconfigure else None)
            raise ConfigFault(self.config.model, [f"{refused.text}. {found}"]) from None
        finally:
            self._executions.close()

    def _run(self) -> Checked:
        plan = plan_of(self.config, self.gears, self.flops, self.weights_bytes)
        for trial in plan.trials:
            try:
                self._leakage.check(trial, special=trial in plan.special)
            except (EngineFault, OutOfMemory) as fault:
                self._failed.append(f"{trial.gear}: {fault}")
                if trial.company:
                    self._together_fault = self._together_fault or str(fault)
                    # `_one_row` needs to know whether the first request works alone.
                    with suppress(EngineFault, OutOfMemory):
                        self._executions.alone(self._executions.probes(trial)[0])
            else:
                self._passed += 1
                self._together += bool(trial.company)
        one_row = self._one_row()
        if not one_row and self.config.reproducible:
            self._equal_gears = check_bits(
                self._executions, self.config, self.gears, (self.executor, *self.others)
            )
        measured = (
            f"padding and rows change answers by at most {self._leakage.rounding:.2g}, measured in "
            f"{self._executions.count} execution(s)"
        )
        return Checked(self._report(plan), measured, one_row)

    def _report(self, plan: Plan) -> str:
        leakage = self._leakage
        trials = ", ".join(dict.fromkeys(f"{trial.gear}" for trial in plan.trials))
        kind = "reduced plan" if plan.reduced else "plan"
        line = f"{self._passed} of {len(plan.trials)} trial(s); {kind} of {plan.flops / 1e9:.3g} "
        line += "GFLOP" if plan.analysed else "GFLOP by weights and positions"
        line += f": {trials or 'nothing'}"
        if self._passed:
            line += f"; {_BY_CHANCE if leakage.by_chance else _INDEPENDENT}"
            line += ", nor do the states of sequences" if self.states else ""
        if self._equal_gears:
            line += f"; equal to the bit at all places of {self._equal_gears} gear(s)"
        left = [f"left out: {', '.join(plan.left_out)}"] if plan.left_out else []
        failed = (f"not checked: {each}" for each in self._failed)
        notes = [_PADDING_COMPUTES] if leakage.computes_with_padding else []
        return "; ".join((line, *notes, *left, *failed))

    def _passes(self, cure: Parameters) -> bool:
        """Return whether the model loads with these parameters, checked on this executor."""
        changed = self.reconfigure(cure) if self.reconfigure else None
        if changed is None:
            return False
        config, gears = changed
        check = replace(self, config=config, gears=gears, reconfigure=None, like=self._executions)
        try:
            checked = check._run()
        except (Refused, RuntimeFault):
            return False
        return check._passed > 0 and not checked.one_row

    # -- graphs of one row ----------------------------------------------------------------------

    def _one_row(self) -> str:
        """Return why the graph executes one row only; empty if it executes more rows, or none.

        Raises the refusal if the configuration demands more rows.
        """
        if self._together or not self._together_fault or not self._executions.of_one_row:
            return ""
        reason = f"each execution of two or more rows failed: {self._together_fault.strip()}"
        if any(ROWS in axes for axes in self.config.gears):
            raise Refused(
                f"parameter 'gears.batch': found a graph that executes one row only: {reason}; "
                "expected one that executes the rows of its gears",
                [one_row_cure(self.config)],
            )
        return reason
