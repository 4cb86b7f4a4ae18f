"""The OpenAPI 3.1 document of a server: paths and schemas of the loaded models.

MLServer, BentoML and KServe publish such a document; tools generate clients and forms from it. The
schemas describe JSON requests; FP16 and BF16 tensors need the binary data extension, as in Triton.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from reference_server.core.metadata import Dims, ServerMetadata, Signature, TensorConfig
from reference_server.core.tensor import DataType

_Schema = dict[str, Any]

#: The schema of an element, and an example.
_ELEMENTS: dict[DataType, tuple[_Schema, object]] = {
    DataType.BOOL: ({"type": "boolean"}, False),
    DataType.BYTES: ({"type": "string"}, "text"),
    DataType.FP32: ({"type": "number"}, 0.0),
    DataType.FP64: ({"type": "number"}, 0.0),
    **{
        DataType(f"{sign}INT{bits}"): (
            {
                "type": "integer",
                "minimum": 0 if sign else -(2 ** (bits - 1)),
                "maximum": 2 ** (bits if sign else bits - 1) - 1,
            },
            0,
        )
        for sign in ("U", "")
        for bits in (8, 16, 32, 64)
    },
}
#: Examples of larger tensors have no data: whole images would make the document long.
_LONGEST_EXAMPLE = 64
_TEXT: _Schema = {"type": "string"}
_PARAMETERS: _Schema = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
_ERROR: _Schema = {
    "description": "The request failed.",
    "content": {
        "application/json": {
            "schema": {"type": "object", "required": ["error"], "properties": {"error": _TEXT}}
        }
    },
}


def encode_document(server: ServerMetadata, models: Iterable[tuple[Signature, bool]]) -> bytes:
    """Return the document as JSON.

    Args:
        server: Name and version of the server.
        models: The signature of each loaded model, and whether it is decoupled. Over HTTP,
            decoupled models support only `generate_stream`.
    """
    paths: dict[str, object] = {
        "/v2": {"get": _operation("Metadata of the server", "server", {"type": "object"})},
        "/v2/health/ready": {"get": _operation("Readiness of the server", "server", None)},
    }
    for signature, decoupled in models:
        base = f"/v2/models/{signature.name}"
        if decoupled:
            paths[f"{base}/generate_stream"] = {"post": _generate(signature, stream=True)}
        else:
            paths[f"{base}/infer"] = {"post": _infer(signature)}
            paths[f"{base}/generate"] = {"post": _generate(signature, stream=False)}
    document = {
        "openapi": "3.1.0",
        "info": {"title": server.name, "version": server.version},
        "paths": paths,
    }
    return orjson.dumps(document)


def _operation(
    summary: str, tag: str, response: _Schema | None, content_type: str = "application/json"
) -> _Schema:
    succeeded: _Schema = {"description": "The request succeeded."}
    if response is not None:
        succeeded["content"] = {content_type: {"schema": response}}
    return {"summary": summary, "tags": [tag], "responses": {"200": succeeded, "default": _ERROR}}


def _body(schema: _Schema, example: object) -> _Schema:
    content = {"application/json": {"schema": schema, "example": example}}
    return {"required": True, "content": content}


# -- inference requests: tensors with name, shape, data type and data


def _infer(signature: Signature) -> _Schema:
    inputs = _tensors(signature, signature.inputs)
    required = [tensor for tensor in signature.inputs if not tensor.optional]
    outputs = {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"enum": [tensor.name for tensor in signature.outputs]},
                "parameters": _PARAMETERS,
            },
        },
    }
    request = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": _TEXT,
            "parameters": _PARAMETERS,
            "inputs": {**inputs, "minItems": len(required), "maxItems": len(signature.inputs)},
            "outputs": outputs,
        },
    }
    response = {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "id": _TEXT,
            "model_name": {"const": signature.name},
            "model_version": _TEXT,
            "parameters": _PARAMETERS,
            "outputs": _tensors(signature, signature.outputs),
        },
    }
    example = {"inputs": [_example(signature, tensor) for tensor in required]}
    operation = _operation(f"Run {signature.name}", signature.name, response)
    return {**operation, "requestBody": _body(request, example)}


def _tensors(signature: Signature, tensors: Sequence[TensorConfig]) -> _Schema:
    found = [_tensor(tensor, signature.full_dims(tensor)) for tensor in tensors]
    return {"type": "array", "items": {"oneOf": found} if found else {}}


def _tensor(tensor: TensorConfig, dims: Dims) -> _Schema:
    sizes = [{"type": "integer", "minimum": 0} if size < 0 else {"const": size} for size in dims]
    shape: _Schema = {"type": "array", "minItems": len(dims), "maxItems": len(dims)}
    if sizes:
        shape["prefixItems"] = sizes
    schema: _Schema = {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": {"const": tensor.name},
            "shape": shape,
            "datatype": {"const": tensor.datatype.value},
            "parameters": _PARAMETERS,
        },
    }
    element = _ELEMENTS.get(tensor.datatype)
    if element is None:
        schema["description"] = f"{tensor.datatype.value} needs the binary data extension."
    else:
        nested = {"type": "array"}  # either flat or nested like the shape
        data = {"type": "array", "items": {"anyOf": [element[0], nested]}}
        schema["properties"]["data"] = data
    return schema


def _example(signature: Signature, tensor: TensorConfig) -> _Schema:
    """Return an input whose free sizes are 1, with data if it has few elements."""
    shape = [max(1, size) if size < 0 else size for size in signature.full_dims(tensor)]
    example: _Schema = {"name": tensor.name, "shape": shape, "datatype": tensor.datatype.value}
    count = math.prod(shape)
    if tensor.datatype in _ELEMENTS and count <= _LONGEST_EXAMPLE:
        example["data"] = [_ELEMENTS[tensor.datatype][1]] * count
    return example


# -- the generate extension: a JSON object with one value for each input


def _generate(signature: Signature, *, stream: bool) -> _Schema:
    request = {
        "type": "object",
        "required": [tensor.name for tensor in signature.inputs if not tensor.optional],
        "properties": _values(signature.inputs),
    }
    response = {"type": "object", "properties": _values(signature.outputs)}
    kind = "text/event-stream" if stream else "application/json"
    summary = f"Run {signature.name} on values by name"
    operation = _operation(summary, signature.name, response, kind)
    examples = [_example(signature, tensor) for tensor in signature.inputs if not tensor.optional]
    example = {
        each["name"]: each["data"] if len(each["data"]) != 1 else each["data"][0]
        for each in examples
        if "data" in each
    }
    return {**operation, "requestBody": _body(request, example)}


def _values(tensors: Sequence[TensorConfig]) -> _Schema:
    """Return the schema of each tensor's value: an element, or a flat array."""
    found: _Schema = {}
    for tensor in tensors:
        element = _ELEMENTS.get(tensor.datatype)
        if element is not None:
            found[tensor.name] = {"anyOf": [element[0], {"type": "array", "items": element[0]}]}
    return found
