"""The inline host: an instance of a Python model lives on a thread of the server's own process.

A breakpoint, a stack trace or a profiler sees the model as it sees any other code, and tensors
are handed over by reference. What the process shares, such as the environment or the GIL, its
models share too.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from reference_server.backends.instances import READINESS_LIMIT_S, InstanceSpec, Readiness
from reference_server.backends.python_host import outcome
from reference_server.backends.python_host.api.bls import BareIterator
from reference_server.backends.python_host.api.metrics import InstanceMetrics, bound_family
from reference_server.backends.python_host.api.model_config import ModelConfig
from reference_server.backends.python_host.api.request import InferenceRequest, bound_request
from reference_server.backends.python_host.api.response import (
    BareResponse,
    InferenceResponseSender,
)
from reference_server.backends.python_host.api.server_access import (
    NO_CALLS,
    ServerAccess,
    bound_functions,
    telling_directory,
)
from reference_server.backends.python_host.coroutines import CoroutineRunner, ThreadLoop
from reference_server.backends.python_host.model_code import describe, load, no_advice
from reference_server.backends.python_host.modules import ModelModules
from reference_server.backends.python_host.outcome import ResponseSenders
from reference_server.core import forks
from reference_server.core.errors import ServerError, internal
from reference_server.core.health import Health
from reference_server.core.ports import Clock, Metrics, ModelCalls
from reference_server.core.request import Execution, InferRequest
from reference_server.observability import printing
from reference_server.observability.executions import Running

log = logging.getLogger(__name__)


class InlineInstance:
    """A ModelInstance that runs `model.py` in this process, on the thread that calls it.

    Output arrays reach the client by reference: a model that goes on writing to an array it
    answered with changes that answer. `health` is told of a model that says whether it is ready.
    `advise` gives what is to be added to the text of a model's exception, `running` is told what it
    executes.
    """

    def __init__(
        self,
        spec: InstanceSpec,
        clock: Clock,
        metrics: Metrics,
        calls: ModelCalls = NO_CALLS,
        health: Health | None = None,
        advise: Callable[[BaseException], str] = no_advice,
        running: Running | None = None,
    ) -> None:
        self._spec = spec
        self._running = running or Running(spec.name)
        self._server = ServerAccess(
            calls,
            spec.name,
            is_decoupled=spec.is_decoupled,
            has_newer_api=spec.has_newer_api,
        )
        self._request_class = bound_request(self._server)
        self._clock = clock
        self._registry = metrics
        self._health = health or Health()
        self._metrics: InstanceMetrics  # one for each time that the instance is open
        self._modules: ModelModules | None = None
        self._model: Any = None
        self._generation = 0
        self._coroutines = CoroutineRunner(spec.name)
        self._loop = ThreadLoop()
        self._advise = advise
        self._senders = ResponseSenders(
            spec.name,
            spec.model_name,
            spec.model_version,
            spec.output_names,
            is_decoupled=spec.is_decoupled,
            state_names=spec.state_names,
        )
        self._server.loop_thread = lambda: self._coroutines.thread_id

    def __repr__(self) -> str:
        state = "closed" if self._modules is None else "open"
        return f"InlineInstance({self.name} of {self._spec.model_file}, {state})"

    @property
    def name(self) -> str:
        """The instance's name, as it stands in error texts."""
        return self._spec.name

    def open(self) -> None:
        """Import the model's file, construct `TritonPythonModel` and initialize it.

        Blocks for as long as the model does. Raises ServerError with the model's exception.
        """
        spec = self._spec
        log.info(
            "TRITONBACKEND_ModelInstanceInitialize: %s (%s device %d)",
            spec.name,
            spec.kind,
            spec.device_id,
        )
        self._metrics = InstanceMetrics(self._registry, spec.name)
        self._server.thread = threading.get_ident()
        # Of the process that opens it: it may have been made before that was forked.
        generation = self._senders.generation = self._server.generation = forks.generation
        self._generation = generation
        # Each of these knows its instance, on whatever thread the model calls it.
        own_names = {
            "InferenceRequest": self._request_class,
            "MetricFamily": bound_family(self._metrics),
            **bound_functions(self._server),
            "get_model_dir": telling_directory(spec.version_directory),
        }
        if not spec.has_newer_api:
            own_names |= {"InferenceResponse": BareResponse, "ResponseIterator": BareIterator}
        self._loop.begin()
        try:
            self._open(own_names)
        except BaseException:
            self._loop.end()
            raise

    def _open(self, own_names: Mapping[str, object]) -> None:
        spec = self._spec
        modules, module = load(spec.model_file, own_names, self._advise)
        try:
            model = module.TritonPythonModel()
            if hasattr(model, "initialize"):  # optional, as `finalize` is
                model.initialize(spec.arguments())
            self._end_fork()
        except BaseException as error:  # a model's `sys.exit()` must not end the server's thread
            self._end_fork(error)
            self._tell_children(modules)
            # Before the modules, whose families go with them: what they counted stays shown.
            self._metrics.keeps = True
            modules.close()
            raise internal(describe(error) + self._advise(error)) from error
        self._modules, self._model = modules, model
        self._server.serves = True  # from here on BLS is allowed, as in Triton
        if self.tells_readiness:
            self._health.add_probe(self.name, Readiness(self.name, self.is_ready))

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        """Run one batch. Blocks; raises ServerError if the batch as a whole failed."""
        senders, receive = self._senders, self._request_class._received
        received = [receive(request, senders) for request in requests]
        input_end_ns = self._clock.monotonic_ns()
        running = self._running
        running.thread = threading.get_ident()
        running.began_ns = input_end_ns
        try:
            returned = self._run(received)
            output_start_ns = running.ended_ns = self._clock.monotonic_ns()
            responses = outcome.returned_responses(returned, received, senders)
        except ServerError as error:
            now = running.ended_ns = self._clock.monotonic_ns()
            # A new error: responses may be kept, and the traceback's frames hold the batch.
            if not outcome.end_with_error(received, ServerError(error.code, error.message)):
                raise
            return Execution([None] * len(received), input_end_ns, now, failed=True)
        rescheduled: frozenset[int] = frozenset()
        if None in responses:
            rescheduled = outcome.rescheduled(
                received, senders, is_iterative=self._spec.is_iterative
            )
        sent = outcome.server_responses(received, responses, senders)
        return Execution(sent, input_end_ns, output_start_ns, rescheduled)

    @property
    def tells_readiness(self) -> bool:
        """Whether the model, which is open, has a method `is_ready`."""
        return hasattr(self._model, "is_ready")

    def is_ready(self) -> bool:
        """What the model's `is_ready` says, be it a coroutine or not.

        False if it raises or says anything but True or False, or is closed. Blocks for as long as
        it does, a coroutine only for as long as anybody waits; beside `execute`, on another thread.
        """
        model = self._model
        if model is None:
            return False
        try:
            with printing.speaking(self.name):
                said: object = model.is_ready()
            if isinstance(said, Coroutine):
                said = self._coroutines.run(said, READINESS_LIMIT_S)
        except BaseException as error:
            log.error("'%s' cannot tell whether it is ready: %s", self.name, describe(error))
            return False
        if not isinstance(said, bool):
            log.error("'%s': is_ready must return a bool, not %r", self.name, said)
            return False
        return said

    def close(self) -> None:
        """Finalize the model and forget its modules; an exception of it is only logged."""
        if self._modules is None:
            return
        # The loop stays until the last response is sent: coroutines may be about to send it. It is
        # stopped before `finalize`, as in Triton.
        self._senders.close()
        self._coroutines.stop()
        self._server.serves = False
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
            self._end_fork()
        except BaseException as error:
            self._end_fork(error)
            log.info("%s", describe(error))
        self._tell_children(self._modules)
        self._metrics.keeps = True
        self._modules.close()
        self._modules = self._model = None
        self._loop.end()

    def _run(self, received: list[InferenceRequest]) -> object:
        self._server.received = received
        try:
            # Looked up at each call, as in Triton: a model without it loads and is ready.
            if hasattr(self._model, "execute"):
                returned: object = self._model.execute(received)
                # A list is the usual case, and asking an abstract class is slow.
                if not isinstance(returned, list) and isinstance(returned, Coroutine):
                    returned = self._run_coroutine(returned, received)
                self._end_fork()
                return returned
        except BaseException as error:
            self._end_fork(error)
            raise self._senders.failure(describe(error) + self._advise(error)) from error
        finally:
            self._server.received = ()
        raise self._senders.failure(
            f"Python model {self._spec.model_file} does not implement `execute` method."
        )

    def _end_fork(self, error: BaseException | None = None) -> None:
        """End a copy of this process in which the model's code has come to its end, by `error`.

        It would go on as a second server. To be called whenever the model's code is left.
        """
        if self._generation != forks.generation:
            forks.end_fork(error)

    def _tell_children(self, modules: ModelModules) -> None:
        """Warn of processes that the model has forked and not ended."""
        if left := forks.children_of(modules.number):
            forks.detach(left)
            log.warning(
                "'%s' is closed, and processes that it has forked go on: %s. A model ends its "
                "processes in `finalize`.",
                self.name,
                ", ".join(map(str, left)),
            )

    def _run_coroutine(
        self, coroutine: Coroutine[object, object, object], received: list[InferenceRequest]
    ) -> object:
        """What `coroutine` returns; a decoupled model's goes on by itself, and returns nothing."""
        if not self._spec.is_decoupled:  # Triton waits here too: these never run side by side
            return self._coroutines.run(coroutine)
        # Held until the coroutine ends: a sender that nobody holds counts as forgotten.
        senders = [request.get_response_sender() for request in received]
        self._coroutines.start(coroutine, partial(self._coroutine_failed, senders))
        return None

    def _coroutine_failed(
        self, senders: Sequence[InferenceResponseSender], error: BaseException
    ) -> None:
        # Triton only logs it, and its clients wait for ever.
        failure = self._senders.failure(describe(error) + self._advise(error))
        for sender in senders:
            sender._fail(failure)


def auto_complete(
    model_file: Path,
    version_directory: Path,
    model_name: str,
    config: dict[str, Any],
    advise: Callable[[BaseException], str] = no_advice,
) -> dict[str, Any]:
    """`config` as the model's `auto_complete_config` completes it; as it is if it has none.

    The file is imported for this alone, so nothing that it sets is there when an instance opens.
    Blocks for as long as the model does. Raises ServerError with the model's exception, or if the
    function returns something else than a ModelConfig.
    """
    loop = ThreadLoop()
    loop.begin()
    try:
        return _auto_complete(model_file, version_directory, model_name, config, advise)
    finally:
        loop.end()


def _auto_complete(
    model_file: Path,
    version_directory: Path,
    model_name: str,
    config: dict[str, Any],
    advise: Callable[[BaseException], str],
) -> dict[str, Any]:
    modules, module = load(
        model_file, {"get_model_dir": telling_directory(version_directory)}, advise=advise
    )
    try:
        model = module.TritonPythonModel
        if not hasattr(model, "auto_complete_config"):
            return config
        completed = model.auto_complete_config(ModelConfig(json.dumps(config)))
    except BaseException as error:
        raise internal(describe(error) + advise(error)) from error
    finally:
        modules.close()
    if not isinstance(completed, ModelConfig):
        raise internal(
            f"auto_complete_config function in model '{model_name}' must return a valid "
            "pb.ModelConfig object."
        )
    return completed.as_dict()
