"""The protocols between packages, and the clock. `server.py` connects their implementations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from reference_server.core.request import Execution, InferRequest, Timing
from reference_server.core.telemetry import FailureReason, MetricKind


class Clock(Protocol):
    """Monotonic and wall-clock readings."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds since an arbitrary fixed moment."""

    def wall_ns(self) -> int:
        """Return nanoseconds since the epoch."""


class SystemClock:
    """The machine's clocks."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)


class LoopIterations(Protocol):
    """The iterations of the event loop. Many requests can arrive in one iteration."""

    def at_end(self, call: Callable[[], None]) -> bool:
        """Call `call` once after this iteration.

        If several calls are registered in one iteration, they may run a few iterations later.
        Requests that arrive until then can join the same batch.

        Returns:
            False on a thread other than the event loop's; `call` is then not called.
        """


class OpenInstance(Protocol):
    """An opened instance of a model, which executes one batch at a time."""

    @property
    def name(self) -> str:
        """The instance's name in error texts, such as `bert_0_0`."""

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        """Execute one batch. Blocks. Raises ServerError if the whole batch failed."""


class ModelInstance(OpenInstance, Protocol):
    """An instance that its owner opens and closes, always on the same thread."""

    def open(self) -> None:
        """Load the model. Blocks, possibly for minutes. Raises ServerError."""

    def close(self) -> None:
        """Run the model's `finalize` and release all resources."""


class Scheduler(Protocol):
    """Decides when a request runs, and on which instance."""

    @property
    def pending(self) -> int:
        """The number of requests that wait for an instance. Thread-safe."""

    @property
    def in_flight(self) -> int:
        """The number of requests that a stopping server waits for before it unloads. Thread-safe.

        As in Triton, these are the unanswered requests of an ensemble and the requests in the queue
        of a batcher. Executing requests are answered during the unload.
        """

    def submit(self, request: InferRequest) -> None:
        """Accept a request, whose sink will receive the responses. Does not block. Thread-safe.

        Raises:
            ServerError: The request is refused. Its sink receives nothing.
        """

    def refuse(self) -> None:
        """Refuse new requests from now on; accepted requests continue. Thread-safe."""

    def close(self) -> None:
        """Refuse new requests, answer accepted requests, then release the instances. Blocks."""


class Recorder(Protocol):
    """Counts the outcomes of a model's requests. Thread-safe."""

    def executed(
        self, batch: Sequence[InferRequest], execution: Execution, start_ns: int
    ) -> Timing:
        """Count a successful batch, which started at `start_ns` and is answered now."""

    def failed(self, batch: Sequence[InferRequest], start_ns: int) -> None:
        """Count a batch that started at `start_ns` and failed as a whole."""

    def refused(self, request: InferRequest, reason: FailureReason) -> None:
        """Count a queued request that is answered with an error without being executed."""


class EnsembleRecorder(Protocol):
    """Counts the outcomes of an ensemble's requests. Thread-safe."""

    def composed(self, request: InferRequest, began_ns: int, steps: Sequence[Timing]) -> Timing:
        """Count a request that the ensemble answered.

        Args:
            request: The request.
            began_ns: The time when the first steps were sent.
            steps: The timings of all executed steps.
        """

    def took_longer(self, request: InferRequest, step: Timing) -> None:
        """Add the timing of a successful step that `composed` did not include."""

    def refused(self, request: InferRequest, reason: FailureReason) -> None:
        """Count a request that the ensemble answered with an error."""


class CacheRecorder(Protocol):
    """Counts the hits and misses of a model's requests in the response cache. Thread-safe."""

    def cache_hit(self, request: InferRequest, began_ns: int, found_ns: int) -> None:
        """Count a hit.

        Args:
            request: The request, whose cached response is sent now.
            began_ns: The time when the lookup began.
            found_ns: The time when the lookup ended.
        """

    def cache_missed(self, ns: int) -> None:
        """Count a miss after the response was stored; lookup and insertion took `ns`."""


class MetricSeries(Protocol):
    """One series of a metric family. Thread-safe.

    Methods raise ServerError if the family's type does not support them, or for an invalid value.
    """

    def increment(self, amount: float) -> None:
        """Add `amount`."""

    def set(self, value: float) -> None:
        """Set the value."""

    def observe(self, value: float) -> None:
        """Add one observation to a distribution."""

    def value(self) -> float:
        """Return the value."""


class MetricFamilyHold(Protocol):
    """Keeps the series of one metric family visible until `release`. Thread-safe."""

    @property
    def is_held(self) -> bool:
        """False after `release`."""

    def series(self, labels: Mapping[str, str], bounds: Sequence[float]) -> MetricSeries:
        """Return the series with these labels. Raises ServerError.

        Args:
            labels: The values of labels by their names.
            bounds: The bucket bounds of a histogram.
        """

    def release(self) -> None:
        """Release the series. A series that has no other hold is removed."""


class Metrics(Protocol):
    """Creates the metric families of models. Thread-safe."""

    def hold(self, name: str, description: str, kind: MetricKind) -> MetricFamilyHold:
        """Return a hold on the family `name`, which is created if necessary. Raises ServerError."""


class OutputBuffer(Protocol):
    """The part of a shared memory region that receives one output."""

    @property
    def byte_size(self) -> int:
        """The largest size of the output in bytes."""

    def write(self, data: memoryview) -> None:
        """Write `data`, of at most `byte_size` bytes, to its start. Raises ServerError."""


class Regions(Protocol):
    """The shared memory regions of one request. Not thread-safe.

    A region stays mapped until the request is answered. Both methods raise ServerError: NOT_FOUND
    for a region that is not registered, INVALID_ARG for bytes outside of it.
    """

    def read(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Return a writable copy of an input's data."""

    def output_buffer(self, region: str, offset: int, byte_size: int) -> OutputBuffer:
        """Return the part of a region for an output."""


#: Sends a request of the server itself, such as an ensemble's step, through the same path as
#: clients' requests: resolve, validate, schedule. Raises ServerError if it is refused.
Dispatch = Callable[[InferRequest], None]


class ModelCalls(Protocol):
    """The server's functions for models that run in it. Thread-safe.

    All methods raise ServerError. If `infer` raises, the request's sink receives nothing.
    """

    def is_decoupled(self, name: str, version: int) -> bool:
        """Return True if the loaded model is decoupled. Version -1 is the latest."""

    def is_ready(self, name: str, version: int) -> bool:
        """Return True if the model is ready. Version -1 is the latest."""

    def infer(self, request: InferRequest, halted: Sequence[InferRequest] | None = None) -> None:
        """Send a request through the same path as clients' requests, without blocking.

        Args:
            request: The request.
            halted: The unanswered requests of the calling instance, if the instance blocks until
                the first response. A request that would wait for this instance, and so never be
                answered, is then refused.
        """

    def load(
        self,
        name: str,
        config: str | None,
        files: Mapping[str, bytes],
        *,
        initializing: bool = False,
    ) -> None:
        """Load a model, optionally with another configuration and files. Blocks.

        Args:
            name: The model.
            config: The configuration as JSON.
            files: The contents of files, by path.
            initializing: Whether the calling model's own load waits for the call. If the call would
                wait for that load, and so never end, it is refused.
        """

    def unload(self, name: str, *, unload_dependents: bool, initializing: bool = False) -> None:
        """Start to unload a model. `initializing` is as for `load`."""
