"""The module-level functions of `triton_python_backend_utils` that need no server."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reference_server.backends.python_host.api.constants import (
    NUMPY_TYPES,
    TRITON_STRING_TO_NUMPY,
    TYPE_CODES,
)
from reference_server.backends.python_host.api.request import InferenceRequest
from reference_server.backends.python_host.api.response import InferenceResponse
from reference_server.backends.python_host.api.tensor import Tensor
from reference_server.core import byte_strings
from reference_server.core.dtypes import DataType

_LENGTH = struct.Struct("<I")


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The first input of that name; None if there is none."""
    return _first(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The first output of that name; None if there is none."""
    return _first(inference_response.output_tensors(), name)


def _first(tensors: Iterable[Tensor], name: str) -> Tensor | None:
    for tensor in tensors:
        if tensor.name() == name:
            return tensor
    return None


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The entry of that name under `input` of a parsed configuration; None if there is none."""
    return _first_entry(model_config, "input", name)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The entry of that name under `output` of a parsed configuration; None if there is none."""
    return _first_entry(model_config, "output", name)


def _first_entry(model_config: Mapping[str, Any], section: str, name: str) -> dict[str, Any] | None:
    if section not in model_config:
        return None
    entries: Iterable[dict[str, Any]] = model_config[section]
    return next((entry for entry in entries if entry["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Whether a parsed configuration is that of a decoupled model.

    Raises KeyError if it has a transaction policy that does not say.
    """
    if "model_transaction_policy" not in model_config:
        return False
    decoupled: bool = model_config["model_transaction_policy"]["decoupled"]
    return decoupled


def triton_to_numpy_type(data_type: int) -> type[np.generic] | None:
    """The NumPy type of a type's number; None for a number that has none, such as BF16's."""
    return NUMPY_TYPES.get(data_type)


def numpy_to_triton_type(data_type: npt.DTypeLike) -> int | None:
    """The number of a NumPy scalar type or dtype; None if Triton has none.

    Python's own types have none, not even `bool`.
    """
    for code, numpy_type in NUMPY_TYPES.items():
        # Equality rather than a lookup: types and dtypes are equal, but hash apart.
        if data_type == numpy_type:
            return code
    return TYPE_CODES[DataType.BYTES] if data_type == np.bytes_ else None


def triton_string_to_numpy(triton_type_string: str) -> type[Any]:
    """The NumPy type of a configuration's type name (`TYPE_FP32`); KeyError for another name."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(input_tensor: npt.NDArray[Any]) -> bytes | tuple[()] | None:
    """The wire form of an array of objects or byte strings, in C order.

    `()` if the array is empty, None if its elements are neither objects nor byte strings.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return byte_strings.serialize(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> byte_strings.Objects:
    """The elements of a wire form, as a flat object array of `bytes`.

    Raises struct.error where a length or the bytes it announces are cut.
    """
    elements: list[bytes] = []
    offset = 0
    while offset < len(encoded_tensor):
        (length,) = _LENGTH.unpack_from(encoded_tensor, offset)
        offset += _LENGTH.size
        # Not a slice: struct refuses what is cut, with the text that models know.
        (element,) = struct.unpack_from(f"<{length}s", encoded_tensor, offset)
        elements.append(element)
        offset += length
    return byte_strings.as_array(elements, (len(elements),))
