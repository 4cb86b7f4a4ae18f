"""Files for perf_analyzer: `--input-data`, also read by `ge-runtime gears`, and intervals."""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from triton_replay.capture.reader import Exchange
from triton_replay.capture.records import Request
from triton_replay.wire.answers import Tensor, read_inputs, wire_of
from triton_replay.wire.bodies import INFERENCE, NotUnderstood
from triton_replay.wire.grpc_messages import is_inference, model_of_call
from triton_replay.wire.grpc_tensors import inputs_of_call

_AS_NUMBERS = frozenset("biu")
"""Kinds of dtypes that JSON represents exactly; floats are written as base64."""


@dataclass
class ModelLoad:
    """The requests of one model."""

    entries: list[Mapping[str, Any]] = field(default_factory=list)
    """Inputs by name, for each entry of `data`."""
    times: list[int] = field(default_factory=list)
    """Start time of each request, in nanoseconds."""

    def document(self) -> dict[str, Any]:
        """Return the content of the file for `--input-data`."""
        return {"data": self.entries}

    def intervals(self) -> list[int]:
        """Return microseconds between successive requests, at least 1 each."""
        ordered = sorted(self.times)
        return [max(round((later - earlier) / 1000), 1) for earlier, later in pairwise(ordered)]


def export_loads(
    exchanges: Iterable[Exchange], *, rows: bool
) -> tuple[dict[str, ModelLoad], Counter[str]]:
    """Convert recorded requests.

    Args:
        exchanges: The requests.
        rows: Whether the first axis of inputs is the batch. Each row then becomes an entry, as
            perf_analyzer expects for models with a `max_batch_size`.

    Returns:
        The load of each model, and the numbers of skipped requests by reason.
    """
    loads: defaultdict[str, ModelLoad] = defaultdict(ModelLoad)
    left_out: Counter[str] = Counter()
    for exchange in exchanges:
        request = exchange.request
        model = _model_of(request)
        if not model:
            continue
        if not request.whole:
            left_out["requests without a body in the capture"] += 1
            continue
        try:
            inputs = _inputs(request)
            entries = list(_rows(inputs)) if rows else [inputs]
        except NotUnderstood:
            left_out["requests with unreadable inputs"] += 1
            continue
        loads[model].entries += [
            {name: _entry(tensor) for name, tensor in entry.items()} for entry in entries
        ]
        loads[model].times.append(request.at)
    return dict(loads), left_out


def _model_of(request: Request) -> str:
    if request.protocol == "grpc":
        return model_of_call(request.body) if is_inference(request.target) else ""
    found = INFERENCE.match(request.target.partition("?")[0])
    return found["model"] if found and found["verb"] == "infer" else ""


def _inputs(request: Request) -> Mapping[str, Tensor]:
    if request.protocol == "grpc":
        inputs = inputs_of_call(request.body)
    else:
        inputs = read_inputs(request.headers, request.body)
    elsewhere = b"shared_memory_region" in bytes(request.body)
    if elsewhere or not inputs or not all(tensor.values.size for tensor in inputs.values()):
        raise NotUnderstood("the request has no inputs with values")
    return inputs


def _rows(inputs: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    counts = {tensor.shape[:1] for tensor in inputs.values()}
    if len(counts) != 1 or () in counts:
        raise NotUnderstood("the inputs have no common first axis")
    ((count,),) = counts
    for row in range(count):
        yield {
            name: Tensor(tensor.datatype, tensor.shape[1:], tensor.values[row : row + 1])
            for name, tensor in inputs.items()
        }


def _entry(tensor: Tensor) -> dict[str, Any]:
    shape = list(tensor.shape)
    values = tensor.values.ravel()
    if tensor.datatype == "BYTES":
        try:
            return {"content": [value.decode() for value in values], "shape": shape}
        except UnicodeDecodeError:
            return {"b64": _base64(wire_of(tensor)), "shape": shape}
    if values.dtype.kind in _AS_NUMBERS:
        return {"content": [int(value) for value in values], "shape": shape}
    return {"b64": _base64(wire_of(tensor)), "shape": shape}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
