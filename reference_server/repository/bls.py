"""Business logic scripting (BLS): calls of models to their server.

Models can send requests to other models, load and unload models, and check readiness.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from reference_server.config.schema import ModelConfig
from reference_server.core.errors import (
    Code,
    LoadDeadlock,
    ServerError,
    internal,
    unavailable,
)
from reference_server.core.health import Health
from reference_server.core.portability import ignore
from reference_server.core.ports import Clock
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.request import LATEST, InferRequest, InferResponse, ResponseSink
from reference_server.repository.model_folders import Override, check_name, not_polled
from reference_server.scheduling.deadlocks import DeadlockDetector, InstanceGroup, Member

#: Triton's text, which it also uses in the model control mode `none`.
NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"

_FILE = "file:"


class CalledModel(Protocol):
    """The part of a ServedModel that BLS calls use."""

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""

    @property
    def group(self) -> InstanceGroup | None:
        """The model's instances, if it has any."""

    @property
    def health(self) -> Health:
        """The health of the model's instances."""

    def infer(self, request: InferRequest) -> None:
        """Check and schedule a request. Raises ServerError if it is refused."""


class Models(Protocol):
    """The part of a Repository that BLS calls use."""

    def find(self, name: str, version: int = LATEST) -> CalledModel:
        """Return the loaded model. Raises ServerError."""

    def load(
        self,
        name: str,
        override: Override | None = None,
        *,
        joins: bool = True,
        initializing: str = "",
    ) -> None:
        """Load a model. Raises ServerError."""

    def unload(self, name: str, *, with_unused: bool = False, initializing: str = "") -> None:
        """Start to unload a model. Raises ServerError."""


class BlsCalls:
    """The BLS calls of all models of one server. Thread-safe.

    Before `connect` the server is not ready, and every call is refused.
    """

    def __init__(self, clock: Clock, profile: TritonProfile = V2_51) -> None:
        self.clock = clock
        self.profile = profile
        self._models: Models | None = None
        self._is_explicit = False
        self._lock = threading.Lock()
        self._deadlocks = DeadlockDetector()

    def connect(self, models: Models, *, is_explicit: bool) -> None:
        """Send calls to `models` from now on; `is_explicit` allows loading and unloading."""
        self._is_explicit = is_explicit
        self._models = models

    def for_instance(self, member: Member, report: Callable[[str], None] = ignore) -> InstanceCalls:
        """Return the calls of one instance. `report` receives the keys of portability rows."""
        return InstanceCalls(self, member, report)

    @property
    def models(self) -> Models:
        """The models that can be called. Raises ServerError before `connect`."""
        if self._models is None:
            raise unavailable("Server not ready")
        return self._models

    @property
    def explicit_models(self) -> Models:
        """The models, to load and unload them. Raises ServerError if loading is not allowed."""
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
        report: Callable[[str], None],
    ) -> None:
        """Record that `member` waits until `request` is answered.

        Raises ServerError if the wait would never end; `report` then receives the portability row.
        """
        if served.group is None:
            return
        with self._lock:
            cycle = self._deadlocks.begin(member, halted, request, served.group)
        if cycle is not None:
            report("bls-deadlock")
            raise internal(
                f"the request to model '{served.config.name}' would never be answered, since "
                f"instances wait for each other: {cycle}"
            )

    def end_wait(self, member: Member) -> None:
        """Record that `member` no longer waits."""
        with self._lock:
            self._deadlocks.end(member)


class InstanceCalls:
    """The BLS calls of one instance; implements ModelCalls."""

    def __init__(
        self, calls: BlsCalls, member: Member, report: Callable[[str], None] = ignore
    ) -> None:
        self._calls = calls
        self._report = report
        self._member = member

    def __repr__(self) -> str:
        return f"InstanceCalls({self._member.name})"

    def is_decoupled(self, name: str, version: int) -> bool:
        return self._calls.models.find(name, version).config.decoupled

    def is_ready(self, name: str, version: int) -> bool:
        models = self._calls.models
        try:
            health = models.find(name, version).health
        except ServerError:
            return False
        if not self._calls.profile.newer_readiness:
            return True
        return not health.reason and all(probe() for probe in health.own_probes)

    def infer(self, request: InferRequest, halted: Sequence[InferRequest] | None = None) -> None:
        """Check and schedule a request like a client's. Does not wait for responses.

        If the instance waits for the first response, `halted` are the requests that it executes.
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
                calls.begin_wait(self._member, halted, request, found, self._report)
                request.sink = _AwaitedSink(calls, self._member, sink)
            # A copy for each attempt: the checks of a model change the shapes of inputs.
            request.inputs = dict(inputs)
            try:
                found.infer(request)
            except BaseException as error:
                if halted is not None:
                    calls.end_wait(self._member)
                # The model may have been replaced after the look-up: look it up again.
                is_gone = isinstance(error, ServerError) and error.code is Code.UNAVAILABLE
                if not is_gone or found is served:
                    raise
                served = found
            else:
                return

    def load(
        self,
        name: str,
        config: str | None,
        files: Mapping[str, bytes],
        *,
        initializing: bool = False,
    ) -> None:
        """Load a model. As in Triton, keys of `files` without the prefix `file:` are ignored."""
        given = {key[len(_FILE) :]: data for key, data in files.items() if key.startswith(_FILE)}
        if given and config is None:
            raise not_polled(name)
        models = self._calls.explicit_models
        check_name(name, self._calls.profile)
        override = None if config is None else Override(config, given)
        with self._reporting():
            models.load(name, override, joins=False, initializing=self._waiting(initializing))

    def unload(self, name: str, *, unload_dependents: bool, initializing: bool = False) -> None:
        models = self._calls.explicit_models
        with self._reporting():
            models.unload(
                name, with_unused=unload_dependents, initializing=self._waiting(initializing)
            )

    def _waiting(self, initializing: bool) -> str:
        return self._member.group.model if initializing else ""

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report the portability row of a call that is refused because it would never end."""
        try:
            yield
        except LoadDeadlock:
            self._report("load-deadlock")
            raise


class _CodelessSink:
    """A sink that forwards every error with the code INTERNAL."""

    __slots__ = ("_sink",)

    def __init__(self, sink: ResponseSink) -> None:
        self._sink = sink

    def send(self, response: InferResponse) -> None:
        if response.error is not None:
            response = replace(response, error=internal(response.error.message))
        self._sink.send(response)


class _AwaitedSink:
    """A sink that ends its instance's wait at the first response."""

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
