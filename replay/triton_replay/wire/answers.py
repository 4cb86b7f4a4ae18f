"""Responses and inputs as tensors, from JSON, binary data and server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from triton_replay.wire.bodies import (
    Body,
    Headers,
    NotUnderstood,
    TensorBody,
    header,
    inflate,
    read_body,
)

Array = NDArray[Any]

DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    **{name: np.dtype(f"<i{size}") for name, size in (("INT8", 1), ("INT16", 2), ("INT32", 4))},
    **{name: np.dtype(f"<u{size}") for name, size in (("UINT8", 1), ("UINT16", 2), ("UINT32", 4))},
    "INT64": np.dtype("<i8"),
    "UINT64": np.dtype("<u8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""Datatypes of fixed size by Triton's names. NumPy has no BF16."""


@dataclass(frozen=True)
class Tensor:
    """A tensor.

    Args:
        datatype: Triton's name of the datatype.
        shape: The shape.
        values: An array of this shape. BYTES are objects of type bytes; BF16 is widened to FP32.
    """

    datatype: str
    shape: tuple[int, ...]
    values: Array


@dataclass(frozen=True)
class Answer:
    """A response: its tensors by name, and all other fields of its JSON."""

    tensors: Mapping[str, Tensor]
    fields: Mapping[str, Any]


def read_answers(headers: Headers, body: Body) -> list[Answer]:
    """Parse the responses in a body.

    Returns:
        One response, one for each server-sent event, or none for an empty body.

    Raises:
        NotUnderstood: The body is not valid.
    """
    if header(headers, "content-type").startswith("text/event-stream"):
        lines = bytes(inflate(headers, body)).split(b"\n")
        events = [line[len(b"data:") :] for line in lines if line.startswith(b"data:")]
        return [_answer(read_body((), event)) for event in events]
    if not len(body):
        return []
    return [_answer(read_body(headers, body))]


def read_inputs(headers: Headers, body: Body) -> Mapping[str, Tensor]:
    """Parse the inputs of an inference request, except inputs in shared memory.

    A request of the generate extension has its text fields as inputs.

    Returns:
        Tensors by input name.

    Raises:
        NotUnderstood: The body is not valid.
    """
    return inputs_of(read_body(headers, body))


def inputs_of(body: TensorBody) -> Mapping[str, Tensor]:
    """Return the inputs of a parsed body; see `read_inputs`."""
    if "inputs" in body.document:
        tensors = body.tensors()
        return {
            str(tensor.get("name")): _tensor(tensor, data)
            for tensor, data in tensors
            if data is not None or "data" in tensor
        }
    return {  # the generate extension
        name: Tensor("BYTES", (1,), _objects([value.encode(errors="surrogatepass")]))
        for name, value in body.document.items()
        if isinstance(value, str)
    }


def _answer(body: TensorBody) -> Answer:
    document = dict(body.document)
    if isinstance(document.get("outputs"), list):
        tensors = {str(t.get("name")): _tensor(t, data) for t, data in body.tensors()}
        del document["outputs"]
        return Answer(tensors, document)
    tensors = {}
    for name, value in list(document.items()):
        read = _field(value)
        if read is not None:
            tensors[name] = read
            del document[name]
    return Answer(tensors, document)


def _field(value: object) -> Tensor | None:
    """Convert a field of a generate response to a tensor if it is numeric, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float | list):
        return None
    try:
        values = np.asarray(value, np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    return Tensor("FP64", values.shape, values)


def _tensor(tensor: Mapping[str, Any], data: memoryview | None) -> Tensor:
    datatype, shape = tensor.get("datatype"), tensor.get("shape")
    if not isinstance(datatype, str) or not isinstance(shape, list):
        text = f"tensor {json.dumps(tensor)[:80]}: expected a datatype and a shape"
        raise NotUnderstood(text)
    name = str(tensor.get("name"))
    try:
        dims = tuple(int(dim) for dim in shape)
    except (ValueError, TypeError, OverflowError) as error:
        raise NotUnderstood(f"tensor {name!r}: found shape {shape!r}, expected sizes") from error
    if data is None:
        return tensor_of_values(name, datatype, dims, tensor.get("data", []))
    return tensor_of_wire(name, datatype, dims, data)


def tensor_of_values(name: str, datatype: str, shape: tuple[int, ...], values: Any) -> Tensor:  # noqa: ANN401  of JSON
    """Create a tensor from nested lists of JSON values.

    Raises:
        NotUnderstood: The values do not fit datatype and shape; the error names `name`.
    """
    try:
        return Tensor(datatype, shape, _from_json(datatype, values).reshape(shape))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise NotUnderstood(f"tensor {name!r}: {error}") from error


def tensor_of_wire(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Tensor:
    """Create a tensor from binary data, in the form of the binary extension and of gRPC.

    Raises:
        NotUnderstood: The data do not fit datatype and shape; the error names `name`.
    """
    try:
        return Tensor(datatype, shape, _from_bytes(datatype, data).reshape(shape))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise NotUnderstood(f"tensor {name!r}: {error}") from error


def wire_of(tensor: Tensor) -> bytes:
    """Return the binary data of a tensor, in the form of the binary extension and of gRPC."""
    if tensor.datatype == "BYTES":
        return b"".join(len(value).to_bytes(4, "little") + value for value in tensor.values.flat)
    if tensor.datatype == "BF16":  # stored as FP32
        return (tensor.values.view(np.uint32) >> 16).astype("<u2").tobytes()
    return tensor.values.tobytes()


def _from_json(datatype: str, data: list[Any]) -> Array:
    if datatype == "BYTES":
        return _objects([one.encode() if isinstance(one, str) else one for one in flat(data)])
    dtype = np.dtype(np.float32) if datatype == "BF16" else DTYPES[datatype]
    values = list(flat(data))
    if dtype.kind in "iu" and values:  # NumPy 1 would wrap integers that are out of range
        limits = np.iinfo(dtype.name)
        for value in (min(values), max(values)):
            if not limits.min <= value <= limits.max:
                raise OverflowError(f"Python integer {value} out of bounds for {dtype}")
    return np.array(values, dtype)


def _from_bytes(datatype: str, data: memoryview) -> Array:
    if datatype == "BYTES":
        elements, offset = [], 0
        while offset < len(data):
            size = int.from_bytes(data[offset : offset + 4], "little")
            elements.append(bytes(data[offset + 4 : offset + 4 + size]))
            offset += 4 + size
        return _objects(elements)
    if datatype == "BF16":
        wide: Array = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        return wide
    return np.frombuffer(data, DTYPES[datatype])


def _objects(elements: list[Any]) -> Array:
    values = np.empty(len(elements), object)
    values[:] = elements
    return values


def flat(data: object) -> list[Any]:
    """Return the values of nested lists."""
    if isinstance(data, list):
        return [element for entry in data for element in flat(entry)]
    return [data]
