"""The module that `model.py` files import: the names of Triton's own, with its behaviour.

Outside a server it offers all that needs none: build tensors and responses, complete a
configuration, convert types.
"""

from __future__ import annotations

import json
import struct

import numpy as np

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
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "json",
    "np",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "struct",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "using_decoupled_model_transaction_policy",
]


def get_model_dir() -> str:
    """The directory of the model's version; each host gives its models a function that knows it.

    Raises RuntimeError where no host did.
    """
    raise RuntimeError("get_model_dir() has an answer only in a module that a host has loaded")
