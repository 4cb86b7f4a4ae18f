"""The HTTP frontend over models that answer as a test says: bytes in, bytes out, no thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from server.support.clock import ManualClock
from server.support.configs import model_config
from server.support.http import Client, HandCrankedLoop, Reply
from server.support.requests import array_tensor

from reference_server.core.errors import not_found
from reference_server.core.profiles import V2_51
from reference_server.core.request import LATEST, InferRequest, InferResponse
from reference_server.core.rules import RequestRules
from reference_server.frontends.http.handlers import HttpHandlers
from reference_server.gateway.gateway import Gateway
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.observability.model_statistics import ModelStatistics
from reference_server.options import ServerOptions
from reference_server.repository.versions import ServedModel

Answer = Callable[[InferRequest], InferResponse]


def answering(**outputs: object) -> Answer:
    """Answers every request with these outputs."""

    def answer(request: InferRequest) -> InferResponse:
        tensors = [array_tensor(name, value) for name, value in outputs.items()]
        return InferResponse(request.model_name, request.model_version, request.id, tensors)

    return answer


def failing(error: Exception) -> Answer:
    """Answers every request with an error."""

    def answer(request: InferRequest) -> InferResponse:
        return InferResponse(request.model_name, 1, request.id, error=error)

    return answer


class AnsweringScheduler:
    """A scheduler that answers at once, and keeps what it was given."""

    pending = 0

    def __init__(self, answer: Answer) -> None:
        self.requests: list[InferRequest] = []
        self._answer = answer

    def submit(self, request: InferRequest) -> None:
        self.requests.append(request)
        request.sink.send(self._answer(request))

    def close(self) -> None:
        pass


def served(
    text: str,
    name: str = "m",
    version: int = 1,
    *,
    answer: Answer | None = None,
    labels: Mapping[str, tuple[str, ...]] | None = None,
) -> ServedModel:
    """A loaded model version with the configuration in `text`."""
    config = model_config(text, name)
    return ServedModel(
        config,
        version,
        RequestRules(config.signature),
        AnsweringScheduler(answer or answering()),
        ModelStatistics(name, version, ManualClock()),
        labels or {},
    )


class Shelf:
    """A repository for a gateway, with models that are already loaded."""

    def __init__(self, *models: ServedModel, is_complete: bool = True) -> None:
        self._models = sorted(models, key=lambda model: (model.config.name, model.version))
        self.is_complete = is_complete

    def versions(self, name: str) -> list[ServedModel]:
        return [model for model in self._models if model.config.name == name]

    def all(self) -> list[ServedModel]:
        return self._models

    def find(self, name: str, version: int = LATEST) -> ServedModel:
        found = [model for model in self.versions(name) if version in (LATEST, model.version)]
        if not found:
            raise not_found(f"Request for unknown model: '{name}' is not found")
        return found[-1]


def gateway(*models: ServedModel, is_complete: bool = True, **options: object) -> Gateway:
    """A gateway over these models."""
    shelf = Shelf(*models, is_complete=is_complete)
    return Gateway(shelf, ServerOptions((), **{"profile": V2_51, **options}), ManualClock())


class Here:
    """Does what is to be done in the background here and now, and counts it."""

    count = 0

    def run(self, work, done, failed):
        self.count += 1
        try:
            result = work()
        except Exception as error:
            failed(error)
        else:
            done(result)


class Frontend:
    """One client of an HTTP frontend over these models."""

    def __init__(
        self, *models: ServedModel, is_complete: bool = True, page: bool = False, **options: object
    ) -> None:
        self._loop = HandCrankedLoop()
        self.gateway = gateway(*models, is_complete=is_complete, **options)
        self.shared_memory = SharedMemory(allowed=options.get("client_shared_memory", True))
        self.background = Here()
        handlers = HttpHandlers(
            self.gateway,
            self.shared_memory,
            None,  # no test of a repository's operations goes this way
            self._loop,
            ManualClock(now_ns=42),
            background=self.background,
            page=page,
        )
        self.handle = handlers.handle
        self.client = Client(self.handle)

    def ask(self, request: bytes) -> Reply:
        """Send one request; returns its one reply."""
        (reply,) = self.ask_all(request)
        return reply

    def ask_all(self, requests: bytes) -> list[Reply]:
        """Send requests in one piece; returns the replies."""
        self.exchange(requests)
        return self.client.replies()

    def exchange(self, requests: bytes) -> None:
        """Send requests in one piece; what comes back is the client's to receive."""
        self.client.send(requests)
        self._loop.turn()
