"""The port to an Ascend device's driver: the calls that are used.

Handles are opaque integers: only an error says that there is none. Calls raise DriverFault. A
context is current in one thread: who calls has made the right one current, see `set_context`. Calls
that return before their work is done say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, NewType, Protocol

from ge_runtime.config import Aipp
from ge_runtime.npu.driver.description import ModelDescription, ModelTensor

UNKNOWN_CHIP: Final = "unknown"
"""Stands for the name of a chip where the driver does not tell it."""

Context = NewType("Context", int)
Stream = NewType("Stream", int)
Event = NewType("Event", int)
ModelId = NewType("ModelId", int)
Address = NewType("Address", int)


class Copy(Enum):
    """The direction of a copy; the values are aclrtMemcpyKind's."""

    TO_DEVICE = 1
    TO_HOST = 2
    ON_DEVICE = 3


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
    """batch: the rows. image: height, width. dims: as the model lists them."""


class Produced(NamedTuple):
    """What an execution of free shapes made of one output."""

    dims: tuple[int, ...]
    address: Address
    """On the device: ours, or the driver's own allocation where the dataset had none."""


class FreeShapes(Protocol):
    """Calls for models of free shapes, whose memory the driver allocates as they run."""

    def load(self, path: str) -> ModelId:
        """Load a model into memory of the driver's own. Otherwise as `Driver.load`."""

    def ranges(self, model: ModelId, count: int) -> list[tuple[tuple[int, int], ...]]:
        """For each of so many inputs the least and the largest of each dim; -1: no end."""

    def tell_dims(
        self, inputs: Dataset, index: int, tensor: ModelTensor, dims: Sequence[int]
    ) -> None:
        """The next execution's dims of input `index`, which is that tensor."""

    def execute(self, model: ModelId, inputs: Dataset, outputs: Dataset) -> None:
        """Execute and wait. Allocates what outputs lack, and stops all Python threads."""

    def output(self, outputs: Dataset, index: int) -> Produced:
        """What the last execution made of output `index`."""

    def address(self, outputs: Dataset, index: int) -> Address:
        """Where output `index` lies now; 0: nowhere."""

    def clear(self, outputs: Dataset, index: int) -> None:
        """Output `index` has no memory: the next execution allocates it."""


class AippKind(Enum):
    """What an input has of AIPP; the values are aclmdlInputAippType's."""

    NONE = 0
    STATIC = 1
    DYNAMIC = 2
    PARAMETERS = 3

    @property
    def words(self) -> str:
        """For people."""
        return "no AIPP" if self is AippKind.NONE else f"{self.name.lower()} AIPP"


class ImageBatch(NamedTuple):
    """What dynamic AIPP is to do with each image of a batch."""

    rows: int
    """Images of the largest gear."""
    height: int
    width: int
    aipp: Aipp


class AippCalls(Protocol):
    """Calls for models whose inputs are images."""

    def kind(self, model: ModelId, index: int) -> AippKind:
        """What input `index` has of AIPP."""

    def parameters(self, model: ModelId, index: int) -> Mapping[str, float]:
        """Those of static AIPP, as aclAippInfo names them."""

    def set_images(self, model: ModelId, inputs: Dataset, index: int, images: ImageBatch) -> None:
        """Write the parameters of dynamic AIPP into the buffer of input `index`, at once."""


class Captures(Protocol):
    """Calls that have CANN record what devices do, for the whole process."""

    def init_profile(self, folder: str) -> None:
        """Profiles go below the folder; before the load of what is profiled."""

    def start_profile(self, device: int, metrics: int) -> int:
        """Profile a device from now on, for `stop_profile`. metrics: an aclprofAicoreMetrics."""

    def stop_profile(self, config: int) -> None:
        """What `start_profile` gave."""

    def finalize_profile(self) -> None:
        """Undo `init_profile`."""

    def start_dump(self, config: str) -> None:
        """Dump the models that are loaded from now on, as a JSON file says."""

    def stop_dump(self) -> None:
        """Models that are loaded from now on are not dumped."""


class Driver(Protocol):
    """One process's calls to its cards. Safe from any thread.

    pyACL releases the GIL in waits alone: any other call holds up all Python threads.
    """

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

    def create_event(self) -> Event:
        """A place in an order of tasks, once it is recorded; of the current context."""

    def record_event(self, event: Event, stream: Stream) -> None:
        """The event is where the stream ends now."""

    def stream_wait_event(self, stream: Stream, event: Event) -> None:
        """What is queued in the stream from now on comes after the event, which is recorded."""

    def destroy_event(self, event: Event) -> None:
        """Free an event that no stream waits for."""

    def memory_info(self) -> tuple[int, int]:
        """Bytes free and in all, on the current context's card, other processes' included."""

    def is_well(self, device: int) -> bool:
        """Whether a device says that it can be used; True where the driver does not tell."""

    def utilization(self, device: int) -> dict[str, int]:
        """Unit of a device: how busy it is, in percent. Empty where the driver does not tell."""

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

    def copy(self, target: Address, room: int, source: Address, nbytes: int, kind: Copy) -> None:
        """Copy between host and device, or on it; returns when it is done.

        All Python threads stop meanwhile. room: bytes at the target; more than that is refused.
        """

    def copy_async(
        self,
        target: Address,
        room: int,
        source: Address,
        nbytes: int,
        kind: Copy,
        stream: Stream,
    ) -> None:
        """Queue a `copy`, of the host's memory if pinned; addresses are multiples of 64."""

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

    def describe(self, model: ModelId, *, free_shapes: bool = False) -> ModelDescription:
        """All that the model tells of itself; of free shapes sizes of 0 bytes: nobody knows."""

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

    @property
    def free_shapes(self) -> FreeShapes:
        """The calls for models whose memory nobody can plan."""

    @property
    def aipp(self) -> AippCalls:
        """The calls for inputs that are images."""

    @property
    def captures(self) -> Captures:
        """The calls of profiling and dump."""
