"""A server of a load, asked over gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from triton_replay.addresses import Address
from triton_replay.loading.grpc_connection import GrpcConnection
from triton_replay.loading.grpc_requests import GrpcRequests
from triton_replay.loading.loop import Loop
from triton_replay.loading.model import Model
from triton_replay.loading.questions import Question, Requests
from triton_replay.loading.slots import Connection
from triton_replay.loading.sockets import resolve
from triton_replay.loading.tensors import Region
from triton_replay.protocol.grpc_framing import PREFIX
from triton_replay.protocol.grpc_messages import framed
from triton_replay.protocol.http_bodies import Headers

SHARED: Final = 6
"""Calls on one connection: as many as NVIDIA's client library has share one."""
_SERVICE: Final = "/inference.GRPCInferenceService"


class GrpcServer:
    """Raises ServerUnreachable if nobody listens at the address.

    streaming: whether inferences are messages of streams. compression: of their messages.
    """

    def __init__(
        self, address: Address, headers: Headers, *, streaming: bool, compression: str
    ) -> None:
        self._headers = headers
        self._resolved = resolve(address, "-u")
        self._streaming = streaming
        self._compression = compression
        self._many = False

    def connect(self, loop: Loop) -> Connection:
        method = "ModelStreamInfer" if self._streaming else "ModelInfer"
        encoding = (("grpc-encoding", self._compression),) if self._compression != "none" else ()
        return GrpcConnection(
            self._resolved,
            loop.poll,
            loop.by_number,
            f"{_SERVICE}/{method}",
            (*self._headers, *encoding),
            SHARED,
            streaming=self._streaming,
            many=self._many,
        )

    def requests(
        self, model: Model, parameters: Mapping[str, Any], outputs: Mapping[str, Region]
    ) -> Requests:
        self._many = model.is_decoupled
        return GrpcRequests(
            model, parameters, outputs, tells_last=self._many, compression=self._compression
        )

    def metadata(self, loop: Loop, model: str, version: str) -> Question:
        request = service_pb2.ModelMetadataRequest(name=model, version=version)
        return self._question(loop, "ModelMetadata", request, service_pb2.ModelMetadataResponse)

    def config(self, loop: Loop, model: str, version: str) -> Question:
        request = service_pb2.ModelConfigRequest(name=model, version=version)
        return self._question(
            loop, "ModelConfig", request, service_pb2.ModelConfigResponse, "config"
        )

    def statistics(self, loop: Loop, model: str, version: str) -> Question:
        request = service_pb2.ModelStatisticsRequest(name=model, version=version)
        return self._question(loop, "ModelStatistics", request, service_pb2.ModelStatisticsResponse)

    def register(self, loop: Loop, region: str, size: int) -> Question:
        request = service_pb2.SystemSharedMemoryRegisterRequest(
            name=region, key=f"/{region}", offset=0, byte_size=size
        )
        kind = service_pb2.SystemSharedMemoryRegisterResponse
        return self._question(loop, "SystemSharedMemoryRegister", request, kind)

    def unregister(self, loop: Loop, region: str) -> Question:
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=region)
        kind = service_pb2.SystemSharedMemoryUnregisterResponse
        return self._question(loop, "SystemSharedMemoryUnregister", request, kind)

    def _question(
        self,
        loop: Loop,
        method: str,
        request: Any,  # noqa: ANN401  protobuf's classes are made at run time
        kind: Any,  # noqa: ANN401
        field: str = "",
    ) -> Question:
        def read(came: bytes) -> Any:  # noqa: ANN401  as JSON has it
            try:
                message = kind.FromString(came[PREFIX:])
            except DecodeError as error:
                raise ValueError(f"the answer is no {kind.DESCRIPTOR.name}: {error}") from error
            found = MessageToDict(message, preserving_proto_field_name=True)
            return found.get(field, {}) if field else found

        path = f"{_SERVICE}/{method}"
        where = (self._resolved, loop.poll, loop.by_number)
        connection = GrpcConnection(*where, path, self._headers, slots=1)
        return Question(connection, framed([request]), read)
