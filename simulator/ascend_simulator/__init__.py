"""A simulator of the Ascend device and its Python interface `acl`, stricter than the device.

It replaces CANN in the environment: after `eval "$(python -m ascend_simulator env)"`, the module
`acl` and the command `atc` are the simulator's. `RULES` has the simulator's own rules, which a
device does not check; `Settings` describes the simulated hardware.

Tests in the same process use `reset_for_tests` and `report`, or the fixture `ascend_card` of
`pytest_plugin`. Modules are imported at first use, because pytest loads the plugin at its start
wherever this package is installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ascend_simulator.exit_report import Report, freeze, report, thaw
    from ascend_simulator.process import Process, current, reset_for_tests
    from ascend_simulator.settings import Settings, from_environment
    from ascend_simulator.streams.tasks import Span
    from ascend_simulator.violations import RULES, Rule, SimulatorViolation, SimulatorWarning

__all__ = [
    "RULES",
    "Process",
    "Report",
    "Rule",
    "Settings",
    "SimulatorViolation",
    "SimulatorWarning",
    "Span",
    "current",
    "freeze",
    "from_environment",
    "report",
    "reset_for_tests",
    "thaw",
]

_HOMES: Final = {
    "Process": "process",
    "RULES": "violations",
    "Report": "exit_report",
    "Rule": "violations",
    "Settings": "settings",
    "SimulatorViolation": "violations",
    "SimulatorWarning": "violations",
    "Span": "streams.tasks",
    "current": "process",
    "freeze": "exit_report",
    "from_environment": "settings",
    "report": "exit_report",
    "reset_for_tests": "process",
    "thaw": "exit_report",
}
"""The module of this package that defines each name."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
