"""The calls of models to their server (business logic scripting).

Requests to other models, loading and unloading, readiness.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from reference_server.config.schema import ModelConfig
from reference_server.core.errors import Code, ServerError, internal, unavailable
from reference_server.core.health import Health
from reference_server.core.ports import Clock
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.request import LATEST, InferRequest, InferResponse, ResponseSink
from reference_server.repository.model_folders import Override, check_name, not_polled
from reference_server.scheduling.deadlocks import DeadlockDetector, InstanceGroup, Member

#: Triton's text, which it says in mode none, too.
NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"

_FILE = "file:"


class CalledModel(Protocol):
    """The part of a ServedModel that those need who ask it."""

    @property
    def config(self) -> ModelConfig:
        """What the model is."""

    @property
    def group(self) -> InstanceGroup | None:
        """Its instances, if it has any."""

    @property
    def health(self) -> Health:
        """What its instances say."""

    def infer(self, request: InferRequest) -> None:
        """Answer the request. Raises ServerError if it is refused."""


class Models(Protocol):
    """The part of a Repository that models can reach."""

    def find(self, name: str, version: int = LATEST) -> CalledModel:
        """The loaded model. Raises ServerError."""

    def load(self, name: str, override: Override | None = None) -> None:
        """Load a model. Raises ServerError."""

    def unload(self, name: str, *, with_unused: bool = False) -> None:
        """Begin to unload a model."""


class BlsCalls:
    """All models' calls to one server. Any thread.

    Until `connect` the server is not ready, and every call is refused.
    """

    def __init__(self, clock: Clock, profile: TritonProfile = V2_51) -> None:
        self.clock = clock
        self.profile = profile
        self._models: Models | None = None
        self._is_explicit = False
        self._lock = threading.Lock()
        self._deadlocks = DeadlockDetector()

    def connect(self, models: Models, *, is_explicit: bool) -> None:
        """Send calls to `models` from now on; `is_explicit` lets them load and unload."""
        self._is_explicit = is_explicit
        self._models = models

    def of(self, member: Member) -> InstanceCalls:
        """The calls of one instance."""
        return InstanceCalls(self, member)

    @property
    def models(self) -> Models:
        """Where calls go. Raises ServerError before `connect`."""
        if self._models is None:
            raise unavailable("Server not ready")
        return self._models

    @property
    def changeable(self) -> Models:
        """The same for those who load and unload. Raises ServerError if that is not allowed."""
        models = self.models
        if not self._is_explicit:
            raise unavailable(NOT_EXPLICIT)
        return models

    def begin_wait(
        self,
        member: Member,
        halted: Sequence[InferRequest],
        request: InferRequest,
        served: CalledModel,
    ) -> None:
        """Note that `member` halts until `request` is answered. Raises ServerError if for ever."""
        if served.group is None:
            return
        with self._lock:
            cycle = self._deadlocks.begin(member, halted, request, served.group)
        if cycle is not None:
            raise internal(
                f"the request to model '{served.config.name}' would never be answered, since "
                f"instances wait for each other: {cycle}"
            )

    def end_wait(self, member: Member) -> None:
        """`member` goes on."""
        with self._lock:
            self._deadlocks.end(member)


class InstanceCalls:
    """The calls of one instance; a ModelCalls."""

    def __init__(self, calls: BlsCalls, member: Member) -> None:
        self._calls = calls
        self._member = member

    def __repr__(self) -> str:
        return f"InstanceCalls({self._member.name})"

    def is_decoupled(self, name: str, version: int) -> bool:
        """Whether the loaded model answers as often as it likes. Version -1 is the latest."""
        return self._calls.models.find(name, version).config.decoupled

    def is_ready(self, name: str, version: int) -> bool:
        """Whether that version, or with -1 the latest, can be asked."""
        models = self._calls.models
        try:
            health = models.find(name, version).health
        except ServerError:
            if self._calls.profile.newer_readiness:
                raise
            return False
        if not self._calls.profile.newer_readiness:
            return True
        return not health.reason and all(probe() for probe in health.own_probes)

    def infer(self, request: InferRequest, halted: Sequence[InferRequest] | None = None) -> None:
        """Send a request the way a client's goes; does not wait for it.

        `halted` are the requests that the instance must answer, if it waits for the first response.
        """
        calls = self._calls
        if not calls.profile.newer_model_api:
            request.sink = _CodelessSink(request.sink)
        inputs, sink = request.inputs, request.sink
        request.received_ns = calls.clock.monotonic_ns()
        served: CalledModel | None = None
        while True:
            found = calls.models.find(request.model_name, request.model_version)
            if halted is not None:
                calls.begin_wait(self._member, halted, request, found)
                request.sink = _AwaitedSink(calls, self._member, sink)
            # A copy for each try: a model's checks give inputs the shapes that it sees.
            request.inputs = dict(inputs)
            try:
                found.infer(request)
            except BaseException as error:
                if halted is not None:
                    calls.end_wait(self._member)
                # It may have been unloaded since it was found; another may be in its place.
                is_gone = isinstance(error, ServerError) and error.code is Code.UNAVAILABLE
                if not is_gone or found is served:
                    raise
                served = found
            else:
                return

    def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load a model; keys of `files` begin with `file:`, others mean nothing, as in Triton."""
        given = {key[len(_FILE) :]: data for key, data in files.items() if key.startswith(_FILE)}
        if given and config is None:
            raise not_polled(name)
        models = self._calls.changeable
        check_name(name, self._calls.profile)
        override = None if config is None else Override(config, given)
        models.load(name, override)

    def unload(self, name: str, *, unload_dependents: bool) -> None:
        """Begin to unload a model. Raises ServerError where that is not allowed."""
        self._calls.changeable.unload(name, with_unused=unload_dependents)


class _CodelessSink:
    """A sink that passes every error on as INTERNAL."""

    __slots__ = ("_sink",)

    def __init__(self, sink: ResponseSink) -> None:
        self._sink = sink

    def send(self, response: InferResponse) -> None:
        if response.error is not None:
            response = replace(response, error=internal(response.error.message))
        self._sink.send(response)


class _AwaitedSink:
    """A sink that ends its instance's wait with the first response."""

    __slots__ = ("_calls", "_member", "_sink")

    def __init__(self, calls: BlsCalls, member: Member, sink: ResponseSink) -> None:
        self._calls = calls
        self._member: Member | None = member
        self._sink = sink

    def send(self, response: InferResponse) -> None:
        member, self._member = self._member, None
        if member is not None:
            self._calls.end_wait(member)
        self._sink.send(response)
