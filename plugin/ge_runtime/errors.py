"""What can go wrong, as one tree under RuntimeFault.

A fault says what was found, what was expected and where. It knows nothing of Triton: which
status code a client sees is decided in `adapters.triton` alone.
"""

from __future__ import annotations

from collections.abc import Sequence


class RuntimeFault(Exception):
    """The root of all that ge_runtime raises on purpose."""


class ConfigFault(RuntimeFault):
    """The model's configuration, or its agreement with the graph, is wrong; `faults` lists it all.

    Raised at load, never while serving.
    """

    def __init__(self, model: str, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        lines = "".join(f"\n  - {fault}" for fault in self.faults)
        super().__init__(f"{count} in the configuration of model '{model}':{lines}")


class ArtifactFault(RuntimeFault):
    """No artifact, or one that cannot be opened. Raised at load."""


class PlanFault(RuntimeFault):
    """Memory that cannot be had at load, or a buffer larger than what was planned for it."""


class EngineFault(RuntimeFault):
    """The engine failed while it executed a batch; every request of that batch gets it."""


class RuntimeClosed(RuntimeFault):
    """The runtime was used after `close`."""


class RequestFault(RuntimeFault):
    """The caller's fault: one request that cannot be executed. Its neighbours are unharmed."""


class ShapeMismatch(RequestFault):
    """A tensor of a request whose shape is not one that the model takes."""
