"""Reads the part of shared memory that a tensor of a ModelInferRequest names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonclient.grpc.service_pb2 import InferParameter, ModelInferRequest

from reference_server.core.errors import ServerError, invalid_arg

#: Region, offset and size.
Span = tuple[str, int, int]
_UINT64 = 2**64


def read_span(
    tensor: (ModelInferRequest.InferInputTensor | ModelInferRequest.InferRequestedOutputTensor),
) -> Span | None:
    """Return the part of shared memory that a tensor names, or None."""
    parameters = tensor.parameters
    region, offset = None, 0
    if "shared_memory_region" in parameters:
        region = _read_part(tensor.name, parameters, "region", "string_param")
    if "shared_memory_offset" in parameters:
        if region is None:
            raise _without_region("offset", tensor.name)
        offset = _read_part(tensor.name, parameters, "offset", "int64_param")
    if "shared_memory_byte_size" in parameters:
        if region is None:
            raise _without_region("byte_size", tensor.name)
        size = _read_part(tensor.name, parameters, "byte_size", "int64_param")
    elif region is None:
        return None
    else:
        raise invalid_arg(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' "
            f"parameter for tensor '{tensor.name}'"
        )
    return region, offset % _UINT64, size % _UINT64  # as unsigned numbers, like Triton


def _read_part(tensor: str, parameters: Mapping[str, InferParameter], part: str, kind: str) -> Any:  # noqa: ANN401 - depends on `kind`
    value = parameters[f"shared_memory_{part}"]
    if value.WhichOneof("parameter_choice") != kind:
        raise invalid_arg(
            f"invalid value type for 'shared_memory_{part}' parameter for tensor '{tensor}', "
            f"expected {kind}."
        )
    return getattr(value, kind)


def _without_region(part: str, tensor: str) -> ServerError:
    return invalid_arg(
        f"'shared_memory_{part}' can not be specified without 'shared_memory_region' parameter "
        f"for tensor '{tensor}'"
    )
