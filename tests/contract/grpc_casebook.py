"""The definition of a gRPC case, its execution, and functions for the rows of the tables.

    unary("unknown model", infer("nobody"), "NOT_FOUND")

means: the real server answers this message to ModelInfer with this status. `recorded/grpc.jsonl`
has the details and messages, to which the reference server's must be equal.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import grpc
from google.protobuf import text_format
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

ANSWER_SECONDS = 60
SERVICE = "/inference.GRPCInferenceService/"

# Response types that are not named after their methods.
RESPONSES = {
    "ModelInfer": pb.ModelInferResponse,
    "ModelStreamInfer": pb.ModelStreamInferResponse,
}
Parameter = pb.InferParameter


@dataclass(frozen=True)
class Outcome:
    """The status of a call and the messages received before it, in the order of their arrival."""

    code: str
    details: str
    messages: tuple[Message | bytes, ...] = ()

    def __str__(self) -> str:
        texts = [
            repr(message) if isinstance(message, bytes) else text_format.MessageToString(message)
            for message in self.messages
        ]
        return "\n".join([f"{self.code}: {self.details}", *texts])


Forget = Callable[[Outcome], Outcome]


def nothing(outcome: Outcome) -> Outcome:
    """Forget nothing: the whole outcome is compared."""
    return outcome


@dataclass(frozen=True)
class GrpcCall:
    """One call: a method by its name or its full path, and the messages sent to it."""

    method: str
    requests: tuple[bytes, ...]
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> str:
        return self.method if self.method.startswith("/") else SERVICE + self.method

    def put(self, channel: grpc.Channel) -> Outcome:
        """Make the call, and keep its messages and status."""
        response_type = RESPONSES.get(self.method) or getattr(pb, f"{self.method}Response", None)
        read = response_type and response_type.FromString
        limits: dict[str, Any] = {"timeout": ANSWER_SECONDS, "metadata": self.metadata}
        if len(self.requests) == 1:  # without grpc's thread that reads an iterator of requests
            answers = channel.unary_stream(self.path, None, read)(self.requests[0], **limits)
        else:
            answers = channel.stream_stream(self.path, None, read)(iter(self.requests), **limits)
        messages: list[Message | bytes] = []
        try:
            messages.extend(answers)
        except grpc.RpcError as error:
            return Outcome(error.code().name, error.details(), tuple(messages))
        return Outcome("OK", "", tuple(messages))


@dataclass(frozen=True)
class GrpcCase:
    """Calls made one after the other, and the real server's response to the last call.

    `unstable` removes parts that vary on the real server, such as the order in a map.
    """

    name: str
    calls: tuple[GrpcCall, ...]
    code: str
    unstable: Forget = nothing

    def __str__(self) -> str:
        return self.name

    def put(self, channel: grpc.Channel) -> tuple[Outcome, ...]:
        return tuple(call.put(channel) for call in self.calls)


def check_row(case: GrpcCase, answer: Outcome) -> None:
    """Compare the real server's answer with the status that the row expects."""
    assert answer.code == case.code, answer


AskGrpc = Callable[[GrpcCase], tuple[Outcome, ...]]


def chapter(title: str, *cases: GrpcCase | Iterable[GrpcCase]) -> list[GrpcCase]:
    """Return a table's cases with its title as the first part of each name."""
    rows: Iterator[GrpcCase] = itertools.chain.from_iterable(
        [row] if isinstance(row, GrpcCase) else row for row in cases
    )
    return [replace(row, name=f"{title}: {row.name}") for row in rows]


# ------------------------------------------------------------------------------------------ calls


def call(method: str, *requests: Message | bytes, **metadata: str) -> GrpcCall:
    """Write a call with this metadata."""
    sent = tuple(
        request if isinstance(request, bytes) else request.SerializeToString(deterministic=True)
        for request in requests
    )
    return GrpcCall(method, sent, tuple(metadata.items()))


def rpc(
    name: str, method: str, request: Message | bytes, code: str = "OK", **more: Any
) -> GrpcCase:
    """Write a row about a method with one request."""
    return GrpcCase(name, (call(method, request),), code, **more)


def unary(name: str, request: Message | bytes, code: str = "OK", **more: Any) -> GrpcCase:
    """Write a row about ModelInfer."""
    return rpc(name, "ModelInfer", request, code, **more)


def stream(name: str, *requests: Message | bytes, code: str = "OK", **metadata: str) -> GrpcCase:
    """Write a row about ModelStreamInfer."""
    return GrpcCase(name, (call("ModelStreamInfer", *requests, **metadata),), code)


# --------------------------------------------------------------------------------------- messages


class Unsigned(int):
    """A number for `uint64_param`."""


def parameter(value: object) -> Parameter:
    """Return a parameter with `value`; for None, a parameter without any value."""
    match value:
        case None:
            return Parameter()
        case bool():
            return Parameter(bool_param=value)
        case Unsigned():
            return Parameter(uint64_param=value)
        case int():
            return Parameter(int64_param=value)
        case float():
            return Parameter(double_param=value)
        case _:
            return Parameter(string_param=value)


def parameters(values: Mapping[str, object]) -> dict[str, Parameter]:
    return {name: parameter(value) for name, value in values.items()}


def tensor(
    name: str, datatype: str, shape: Iterable[int], typed: Any = None, **given: object
) -> pb.ModelInferRequest.InferInputTensor:
    """Describe an input; `typed` are its contents, other keywords its parameters."""
    described = pb.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=shape, parameters=parameters(given)
    )
    if typed is not None:
        described.contents.CopyFrom(typed)
    return described


def typed(**contents: Any) -> pb.InferTensorContents:
    """Return typed contents."""
    return pb.InferTensorContents(**contents)


def output(name: str, **given: object) -> pb.ModelInferRequest.InferRequestedOutputTensor:
    """Describe a requested output; `given` are its parameters."""
    return pb.ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=parameters(given))


def infer(
    model: str,
    *inputs: pb.ModelInferRequest.InferInputTensor,
    raw: Iterable[bytes] = (),
    outputs: Iterable[Any] = (),
    given: Mapping[str, object] | None = None,
    **fields: Any,
) -> pb.ModelInferRequest:
    """Write an infer request; `model` may name a version (`model/version`)."""
    name, _, version = model.partition("/")
    return pb.ModelInferRequest(
        model_name=name,
        model_version=version,
        inputs=inputs,
        raw_input_contents=raw,
        outputs=outputs,
        parameters=parameters(given or {}),
        **fields,
    )


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def byte_strings(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


# -------------------------------------------------------------- parts of responses that may vary


def details(change: Callable[[str], str]) -> Forget:
    """Apply a change to the details of the status."""
    return lambda outcome: replace(outcome, details=change(outcome.details))


def messages(change: Callable[[Any], None]) -> Forget:
    """Apply a change to each message."""

    def forget(outcome: Outcome) -> Outcome:
        copies = []
        for message in outcome.messages:
            copy = type(message)()
            copy.CopyFrom(message)
            change(copy)
            copies.append(copy)
        return replace(outcome, messages=tuple(copies))

    return forget


def everything(outcome: Outcome) -> Outcome:
    return Outcome("", "")
