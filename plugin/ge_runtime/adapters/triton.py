"""A compiled graph as a Triton model, for use in a model.py."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from ge_runtime.adapters import completion
from ge_runtime.adapters.metrics_exporter import MetricsExporter
from ge_runtime.adapters.responses import (
    FaultLog,
    OnResult,
    PbUtils,
    Request,
    Result,
    answer_batch,
    answer_each,
    bits_of,
    respond_to,
)
from ge_runtime.clock import Clock, SystemClock
from ge_runtime.errors import RuntimeFault
from ge_runtime.runtime import Runtime
from ge_runtime.scheduling.request_batch import Caller, Executed
from ge_runtime.specs import UNKNOWN, Array, DType, Tensors, TensorSpec

if TYPE_CHECKING:
    from ge_runtime.scheduling.sequences import SequenceStep

__all__ = ["GraphModel", "answer_batch", "answer_each"]

Config = TypeVar("Config")

Prepare: TypeAlias = Callable[[Sequence[Tensors]], Sequence[Result]]
"""Computes graph inputs, [rows, *dims] by name, from the inputs of a request batch; one result per
request."""

Derive: TypeAlias = Callable[[Tensors], Array]
"""Computes one more output, [rows, *dims], from a request's outputs by name."""


class GraphModel:
    """A compiled graph as a Triton model, to which a `model.py` delegates.

    Triton calls it from one thread at a time.
    """

    def __init__(
        self,
        args: Mapping[str, str],
        pb_utils: PbUtils,
        *,
        prepare: Prepare | None = None,
        derive: Mapping[str, Derive] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Open the graph, and log the decisions made at load.

        Args:
            args: The arguments of `initialize`.
            pb_utils: The module `triton_python_backend_utils`.
            prepare: Computes the tensors that config.pbtxt names in `prepared.<tensor>` from the
                requests' inputs, for the whole request batch in one call, e.g. token ids from
                texts. Returns a mapping or an exception for each request.
            derive: Functions for outputs that config.pbtxt declares and the graph does not have,
                e.g. `{"label": lambda outputs: LABELS[outputs["logits"].argmax(axis=1)]}`.
                Each is called once per request.
            clock: The clock of the requests' timeouts; by default the machine's.

        Raises:
            RuntimeFault: The model cannot be opened, see `Runtime.open`. Triton shows the message
                and does not load the model.
        """
        self._pb_utils = pb_utils
        self._prepare = prepare
        self._derive = dict(derive or {})
        self._clock = clock or SystemClock()
        instance_name = args["model_instance_name"]
        self._log = FaultLog(pb_utils, instance_name)
        self._ready = True
        """The last result of `is_ready`."""
        version_dir = Path(args["model_repository"]) / args["model_version"]
        model_config = json.loads(args["model_config"])
        policy = model_config.get("model_transaction_policy") or {}
        self._decoupled = bool(policy.get("decoupled"))
        try:
            model_config, derived = completion.restore(model_config, version_dir)
            self._runtime = runtime = Runtime.open(
                version_dir,
                model_config,
                instance_name=instance_name,
                derived=self._derive,
                clock=self._clock,
            )
        except RuntimeFault as fault:
            # Servers append the traceback of an exception; the message is complete without it.
            raise fault.with_traceback(None) from fault.__cause__
        for line in derived:
            pb_utils.Logger.log_info(f"{instance_name}: {line}")
        log_decisions(pb_utils, runtime)
        declared = (*runtime.config.inputs, *runtime.config.outputs)
        self._stateful = bool(runtime.config.states.outputs)
        self._traceable: bool | None = None
        """True if traces have `record_span` (tritonserver's do not); None before a request."""
        self._bfloat16 = {spec.name for spec in declared if spec.dtype is DType.BF16}
        try:
            self._decode_jpeg(instance_name)
            self._metrics = export_metrics(args, pb_utils, runtime)
            self._outbox = Outbox(pb_utils, instance_name)
        except BaseException:
            runtime.close()
            raise

    @staticmethod
    def complete(config: Config, pb_utils: PbUtils) -> Config:
        """Complete a `pb_utils.ModelConfig` from the graph, for `auto_complete_config`.

        A complete configuration is returned at once. Otherwise this blocks for seconds: the graph
        is executed in another process, as by `ge-runtime init`.

        Args:
            config: The argument of `auto_complete_config`.
            pb_utils: The module `triton_python_backend_utils`.

        Returns:
            `config`, with max_batch_size, inputs, outputs and a scheduler.

        Raises:
            ArtifactFault: No configuration was found, or experiments contradict a written line.
        """
        given: dict[str, Any] = config.as_dict()  # type: ignore[attr-defined]
        try:
            completion.complete(given, Path(pb_utils.get_model_dir()), pb_utils.Logger.log_info)
        except RuntimeFault as fault:
            raise fault.with_traceback(None) from fault.__cause__
        return config

    def _decode_jpeg(self, instance_name: str) -> None:
        """Decode the prepared tensors that config.pbtxt declares as JPEG files."""
        pictures = self._runtime.config.jpeg
        if not pictures:
            return
        if self._prepare is not None:
            name = next(iter(pictures))
            found = f"parameter 'jpeg.{name}': found the model's own prepare as well"
            raise RuntimeFault(f"{found}, expected one of the two")
        # Only imported for models with such inputs.
        from ge_runtime.adapters.jpeg_inputs import JpegInputs

        decoder = self._runtime.jpeg_decoder()
        self._prepare = JpegInputs(pictures, decoder).prepare
        names = ", ".join(pictures)
        self._pb_utils.Logger.log_info(
            f"{instance_name}: {names} from JPEG files, decoded by {decoder.name}"
        )

    def execute(self, requests: Sequence[Request]) -> list[object] | None:
        """Execute a batch of requests. Blocks until all are answered.

        Args:
            requests: The argument of a model's `execute`.

        Returns:
            The return value of `execute`: one InferenceResponse per request, in order; None in
            place of a response that was sent already. A decoupled model sends all its responses,
            and returns None.
        """
        if not self._stateful:
            responses = self._execute(requests)
        else:
            # Triton fills batches of `direct` sequences with requests of arbitrary content that
            # belong to no sequence.
            own_requests = [bool(request.correlation_id()) for request in requests]
            answers = iter(self._execute(list(compress(requests, own_requests))))
            empty = self._pb_utils.InferenceResponse
            responses = [next(answers) if own else empty(output_tensors=[]) for own in own_requests]
        if self._decoupled:
            for request, response in zip(requests, responses, strict=True):
                if response is not None:
                    self._outbox.put(request, response)
        # Responses may refer to the memory of requests, which Triton reuses after this call.
        if self._outbox.used:
            self._outbox.drain()
        self._metrics.note()
        return None if self._decoupled else responses

    def _execute(self, requests: Sequence[Request]) -> list[object]:
        now, bfloat16 = self._clock.now(), self._bfloat16

        def read(request: Request) -> tuple[Tensors, Caller]:
            timeout = request.timeout()  # microseconds; 0 for none
            if self._traceable is None:
                self._traceable = hasattr(request.trace(), "record_span")
            caller = Caller(
                request.request_id(),
                now + timeout * 1e-6 if timeout else math.inf,
                _step_of(request) if self._stateful else None,
                request.is_cancelled,
                _recorder_of(request) if self._traceable else None,
            )
            tensors = {}
            for tensor in request.inputs():
                name = tensor.name()
                tensors[name] = bits_of(name, tensor) if name in bfloat16 else tensor.as_numpy()
            return tensors, caller

        return respond_to(
            self._pb_utils,
            requests,
            read,
            self._infer,
            bfloat16,
            self._log,
            self._outbox.put,
            derive=self._with_derived if self._derive else None,
        )

    def is_ready(self) -> bool:
        """Return whether requests can be executed, for a model's own `is_ready`."""
        ready = self._runtime.is_ready()
        if ready is not self._ready:
            self._ready = ready
            self._metrics.note()  # as no request causes an export now; the gauges show the reason
        return ready

    def close(self) -> None:
        """Free the graph. Safe to call twice."""
        self._outbox.close()
        try:
            self._metrics.close()
        finally:
            self._runtime.close()

    def _infer(
        self, batch: Sequence[tuple[Tensors, Caller]], on_result: OnResult
    ) -> Sequence[Result]:
        originals, callers = zip(*batch, strict=True)
        inputs = originals if self._prepare is None else self._prepare(originals)
        return self._runtime.infer(inputs, callers, originals=originals, on_answer=on_result)

    def _with_derived(self, outputs: Tensors) -> Tensors:
        config, answer = self._runtime.config, dict(outputs)
        lead = next(iter(outputs.values())).shape[:1] if config.batched else ()
        for spec in config.derived:
            answer[spec.name] = self._derive[spec.name](outputs)
            _check_derived(spec, answer[spec.name], lead)
        return answer


_START: Final = 1
_END: Final = 2
"""Triton's TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END."""


def _step_of(request: Request) -> SequenceStep | None:
    """Return the request as a step of its sequence; None if it belongs to no sequence."""
    # Only loaded for models with states.
    from ge_runtime.scheduling.sequences import SequenceStep

    sequence, flags = request.correlation_id(), request.flags()
    return SequenceStep(sequence, bool(flags & _START), bool(flags & _END)) if sequence else None


def _recorder_of(request: Request) -> Callable[[Executed], None] | None:
    """Return a function that adds executions to the request's trace; None if it is not traced."""
    trace = request.trace()
    if trace.get_context() is None:
        return None
    record = trace.record_span

    def executed(execution: Executed) -> None:
        attributes: dict[str, str | int | float] = {
            "ge_runtime.gear": str(execution.gear),
            "ge_runtime.requests": execution.requests,
            "ge_runtime.rows": execution.rows,
            "ge_runtime.padding": execution.padding,
            "ge_runtime.memory_wait_seconds": execution.memory_wait_s,
        }
        if execution.error:
            attributes["error.message"] = execution.error
        record("ge_runtime.execution", execution.start_ns, execution.end_ns, attributes)

    return executed


def _check_derived(spec: TensorSpec, array: Array, lead: tuple[int, ...]) -> None:
    """Raise RuntimeFault unless the output is as declared, which Triton does not check.

    lead: the rows of the request, () if it has none.
    """
    dims = (*lead, *spec.dims)
    if (
        (array.dtype == spec.dtype.numpy or (spec.dtype is DType.BYTES and array.dtype.kind == "S"))
        and array.ndim == len(dims)
        and all(dim in (UNKNOWN, size) for dim, size in zip(dims, array.shape, strict=True))
    ):
        return
    raise RuntimeFault(
        f"derived output '{spec.name}': found {array.dtype}{list(array.shape)}, "
        f"expected {spec.dtype.numpy}{list(dims)}"
    )


def log_decisions(pb_utils: PbUtils, runtime: Runtime) -> None:
    """Log the decisions made at load."""
    for line in runtime.report:  # one call for each line, as Triton's log escapes line breaks
        pb_utils.Logger.log_info(line)
    for line in runtime.warnings:
        pb_utils.Logger.log_warn(line)


def export_metrics(args: Mapping[str, str], pb_utils: PbUtils, runtime: Runtime) -> MetricsExporter:
    """Return the exporter of an instance's counts; `args` are those of `initialize`."""
    return MetricsExporter(
        pb_utils,
        model=args["model_name"],
        version=args["model_version"],
        instance=args["model_instance_name"],
        counts=runtime.counts,
        gauges=runtime.gauges,
    )


class HasSender(Protocol):
    """The part of a request that an Outbox uses."""

    def get_response_sender(self) -> Any:  # noqa: ANN401 - see `Request`
        """Return the sender of the responses."""


class Outbox:
    """Sends responses on its own thread, in the order of `put`. Safe from any thread.

    tritonserver takes 0.16 ms for each response, mostly waiting. The model executes in that time.
    """

    def __init__(self, pb_utils: PbUtils, instance_name: str) -> None:
        """instance_name: the prefix of log lines and the name of the thread."""
        self._final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self._log = pb_utils.Logger.log_error
        self._name = instance_name
        self._waiting: Queue[tuple[HasSender, object, int] | None] = Queue()
        self._thread = Thread(target=self._send_all, name=f"{instance_name}-outbox", daemon=True)
        self._thread.start()
        self.used = False
        """True if responses were queued since the last `drain`."""

    @property
    def waiting(self) -> int:
        """The number of queued responses."""
        return self._waiting.unfinished_tasks

    def put(self, request: HasSender, response: object, *, final: bool = True) -> None:
        """Queue a response to this request; returns immediately. final: True for the last."""
        self.used = True
        self._waiting.put((request, response, self._final if final else 0))

    def drain(self) -> None:
        """Block until all queued responses are sent."""
        self._waiting.join()
        self.used = False

    def close(self) -> None:
        """Send the queued responses and end the thread. Safe to call twice."""
        self._waiting.put(None)
        self._thread.join()

    def _send_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            request, response, flags = item
            try:
                # Response and flag in one call: with two, tritonserver crashes if the client
                # cancelled.
                request.get_response_sender().send(response, flags)
            except Exception as error:
                # The sender is closed, so this request cannot be answered any more.
                text = "".join(traceback.format_exception(error)).rstrip()
                self._log(f"{self._name}: a response could not be sent: {text}")
            finally:
                del item, request, response  # releases the request's memory, which is the server's
                self._waiting.task_done()
