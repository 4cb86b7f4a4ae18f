"""Decodes a body without JSON, which is the data of the model's only input."""

from __future__ import annotations

import struct
from math import prod

from reference_server.core.errors import invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.request import InferRequest, ResponseSink
from reference_server.core.tensor import DataType, Tensor


def decode_raw(signature: Signature, body: memoryview, sink: ResponseSink) -> InferRequest:
    """Return the request with `body` as its input. Raises ServerError INVALID_ARG."""
    label = "[request id: <id_unknown>]"
    count = len(signature.inputs)
    if count != 1:
        raise invalid_arg(
            f"{label} Raw request must only have 1 input (found 1) to be deduced but got "
            f"{count} inputs in '{signature.name}' model configuration"
        )
    (config,) = signature.inputs
    if config.dims.count(-1) > 1:
        raise invalid_arg(
            f"{label} The shape of the raw input '{config.name}' can not be deduced because there "
            "are more than one variable-sized dimension"
        )
    batch = (1,) if signature.batches else ()
    if config.datatype is DataType.BYTES:
        if prod(config.dims) != 1:
            raise invalid_arg(
                f"{label} For BYTE datatype raw input '{config.name}', the model must have input "
                "shape [1]"
            )
        raw = memoryview(struct.pack("<I", len(body)) + bytes(body))
        shape = batch + config.dims
    else:
        raw = body
        fixed = config.datatype.byte_size * abs(prod(config.dims))
        shape = batch + tuple(len(body) // fixed if dim == -1 else dim for dim in config.dims)
        expected = prod(shape) * config.datatype.byte_size
        if expected != len(body):
            raise invalid_arg(
                f"{label} input byte size mismatch for input 'raw_input' for model "
                f"'{signature.name}'. Expected {expected}, got {len(body)}"
            )
    tensor = Tensor(config.name, config.datatype, shape, raw=raw)
    return InferRequest(signature.name, {config.name: tensor}, sink)
