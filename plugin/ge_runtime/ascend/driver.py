"""The port: what is used of an Ascend card's driver, in typed calls.

Handles are whole numbers that mean nothing here; 0 may be a model. Calls raise DriverFault, and are
made in a thread that has the right context: see `set_context`. Whether a call returns before its
work is done is said with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NewType, Protocol

from ge_runtime.ascend.description import ModelDescription

Context = NewType("Context", int)
Stream = NewType("Stream", int)
ModelId = NewType("ModelId", int)
Address = NewType("Address", int)


class Copy(Enum):
    """The direction of a copy; the values are aclrtMemcpyKind's."""

    TO_DEVICE = 1
    TO_HOST = 2


@dataclass(frozen=True, slots=True)
class Dataset:
    """The buffers of all inputs or all outputs of a model, as the driver knows them."""

    handle: int
    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GearSetting:
    """How the next execution of a model is told its gear."""

    family: str
    """"batch", "image" or "dims"."""
    values: tuple[int, ...]
    """batch: the rows. image: height, width. dims: the dims of all inputs, one after another."""


class Driver(Protocol):
    """One process's way to its cards. Safe from any thread."""

    def init(self) -> bool:
        """Begin; whether it was this call that did: only then `finalize` is ours to call."""

    def finalize(self) -> None:
        """End; may take two seconds for the device's logs."""

    def soc_name(self) -> str:
        """The chip, e.g. "Ascend910B3"; "unknown" where nobody can tell."""

    def set_device(self, device: int) -> None:
        """Use a device, in this thread; counted, see `reset_device`."""

    def reset_device(self, device: int) -> None:
        """Undo one `set_device`."""

    def create_context(self, device: int) -> Context:
        """A new context, current in this thread from now on."""

    def set_context(self, context: Context) -> None:
        """Make the context this thread's current one."""

    def current_context(self) -> Context:
        """The calling thread's."""

    def destroy_context(self, context: Context) -> None:
        """Free a context that holds no streams, events or models any more."""

    def create_stream(self) -> Stream:
        """A new order of tasks in the current context."""

    def synchronize_stream(self, stream: Stream, timeout_ms: int) -> None:
        """Wait for all tasks so far; raises what the first failed one failed of."""

    def destroy_stream(self, stream: Stream) -> None:
        """Free a stream that nothing waits in."""

    def memory_info(self) -> tuple[int, int]:
        """Bytes free and in all, on the current context's card, other processes' included."""

    def malloc(self, nbytes: int) -> Address:
        """Bytes of device memory, from a multiple of 64 on."""

    def free(self, address: Address) -> None:
        """Give them back, at once: no task may use them any more."""

    def malloc_host(self, nbytes: int) -> Address:
        """Bytes of pinned host memory, from a multiple of 64 on."""

    def free_host(self, address: Address) -> None:
        """Give them back, at once."""

    def host_register(self, address: Address, nbytes: int) -> None:
        """Pin whole pages of host memory that are there. Not every chip and system can."""

    def host_unregister(self, address: Address) -> None:
        """Undo `host_register`."""

    def copy(self, target: Address, source: Address, nbytes: int, kind: Copy) -> None:
        """Copy between host and device; returns when it is done, which stops all Python threads."""

    def copy_async(
        self, target: Address, source: Address, nbytes: int, kind: Copy, stream: Stream
    ) -> None:
        """Queue a copy between pinned memory and the device; addresses are multiples of 64."""

    def model_sizes(self, path: str) -> tuple[int, int]:
        """Bytes of workspace and of weights; workspace 0: they are allocated as it runs."""

    def load(
        self,
        path: str,
        workspace: tuple[Address, int],
        weights: tuple[Address, int],
    ) -> ModelId:
        """Load a model into memory of ours, which the weights are written into.

        Takes seconds, in which no other Python thread runs.
        """

    def unload(self, model: ModelId) -> None:
        """Free the model, and leave its memory alone; nothing of it may be executing."""

    def describe(self, model: ModelId) -> ModelDescription:
        """All that the model tells of itself."""

    def output_dims(self, model: ModelId, count: int) -> list[tuple[int, ...]]:
        """The dims of its outputs at the gear that was set last."""

    def create_dataset(self, buffers: Sequence[tuple[Address, int]]) -> Dataset:
        """Device memory, address and bytes, in the order of the model's inputs or outputs."""

    def destroy_dataset(self, dataset: Dataset) -> None:
        """Free the dataset, and leave the memory alone."""

    def set_gear(self, model: ModelId, inputs: Dataset, index: int, gear: GearSetting) -> None:
        """Write the gear into the buffer of input `index`, at once and not in a stream's order."""

    def execute_async(
        self, model: ModelId, inputs: Dataset, outputs: Dataset, stream: Stream
    ) -> None:
        """Queue an execution."""
