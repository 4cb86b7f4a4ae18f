"""The module that `model.py` files import: the names of Triton's own, with its behaviour.

Outside a server it offers all that needs none: build tensors and responses, complete a
configuration, convert types.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

import numpy as np

from reference_server.backends.python_host.api import control
from reference_server.backends.python_host.api.calls import NO_CALLS, InstanceServer
from reference_server.backends.python_host.api.constants import (
    TRITON_STRING_TO_NUMPY,
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
)
from reference_server.backends.python_host.api.errors import TritonError, TritonModelException
from reference_server.backends.python_host.api.helpers import (
    deserialize_bytes_tensor,
    get_input_config_by_name,
    get_input_tensor_by_name,
    get_output_config_by_name,
    get_output_tensor_by_name,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
    using_decoupled_model_transaction_policy,
)
from reference_server.backends.python_host.api.logger import Logger
from reference_server.backends.python_host.api.memory import PreferredMemory
from reference_server.backends.python_host.api.metrics import MetricFamily
from reference_server.backends.python_host.api.model_config import ModelConfig
from reference_server.backends.python_host.api.request import InferenceRequest
from reference_server.backends.python_host.api.response import InferenceResponse
from reference_server.backends.python_host.api.tensor import Tensor

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

#: Each host gives its models functions of their own, which know the server.
_NO_SERVER = InstanceServer(NO_CALLS, "")


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
    control.load_model(_NO_SERVER, model_name, config, files)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Begin to unload a model, and what only it uses. Only under explicit model control.

    Raises TritonModelException.
    """
    control.unload_model(_NO_SERVER, model_name, unload_dependents=unload_dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether that version of a model, or the latest, can be asked.

    Raises TritonModelException for a version that is no number.
    """
    return control.is_model_ready(_NO_SERVER, model_name, model_version)
