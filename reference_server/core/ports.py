"""The protocols between rooms, which the composition root fills in; and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from reference_server.core.request import Execution, InferRequest, Timing
from reference_server.core.telemetry import FailureReason, MetricKind


class Clock(Protocol):
    """Monotonic and wall-clock readings."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since some fixed moment; never goes back."""

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch."""


class SystemClock:
    """The machine's clocks."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)


class Turns(Protocol):
    """The turns of the event loop, in each of which many requests may come."""

    def at_end(self, call: Callable[[], None]) -> bool:
        """Have `call` called when this turn ends, once; False, and nothing, on any other thread.

        Where several ask in a turn it may be called some turns later, for those that still come.
        """


class OpenInstance(Protocol):
    """One copy of a model that runs one batch at a time."""

    @property
    def name(self) -> str:
        """The instance's name, as it stands in error texts (`bert_0_0`)."""

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        """Run one batch. Blocks. Raises ServerError if the batch as a whole failed."""


class ModelInstance(OpenInstance, Protocol):
    """One that is opened and closed by who has it, always on one and the same thread."""

    def open(self) -> None:
        """Get ready to execute. Blocks, maybe for minutes. Raises ServerError."""

    def close(self) -> None:
        """Run the model's finalize and let go of everything."""


class Scheduler(Protocol):
    """Decides when a request runs, and on which instance."""

    @property
    def pending(self) -> int:
        """How many requests wait for an instance; any thread."""

    @property
    def in_flight(self) -> int:
        """How many requests a server that stops waits for before it unloads; any thread.

        As in Triton: an ensemble's that are not answered, and those in the queue of a batcher. What
        an instance has been given is answered while the model is unloaded.
        """

    def submit(self, request: InferRequest) -> None:
        """Take the request; its sink will be answered. Does not wait for it; any thread.

        Raises ServerError if the request is refused, and then its sink hears nothing.
        """

    def refuse(self) -> None:
        """Refuse new requests from now on; those taken go on. Any thread."""

    def close(self) -> None:
        """Refuse new requests, answer those taken, then release the instances. Blocks."""


class Recorder(Protocol):
    """Counts what became of a model's requests. All methods may be called by any thread."""

    def executed(
        self, batch: Sequence[InferRequest], execution: Execution, start_ns: int
    ) -> Timing:
        """A batch ran from `start_ns` on, and is answered now."""

    def failed(self, batch: Sequence[InferRequest], start_ns: int) -> None:
        """A batch ran from `start_ns` on, and failed as a whole."""

    def refused(self, request: InferRequest, reason: FailureReason) -> None:
        """`request` waited, and is answered with an error without having run."""


class EnsembleRecorder(Protocol):
    """Counts what became of an ensemble's requests. Any thread."""

    def composed(self, request: InferRequest, began_ns: int, steps: Sequence[Timing]) -> Timing:
        """The ensemble answered `request`.

        `began_ns` is when it sent its first steps, `steps` are the timings of all that ran.
        """

    def took_longer(self, request: InferRequest, step: Timing) -> None:
        """A step of `request`, which went well, took this time, too; `composed` does not know."""

    def refused(self, request: InferRequest, reason: FailureReason) -> None:
        """The ensemble answered `request` with an error."""


class CacheRecorder(Protocol):
    """Counts what the response cache did for a model's requests. Any thread."""

    def cache_hit(self, request: InferRequest, began_ns: int, found_ns: int) -> None:
        """The cache was asked at `began_ns`, had the answer at `found_ns`, and it is sent now."""

    def cache_missed(self, ns: int) -> None:
        """A response was offered to the cache; looking up and storing it took `ns`."""


class MetricSeries(Protocol):
    """One value of a metric family. Any thread.

    Raises ServerError for what its kind cannot do, and for amounts that it refuses.
    """

    def increment(self, amount: float) -> None:
        """Add `amount`."""

    def set(self, value: float) -> None:
        """Replace the value."""

    def observe(self, value: float) -> None:
        """Count one value of a distribution."""

    def value(self) -> float:
        """The value now."""


class MetricFamilyHold(Protocol):
    """What keeps the series of one family object on show, until it is released. Any thread."""

    @property
    def is_held(self) -> bool:
        """False once it has been released."""

    def series(self, labels: Mapping[str, str], bounds: Sequence[float]) -> MetricSeries:
        """The family's series with these labels; `bounds` are a histogram's. Raises ServerError."""

    def release(self) -> None:
        """Let go of the series; those that nobody else holds are shown no more."""


class Metrics(Protocol):
    """Where models get the families of their own metrics. Any thread."""

    def hold(self, name: str, description: str, kind: MetricKind) -> MetricFamilyHold:
        """A hold on the family of that name, which is made if there is none. Raises ServerError."""


class OutputBuffer(Protocol):
    """The part of a region that a client set aside for one output."""

    @property
    def byte_size(self) -> int:
        """How many bytes the output may have."""

    def write(self, data: memoryview) -> None:
        """Put `data`, of at most `byte_size` bytes, at its beginning. Raises ServerError."""


class Regions(Protocol):
    """The registered shared memory, as one request uses it. One thread at a time.

    A region that was named stays open until the request is answered. Both methods raise
    ServerError: NOT_FOUND for a region that is not registered, INVALID_ARG for bytes outside of it.
    """

    def read(self, region: str, offset: int, byte_size: int) -> memoryview:
        """A copy of the data of an input, writable."""

    def output_buffer(self, region: str, offset: int, byte_size: int) -> OutputBuffer:
        """Where an output goes."""


#: Sends a request of the server's own (an ensemble's step) the way a client's goes:
#: resolve, validate, schedule. Raises ServerError if it is refused.
Dispatch = Callable[[InferRequest], None]


class ModelCalls(Protocol):
    """What models may ask of the server that they run in. Any thread.

    All methods raise ServerError; `infer` if the request is refused, and then its sink hears
    nothing.
    """

    def is_decoupled(self, name: str, version: int) -> bool:
        """Whether the loaded model answers as often as it likes. Version -1 is the latest."""

    def is_ready(self, name: str, version: int) -> bool:
        """Whether that version, or with -1 the latest, can be asked."""

    def infer(self, request: InferRequest, halted: Sequence[InferRequest] | None = None) -> None:
        """Send a request the way a client's goes; does not wait for it.

        `halted` is given by an instance that does nothing else until the first response comes: the
        requests that it must answer itself. Then a request that would never be answered, since it
        would wait for that very instance, is refused.
        """

    def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load a model, with an override of its configuration and files, if given. Blocks."""

    def unload(self, name: str, *, unload_dependents: bool) -> None:
        """Begin to unload a model."""
