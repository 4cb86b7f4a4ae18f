"""The errors of the runtime: one tree under RuntimeFault.

A fault says what was found, what was expected and where. It knows nothing of Triton: which
status code a client sees is decided in `adapters` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


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
    """The engine failed while it executed a batch; one of its requests may be to blame."""


class EngineLost(RuntimeFault):
    """The engine or its device is gone: no request is to blame, and none can be executed."""


class ServiceFault(RuntimeFault):
    """The device service cannot be started, reached or understood. Raised at load."""


class NoDevice(RuntimeFault):
    """A device that config.pbtxt names cannot be used here. Raised at load."""


class OutOfMemory(RuntimeFault):
    """A device, or an engine on it, has not the bytes asked for. Less may still be had."""


class DeviceFault(RuntimeFault):
    """Memory of a device was used in a way that is never right: freed twice, or after its free."""


class PoolFault(RuntimeFault):
    """No lease of workspace; the subclass says why."""


class NeverFits(PoolFault):
    """More than the pool's whole capacity was asked for."""


class PoolFull(PoolFault):
    """As many as may wait for the pool are waiting."""


class PoolTimeout(PoolFault):
    """The deadline passed before the bytes were free."""


class PoolCancelled(PoolFault):
    """The wait for the pool was cancelled."""


class PoolClosed(PoolFault):
    """The pool was closed, before or while somebody waited."""


class RuntimeClosed(RuntimeFault):
    """The runtime was used after `close`."""


class RequestFault(RuntimeFault):
    """The caller's fault: one request that cannot be executed. Its neighbours are unharmed."""


class ShapeMismatch(RequestFault):
    """A tensor of a request whose shape is not one that the model takes."""


class GearOverflow(ShapeMismatch):
    """A request that no gear holds."""


class HandleFault(RequestFault):
    """A handle that no model gave for this input."""


class HandleGone(HandleFault):
    """A handle of a row that is not on the device, or not any more: all of it is to come again."""


class RowsTaken(PoolFault):
    """No place was free on the device for rows that are to stay there."""


class Abandoned(RuntimeFault):
    """The caller of a request no longer waits for its answer: `Expired` or `Cancelled`."""


class Expired(Abandoned):
    """The request's deadline passed before it was executed."""


class Cancelled(Abandoned):
    """The caller cancelled the request before it was executed."""


def shown(path: Path, *others: Path) -> str:
    """Files of a model as texts name them: the model's folder, its version and their names."""
    return ", ".join(("/".join(path.parts[-3:]), *(other.name for other in others)))


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error that is kept as a value, and of those it came from.

    Tracebacks hold frames and these their variables: the tensors of a whole request batch, and the
    error itself, so that nothing of it all is freed before the next garbage collection.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = link.__context__ = None
        link = link.__cause__
