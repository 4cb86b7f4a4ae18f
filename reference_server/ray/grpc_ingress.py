"""inference.GRPCInferenceService in front of the models' deployments, by Serve's gRPC proxy.

    grpc_options:
      grpc_servicer_functions: [reference_server.ray.grpc_ingress:services]

Serve calls the ingress's method with the name of the RPC. Messages are passed on as bytes.
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
from reference_server.ray import deployments
from reference_server.ray.calls import Calls, End, Fields
from reference_server.ray.deployments import Deployed

_STREAM, _CHECK = "ModelStreamInfer", "Check"
_STATUS = {code.value[0]: code for code in grpc.StatusCode}
#: Limit for the requests in flight on one stream.
_MAX_IN_FLIGHT = 1024


class _RequestType(NamedTuple):
    """The request type of an RPC, and the field with the model's name."""

    message: type[Message]
    model: str


_MODEL_REQUESTS: Mapping[str, _RequestType] = {
    "ModelReady": _RequestType(pb.ModelReadyRequest, "name"),
    "ModelMetadata": _RequestType(pb.ModelMetadataRequest, "name"),
    "ModelConfig": _RequestType(pb.ModelConfigRequest, "name"),
    "ModelStatistics": _RequestType(pb.ModelStatisticsRequest, "name"),
    "ModelInfer": _RequestType(pb.ModelInferRequest, "model_name"),
    "TraceSetting": _RequestType(pb.TraceSettingRequest, "model_name"),
}


class Serialized(NamedTuple):
    """A serialized message, in the form that Serve expects of a method."""

    data: bytes

    def SerializeToString(self) -> bytes:
        """Return the bytes."""
        return self.data


class StreamFailed(Exception):
    """A stream ends with an error; the status is set in the context."""


class GrpcIngress:
    """Has a method for each RPC; the unary methods are added below the class."""

    def __init__(self, models: Mapping[str, Deployed], own: Calls) -> None:
        self._deployed = models
        self._calls = own

    async def _unary(
        self, name: str, message: bytes, grpc_context: RayServegRPCContext
    ) -> Serialized:
        fields = _fields(grpc_context)
        try:
            answer, end = await self._answered(name, fields, message)
        except deployments.Unanswered as error:
            answer, end = b"", _unavailable(error)
        if not end.is_ok:
            _set_status(grpc_context, end)
        return Serialized(answer)

    async def _answered(self, name: str, fields: Fields, message: bytes) -> tuple[bytes, End]:
        call = (_full(name), fields, message)
        model = self._model(name, message)
        if model is None:
            answer, end = await self._calls.whole(*call)
            return (await self._merged(name, call, answer), end) if end.is_ok else (answer, end)
        if name == "TraceSetting":
            first: tuple[bytes, End] = (await deployments.call_all(model, "call", *call))[0]
            return first
        answer, end = await deployments.call_one(model, "call", *call)
        if name == "ModelStatistics" and end.is_ok:
            version = management_proto.model_version(
                pb.ModelStatisticsRequest.FromString(message).version
            )
            answer = await _statistics([model], version)
        return answer, end

    def _model(self, name: str, message: bytes) -> Deployed | None:
        if name not in _MODEL_REQUESTS:
            return None
        try:
            request = _MODEL_REQUESTS[name].message.FromString(message)
        except DecodeError:  # the server without models reports it
            return None
        return self._deployed.get(getattr(request, _MODEL_REQUESTS[name].model))

    async def _merged(self, name: str, call: tuple[str, Fields, bytes], answer: bytes) -> bytes:
        """Return the answer for all models, in place of `answer` by the server without models."""
        models, message = self._deployed, call[2]
        if name in ("ServerReady", _CHECK):
            if await asyncio.to_thread(deployments.all_run, models):
                return answer
            return NOT_SERVING if name == _CHECK else b""  # a response without `ready`
        if name == "ModelStatistics":
            return await _statistics(models.values(), LATEST)
        if name == "RepositoryIndex":
            ready_only = pb.RepositoryIndexRequest.FromString(message).ready
            rows = await deployments.index(models, ready_only=ready_only)
            index = management_proto.repository_index(row.fields for row in rows)
            return bytes(index.SerializeToString())
        if (name == "LogSettings" and pb.LogSettingsRequest.FromString(message).settings) or (
            name == "TraceSetting" and pb.TraceSettingRequest.FromString(message).settings
        ):
            for model in models.values():
                await deployments.call_all(model, "call", *call)
        return answer

    async def ModelStreamInfer(
        self, requests: gRPCInputStream[bytes], grpc_context: RayServegRPCContext
    ) -> AsyncIterator[Serialized]:
        """Pass the requests of a stream to the replicas of their models."""
        stream = _Stream(self._deployed, self._calls, _fields(grpc_context))
        try:
            async for item in stream.answers(requests):
                if isinstance(item, End):
                    _set_status(grpc_context, item)
                    raise StreamFailed(item.text)
                yield Serialized(item)
        finally:
            stream.cancel()


_Unary = Callable[[GrpcIngress, bytes, RayServegRPCContext], Coroutine[Any, Any, Serialized]]


def _method(name: str) -> _Unary:
    # Serve passes the context to an argument of this name.
    async def answer(
        self: GrpcIngress, message: bytes, grpc_context: RayServegRPCContext
    ) -> Serialized:
        return await self._unary(name, message, grpc_context)

    return answer


for _name in CATEGORY.keys() - {_STREAM}:
    setattr(GrpcIngress, _name, _method(_name))


class _Stream:
    """The requests of one stream. They are answered in order, except for decoupled models."""

    def __init__(self, models: Mapping[str, Deployed], own: Calls, fields: Fields) -> None:
        self._models = models
        self._own = own
        self._fields = fields
        self._output: asyncio.Queue[bytes | End | None] = asyncio.Queue()
        self._free = asyncio.Semaphore(_MAX_IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()

    async def answers(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes | End]:
        """Yield the response messages, and the status of a failure."""
        self._begin(self._read(requests))
        while (item := await self._output.get()) is not None:
            yield item

    def cancel(self) -> None:
        """Cancel the remaining requests."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        tasks: list[asyncio.Task[None]] = []
        previous: asyncio.Task[None] | None = None
        async for message in requests:
            await self._free.acquire()
            model = self._model(message)
            if model is not None and model.decoupled:
                task = self._begin(self._pass_on(model, message))
            else:
                task = previous = self._begin(self._send_in_order(model, message, previous))
            if model is not None and model.keeps_state:
                await task  # otherwise the next request may overtake this request
            tasks = [each for each in tasks if not each.done()] + [task]
        if tasks:
            await asyncio.wait(tasks)
        self._output.put_nowait(None)

    def _model(self, message: bytes) -> Deployed | None:
        try:
            return self._models.get(pb.ModelInferRequest.FromString(message).model_name)
        except DecodeError:
            return None

    async def _pass_on(self, model: Deployed, message: bytes) -> None:
        async for item in self._answers(model, message):
            self._output.put_nowait(item)

    async def _send_in_order(
        self, model: Deployed | None, message: bytes, previous: asyncio.Task[None] | None
    ) -> None:
        """Send the responses after the responses of the previous request."""
        kept = [item async for item in self._answers(model, message)]
        if previous is not None:
            await asyncio.wait([previous])
        for item in kept:
            self._output.put_nowait(item)

    async def _answers(self, model: Deployed | None, message: bytes) -> AsyncIterator[bytes | End]:
        """Yield the response messages of one request, and the status of a failure."""
        call = (_full(_STREAM), self._fields, message)
        try:
            answer = (
                self._own.stream(*call)
                if model is None
                else deployments.stream(model, "stream_call", *call)
            )
            async for item in answer:
                if not (isinstance(item, End) and item.is_ok):
                    yield item
        except deployments.Unanswered as error:
            yield _unavailable(error)
        finally:
            self._free.release()


# -- Serve's proxy


def services(servicer: object, server: grpc.Server) -> None:
    """Register the services of Serve's proxy: Triton's, and gRPC's health service."""
    unary = grpc.unary_unary_rpc_method_handler(None)
    # Without serializers, messages are bytes.
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


def _set_status(context: RayServegRPCContext, end: End) -> None:
    context.set_code(_STATUS[end.status])
    context.set_details(end.text)


def _unavailable(error: Exception) -> End:
    return End(grpc.StatusCode.UNAVAILABLE.value[0], deployments.described(error))


async def _statistics(models: Iterable[Deployed], version: int) -> bytes:
    found = await deployments.statistics(models, version)
    return bytes(management_proto.statistics(found).SerializeToString())
