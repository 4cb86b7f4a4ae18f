"""The cases over gRPC, executed if an address for gRPC is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.json_format import MessageToJson

from triton_replay.addresses import Address, look_for_server
from triton_replay.conformance.cases import Fails
from triton_replay.conformance.subject import NotApplicable, Subject
from triton_replay.wire.grpc_channel import CallFailed, GrpcCall, GrpcChannel
from triton_replay.wire.grpc_messages import CONTENTS, SERVICE, framed, messages, read_messages

_REFUSALS: Final = ("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNAVAILABLE")

# protobuf's classes are made at run time.
Message = Any


@dataclass(frozen=True)
class GrpcCase:
    """A call and a check of its response.

    Args:
        extension: Name of the chapter.
        name: Name of the case.
        method: Name of the method.
        message: Creates the request message. Raises NotApplicable.
        check: Checks the response. Raises Fails. None if the call must fail.
        stream: Whether the message is the only one of a stream; `check` then receives a list.
    """

    extension: str
    name: str
    method: str
    message: Callable[[Subject], Message]
    check: Callable[[Subject, Message], None] | None
    stream: bool = False

    def prepare(self, subject: Subject) -> tuple[str, Callable[[], None]]:
        """Describe the call, and return a function that makes and checks it.

        Raises:
            NotApplicable: The case does not apply, or there is no address for gRPC.
        """
        if subject.grpc is None:
            raise NotApplicable("no --grpc")
        text = MessageToJson(self.message(subject), indent=None)
        command = f"inference.GRPCInferenceService/{self.method} at {subject.grpc}: {text}"
        return command, lambda: self._attempt(subject)

    def _attempt(self, subject: Subject) -> None:
        """Make the call and check it. Raise Fails, or ServerUnreachable if no server listens."""
        assert subject.grpc is not None
        try:
            call = asyncio.run(self._call(subject.grpc, subject))
        except (CallFailed, asyncio.TimeoutError) as error:
            look_for_server(subject.grpc, "--grpc")
            raise Fails(str(error) or f"no response within {subject.timeout:g} s") from error
        status, text = call.status
        if status != "OK":
            if self.check is not None or status not in _REFUSALS:
                raise Fails(f"found {status}: {text}")
            return
        if self.check is None:
            raise Fails("found OK, expected an error status")
        found = read_messages(self._kind(), call.body)
        if not self.stream and len(found) != 1:
            raise Fails(f"found {len(found)} messages, expected one")
        self.check(subject, found if self.stream else found[0])

    async def _call(self, server: Address, subject: Subject) -> GrpcCall:
        channel = GrpcChannel(server, subject.grpc_tls)
        try:
            return await asyncio.wait_for(self._response(channel, subject), subject.timeout)
        finally:
            channel.close()

    async def _response(self, channel: GrpcChannel, subject: Subject) -> GrpcCall:
        active = await channel.start(f"{SERVICE}/{self.method}", ())
        active.send(framed([self.message(subject)]), ends=True)
        return await active.response()

    def _kind(self) -> Message:
        """Return the message class of a response."""
        return getattr(messages, f"{self.method}Response")


def _true(field: str) -> Callable[[Subject, Message], None]:
    def check(_: Subject, answer: Message) -> None:
        if not getattr(answer, field):
            raise Fails(f"{field}: found {getattr(answer, field)!r}, expected a true value")

    return check


def _infer(subject: Subject, model: str = "") -> Message:
    request = messages.ModelInferRequest(model_name=model or subject.model, id="42")
    for one in subject.inputs:
        request.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
        request.raw_input_contents.append(one.raw())
    return request


def _typed(subject: Subject) -> Message:
    """Return an inference with typed contents. Raise NotApplicable for FP16 and BF16."""
    request = _infer(subject)
    del request.raw_input_contents[:]
    for one, tensor in zip(subject.inputs, request.inputs, strict=True):
        if one.datatype not in CONTENTS:
            raise NotApplicable(f"the model has a {one.datatype} input without typed contents")
        value = one.raw()[4:5] if one.datatype == "BYTES" else one.value()
        getattr(tensor.contents, CONTENTS[one.datatype]).extend([value] * one.count)
    return request


def _any(_: Subject, __: Message) -> None:
    """Accept any response of the method's type."""


def _inferred(subject: Subject, answer: Message) -> None:
    found = {one.name: one.datatype for one in answer.outputs}
    if not subject.outputs.items() <= found.items():
        raise Fails(f"outputs: found {found}, expected {dict(subject.outputs)}")
    if answer.id != "42":
        raise Fails(f"id: found {answer.id!r}, expected '42'")


def _check_stream(answers: Message) -> None:
    error = next((one.error_message for one in answers if one.error_message), "")
    if error or not answers:
        raise Fails(error or "the stream ended without a response")


def _streamed(subject: Subject, answers: Message) -> None:
    _check_stream(answers)
    _inferred(subject, answers[0].infer_response)


def _with_final_response(subject: Subject) -> Message:
    request = _infer(subject)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request


def _ended(_: Subject, answers: Message) -> None:
    _check_stream(answers)
    if not answers[-1].infer_response.parameters["triton_final_response"].bool_param:
        raise Fails("the last response has no triton_final_response")


def _has_error(_: Subject, answers: Message) -> None:
    if not any(one.error_message for one in answers):
        raise Fails("no response has an error_message")


def _request(method: str, **fields: str) -> Callable[[Subject], Message]:
    """Create requests of a method; `fields` maps their fields to attributes of the subject."""
    kind = getattr(messages, f"{method}Request")
    return lambda subject: kind(**{key: getattr(subject, of) for key, of in fields.items()})


GRPC_CASES: Final = (
    *(
        GrpcCase("gRPC", name, method, _request(method, **fields), _true(field))
        for name, method, field, fields in (
            ("the server is live", "ServerLive", "live", {}),
            ("the server is ready", "ServerReady", "ready", {}),
            ("the model is ready", "ModelReady", "ready", {"name": "model"}),
            ("metadata of the server", "ServerMetadata", "name", {}),
            ("metadata of the model", "ModelMetadata", "outputs", {"name": "model"}),
        )
    ),
    GrpcCase("gRPC", "an inference of raw contents", "ModelInfer", _infer, _inferred),
    GrpcCase("gRPC", "an inference of typed contents", "ModelInfer", _typed, _inferred),
    GrpcCase("gRPC", "an unknown model", "ModelInfer", lambda s: _infer(s, "no_such_model"), None),
    *(
        GrpcCase("gRPC extensions", name, method, _request(method, **fields), _any)
        for name, method, fields in (
            ("the model's configuration", "ModelConfig", {"name": "model"}),
            ("its statistics", "ModelStatistics", {"name": "model"}),
            ("the index", "RepositoryIndex", {}),
            ("settings of traces", "TraceSetting", {}),
            ("settings of the log", "LogSettings", {}),
            ("shared memory", "SystemSharedMemoryStatus", {}),
        )
    ),
    *(
        GrpcCase("gRPC streams", name, "ModelStreamInfer", message, check, stream=True)
        for name, message, check in (
            ("a response", _infer, _streamed),
            ("the last response is marked as final", _with_final_response, _ended),
            ("an unknown model", lambda s: _infer(s, "no_such_model"), _has_error),
        )
    ),
)
