"""Inferences over gRPC as bytes, made before the load begins."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from tritonclient.grpc import service_pb2

from triton_replay.loading.model import Model
from triton_replay.loading.questions import InSequence
from triton_replay.loading.tensors import Region, RequestData

COMPRESSIONS: Final[Mapping[str, Callable[[bytes], bytes] | None]] = {
    "none": None,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}
"""As gRPC names them."""


class GrpcRequests:
    """Makes requests to one model.

    tells_last: whether the last of many responses is to say that it is.
    compression: of messages, a name in COMPRESSIONS.
    """

    def __init__(
        self,
        model: Model,
        parameters: Mapping[str, Any],
        outputs: Mapping[str, Region],
        *,
        tells_last: bool,
        compression: str,
    ) -> None:
        self._compress = COMPRESSIONS[compression]
        request = service_pb2.ModelInferRequest(model_name=model.name, model_version=model.version)
        for name, value in parameters.items():
            _set(request.parameters[name], value)
        if tells_last:
            request.parameters["triton_enable_empty_final_response"].bool_param = True
        for name, region in outputs.items():
            _point(request.outputs.add(name=name), region)
        self._base = request

    def whole(self, data: RequestData) -> bytes:
        """A request that belongs to no sequence."""
        return self._framed(self._message(data))

    def in_sequence(self, data: RequestData) -> InSequence:
        """Makes this request for sequences."""
        message = self._message(data)

        def made(sequence: int, start: bool, end: bool) -> bytes:
            more = service_pb2.ModelInferRequest()
            more.parameters["sequence_id"].int64_param = sequence
            more.parameters["sequence_start"].bool_param = start
            more.parameters["sequence_end"].bool_param = end
            # Messages one behind the other are one message, by the rules of protobuf.
            return self._framed(message + more.SerializeToString())

        return made

    def _framed(self, message: bytes) -> bytes:
        if self._compress is not None:
            message = self._compress(message)
        return struct.pack(">BI", self._compress is not None, len(message)) + message

    def _message(self, data: RequestData) -> bytes:
        request = service_pb2.ModelInferRequest()
        request.CopyFrom(self._base)
        for one in data.tensors:
            described = request.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
            if one.region is not None:
                _point(described, one.region)
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


def _point(tensor: Any, region: Region) -> None:  # noqa: ANN401  protobuf's classes
    tensor.parameters["shared_memory_region"].string_param = region.name
    tensor.parameters["shared_memory_byte_size"].int64_param = region.size
