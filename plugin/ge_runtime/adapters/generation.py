"""A decoder as a decoupled Triton model that streams tokens."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Final

import numpy as np

from ge_runtime.adapters.responses import FaultLog, PbUtils, Request, attempt, failure
from ge_runtime.adapters.triton import GraphModel, Outbox, export_metrics, log_decisions
from ge_runtime.clock import SystemClock
from ge_runtime.config.model_tensors import read_written
from ge_runtime.errors import Abandoned, PoolFault, RequestFault, RuntimeClosed, RuntimeFault
from ge_runtime.runtime import Runtime
from ge_runtime.scheduling.token_streams import SamplingOptions, TokenStream, TokenStreams
from ge_runtime.specs import PAST, DType, TensorSpec

_GENERATE: Final = "generate."
_OPTIONS: Final = {
    "max_tokens": int,
    "stop_token": int,
    "temperature": float,
    "top_k": int,
    "seed": int,
}
"""Inputs with dims [1] that are options of a stream: the type of the value by name of the input."""
_ROWS: Final = 8
"""Number of streams that are decoded together, if config.pbtxt does not give it."""
_NEVER_IDLE: Final = 10**15
"""In microseconds: this module ends streams, not the scheduler after an idle time."""


def open_model(args: Mapping[str, str], pb_utils: PbUtils) -> GraphModel | GenerationModel:
    """Open the model. It streams tokens if config.pbtxt has the parameter `generate.<output>`.

    See `GraphModel` for arguments and exceptions.
    """
    parameters = json.loads(args["model_config"]).get("parameters") or {}
    streams = any(key.startswith(_GENERATE) for key in parameters)
    return (GenerationModel if streams else GraphModel)(args, pb_utils)


class GenerationModel:
    """A decoder as a decoupled Triton model, to which a `model.py` delegates.

    A thread decodes all streams together: each step yields one token of each stream. `execute`
    returns at once.
    """

    def __init__(self, args: Mapping[str, str], pb_utils: PbUtils) -> None:
        """Open the graph, and log the decisions made at load.

        Args:
            args: The arguments of `initialize`.
            pb_utils: The module `triton_python_backend_utils`.

        Raises:
            RuntimeFault: The model cannot be opened, see `Runtime.open`.
        """
        self._pb_utils = pb_utils
        self._clock = SystemClock()
        name = args["model_instance_name"]
        self._log = FaultLog(pb_utils, name)
        given = json.loads(args["model_config"])
        config, logits, self._defaults = graph_config(given)
        self._batched = bool(given.get("max_batch_size"))
        (output,) = given["output"]
        self._output, self._dtype = output["name"], DType.of_config(output["data_type"]).numpy
        version_dir = Path(args["model_repository"]) / args["model_version"]
        try:
            self._runtime = runtime = Runtime.open(version_dir, config, instance_name=name)
        except RuntimeFault as fault:
            # Servers append the traceback of an exception; the message is complete without it.
            raise fault.with_traceback(None) from fault.__cause__
        log_decisions(pb_utils, runtime)
        try:
            self._ids = _ids(runtime)
            self._streams = TokenStreams(
                runtime,
                self._ids.name,
                logits,
                rows=runtime.config.rows,
                most_tokens=runtime.config.limits[str(self._ids.dims[0])],
                past=runtime.config.limits[PAST],
                clock=self._clock,
            )
            self._metrics = export_metrics(args, pb_utils, runtime)
        except BaseException:
            runtime.close()
            raise
        # One per decoded stream, so that a client that does not read delays few other clients.
        self._outboxes = [Outbox(pb_utils, f"{name}_{row}") for row in range(runtime.config.rows)]
        self._numbers = itertools.count(1)
        self._changed = Condition()
        self._new: list[TokenStream] = []  # this and the next are guarded by `_changed`
        self._closing = False
        self._thread = Thread(target=self._decode, name=f"{name}-decoding", daemon=True)
        self._thread.start()

    def execute(self, requests: Sequence[Request]) -> None:
        """Start a stream for each request. Returns at once; outboxes send the responses."""
        for request in requests:
            answers = _Answers(self, request)
            stream = attempt(lambda own: self._stream(own, answers), request)  # noqa: B023
            if isinstance(stream, Exception):
                answers.fail(stream)
                continue
            with self._changed:
                if not self._closing:
                    self._new.append(stream)
                    self._changed.notify()
                    continue
            answers.fail(RuntimeClosed("the model is closed"))

    def is_ready(self) -> bool:
        """Return whether requests can be executed, for a model's own `is_ready`."""
        return self._runtime.is_ready()

    def close(self) -> None:
        """End all streams and free the graph. Safe to call twice."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        for outbox in self._outboxes:
            outbox.close()
        try:
            self._metrics.close()
        finally:
            self._runtime.close()

    def _decode(self) -> None:
        """Execute steps while there are streams, until the model is closed."""
        streams = self._streams
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._new or self._closing or streams.busy)
                new, self._new = self._new, []
                closing = self._closing
            for stream in new:
                streams.add(stream)
            if closing:
                streams.end_all(RuntimeClosed("the model was closed"))
                return
            try:
                streams.step()
            except Exception as error:
                streams.end_all(error)
            self._metrics.note()

    def _stream(self, request: Request, answers: _Answers) -> TokenStream:
        """Return the stream of a request. Raises RequestFault for an invalid input or option."""
        # Copied, as the server reuses the memory of requests after `execute`.
        tensors = {tensor.name(): np.array(tensor.as_numpy()) for tensor in request.inputs()}
        given = self._defaults | {
            name: kind(tensors.pop(name).reshape(-1)[0])
            for name, kind in _OPTIONS.items()
            if name in tensors
        }
        options = SamplingOptions(**given)
        options.check()
        if not self._batched:
            tensors = {name: tensor[None] for name, tensor in tensors.items()}
        ids = tensors.pop(self._ids.name, None)
        if ids is None or ids.ndim != 2 or len(ids) != 1:
            found = "nothing" if ids is None else f"shape {list(ids.shape)}"
            raise RequestFault(f"input '{self._ids.name}': found {found}, expected one row of ids")
        timeout = request.timeout()  # microseconds; 0 for none
        return TokenStream(
            sequence=next(self._numbers),
            ids=ids,
            others=tensors,
            options=options,
            is_cancelled=answers.is_cancelled,
            emit=answers.emit,
            fail=answers.fail,
            deadline=self._clock.now() + timeout * 1e-6 if timeout else math.inf,
        )


class _Answers:
    """Sends the responses to one request. `get_response_sender` is for the Outbox."""

    def __init__(self, model: GenerationModel, request: Request) -> None:
        self._model = model
        self._sender = request.get_response_sender()
        self._outbox = min(model._outboxes, key=lambda own: own.waiting)

    def get_response_sender(self) -> Any:  # noqa: ANN401 - see `Request`
        return self._sender

    def is_cancelled(self) -> bool:
        return bool(self._sender.is_cancelled())

    def emit(self, token: int, last: bool) -> None:
        model = self._model
        shape = (1, 1) if model._batched else (1,)
        array = np.full(shape, token, model._dtype)
        response = model._pb_utils.InferenceResponse(
            output_tensors=[model._pb_utils.Tensor(model._output, array)]
        )
        self._outbox.put(self, response, final=last)

    def fail(self, error: Exception) -> None:
        model = self._model
        if not isinstance(error, (RequestFault, Abandoned, PoolFault, RuntimeClosed)):
            model._log.write(error)
        self._outbox.put(self, failure(model._pb_utils, error))


def graph_config(model_config: Mapping[str, Any]) -> tuple[dict[str, Any], str, dict[str, float]]:
    """Return the graph's configuration, its output with logits, and the defaults of options.

    Args:
        model_config: The configuration of a model that streams tokens. Its requests have token
            ids, the graph's other inputs and options; its responses have a token.

    Raises:
        RuntimeFault: The parameters do not describe such a model.
    """
    given = model_config.get("parameters") or {}
    parameters = {key: str(value.get("string_value", "")) for key, value in given.items()}
    outputs = [key for key in parameters if key.startswith(_GENERATE)]
    declared = list(model_config.get("output") or ())
    policy = model_config.get("model_transaction_policy") or {}
    if len(outputs) != 1 or not policy.get("decoupled"):
        found = f"{len(outputs)} of them, and decoupled: {bool(policy.get('decoupled'))}"
        expected = "one, and model_transaction_policy { decoupled: true }"
        raise RuntimeFault(f"parameter 'generate.<output>': found {found}; expected {expected}")
    name = outputs[0].removeprefix(_GENERATE)
    text = parameters[outputs[0]]
    spec = read_written(name, text)
    if spec is None or len(spec.axes) != 1 or spec.dtype not in (DType.FP32, DType.FP16):
        found = f"'{text}'"
        expected = "the graph's type and dims, e.g. FP32[tokens,50257]"
        raise RuntimeFault(f"parameter '{outputs[0]}': found {found}; expected {expected}")
    if len(declared) != 1 or not DType.of_config(declared[0]["data_type"]).is_integer:
        expected = "one with integers and dims [1]: the token of a response"
        raise RuntimeFault(f"output: found {len(declared)} output(s); expected {expected}")
    for own in model_config.get("input") or ():
        if own["name"] in _OPTIONS and not _is_number(own):
            found = f"{own['data_type'].removeprefix('TYPE_')} of dims {own['dims']}"
            expected = "a number of dims [1], as this input is an option of a stream"
            raise RuntimeFault(f"input '{own['name']}': found {found}; expected {expected}")
    rows = _number("rows", parameters.get("rows") or model_config.get("max_batch_size") or _ROWS)
    if rows < 1:
        raise RuntimeFault(f"parameter 'rows': found {rows}; expected at least 1")
    own = {
        key: text
        for key, text in parameters.items()
        if key not in ("rows", outputs[0]) and key.removeprefix("default.") not in _OPTIONS
    }
    own[f"axes.{name}"] = spec.axes[0]
    dims = [dim if isinstance(dim, int) else -1 for dim in spec.dims]
    oldest = {"max_candidate_sequences": rows}
    return (
        {
            "name": model_config.get("name", ""),
            "max_batch_size": rows,
            "input": [
                own for own in model_config.get("input") or () if own["name"] not in _OPTIONS
            ],
            "output": [{"name": name, "data_type": spec.dtype.config_name, "dims": dims}],
            "instance_group": model_config.get("instance_group") or [],
            "sequence_batching": {"oldest": oldest, "max_sequence_idle_microseconds": _NEVER_IDLE},
            "parameters": {key: {"string_value": text} for key, text in own.items()},
        },
        name,
        _defaults(parameters),
    )


def _is_number(declared: Mapping[str, Any]) -> bool:
    dtype = DType.of_config(declared["data_type"])
    whole = _OPTIONS[declared["name"]] is int
    is_number = dtype.is_integer or (not whole and dtype.numpy.kind == "f")
    return is_number and [int(dim) for dim in declared["dims"]] == [1]


def _defaults(parameters: Mapping[str, str]) -> dict[str, float]:
    keys = {f"default.{name}": name for name in _OPTIONS}
    found = {
        name: _number(key, parameters[key], _OPTIONS[name])
        for key, name in keys.items()
        if key in parameters
    }
    try:
        SamplingOptions(**found).check()
    except RequestFault as fault:
        raise RuntimeFault(f"parameters 'default.<option>': {fault}") from None
    return found


def _number(key: str, text: object, kind: Callable[[Any], Any] = int) -> Any:  # noqa: ANN401
    try:
        return kind(text)
    except ValueError:
        raise RuntimeFault(f"parameter '{key}': found '{text}'; expected a number") from None


def _ids(runtime: Runtime) -> TensorSpec:
    """Return the input with token ids: integers along the axis whose size is the states' growth."""
    growth = runtime.config.states.growth
    if growth is not None:
        for spec in runtime.config.inputs:
            if spec.dims == (growth.growth,) and spec.dtype.is_integer:
                return spec
    raise RuntimeFault(
        "parameter 'generate.<output>': found no input of integers along the axis of "
        "'state_growth'; expected one with token ids, and 'state.' with 'limit.past'"
    )
