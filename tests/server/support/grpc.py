"""The gRPC frontend over models that answer as a test says: messages in and out, no transport."""

from __future__ import annotations

from google.protobuf.message import Message
from server.support.clock import ManualClock
from server.support.frontend import gateway
from server.support.http import HandCrankedLoop
from tritonclient.grpc import service_pb2 as pb

from reference_server.core.errors import ServerError
from reference_server.core.request import InferRequest, InferResponse
from reference_server.frontends.grpc import methods
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.repository.versions import ServedModel

SERVICE = "/inference.GRPCInferenceService/"


class MadeUpCall:
    """One call: what was answered so far, and whether it has ended."""

    def __init__(self, **metadata: str) -> None:
        self.sent: list[bytes] = []
        self.error: ServerError | None = None
        self.has_ended = False
        self.backlog = None
        self.is_held = False
        self._metadata = metadata

    def watch(self, backlog) -> None:
        self.backlog = backlog

    def hold(self, *, held: bool) -> None:
        assert self.is_held is not held
        self.is_held = held

    def metadata(self, name: str) -> str | None:
        return self._metadata.get(name)

    def fields(self) -> list[tuple[bytes, bytes]]:
        return [(name.encode(), value.encode()) for name, value in self._metadata.items()]

    def send(self, *message: bytes | memoryview) -> None:
        assert not self.has_ended, "something is sent after the end"
        self.sent.append(b"".join(message))

    def end(self, error: ServerError | None = None) -> None:
        if not self.has_ended:
            self.has_ended, self.error = True, error


class WaitingScheduler:
    """A scheduler that keeps its requests until a test answers them."""

    pending = 0

    def __init__(self) -> None:
        self.requests: list[InferRequest] = []

    def submit(self, request: InferRequest) -> None:
        self.requests.append(request)

    def answer(self, index: int, **fields: object) -> None:
        request = self.requests[index]
        request.sink.send(InferResponse(request.model_name, 1, request.id, **fields))

    def close(self) -> None:
        pass


class GrpcFrontend:
    """One client of the gRPC frontend over these models."""

    def __init__(self, *models: ServedModel, is_complete: bool = True, **options: object) -> None:
        self._loop = HandCrankedLoop()
        self.shared_memory = SharedMemory()
        self.gateway = gateway(*models, is_complete=is_complete)
        self.table = methods.table(
            self.gateway, self.shared_memory, None, self._loop, ManualClock(), **options
        )

    def start(self, method: str, **metadata: str) -> tuple[MadeUpCall, object]:
        """Begin a call; the other end is what the transport would hold."""
        call = MadeUpCall(**metadata)
        name = method if method.startswith("/") else SERVICE + method
        return call, self.table[name].start(call)

    def turn(self) -> None:
        """Let the loop do what it was asked for."""
        self._loop.turn()

    def ask(self, method: str, request: Message | bytes) -> bytes:
        """Call a method with one message; returns the one response. Raises its ServerError."""
        call, running = self.start(method)
        running.receive(request if isinstance(request, bytes) else request.SerializeToString())
        running.half_close()
        self.turn()
        assert call.has_ended
        if call.error is not None:
            raise call.error
        (message,) = call.sent
        return message


def streamed(call: MadeUpCall) -> list[pb.ModelStreamInferResponse]:
    """Return the messages that a stream has sent."""
    return [pb.ModelStreamInferResponse.FromString(message) for message in call.sent]
