"""A stand-in for the Ascend device and its Python interface `acl`, stricter than the device.

It takes the device's place as CANN does, by the environment: `eval "$(python -m ascend_simulator
env)"`, and from then on `import acl` and the command `atc` are the simulator's. What it refuses and
a device would not is a rule of its own, see `RULES`; what is simulated, see `Settings`.

Tests in the same process use `reset_for_tests` and what `report` gives.
"""

from __future__ import annotations

from ascend_simulator.process import Process, current, reset_for_tests
from ascend_simulator.report import Report, freeze, report, thaw
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
