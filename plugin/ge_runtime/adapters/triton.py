"""From Triton's requests to the runtime and back; the only module that knows Triton's objects.

The `triton_python_backend_utils` module is an argument everywhere, never imported. Whatever goes
wrong with one request becomes the error response of that request and leaves the others alone.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from ge_runtime.errors import RequestFault, RuntimeFault
from ge_runtime.runtime import Runtime
from ge_runtime.specs import UNKNOWN, Array, DType, Tensors, TensorSpec

Result: TypeAlias = Tensors | Exception
"""What becomes of a request: its outputs by name, or why there are none."""

Derive: TypeAlias = Callable[[Tensors], Array]
"""Makes one more output, [rows, *dims], from a request's outputs by name."""


class InputTensor(Protocol):
    """What is used of `pb_utils.Tensor`."""

    def name(self) -> str:
        """The input's name."""

    def as_numpy(self) -> Array:
        """The input's content; BYTES are an object array."""


class Request(Protocol):
    """What is used of `pb_utils.InferenceRequest`."""

    def inputs(self) -> Sequence[InputTensor]:
        """All inputs sent."""

    def requested_output_names(self) -> Collection[str]:
        """The outputs the client wants: all, if it named none."""


class PbUtils(Protocol):
    """What is used of the module `triton_python_backend_utils`."""

    @property
    def Tensor(self) -> Callable[[str, Array], object]:
        """An output: its name and content."""

    @property
    def InferenceResponse(self) -> Callable[..., object]:
        """An answer: output_tensors, error."""

    @property
    def TritonError(self) -> Any:  # noqa: ANN401 - a callable with codes as attributes
        """An error: its text and code."""

    @property
    def Logger(self) -> Any:  # noqa: ANN401 - a class of static methods
        """The server's log."""


class GraphModel:
    """A compiled graph as a Triton model: what a `model.py` delegates to.

    Triton calls it from one thread at a time.
    """

    def __init__(
        self,
        args: Mapping[str, str],
        pb_utils: PbUtils,
        *,
        derive: Mapping[str, Derive] | None = None,
    ) -> None:
        """Opens the graph of the version that `initialize` got `args` for; logs what was decided.

        derive: functions for outputs that config.pbtxt declares and the graph does not give, e.g.
        {"label": lambda outputs: LABELS[outputs["logits"].argmax(axis=1)][:, None]}. Each is
        called once per request.
        Raises ConfigFault, ArtifactFault or PlanFault: Triton then shows the text and does not
        load the model.
        """
        self._pb_utils = pb_utils
        self._derive = dict(derive or {})
        self._runtime = Runtime.open(
            Path(args["model_repository"]) / args["model_version"],
            json.loads(args["model_config"]),
            instance_name=args["model_instance_name"],
            derived=self._derive,
        )
        for line in self._runtime.report:  # a line each: Triton's log escapes line breaks
            pb_utils.Logger.log_info(line)

    def execute(self, requests: Sequence[Request]) -> list[object]:
        """One InferenceResponse per request, in order. Blocks until all are answered."""
        return answer_window(self._pb_utils, requests, self._infer)

    def close(self) -> None:
        """Free the graph. Safe to call twice."""
        self._runtime.close()

    def _infer(self, window: Sequence[Tensors]) -> list[Result]:
        return [
            answer if isinstance(answer, RuntimeFault) else _attempt(self._with_derived, answer)
            for answer in self._runtime.infer(window)
        ]

    def _with_derived(self, outputs: Tensors) -> Tensors:
        config, answer = self._runtime.config, dict(outputs)
        lead = next(iter(outputs.values())).shape[:1] if config.max_batch_size else ()
        for spec in config.derived:
            answer[spec.name] = self._derive[spec.name](outputs)
            _check_derived(spec, answer[spec.name], lead)
        return answer


def answer_each(
    pb_utils: PbUtils, requests: Sequence[Request], function: Callable[[Tensors], Tensors]
) -> list[object]:
    """One InferenceResponse per request, in order, from calls of `function` for each.

    function: a request's inputs by name to its outputs by name. It raises RequestFault for what
    the caller did wrong, which the client gets as INVALID_ARG; anything else that it raises is
    INTERNAL, and logged. For models without a graph.
    """
    return answer_window(
        pb_utils, requests, lambda window: [_attempt(function, inputs) for inputs in window]
    )


def answer_window(
    pb_utils: PbUtils,
    requests: Sequence[Request],
    function: Callable[[Sequence[Tensors]], Sequence[Result]],
) -> list[object]:
    """One InferenceResponse per request, in order, from one call of `function` for all.

    function: the inputs by name of each request to its outputs by name, or to the exception that
    stands for them. What it raises is the error of every request.
    Errors are mapped as in `answer_each`. Outputs that a client did not request are left out.
    """
    inputs: list[Result] = [_attempt(_read, request) for request in requests]
    window = [tensors for tensors in inputs if not isinstance(tensors, Exception)]
    try:
        results = list(function(window)) if window else []
        if len(results) != len(window):
            raise RuntimeFault(f"found {len(results)} results, expected {len(window)}")
    except Exception as error:
        results = [error] * len(window)
    left = iter(results)
    return _respond(
        pb_utils,
        requests,
        [tensors if isinstance(tensors, Exception) else next(left) for tensors in inputs],
    )


def _attempt(function: Callable[[Any], Tensors], argument: object) -> Result:
    try:
        return function(argument)
    except Exception as error:
        return error


def _read(request: Request) -> Tensors:
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def _respond(
    pb_utils: PbUtils, requests: Sequence[Request], results: Sequence[Result]
) -> list[object]:
    responses = []
    logged: set[int] = set()  # a batch that fails gives all its requests the same exception
    for request, result in zip(requests, results, strict=True):
        if not isinstance(result, Exception):
            try:
                responses.append(_success(pb_utils, request, result))
                continue
            except Exception as error:
                result = error
        if not isinstance(result, RequestFault) and id(result) not in logged:
            logged.add(id(result))
            pb_utils.Logger.log_error("".join(traceback.format_exception(result)))
        responses.append(_failure(pb_utils, result))
    return responses


def _success(pb_utils: PbUtils, request: Request, outputs: Tensors) -> object:
    wanted = request.requested_output_names()
    tensors = [pb_utils.Tensor(name, array) for name, array in outputs.items() if name in wanted]
    return pb_utils.InferenceResponse(output_tensors=tensors)


def _failure(pb_utils: PbUtils, error: Exception) -> object:
    text = str(error) if isinstance(error, RuntimeFault) else f"{type(error).__name__}: {error}"
    codes = pb_utils.TritonError
    code = codes.INVALID_ARG if isinstance(error, RequestFault) else codes.INTERNAL
    return pb_utils.InferenceResponse(output_tensors=[], error=codes(text, code))


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
