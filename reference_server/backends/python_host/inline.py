"""The inline host: an instance of a Python model runs on a thread of the server's process.

Debuggers and profilers see the model like any other code, and tensors are passed by reference. All
models share the process, for example its environment and its GIL.
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
    bound_get_model_dir,
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
    """A ModelInstance that runs `model.py` in this process, on the calling thread.

    Output arrays reach the client by reference: if a model writes to an array after it has
    returned it, the response changes.

    Args:
        spec: The instance's specification.
        clock: The clock for times of executions.
        metrics: The server's metrics.
        calls: The server's operations for BLS requests and model control.
        health: Receives the readiness probe of a model that has `is_ready`.
        advise: Returns a hint to append to the text of a model's exception.
        running: Receives the start and end of each execution.
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
        self._metrics: InstanceMetrics  # a new one at each `open`
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
        """The instance's name in error texts."""
        return self._spec.name

    def open(self) -> None:
        """Import the model's file, construct `TritonPythonModel` and initialize it.

        Blocks as long as the model does. Raises ServerError with the model's exception.
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
        # Set here, since the process may have been forked after the constructor ran.
        generation = self._senders.generation = self._server.generation = forks.generation
        self._generation = generation
        # Each of these is bound to its instance, whichever thread calls it.
        own_names = {
            "InferenceRequest": self._request_class,
            "MetricFamily": bound_family(self._metrics),
            **bound_functions(self._server),
            "get_model_dir": bound_get_model_dir(spec.version_directory),
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
            self._warn_of_children(modules)
            # Before the modules, with which the metric families are freed: their series stay.
            self._metrics.keeps = True
            modules.close()
            raise internal(describe(error) + self._advise(error)) from error
        self._modules, self._model = modules, model
        self._server.serves = True  # BLS is allowed from now on, as in Triton
        if self.has_readiness:
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
            # A new error, because the frames of the old one refer to the batch.
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
    def has_readiness(self) -> bool:
        """True if the open model has a method `is_ready`."""
        return hasattr(self._model, "is_ready")

    def is_ready(self) -> bool:
        """Return the result of the model's `is_ready`, which may be a coroutine.

        Returns False if it raises, if it returns no bool, or if the instance is closed. Blocks as
        long as a function does; a coroutine is cancelled after the time limit. May run on another
        thread beside `execute`.
        """
        model = self._model
        if model is None:
            return False
        try:
            with printing.speaking(self.name):
                result: object = model.is_ready()
            if isinstance(result, Coroutine):
                result = self._coroutines.run(result, READINESS_LIMIT_S)
        except BaseException as error:
            log.error("'%s': is_ready failed: %s", self.name, describe(error))
            return False
        if not isinstance(result, bool):
            log.error("'%s': is_ready must return a bool, not %r", self.name, result)
            return False
        return result

    def close(self) -> None:
        """Finalize the model and drop its modules. An exception of the model is logged only."""
        if self._modules is None:
            return
        # The loop runs until the last response is sent, since coroutines may send it. It stops
        # before `finalize`, as in Triton.
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
        self._warn_of_children(self._modules)
        self._metrics.keeps = True
        self._modules.close()
        self._modules = self._model = None
        self._loop.end()

    def _run(self, received: list[InferenceRequest]) -> object:
        self._server.received = received
        try:
            # Looked up at each call: in Triton a model without `execute` loads and is ready.
            if hasattr(self._model, "execute"):
                returned: object = self._model.execute(received)
                # A list is the usual case, and `isinstance` with an abstract class is slow.
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
        """End a forked child in which the model's code has returned or raised `error`.

        The child would continue as a second server. Call this whenever the model's code ends.
        """
        if self._generation != forks.generation:
            forks.end_fork(error)

    def _warn_of_children(self, modules: ModelModules) -> None:
        """Warn of processes that the model has forked and not ended."""
        if left := forks.living_children(modules.number):
            forks.do_not_join(left)
            log.warning(
                "'%s': found forked processes that still run after close: %s; expected none. End "
                "them in `finalize`.",
                self.name,
                ", ".join(map(str, left)),
            )

    def _run_coroutine(
        self, coroutine: Coroutine[object, object, object], received: list[InferenceRequest]
    ) -> object:
        """Return the result of a coroutine. That of a decoupled model is started only."""
        if not self._spec.is_decoupled:  # Triton waits here too, so batches never overlap
            return self._coroutines.run(coroutine)
        # Referenced until the coroutine ends, since a freed sender fails its request.
        senders = [request.get_response_sender() for request in received]
        self._coroutines.start(coroutine, partial(self._coroutine_failed, senders))
        return None

    def _coroutine_failed(
        self, senders: Sequence[InferenceResponseSender], error: BaseException
    ) -> None:
        # Triton only logs the exception, and its clients wait for ever.
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
    """Return `config` completed by the model's `auto_complete_config`, if it has one.

    The file is imported for this call only, so that its state does not reach an instance. Blocks as
    long as the model does.

    Raises:
        ServerError: The model raised an exception, or the function did not return a ModelConfig.
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
        model_file, {"get_model_dir": bound_get_model_dir(version_directory)}, advise=advise
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
