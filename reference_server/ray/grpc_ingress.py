"""inference.GRPCInferenceService in front of the models' deployments, by Serve's gRPC proxy.

    grpc_options:
      grpc_servicer_functions: [reference_server.ray.grpc_ingress:services]

Serve calls the method of the ingress that has an RPC's name. Messages stay bytes on their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message
from ray.serve.grpc_util import RayServegRPCContext, gRPCInputStream
from tritonclient.grpc import service_pb2 as pb

from reference_server.codecs import management_proto
from reference_server.core.request import LATEST
from reference_server.frontends.grpc.methods import CATEGORY, HEALTH_CHECK, NOT_SERVING, SERVICE
from reference_server.ray import asking
from reference_server.ray.asking import Deployed
from reference_server.ray.calls import Calls, End, Fields

_STREAM, _CHECK = "ModelStreamInfer", "Check"
_STATUS = {code.value[0]: code for code in grpc.StatusCode}
#: Requests of one stream that may be in flight.
_MOST_ASKED = 1024


class _Asked(NamedTuple):
    """How the message of an RPC is read, and which of its fields names a model."""

    message: type[Message]
    model: str


_OF_MODELS: Mapping[str, _Asked] = {
    "ModelReady": _Asked(pb.ModelReadyRequest, "name"),
    "ModelMetadata": _Asked(pb.ModelMetadataRequest, "name"),
    "ModelConfig": _Asked(pb.ModelConfigRequest, "name"),
    "ModelStatistics": _Asked(pb.ModelStatisticsRequest, "name"),
    "ModelInfer": _Asked(pb.ModelInferRequest, "model_name"),
    "TraceSetting": _Asked(pb.TraceSettingRequest, "model_name"),
}


class Serialized(NamedTuple):
    """A message as Serve takes it of a method."""

    data: bytes

    def SerializeToString(self) -> bytes:
        """The bytes."""
        return self.data


class StreamFailed(Exception):
    """A stream ends badly: the context says how."""


class GrpcIngress:
    """Has a method for each RPC; see below."""

    def __init__(self, models: Mapping[str, Deployed], own: Calls) -> None:
        self._deployed = models
        self._calls = own

    async def _unary(
        self, name: str, message: bytes, grpc_context: RayServegRPCContext
    ) -> Serialized:
        fields = _fields(grpc_context)
        try:
            answer, end = await self._answered(name, fields, message)
        except asking.Unanswered as error:
            answer, end = b"", _unavailable(error)
        if not end.is_good:
            _tell(grpc_context, end)
        return Serialized(answer)

    async def _answered(self, name: str, fields: Fields, message: bytes) -> tuple[bytes, End]:
        call = (_full(name), fields, message)
        model = self._model(name, message)
        if model is None:
            answer, end = await self._calls.whole(*call)
            return (await self._of_all(name, call, answer), end) if end.is_good else (answer, end)
        if name == "TraceSetting":
            told: tuple[bytes, End] = (await asking.ask_all(model, "call", *call))[0]
            return told
        answer, end = await asking.ask_one(model, "call", *call)
        if name == "ModelStatistics" and end.is_good:
            version = management_proto.model_version(
                pb.ModelStatisticsRequest.FromString(message).version
            )
            answer = await _statistics([model], version)
        return answer, end

    def _model(self, name: str, message: bytes) -> Deployed | None:
        if name not in _OF_MODELS:
            return None
        try:
            asked = _OF_MODELS[name].message.FromString(message)
        except DecodeError:  # which the server without models tells
            return None
        return self._deployed.get(getattr(asked, _OF_MODELS[name].model))

    async def _of_all(self, name: str, call: tuple[str, Fields, bytes], answer: bytes) -> bytes:
        """What of all models takes the place of what a server without any has answered."""
        models, message = self._deployed, call[2]
        if name in ("ServerReady", _CHECK):
            if await asyncio.to_thread(asking.all_run, models):
                return answer
            return NOT_SERVING if name == _CHECK else b""  # of which `ready` is not set
        if name == "ModelStatistics":
            return await _statistics(models.values(), LATEST)
        if name == "RepositoryIndex":
            ready_only = pb.RepositoryIndexRequest.FromString(message).ready
            rows = await asking.index(models, ready_only=ready_only)
            index = management_proto.repository_index(row.fields for row in rows)
            return bytes(index.SerializeToString())
        if (name == "LogSettings" and pb.LogSettingsRequest.FromString(message).settings) or (
            name == "TraceSetting" and pb.TraceSettingRequest.FromString(message).settings
        ):
            for model in models.values():
                await asking.ask_all(model, "call", *call)
        return answer

    async def ModelStreamInfer(
        self, requests: gRPCInputStream[bytes], grpc_context: RayServegRPCContext
    ) -> AsyncIterator[Serialized]:
        """Requests of one stream, each to the replicas of its model."""
        stream = _Stream(self._deployed, self._calls, _fields(grpc_context))
        try:
            async for told in stream.answers(requests):
                if isinstance(told, End):
                    _tell(grpc_context, told)
                    raise StreamFailed(told.text)
                yield Serialized(told)
        finally:
            stream.cancel()


_Unary = Callable[[GrpcIngress, bytes, RayServegRPCContext], Coroutine[Any, Any, Serialized]]


def _method(name: str) -> _Unary:
    # Serve gives the context to what has an argument of this name.
    async def answer(
        self: GrpcIngress, message: bytes, grpc_context: RayServegRPCContext
    ) -> Serialized:
        return await self._unary(name, message, grpc_context)

    return answer


for _name in CATEGORY.keys() - {_STREAM}:
    setattr(GrpcIngress, _name, _method(_name))


class _Stream:
    """The requests of one stream: answered in their order, but for those of decoupled models."""

    def __init__(self, models: Mapping[str, Deployed], own: Calls, fields: Fields) -> None:
        self._models = models
        self._own = own
        self._fields = fields
        self._told: asyncio.Queue[bytes | End | None] = asyncio.Queue()
        self._free = asyncio.Semaphore(_MOST_ASKED)
        self._tasks: set[asyncio.Task[None]] = set()

    async def answers(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes | End]:
        """The messages of all answers, and an end that is bad."""
        self._begin(self._read(requests))
        while (told := await self._told.get()) is not None:
            yield told

    def cancel(self) -> None:
        """Nobody waits for the rest."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        asked: list[asyncio.Task[None]] = []
        before: asyncio.Task[None] | None = None
        async for message in requests:
            await self._free.acquire()
            model = self._model(message)
            if model is not None and model.decoupled:
                task = self._begin(self._pass_on(model, message))
            else:
                task = before = self._begin(self._keep(model, message, before))
            if model is not None and model.keeps_state:
                await task  # or the next may overtake it on its way
            asked = [each for each in asked if not each.done()] + [task]
        if asked:
            await asyncio.wait(asked)
        self._told.put_nowait(None)

    def _model(self, message: bytes) -> Deployed | None:
        try:
            return self._models.get(pb.ModelInferRequest.FromString(message).model_name)
        except DecodeError:
            return None

    async def _pass_on(self, model: Deployed, message: bytes) -> None:
        async for told in self._of(model, message):
            self._told.put_nowait(told)

    async def _keep(
        self, model: Deployed | None, message: bytes, before: asyncio.Task[None] | None
    ) -> None:
        """Pass on what is answered when that before it has been."""
        kept = [told async for told in self._of(model, message)]
        if before is not None:
            await asyncio.wait([before])
        for told in kept:
            self._told.put_nowait(told)

    async def _of(self, model: Deployed | None, message: bytes) -> AsyncIterator[bytes | End]:
        """The messages of one answer; its end is told only if it is bad."""
        call = (_full(_STREAM), self._fields, message)
        try:
            answer = (
                self._own.stream(*call)
                if model is None
                else asking.stream(model, "stream_call", *call)
            )
            async for told in answer:
                if not (isinstance(told, End) and told.is_good):
                    yield told
        except asking.Unanswered as error:
            yield _unavailable(error)
        finally:
            self._free.release()


# -- Serve's proxy


def services(servicer: object, server: grpc.Server) -> None:
    """What Serve's proxy takes calls of: Triton's service, and gRPC's own for health."""
    unary = grpc.unary_unary_rpc_method_handler(None)
    # Without serializers: messages are bytes.
    methods = dict.fromkeys(CATEGORY.keys() - {_STREAM, _CHECK}, unary)
    methods[_STREAM] = grpc.stream_stream_rpc_method_handler(None)
    for service, handlers in (
        (SERVICE.strip("/"), methods),
        (HEALTH_CHECK.split("/")[1], {_CHECK: unary}),
    ):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def _full(name: str) -> str:
    return HEALTH_CHECK if name == _CHECK else SERVICE + name


def _fields(context: RayServegRPCContext) -> Fields:
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1"))
        for name, value in context.invocation_metadata()
    ]


def _tell(context: RayServegRPCContext, end: End) -> None:
    context.set_code(_STATUS[end.status])
    context.set_details(end.text)


def _unavailable(error: Exception) -> End:
    return End(grpc.StatusCode.UNAVAILABLE.value[0], asking.described(error))


async def _statistics(models: Iterable[Deployed], version: int) -> bytes:
    found = await asking.statistics(models, version)
    return bytes(management_proto.statistics(found).SerializeToString())
