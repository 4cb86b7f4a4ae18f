"""The inline host: an instance of a Python model runs on a thread of the server's process.

Debuggers and profilers see the model like any other code, and tensors are passed by reference. All
models share the process, for example its environment and its GIL.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from reference_server.backends.instances import READINESS_LIMIT_S, InstanceSpec, Readiness
from reference_server.backends.python_host.api.bls import BareIterator
from reference_server.backends.python_host.api.native import TritonModelException
from reference_server.backends.python_host.api.reports import InstanceMetrics, bound_family
from reference_server.backends.python_host.api.request import (
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    bound_request,
)
from reference_server.backends.python_host.api.response import (
    BareResponse,
    InferenceResponseSender,
    ResponseSenders,
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
from reference_server.core import forks
from reference_server.core.errors import ServerError, internal
from reference_server.core.health import Health
from reference_server.core.portability import ROWS, ignore
from reference_server.core.ports import Clock, Metrics, ModelCalls
from reference_server.core.request import Execution, InferRequest, InferResponse
from reference_server.observability import logs
from reference_server.observability.incidents import Running

log = logging.getLogger(__name__)


#: Map the folder of each model to the lock that is held while an instance of the model calls
#: `initialize` or `finalize`. In Triton each instance has its own process, so that a file lock, for
#: example, protects what the instances share. Between threads of one process a file lock has no
#: effect.
_life_locks: weakref.WeakValueDictionary[Path, threading.Lock] = weakref.WeakValueDictionary()
_finding = threading.Lock()


class InlineInstance:
    """A ModelInstance that runs `model.py` in this process, on the calling thread.

    Output arrays reach the client by reference: if a model writes to an array after returning it,
    the response changes.

    Args:
        spec: The instance's specification.
        clock: The clock for times of executions.
        metrics: The server's metrics.
        calls: The server's operations for BLS requests and model control.
        health: Receives the readiness probe of a model that has `is_ready`.
        advise: Returns a hint to append to the text of a model's exception.
        running: Receives the start and end of each execution.
        report: Receives the keys of portability rows that apply to the model.
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
        report: Callable[[str], None] = ignore,
    ) -> None:
        self._spec = spec
        self._running = running or Running(spec.name)
        self._report = report
        self._server = ServerAccess(
            calls,
            spec.name,
            is_decoupled=spec.is_decoupled,
            has_newer_api=spec.has_newer_api,
            report=report,
        )
        self._request_class = bound_request(self._server)
        self._clock = clock
        self._registry = metrics
        self._health = health or Health()
        self._metrics: InstanceMetrics  # a new object at each `open`
        self._modules: ModelModules | None = None
        self._model: Any = None
        self._generation = 0
        with _finding:
            self._life = _life_locks.setdefault(spec.model_directory, threading.Lock())
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
            report=report,
        )
        self._server.loop_thread = lambda: self._coroutines.thread_id

    def __repr__(self) -> str:
        state = "closed" if self._modules is None else "open"
        return f"InlineInstance({self.name} of {self._spec.model_file}, {state})"

    @property
    def name(self) -> str:
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
        # These names are bound to the instance, whichever thread uses them.
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
        modules, module = load(spec.model_file, own_names, self._advise, self._report_row)
        try:
            model = module.TritonPythonModel()
            if hasattr(model, "initialize"):  # optional, as `finalize` is
                with self._life:
                    model.initialize(spec.arguments())
            self._end_fork()
        except BaseException as error:  # a model's `sys.exit()` must not end the server's thread
            self._end_fork(error)
            self._warn_of_children(modules)
            # Before `modules.close` frees the metric families, so that their series stay.
            self._metrics.keeps = True
            modules.close()
            raise internal(describe(error) + self._advise(error)) from error
        self._modules, self._model = modules, model
        self._server.serves = True  # BLS is allowed from now on, as in Triton
        if self.has_readiness:
            self._health.add_probe(self.name, Readiness(self.name, self.is_ready))

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        senders, receive = self._senders, self._request_class._received
        received = [receive(request, senders) for request in requests]
        input_end_ns = self._clock.monotonic_ns()
        running = self._running
        running.thread = threading.get_ident()
        running.began_ns = input_end_ns
        try:
            returned = self._run(received)
            output_start_ns = running.ended_ns = self._clock.monotonic_ns()
            responses = _returned_responses(returned, received, senders)
        except ServerError as error:
            now = running.ended_ns = self._clock.monotonic_ns()
            # A new error, because the frames of `error` refer to the batch.
            if not _end_with_error(received, ServerError(error.code, error.message)):
                raise
            return Execution([None] * len(received), input_end_ns, now, failed=True)
        rescheduled: frozenset[int] = frozenset()
        if None in responses:
            rescheduled = _rescheduled(received, senders, is_iterative=self._spec.is_iterative)
        sent = _server_responses(received, responses, senders)
        return Execution(sent, input_end_ns, output_start_ns, rescheduled)

    @property
    def has_readiness(self) -> bool:
        """True if the open model has a method `is_ready`."""
        return hasattr(self._model, "is_ready")

    def is_ready(self) -> bool:
        """Return the result of the model's `is_ready`, which may be a coroutine.

        Returns False if the method raises or returns no bool, or if the instance is closed. Blocks
        as long as a function does; a coroutine is cancelled after the time limit. May run on
        another thread while `execute` runs.
        """
        model = self._model
        if model is None:
            return False
        try:
            with logs.speaking(self.name):
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
        self._server.thread = 0  # no load waits for `finalize`
        try:
            if hasattr(self._model, "finalize"):
                with self._life:
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
            text = describe(error)
            if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
                self._report("surrogate-text")
            raise self._senders.failure(text + self._advise(error)) from error
        finally:
            self._server.received = ()
        raise self._senders.failure(
            f"Python model {self._spec.model_file} does not implement `execute` method."
        )

    def _report_row(self, key: str) -> None:
        """Report that the portability row `key` applies. Raises with --strict-portable."""
        self._report(key)
        if self._spec.strict_portable:
            raise TritonModelException(f"--strict-portable: {ROWS[key].text}")

    def _end_fork(self, error: BaseException | None = None) -> None:
        """End a forked child in which the model's code has returned or raised `error`.

        Otherwise the child would continue as a second server. Called whenever the model's code
        ends.
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
        """Run a coroutine and return its result; only start that of a decoupled model."""
        if not self._spec.is_decoupled:  # Triton waits here too, so batches never overlap
            try:
                return self._coroutines.run(coroutine)
            except (SystemExit, KeyboardInterrupt):
                # The exception ends the thread of Triton's loop, and the client waits for ever.
                self._report("coroutine-exception")
                raise
        # Referenced until the coroutine ends, since a freed sender fails its request.
        senders = [request.get_response_sender() for request in received]
        self._coroutines.start(coroutine, partial(self._coroutine_failed, senders))
        return None

    def _coroutine_failed(
        self, senders: Sequence[InferenceResponseSender], error: BaseException
    ) -> None:
        # Triton only logs the exception, and its clients wait for ever.
        self._report("coroutine-exception")
        failure = self._senders.failure(describe(error) + self._advise(error))
        for sender in senders:
            sender._fail(failure)


# -- the result of `execute`

_NOT_ITERATIVE = (
    "Failed to release request: Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, "
    "while the model is not configured to handle such a flag."
)
_SENT_AND_RETURNED = (
    "Unable to send response. Non-decoupled model cannot send more than one response."
)


def _returned_responses(
    returned: object, received: Sequence[InferenceRequest], senders: ResponseSenders
) -> Sequence[BareResponse | None]:
    """Return one response or None per request. Raises ServerError for another result."""
    count = len(received)
    if senders.is_decoupled:
        if returned is not None:
            raise senders.failure(
                f"Python model '{senders.name}' is using the decoupled mode and the execute "
                "function must return None."
            )
        return [None] * count
    if returned is None:
        return [None] * count
    if not isinstance(returned, list):
        raise senders.failure(
            f"Expected a list in the execute return, found type '{type(returned)}'."
        )
    if len(returned) != count:
        raise senders.failure(
            "Number of InferenceResponse objects do not match the number of InferenceRequest "
            f"objects. InferenceRequest(s) size is:{count}, and InferenceResponse(s) size is:"
            f"{len(returned)}\n"
        )
    for request, answer in zip(received, returned, strict=True):
        if answer is None:
            continue
        if not isinstance(answer, BareResponse):
            raise senders.failure(
                "Expected an 'InferenceResponse' object in the execute function return list, "
                f"found type '{type(answer)}'."
            )
        if request._release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            raise senders.failure(
                "Expected a None object in the execute function return list for reschduled "
                f"request, found type '{type(answer)}'."
            )
    return returned


def _server_responses(
    received: Sequence[InferenceRequest],
    returned: Sequence[BareResponse | None],
    senders: ResponseSenders,
) -> Sequence[InferResponse | None]:
    """Return the server's responses; None for requests that a sender answers.

    A request without a response gets a sender now. The sender lives as long as the model keeps the
    sender or the request.
    """
    responses: list[InferResponse | None] = []
    for request, answer in zip(received, returned, strict=True):
        response: InferResponse | None = None
        if answer is None:
            request.get_response_sender()
        elif (sender := request._mark_answered()) is None or sender._close_silently():
            response = senders.respond(request._request, answer)
        else:
            senders.report("send-and-return")
            sender._fail(senders.failure(_SENT_AND_RETURNED))
        responses.append(response)
    return responses


def _rescheduled(
    received: Sequence[InferenceRequest], senders: ResponseSenders, *, is_iterative: bool
) -> frozenset[int]:
    """Return the indices of the requests that the model has rescheduled.

    If the model is not iterative, these requests fail unless they are answered already.
    """
    indices = [
        index
        for index, request in enumerate(received)
        if request._release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
    ]
    if not is_iterative:
        for index in indices:
            received[index].get_response_sender()._fail(senders.failure(_NOT_ITERATIVE))
        return frozenset()
    return frozenset(
        index for index in indices if received[index].get_response_sender()._close_silently()
    )


def _end_with_error(received: Sequence[InferenceRequest], error: ServerError) -> bool:
    """Fail all unanswered requests with `error`; return False if no request has a sender.

    After False the caller must answer all requests. As in Triton, responses that the model sent
    before the error stay sent; the error follows them.
    """
    if all(request._sender is None for request in received):
        for request in received:
            request._is_answered = True
        return False
    for request in received:
        request.get_response_sender()._fail(error, after_kept=True)
    return True
