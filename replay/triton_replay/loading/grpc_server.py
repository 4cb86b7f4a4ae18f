"""gRPC requests of a load: inferences prepared as bytes, and queries to the server."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from triton_replay.addresses import Address
from triton_replay.loading.loop import Loop
from triton_replay.loading.queries import InSequence, Query, Requests
from triton_replay.loading.tensors import Model, Region, RequestData
from triton_replay.wire.bodies import Headers
from triton_replay.wire.grpc_connection import GrpcConnection
from triton_replay.wire.grpc_messages import PREFIX, SERVICE, framed, messages, with_prefix
from triton_replay.wire.sockets import Connection, resolve

SHARED: Final = 6
"""Concurrent calls per connection, as in NVIDIA's client library."""
COMPRESSIONS: Final[Mapping[str, Callable[[bytes], bytes] | None]] = {
    "none": None,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}
"""Compression functions by their names in gRPC."""


@dataclass(eq=False)
class GrpcServer:
    """A server that a load uses over gRPC. Implements `queries.Server`.

    Args:
        address: Host and port.
        headers: Metadata of every call.
        streaming: Whether inferences use ModelStreamInfer.
        compression: Compression of inference messages, a name in COMPRESSIONS.

    Raises:
        ServerUnreachable: No server listens at the address.
    """

    address: Address
    headers: Headers
    _: KW_ONLY
    streaming: bool
    compression: str

    def __post_init__(self) -> None:
        self._resolved = resolve(self.address, "-u")
        self._many = False

    def connect(self, loop: Loop) -> Connection:
        method = "ModelStreamInfer" if self.streaming else "ModelInfer"
        encoding = (("grpc-encoding", self.compression),) if self.compression != "none" else ()
        return GrpcConnection(
            self._resolved,
            loop.poll,
            loop.by_number,
            f"{SERVICE}/{method}",
            (*self.headers, *encoding),
            SHARED,
            streaming=self.streaming,
            many=self._many,
        )

    def requests(
        self, model: Model, parameters: Mapping[str, Any], outputs: Mapping[str, Region]
    ) -> Requests:
        self._many = model.is_decoupled
        return GrpcRequests(
            model, parameters, outputs, marks_last=self._many, compression=self.compression
        )

    def metadata(self, loop: Loop, model: str, version: str) -> Query:
        return self._query(loop, "ModelMetadata", name=model, version=version)

    def config(self, loop: Loop, model: str, version: str) -> Query:
        query = self._query(loop, "ModelConfig", name=model, version=version)
        return replace(query, read=lambda body: query.read(body).get("config", {}))

    def statistics(self, loop: Loop, model: str, version: str) -> Query:
        return self._query(loop, "ModelStatistics", name=model, version=version)

    def register(self, loop: Loop, region: str, size: int) -> Query:
        fields: dict[str, Any] = {"key": f"/{region}", "offset": 0, "byte_size": size}
        return self._query(loop, "SystemSharedMemoryRegister", name=region, **fields)

    def unregister(self, loop: Loop, region: str) -> Query:
        return self._query(loop, "SystemSharedMemoryUnregister", name=region)

    def _query(self, loop: Loop, method: str, **fields: Any) -> Query:  # noqa: ANN401  of messages
        request = getattr(messages, f"{method}Request")(**fields)
        kind = getattr(messages, f"{method}Response")

        def read(body: bytes) -> Any:  # noqa: ANN401  as in JSON
            try:
                message = kind.FromString(body[PREFIX:])
            except DecodeError as error:
                text = f"the response is not a {kind.DESCRIPTOR.name}: {error}"
                raise ValueError(text) from error
            return MessageToDict(message, preserving_proto_field_name=True)

        where = (self._resolved, loop.poll, loop.by_number)
        connection = GrpcConnection(*where, f"{SERVICE}/{method}", self.headers, slots=1)
        return Query(connection, framed([request]), read)


class GrpcRequests:
    """Creates inference requests for one model. Implements `queries.Requests`.

    Args:
        model: The model.
        parameters: Parameters of every request.
        outputs: Shared memory regions of outputs.
        marks_last: Whether the server should mark the last of several responses.
        compression: Compression of the messages, a name in COMPRESSIONS.
    """

    def __init__(
        self,
        model: Model,
        parameters: Mapping[str, Any],
        outputs: Mapping[str, Region],
        *,
        marks_last: bool,
        compression: str,
    ) -> None:
        self._compress = COMPRESSIONS[compression]
        request = messages.ModelInferRequest(model_name=model.name, model_version=model.version)
        for name, value in parameters.items():
            _set(request.parameters[name], value)
        if marks_last:
            request.parameters["triton_enable_empty_final_response"].bool_param = True
        for name, region in outputs.items():
            _set_region(request.outputs.add(name=name), region)
        self._base = request

    def whole(self, data: RequestData) -> bytes:
        return self._framed(self._message(data))

    def in_sequence(self, data: RequestData) -> InSequence:
        message = self._message(data)

        def create(sequence: int, start: bool, end: bool) -> bytes:
            more = messages.ModelInferRequest()
            more.parameters["sequence_id"].int64_param = sequence
            more.parameters["sequence_start"].bool_param = start
            more.parameters["sequence_end"].bool_param = end
            # Concatenated protobuf messages are parsed as one merged message.
            return self._framed(message + more.SerializeToString())

        return create

    def _framed(self, message: bytes) -> bytes:
        if self._compress is not None:
            message = self._compress(message)
        return with_prefix(message, compressed=self._compress is not None)

    def _message(self, data: RequestData) -> bytes:
        request = messages.ModelInferRequest()
        request.CopyFrom(self._base)
        for one in data.tensors:
            described = request.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
            if one.region is not None:
                _set_region(described, one.region)
            else:
                request.raw_input_contents.append(one.data)
        return bytes(request.SerializeToString())


def _set(parameter: Any, value: object) -> None:  # noqa: ANN401  protobuf's classes
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value


def _set_region(tensor: Any, region: Region) -> None:  # noqa: ANN401  protobuf's classes
    tensor.parameters["shared_memory_region"].string_param = region.name
    tensor.parameters["shared_memory_byte_size"].int64_param = region.size
