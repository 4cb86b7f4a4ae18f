"""One instance's way to its server: requests to other models, and the end of waiting for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from reference_server.backends.python_host.api.errors import TritonModelException
from reference_server.core.errors import ServerError, unavailable
from reference_server.core.ports import ModelCalls
from reference_server.core.request import InferRequest
from reference_server.core.response import InferResponse


class Received(Protocol):
    """A request that the model is executing."""

    @property
    def _request(self) -> InferRequest: ...

    @property
    def _sender(self) -> object | None: ...


class _NoCalls:
    """The calls of a host without a server: all are refused."""

    def is_decoupled(self, name: str, version: int) -> NoReturn:
        raise _not_ready()

    def is_ready(self, name: str, version: int) -> NoReturn:
        raise _not_ready()

    def infer(
        self, request: InferRequest, halted: Sequence[InferRequest] | None = None
    ) -> NoReturn:
        raise _not_ready()

    def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> NoReturn:
        raise _not_ready()

    def unload(self, name: str, *, unload_dependents: bool) -> NoReturn:
        raise _not_ready()


def _not_ready() -> ServerError:
    return unavailable("Server not ready")


NO_CALLS: ModelCalls = _NoCalls()


@dataclass(slots=True)
class InstanceServer:
    """What an instance's model can reach of its server.

    `serves` between the end of `initialize` and the beginning of `finalize`. `thread` is the one
    that runs `execute`, `received` what it is given now, `loop_thread` tells the one that runs what
    `execute` awaits.
    """

    calls: ModelCalls
    instance_name: str
    is_decoupled: bool = False
    serves: bool = False
    thread: int = 0
    loop_thread: Callable[[], int | None] = lambda: None
    received: Sequence[Received] = ()

    def failure(self, action: str, error: ServerError) -> TritonModelException:
        """What the model is told of an error that the server found in `action`."""
        return TritonModelException(
            f"{action}: Failed to process the request for model '{self.instance_name}', "
            f"message: {error}"
        )

    def check_stage(self) -> None:
        """Raise TritonModelException outside `execute`."""
        if not self.serves:
            raise TritonModelException("BLS is only supported during the 'execute' function.")

    def halted(self) -> Sequence[InferRequest] | None:
        """The requests that stand still while the calling thread waits; None if others can go on.

        A decoupled model's, and those that have a sender, may be answered by other threads.
        """
        thread = threading.get_ident()
        if thread != self.thread and (self.is_decoupled or thread != self.loop_thread()):
            return None
        if self.is_decoupled:
            return ()
        return [request._request for request in self.received if request._sender is None]


class Replies:
    """The responses to one request, as they come; a ResponseSink. Any thread.

    All are kept, so that they can be read again. `listener` is called with each, on whatever thread
    brings it.
    """

    def __init__(self, listener: Callable[[], None] | None = None) -> None:
        self._changed = threading.Condition()
        self._responses: list[InferResponse] = []
        self._is_complete = False
        self._listener = listener

    @property
    def is_complete(self) -> bool:
        """Whether the last response is there."""
        return self._is_complete

    def send(self, response: InferResponse) -> None:
        """Take one response."""
        with self._changed:
            self._responses.append(response)
            self._is_complete = response.final
            self._changed.notify_all()
        if self._listener is not None:
            self._listener()

    def get(self, index: int) -> InferResponse | None:
        """The response at `index`, once it is there; None if the last one comes before it."""
        with self._changed:
            self._changed.wait_for(lambda: index < len(self._responses) or self._is_complete)
            return self._responses[index] if index < len(self._responses) else None
