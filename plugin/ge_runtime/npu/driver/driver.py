"""The interface to the driver of Ascend devices, with the calls that this package uses.

Handles are opaque integers. A call that fails, or cannot create a handle, raises DriverFault. Calls
work in the calling thread's current context, which the caller has to set (see `set_context`). They
are synchronous unless their description says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, NewType, Protocol

from ge_runtime.config import Aipp
from ge_runtime.npu.driver.cann_values import ModelDescription, ModelTensor

UNKNOWN_CHIP: Final = "unknown"
"""The name that is used if the driver does not report the chip's name."""

Context = NewType("Context", int)
Stream = NewType("Stream", int)
Event = NewType("Event", int)
ModelId = NewType("ModelId", int)
Address = NewType("Address", int)


class Copy(Enum):
    """The direction of a copy; the values are those of aclrtMemcpyKind."""

    TO_DEVICE = 1
    TO_HOST = 2
    ON_DEVICE = 3


@dataclass(frozen=True, slots=True)
class Dataset:
    """The driver's object for the buffers of all inputs or all outputs of a model."""

    handle: int
    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GearSetting:
    """The gear of the next execution of a model."""

    family: str
    """"batch", "image" or "dims"."""
    values: tuple[int, ...]
    """batch: (rows,). image: (height, width). dims: the sizes in the model's order."""


class Produced(NamedTuple):
    """An output of an execution of a model with free shapes."""

    dims: tuple[int, ...]
    address: Address
    """Device memory: the dataset's, or allocated by the driver if the dataset had no memory."""


class FreeShapes(Protocol):
    """Calls for models with free shapes, whose memory the driver allocates during executions."""

    def load(self, path: str) -> ModelId:
        """Load a model into memory that the driver allocates; see `Driver.load`."""

    def ranges(self, model: ModelId, count: int) -> list[tuple[tuple[int, int], ...]]:
        """Return (minimum, maximum) of each dim of the first `count` inputs; -1: unlimited."""

    def set_dims(
        self, inputs: Dataset, index: int, tensor: ModelTensor, dims: Sequence[int]
    ) -> None:
        """Set the dims of input `index`, described by `tensor`, for the next execution."""

    def execute(self, model: ModelId, inputs: Dataset, outputs: Dataset) -> None:
        """Execute and wait; allocates missing outputs. Blocks all Python threads."""

    def output(self, outputs: Dataset, index: int) -> Produced:
        """Return output `index` of the last execution."""

    def address(self, outputs: Dataset, index: int) -> Address:
        """Return the current address of output `index`; 0: it has no memory."""

    def clear(self, outputs: Dataset, index: int) -> None:
        """Detach the memory of output `index`; the next execution allocates it."""


class AippKind(Enum):
    """The AIPP mode of an input; the values are those of aclmdlInputAippType."""

    NONE = 0
    STATIC = 1
    DYNAMIC = 2
    PARAMETERS = 3

    @property
    def words(self) -> str:
        """The mode in error texts."""
        return "no AIPP" if self is AippKind.NONE else f"{self.name.lower()} AIPP"


class ImageBatch(NamedTuple):
    """The parameters of dynamic AIPP for a batch of images."""

    rows: int
    """Number of images at the largest gear."""
    height: int
    width: int
    aipp: Aipp


class AippCalls(Protocol):
    """Calls for models whose inputs are images."""

    def kind(self, model: ModelId, index: int) -> AippKind:
        """Return the AIPP mode of input `index`."""

    def parameters(self, model: ModelId, index: int) -> Mapping[str, float]:
        """Return the parameters of static AIPP, by their names in aclAippInfo."""

    def set_images(self, model: ModelId, inputs: Dataset, index: int, images: ImageBatch) -> None:
        """Write the parameters of dynamic AIPP into the buffer of input `index`."""


class Captures(Protocol):
    """Calls that let CANN profile or dump executions, for the whole process."""

    def init_profile(self, folder: str) -> None:
        """Write profiles below `folder`; call before the profiled models are loaded."""

    def start_profile(self, device: int, metrics: int) -> int:
        """Start to profile a device.

        Args:
            device: Number of the device.
            metrics: A value of aclprofAicoreMetrics.

        Returns:
            The argument of `stop_profile`.
        """

    def stop_profile(self, config: int) -> None:
        """Stop a profile; `config` is the result of `start_profile`."""

    def finalize_profile(self) -> None:
        """Undo `init_profile`."""

    def start_dump(self, config: str) -> None:
        """Dump models that are loaded from now on; `config` is the path of a JSON file."""

    def stop_dump(self) -> None:
        """Do not dump models that are loaded from now on."""


class Driver(Protocol):
    """The calls of a process to its cards. Thread-safe.

    pyACL releases the GIL only while it waits: all other calls block all Python threads.
    """

    def init(self) -> bool:
        """Initialize the driver.

        Returns:
            Whether this call initialized it; if not, `finalize` must not be called.
        """

    def finalize(self) -> None:
        """Finalize the driver; may take two seconds to collect the device's logs."""

    def soc_name(self) -> str:
        """Return the chip's name, e.g. "Ascend910B3"; "unknown" if it is not reported."""

    def set_device(self, device: int) -> None:
        """Use a device in this thread. Reference-counted, see `reset_device`."""

    def reset_device(self, device: int) -> None:
        """Undo one `set_device`."""

    def limit_operators(self, seconds: int) -> None:
        """Let CANN end operators of this process after a time; needs a context."""

    def create_context(self, device: int) -> Context:
        """Create a context and make it current in this thread."""

    def set_context(self, context: Context) -> None:
        """Make a context current in this thread."""

    def current_context(self) -> Context | None:
        """Return the context that is current in this thread, or None.

        Never raises: contexts are also saved and restored around failures.
        """

    def destroy_context(self, context: Context) -> None:
        """Destroy a context. It must not have streams, events or models any more."""

    def create_stream(self) -> Stream:
        """Create a stream, a queue of tasks, in the current context."""

    def synchronize_stream(self, stream: Stream, timeout_ms: int) -> None:
        """Wait for all tasks queued so far; raises the failure of the first failed task."""

    def destroy_stream(self, stream: Stream) -> None:
        """Destroy a stream. It must not have tasks any more."""

    def create_event(self) -> Event:
        """Create an event in the current context."""

    def record_event(self, event: Event, stream: Stream) -> None:
        """Queue the event in a stream."""

    def stream_wait_event(self, stream: Stream, event: Event) -> None:
        """Let later tasks of a stream wait for an event that was recorded."""

    def destroy_event(self, event: Event) -> None:
        """Destroy an event that no stream waits for."""

    def memory_info(self) -> tuple[int, int]:
        """Return free and total bytes of the current card; other processes' memory is not free."""

    def is_healthy(self, device: int) -> bool:
        """Return whether a device reports a normal state; True if it does not report any."""

    def utilization(self, device: int) -> dict[str, int]:
        """Return the utilization of each unit of a device, in percent; empty if not reported."""

    def malloc(self, nbytes: int) -> Address:
        """Allocate device memory, aligned to 64 bytes."""

    def free(self, address: Address) -> None:
        """Free device memory immediately: no task may use it any more."""

    def malloc_host(self, nbytes: int) -> Address:
        """Allocate pinned host memory, aligned to 64 bytes."""

    def free_host(self, address: Address) -> None:
        """Free pinned host memory immediately."""

    def host_register(self, address: Address, nbytes: int) -> None:
        """Pin whole pages of existing host memory. Not supported by every chip and system."""

    def host_unregister(self, address: Address) -> None:
        """Undo `host_register`."""

    def copy(self, target: Address, room: int, source: Address, nbytes: int, kind: Copy) -> None:
        """Copy synchronously between host and device, or within the device.

        Blocks all Python threads. `room` is the size of the target in bytes; larger copies fail.
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
        """Queue a copy. Host memory must be pinned, and both addresses multiples of 64."""

    def model_sizes(self, path: str) -> tuple[int, int]:
        """Return the sizes in bytes of a model's workspace and of its weights.

        The size of the workspace is 0 for a model with free shapes.
        """

    def load(
        self,
        path: str,
        workspace: tuple[Address, int],
        weights: tuple[Address, int],
    ) -> ModelId:
        """Load a model into memory of the caller; the weights are written to `weights`.

        Takes seconds and blocks all Python threads.
        """

    def unload(self, model: ModelId) -> None:
        """Unload a model, which must not be executing. Does not free its memory."""

    def describe(self, model: ModelId, *, free_shapes: bool = False) -> ModelDescription:
        """Return the description of a model; unknown sizes of free shapes are 0 bytes."""

    def output_dims(self, model: ModelId, count: int) -> list[tuple[int, ...]]:
        """Return the dims of the first `count` outputs at the gear that was set last."""

    def create_dataset(self, buffers: Sequence[tuple[Address, int]]) -> Dataset:
        """Create a dataset.

        Args:
            buffers: (address, bytes) of device memory, in the order of the model's tensors.
        """

    def destroy_dataset(self, dataset: Dataset) -> None:
        """Destroy a dataset. Does not free the memory."""

    def set_gear(self, model: ModelId, inputs: Dataset, index: int, gear: GearSetting) -> None:
        """Write a gear into the buffer of input `index`, synchronously and not in a stream."""

    def execute_async(
        self, model: ModelId, inputs: Dataset, outputs: Dataset, stream: Stream
    ) -> None:
        """Queue an execution."""

    @property
    def free_shapes(self) -> FreeShapes:
        """The calls for models with free shapes."""

    @property
    def aipp(self) -> AippCalls:
        """The calls for inputs that are images."""

    @property
    def captures(self) -> Captures:
        """The calls for profiles and dumps."""


Channel = NewType("Channel", int)

JPEG_ALIGNMENT: Final = (128, 16)
"""Alignment of the width and height strides of decoded pictures.

Some chips require only 64 for the width.
"""
RESIZE_ALIGNMENT: Final = (16, 2)


class Picture(NamedTuple):
    """A picture in memory of DVPP, in YUV420SP: all brightness rows, then interleaved colours.

    Width and height are even. The colours have half the width and height.
    """

    address: Address
    nbytes: int
    width: int
    height: int
    width_stride: int
    height_stride: int


class MediaCalls(Protocol):
    """The port to DVPP, a card's unit for pictures: decoding JPEG files and resizing.

    The calling thread must have a context of the card. All calls raise DriverFault.
    """

    def open_channel(self) -> Channel:
        """Open a channel for tasks of DVPP."""

    def close_channel(self, channel: Channel) -> None:
        """Close a channel. It must not have tasks any more."""

    def malloc(self, nbytes: int) -> Address:
        """Allocate device memory for files and pictures."""

    def free(self, address: Address) -> None:
        """Free memory immediately."""

    def decoded_bytes(self, host: Address, nbytes: int) -> int:
        """Return the size in bytes of the picture after decoding the file at `host`."""

    def decode_and_resize(
        self,
        channel: Channel,
        file: tuple[Address, int],
        decoded: Picture,
        resized: Picture,
        stream: Stream,
    ) -> None:
        """Decode a file in device memory and resize the picture; wait for both.

        Args:
            channel: The channel.
            file: Address and bytes of the file.
            decoded: The target of decoding.
            resized: The target of resizing.
            stream: The stream for both tasks.
        """
