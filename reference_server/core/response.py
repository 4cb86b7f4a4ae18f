"""One response to an inference request: tensors, or an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reference_server.core.errors import ServerError
from reference_server.core.tensor import Tensor


class Timing(NamedTuple):
    """How long the three parts of an execution took, in nanoseconds."""

    input_ns: int
    infer_ns: int
    output_ns: int


@dataclass(slots=True)
class InferResponse:
    """One of the answers of a model; with `error` set, `outputs` means nothing.

    `final` is set on the last. `empty`: it is the final mark alone, without an answer.

    `parameters` are pairs, not a mapping, because Triton's ensembles repeat keys. `timing` is
    set once the execution has been recorded.
    """

    model_name: str
    model_version: int
    id: str
    outputs: Sequence[Tensor] = ()
    parameters: Sequence[tuple[str, bool | int | float | str]] = ()
    error: ServerError | None = None
    final: bool = True
    empty: bool = False
    timing: Timing | None = None


class Execution(NamedTuple):
    """What one execution of an instance gave, and when its parts ended (monotonic ns).

    `responses` has one entry per request, in order; None where the model answers, or has answered,
    through the request's sink itself. `rescheduled` are the places of requests that the model wants
    to be given again. `failed`: the batch failed as a whole, and the model's host has told so to
    whoever was not answered before.
    """

    responses: Sequence[InferResponse | None]
    input_end_ns: int
    output_start_ns: int
    rescheduled: frozenset[int] = frozenset()
    failed: bool = False
