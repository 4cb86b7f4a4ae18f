"""The sink of a request that is traced: notes what the request is answered with."""

from __future__ import annotations

from reference_server.core.ports import Clock
from reference_server.core.request import TRACING, InferRequest, RequestTrace
from reference_server.core.response import InferResponse
from reference_server.core.tensor import Tensor


class TracedSink:
    """Tells a trace of all responses at once, when the last is there, and passes each on.

    `began` and `ended` are told of the executions; the last response may come before the end of
    one. Responses come one at a time.
    """

    def __init__(self, request: InferRequest, trace: RequestTrace, clock: Clock) -> None:
        self._sink = request.sink
        self._trace = trace
        self._clock = clock
        self._outputs: list[Tensor] = []
        self._start_ns = 0
        self._times: tuple[int, int, int] | None = None

    def began(self, start_ns: int) -> None:
        """An instance executes the request."""
        self._start_ns = start_ns
        self._times = None

    def ended(self, input_end_ns: int, output_start_ns: int) -> None:
        """It has executed the request; responses may follow."""
        self._times = self._start_ns, input_end_ns, output_start_ns

    def send(self, response: InferResponse) -> None:
        """Take one response."""
        if response.error is None:
            self._outputs.extend(response.outputs)
        if response.final:
            with TRACING:
                self._trace.answered(self._outputs, self._times or self._times_now())
        self._sink.send(response)

    def _times_now(self) -> tuple[int, int, int]:
        """The times of an execution that has not ended."""
        return self._start_ns, self._start_ns, self._clock.monotonic_ns()


def traced_sink(
    request: InferRequest, trace: RequestTrace, start_ns: int, clock: Clock
) -> TracedSink:
    """The sink of a traced request that an instance executes from `start_ns` on.

    It is put before the one that is there, unless the request is executed once more.
    """
    sink = request.sink
    if not isinstance(sink, TracedSink):
        sink = request.sink = TracedSink(request, trace, clock)
    sink.began(start_ns)
    return sink
