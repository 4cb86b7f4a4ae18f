"""Refusals of the load check, and the parameters that cure them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ge_runtime.config import PaddingRule, RuntimeConfig
from ge_runtime.verification.plan import Trial

Parameters: TypeAlias = Mapping[str, str]
"""Parameters of config.pbtxt, by key."""

REPRODUCIBLE: Parameters = {"reproducible": "false"}


class Refused(Exception):
    """A model is refused: its answers depend on more than their request."""

    def __init__(self, text: str, cures: Sequence[Parameters]) -> None:
        super().__init__(text)
        self.text = text
        self.cures = cures
        """Parameters that may cure the model, the smallest change first."""


def cures_of_padding(config: RuntimeConfig, trial: Trial) -> list[Parameters]:
    """Return possible cures after a trial in which padding changed an answer."""
    equal = [
        {f"padding.{axis}": "equal"}
        for axis, rule in config.padding.items()
        if rule is not PaddingRule.EQUAL
    ]
    every = {key: own for cure in equal for key, own in cure.items()}
    one = one_row_cure(config)
    return [
        *equal,
        *([every] if len(equal) > 1 else []),
        *([one] if trial.company else []),
        {**one, **every},
    ]


def cures_of_rows(config: RuntimeConfig, trial: Trial) -> list[Parameters]:
    """Return possible cures after a trial in which other requests changed an answer."""
    one = one_row_cure(config)
    return [one, *({**one, **cure} for cure in cures_of_padding(config, trial) if cure != one)]


def one_row_cure(config: RuntimeConfig) -> Parameters:
    """Return the parameters that give executions one row; empty if executions have one already."""
    return {"gears.batch": "1"} if config.batched and config.rows > 1 else {}


def advice(cures: Sequence[Parameters], passes: Callable[[Parameters], bool] | None) -> str:
    """Return a sentence that names the first cure that passes or, without `passes`, the first."""
    cures = [cure for at, cure in enumerate(cures) if cure and cure not in cures[:at]]
    if passes is None:
        return (
            f"Possible cure: {_parameters_text(cures[0])}"
            if cures
            else "There is no cure by parameters"
        )
    for cure in cures:
        if passes(cure):
            return f"Cure, tried: with {_parameters_text(cure)} it loads"
    return (
        "No parameter cures it: export the graph so that a request's answer depends on the "
        "request alone"
    )


def _parameters_text(parameters: Parameters) -> str:
    return " and ".join(f"'{key}: {value}'" for key, value in parameters.items())
