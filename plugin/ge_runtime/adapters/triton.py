"""A compiled graph as a Triton model: what a `model.py` delegates to.

Of the runtime, `adapters` alone knows Triton's objects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Final, TypeAlias

from ge_runtime.adapters.metrics_exporter import MetricsExporter
from ge_runtime.adapters.responses import (
    FaultLog,
    PbUtils,
    Request,
    Result,
    answer_batch,
    answer_each,
    attempt,
    bits_of,
    respond_to,
)
from ge_runtime.clock import Clock, SystemClock
from ge_runtime.errors import RuntimeFault
from ge_runtime.runtime import Runtime
from ge_runtime.scheduling.request_batch import Caller
from ge_runtime.scheduling.sequences import SequenceStep
from ge_runtime.specs import UNKNOWN, Array, DType, Tensors, TensorSpec

__all__ = ["GraphModel", "answer_batch", "answer_each"]

Prepare: TypeAlias = Callable[[Sequence[Tensors]], Sequence[Result]]
"""Makes graph inputs by name, [rows, *dims], of a request batch's inputs; one result per
request."""

Derive: TypeAlias = Callable[[Tensors], Array]
"""Makes one more output, [rows, *dims], from a request's outputs by name."""


class GraphModel:
    """A compiled graph as a Triton model: what a `model.py` delegates to.

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
        """Opens the graph of the version that `initialize` got `args` for; logs what was decided.

        prepare: makes the tensors that config.pbtxt names in `prepared.<tensor>` of the requests'
        inputs, for the whole request batch in one call, e.g. token ids of texts.
        derive: functions for outputs that config.pbtxt declares and the graph does not give, e.g.
        {"label": lambda outputs: LABELS[outputs["logits"].argmax(axis=1)][:, None]}. Each is
        called once per request.
        Raises what `Runtime.open` does: Triton then shows the text and does not load the model.
        """
        self._pb_utils = pb_utils
        self._prepare = prepare
        self._derive = dict(derive or {})
        self._clock = clock or SystemClock()
        instance_name = args["model_instance_name"]
        self._log = FaultLog(pb_utils, instance_name)
        try:
            self._runtime = runtime = Runtime.open(
                Path(args["model_repository"]) / args["model_version"],
                json.loads(args["model_config"]),
                instance_name=instance_name,
                derived=self._derive,
                clock=self._clock,
            )
        except RuntimeFault as fault:
            # Servers append the frames that an exception has gone through; its text says it all.
            raise fault.with_traceback(None) from fault.__cause__
        for line in runtime.report:  # a line each: Triton's log escapes line breaks
            pb_utils.Logger.log_info(line)
        declared = (*runtime.config.inputs, *runtime.config.outputs)
        self._bfloat16 = {spec.name for spec in declared if spec.dtype is DType.BF16}
        try:
            self._metrics = MetricsExporter(
                pb_utils,
                model=args["model_name"],
                version=args["model_version"],
                instance=instance_name,
                counts=runtime.counts,
                gauges=runtime.gauges,
            )
        except BaseException:
            runtime.close()
            raise

    def execute(self, requests: Sequence[Request]) -> list[object]:
        """One InferenceResponse per request, in order. Blocks until all are answered."""
        if not self._runtime.config.states.outputs:
            return self._execute(requests)
        # Batches of `direct` sequences are filled up with requests of nobody, of any content.
        theirs = [bool(request.correlation_id()) for request in requests]
        responses = iter(self._execute(list(compress(requests, theirs))))
        nothing = self._pb_utils.InferenceResponse
        return [next(responses) if own else nothing(output_tensors=[]) for own in theirs]

    def _execute(self, requests: Sequence[Request]) -> list[object]:
        now = self._clock.now()
        stateful = bool(self._runtime.config.states.outputs)

        def read(request: Request) -> tuple[Tensors, Caller]:
            timeout = request.timeout()  # in microseconds; 0 for no end
            deadline = now + timeout * 1e-6 if timeout else math.inf
            step = _step_of(request) if stateful else None
            caller = Caller(request.request_id(), deadline, step, request.is_cancelled)
            return self._read(request), caller

        responses = respond_to(
            self._pb_utils, requests, read, self._infer, self._bfloat16, self._log
        )
        self._metrics.note()
        return responses

    def is_ready(self) -> bool:
        """Whether a request would be executed: for a model's own `is_ready`."""
        return self._runtime.is_ready()

    def close(self) -> None:
        """Free the graph. Safe to call twice."""
        try:
            self._metrics.close()
        finally:
            self._runtime.close()

    def _read(self, request: Request) -> Tensors:
        return {
            name: bits_of(name, tensor) if name in self._bfloat16 else tensor.as_numpy()
            for tensor in request.inputs()
            for name in (tensor.name(),)
        }

    def _infer(self, batch: Sequence[tuple[Tensors, Caller]]) -> list[Result]:
        originals = [tensors for tensors, _ in batch]
        inputs: Sequence[Result] = originals
        if self._prepare is not None:
            inputs = self._prepare(originals)
        # Those whose preparation failed never reach the runtime, and are answered with why.
        sound = [
            (tensors, caller, original)
            for tensors, (original, caller) in zip(inputs, batch, strict=True)
            if not isinstance(tensors, Exception)
        ]
        answers = iter(
            self._runtime.infer(
                [tensors for tensors, _, _ in sound],
                [caller for _, caller, _ in sound],
                originals=[original for _, _, original in sound],
            )
        )
        results = (
            tensors if isinstance(tensors, Exception) else next(answers) for tensors in inputs
        )
        return [
            result if isinstance(result, Exception) else attempt(self._with_derived, result)
            for result in results
        ]

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
    """The step of its sequence that a request is; None if it is of none."""
    sequence, flags = request.correlation_id(), request.flags()
    return SequenceStep(sequence, bool(flags & _START), bool(flags & _END)) if sequence else None


def _check_derived(spec: TensorSpec, array: Array, lead: tuple[int, ...]) -> None:
    """Faults unless the output is as declared: Triton would pass on whatever it is.

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
