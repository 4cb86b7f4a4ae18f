"""The exceptions of ge_runtime; all derive from RuntimeFault.

A message names the place, what was found, what was expected and often the remedy. `adapters`
translates exceptions to Triton's status codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class RuntimeFault(Exception):
    """Base class of all exceptions that ge_runtime raises deliberately."""


class ConfigFault(RuntimeFault):
    """The model's configuration is wrong, or does not match the graph.

    Raised at load, never while serving.

    Attributes:
        faults: The message of every error found.
    """

    def __init__(self, model: str, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        lines = "".join(f"\n  - {fault}" for fault in self.faults)
        super().__init__(f"{count} in the configuration of model '{model}':{lines}")


class ArtifactFault(RuntimeFault):
    """An artifact is missing or cannot be opened. Raised at load."""


class PlanFault(RuntimeFault):
    """Planned memory cannot be allocated at load, or a buffer is larger than planned."""


class EngineFault(RuntimeFault):
    """The engine failed while it executed a batch; one of its requests may be the cause."""


class SizeDisabled(EngineFault):
    """The engine fails at the size of an execution, which is therefore not tried again."""


class EngineLost(RuntimeFault):
    """The engine or its device is lost: no request is the cause, and none can be executed."""


class ServiceFault(RuntimeFault):
    """The device service cannot be started or reached, or refuses a request. Raised at load."""


class NoDevice(RuntimeFault):
    """A device that config.pbtxt names is not available. Raised at load."""


class OutOfMemory(RuntimeFault):
    """A device, or an engine on it, cannot allocate a buffer. A smaller one may still fit."""


class DeviceFault(RuntimeFault):
    """Device memory was used incorrectly: freed twice, or used after it was freed."""


class PoolFault(RuntimeFault):
    """Workspace could not be leased; the subclass gives the reason."""


class NeverFits(PoolFault):
    """A lease was requested that is larger than the pool's capacity."""


class PoolFull(PoolFault):
    """The largest allowed number of waiting leases is reached."""


class PoolTimeout(PoolFault):
    """The deadline passed before enough bytes were free."""


class PoolClosed(PoolFault):
    """The pool was closed, before or during the wait."""


class RuntimeClosed(RuntimeFault):
    """The runtime was used after `close`."""


class RequestFault(RuntimeFault):
    """A request cannot be executed; the caller is the cause. Other requests are not affected."""


class InvalidValue(EngineFault, RequestFault):
    """An execution failed because of a value in an input.

    Engines raise it for any value of an execution, also for padding. Only a request that has sent
    the value gets this fault; other requests get an EngineFault.
    """

    @classmethod
    def of(cls, tensor: str, value: int, more: str, reported: str) -> InvalidValue:
        """Return the fault with the engine's own text, `reported`, at the end."""
        return cls(f"input '{tensor}': found {value} {more}{cls._REPORTED}{reported}")

    @property
    def named(self) -> tuple[str, int]:
        """The name of the input and the value, from the text: other processes send no more."""
        head, _, tail = str(self).partition("': found ")
        return head.partition("input '")[2], int(tail.partition(" ")[0])

    @property
    def reported(self) -> str:
        """The text of the engine."""
        return str(self).partition(self._REPORTED)[2]

    _REPORTED = ". The failure was: "


class ShapeMismatch(RequestFault):
    """The model does not accept the shape of a tensor of the request."""


class GearOverflow(ShapeMismatch):
    """A request is larger than every gear."""


class HandleFault(RequestFault):
    """A handle for this input was not issued by the expected model."""


class HandleGone(HandleFault):
    """A handle's row is no longer on the device: the whole request must be sent again."""


class BlocksTaken(PoolFault):
    """All blocks of growing states are in use by sequences."""


class RowsTaken(PoolFault):
    """The device has no free place for rows that are to stay there."""


class Abandoned(RuntimeFault):
    """The caller of a request does not wait for its answer any more: `Expired` or `Cancelled`."""


class Expired(Abandoned):
    """The request's deadline passed before it was executed."""


class Cancelled(Abandoned):
    """The caller cancelled the request before it was executed."""


def shown(path: Path, *others: Path) -> str:
    """Return files of a model as messages name them: model folder, version and file names."""
    return ", ".join(("/".join(path.parts[-3:]), *(other.name for other in others)))


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of a stored exception and of its causes.

    A traceback holds frames with their variables: the tensors of a whole request batch, and the
    exception itself. Nothing of this would be freed before the next garbage collection.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = link.__context__ = None
        link = link.__cause__
