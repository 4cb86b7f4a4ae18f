"""The module that `model.py` files import: the names of Triton's own, with its behaviour.

Outside a server it offers all that needs none: build tensors and responses, complete a
configuration, convert types.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reference_server.backends.python_host.api import server_access
from reference_server.backends.python_host.api.logger import Logger
from reference_server.backends.python_host.api.metrics import MetricFamily
from reference_server.backends.python_host.api.model_config import ModelConfig
from reference_server.backends.python_host.api.native import TritonError, TritonModelException
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
from reference_server.core.dtypes import DataType

# `json`, `np` and `struct` are what Triton's own module imports: models write `pb_utils.np`.
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
    # Not a lookup: as in Triton, whatever equals a number is one.
    return next((of for code, of in NUMPY_TYPES.items() if data_type == code), None)


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
        (length,) = _LENGTH_PREFIX.unpack_from(encoded_tensor, offset)
        offset += _LENGTH_PREFIX.size
        # Not a slice: struct refuses what is cut, with the text that models know.
        (element,) = struct.unpack_from(f"<{length}s", encoded_tensor, offset)
        elements.append(element)
        offset += length
    return byte_strings.as_array(elements, (len(elements),))


# ---------------------------------------------------------------------- what needs a server

#: Each host gives its models functions of their own, which know the server.
_NO_SERVER = ServerAccess(NO_CALLS, "")


def get_model_dir() -> str:
    """The directory of the model's version; each host gives its models a function that knows it.

    Raises RuntimeError where no host did.
    """
    raise RuntimeError("get_model_dir() has an answer only in a module that a host has loaded")


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load a model, or load it again; returns when that is done.

    `config` is a configuration as JSON, in place of the repository's; `files` are contents of files
    by `file:<path>`, in place of the model's folder, and need a `config`. Only under explicit model
    control. Raises TritonModelException.
    """
    server_access.load(_NO_SERVER, model_name, config, files)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Begin to unload a model, and what only it uses. Only under explicit model control.

    Raises TritonModelException.
    """
    server_access.unload(_NO_SERVER, model_name, unload_dependents=unload_dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether that version of a model, or the latest, can be asked.

    Raises TritonModelException for a version that is no number.
    """
    return server_access.is_ready(_NO_SERVER, model_name, model_version)
