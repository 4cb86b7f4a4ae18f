"""The module `triton_python_backend_utils`, which `model.py` files import.

It has the names and the behaviour of Triton's module. Without a server it can build tensors and
responses, complete a configuration and convert types; other functions raise TritonModelException.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reference_server.backends.python_host.api import server_access
from reference_server.backends.python_host.api.model_config import ModelConfig
from reference_server.backends.python_host.api.native import TritonError, TritonModelException
from reference_server.backends.python_host.api.reports import Logger, MetricFamily
from reference_server.backends.python_host.api.request import (
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    get_input_tensor_by_name,
)
from reference_server.backends.python_host.api.response import (
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceResponse,
    get_output_tensor_by_name,
)
from reference_server.backends.python_host.api.server_access import NO_CALLS, ServerAccess
from reference_server.backends.python_host.api.tensor import (
    NUMPY_TYPES,
    TRITON_STRING_TO_NUMPY,
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TYPE_CODES,
    PreferredMemory,
    Tensor,
)
from reference_server.core import byte_strings
from reference_server.core.tensor import DataType

# Triton's own module imports `json`, `np` and `struct`, and models use `pb_utils.np`.
__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "json",
    "load_model",
    "np",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "struct",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

_LENGTH_PREFIX = struct.Struct("<I")


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the entry of that name under `input`, or None.

    Args:
        model_config: The parsed configuration of a model.
        name: The name of the input.
    """
    return _first_entry(model_config, "input", name)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the entry of that name under `output`, or None.

    Args:
        model_config: The parsed configuration of a model.
        name: The name of the output.
    """
    return _first_entry(model_config, "output", name)


def _first_entry(model_config: Mapping[str, Any], section: str, name: str) -> dict[str, Any] | None:
    if section not in model_config:
        return None
    entries: Iterable[dict[str, Any]] = model_config[section]
    return next((entry for entry in entries if entry["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Return whether a model is decoupled.

    Args:
        model_config: The parsed configuration of the model.

    Raises:
        KeyError: The configuration has a transaction policy without `decoupled`.
    """
    if "model_transaction_policy" not in model_config:
        return False
    decoupled: bool = model_config["model_transaction_policy"]["decoupled"]
    return decoupled


def triton_to_numpy_type(data_type: int) -> type[np.generic] | None:
    """Return the NumPy type for the number of a data type, or None. BF16 has none."""
    # A comparison, as in Triton: any object that equals a number is accepted.
    return next((of for code, of in NUMPY_TYPES.items() if data_type == code), None)


def numpy_to_triton_type(data_type: npt.DTypeLike) -> int | None:
    """Return the number of the data type for a NumPy scalar type or dtype, or None.

    Python's own types have none, not even `bool`.
    """
    for code, numpy_type in NUMPY_TYPES.items():
        # A comparison: a type equals its dtype, but has another hash.
        if data_type == numpy_type:
            return code
    return TYPE_CODES[DataType.BYTES] if data_type == np.bytes_ else None


def triton_string_to_numpy(triton_type_string: str) -> type[Any]:
    """Return the NumPy type for the name of a data type in a configuration.

    Args:
        triton_type_string: For example `TYPE_FP32`.

    Raises:
        KeyError: The name is unknown.
    """
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(input_tensor: npt.NDArray[Any]) -> bytes | tuple[()] | None:
    """Return the elements in wire format: for each a 4-byte length and its bytes.

    Args:
        input_tensor: An array of objects or byte strings, in any shape.

    Returns:
        The bytes in C order, `()` for an empty array, and None for other element types.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return byte_strings.serialize(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> byte_strings.Objects:
    """Return the elements of a wire format as a one-dimensional object array of `bytes`.

    Raises:
        struct.error: A length, or the bytes that belong to it, are incomplete.
    """
    elements: list[bytes] = []
    offset = 0
    while offset < len(encoded_tensor):
        (length,) = _LENGTH_PREFIX.unpack_from(encoded_tensor, offset)
        offset += _LENGTH_PREFIX.size
        # `struct` raises Triton's error for incomplete bytes; a slice would not.
        (element,) = struct.unpack_from(f"<{length}s", encoded_tensor, offset)
        elements.append(element)
        offset += length
    return byte_strings.as_array(elements, (len(elements),))


# ---------------------------------------------------------------------- what needs a server

#: The server access of this module. A host replaces the functions below in its models.
_NO_SERVER = ServerAccess(NO_CALLS, "")


def get_model_dir() -> str:
    """Return the directory of the model's version.

    Raises:
        RuntimeError: The module was not loaded by a host.
    """
    raise RuntimeError("get_model_dir(): found no model; expected a call from a loaded model.py")


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load or reload a model and wait for the end. Requires explicit model control.

    Args:
        model_name: The name of the model.
        config: A configuration as JSON that replaces the repository's.
        files: File contents by `file:<path>` that replace the model's folder. They require
            `config`.

    Raises:
        TritonModelException: The server cannot load the model.
        TypeError: An argument has another type.
    """
    server_access.load(_NO_SERVER, model_name, config, files)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Start to unload a model. Requires explicit model control.

    Args:
        model_name: The name of the model.
        unload_dependents: Whether to unload models too that only this one uses.

    Raises:
        TritonModelException: The server cannot unload the model.
        TypeError: An argument has another type.
    """
    server_access.unload(_NO_SERVER, model_name, unload_dependents=unload_dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model is ready for requests.

    Args:
        model_name: The name of the model.
        model_version: The version as text; an empty string means the latest.

    Raises:
        TritonModelException: The version is not a positive integer.
        TypeError: An argument has another type.
    """
    return server_access.is_ready(_NO_SERVER, model_name, model_version)
