"""How a model shares its device with models of other processes.

- `placement`: `local` (default) executes in the model's own process, `service` in the process that
  owns the device: weights are there once for all models of equal files, and models take turns.
- `service_weight`: with `placement: service`, the share of the device that this model's process
  gets while others want it, too: 2 is twice as much as 1, the default.
- `service_priority`: with `placement: service`, executions of higher priority go before those that
  wait; a whole number, 0 by default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ge_runtime.config.faults import Faults
from ge_runtime.config.parameters import Parameters
from ge_runtime.config.settings import read_word
from ge_runtime.config.values import read_whole

_MOST_WEIGHT = 1000.0


@dataclass(frozen=True, slots=True)
class Sharing:
    """A model's part in the device service."""

    weight: float
    priority: int


def read_sharing(parameters: Parameters, faults: Faults) -> Sharing | None:
    """None for a model that executes in its own process."""
    settings = parameters.settings
    service = read_word("placement", ("local", "service"), parameters, faults) == "service"
    if not service:
        for name in ("service_weight", "service_priority"):
            if name in settings:
                expected = "nothing, or placement: service"
                faults.add(f"parameter '{name}'", f"'{settings[name]}'", expected)
        return None
    if "workspace_pool_mib" in settings:
        expected = "nothing: with placement: service the service has the workspace of all models"
        faults.add(
            "parameter 'workspace_pool_mib'", f"'{settings['workspace_pool_mib']}'", expected
        )
    priority = settings.get("service_priority", "0")
    return Sharing(
        _weight(settings.get("service_weight", "1"), faults),
        read_whole("parameter 'service_priority'", priority, faults, least=0),
    )


def _weight(text: str, faults: Faults) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if 1 / _MOST_WEIGHT <= weight <= _MOST_WEIGHT:
        return weight
    faults.add(
        "parameter 'service_weight'",
        f"'{text}'",
        f"a number from {1 / _MOST_WEIGHT:g} to {_MOST_WEIGHT:g}",
    )
    return 1.0
