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
    """Return the NumPy type for the number of a data type; None for BF16 and unknown numbers."""
    # A comparison, as in Triton: any object that equals a number is accepted.
    return next((of for code, of in NUMPY_TYPES.items() if data_type == code), None)


def numpy_to_triton_type(data_type: npt.DTypeLike) -> int | None:
    """Return the number of the data type for a NumPy scalar type or dtype, or None.

    Python's own types, even `bool`, have no number.
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


# ---------------------------------------------------------------------- functions of a server

#: The server access of this module. A host replaces the functions below in its models.
_NO_SERVER = ServerAccess(NO_CALLS, "")


def get_model_dir() -> str:
    """Return the directory of the model's version.

    Raises:
        RuntimeError: The module was not loaded by a host.
    """
    raise RuntimeError("get_model_dir(): found no model; expected a call from a loaded model.py")


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load or reload a model and wait until it is loaded. Requires explicit model control.

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
        unload_dependents: Whether to unload also the models that only this model uses.

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


# -- the argument and result of `auto_complete_config`

_SCHEDULERS = ("sequence_batching", "ensemble_scheduling")
_FUNCTION = "auto-complete-config function for model"


class ModelConfig:
    """A model configuration that a model completes.

    A setter raises ValueError if its argument contradicts the configuration.

    Args:
        model_config: The configuration as JSON text.
    """

    __module__ = "triton_python_backend_utils"

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration itself, not a copy."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set `max_batch_size`.

        Raises:
            ValueError: The configuration has a larger value.
        """
        present = self._model_config["max_batch_size"]
        if present > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {present}, but in {_FUNCTION} "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Select the dynamic batcher, and keep its existing settings.

        Raises:
            ValueError: The configuration selects another scheduler.
        """
        for scheduler in _SCHEDULERS:
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but {_FUNCTION} "
                    f"'{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:
        """Add an input, or complete the input of that name.

        Args:
            input: A dict with the keys `name`, `data_type` and `dims`, and optionally `optional`.

        Raises:
            ValueError: A key is missing or unknown, or a value contradicts the configuration.
        """
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: dict[str, Any]) -> None:
        """Add an output, or complete the output of that name.

        Args:
            output: A dict with the keys `name`, `data_type` and `dims`.

        Raises:
            ValueError: A key is missing or unknown, or a value contradicts the configuration.
        """
        self._add("output", output, ("name", "data_type", "dims"))

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set the transaction policy.

        Args:
            transaction_policy_dict: A dict with the single key `decoupled`.

        Raises:
            ValueError: There is another key, or the configuration has another value.
        """
        # Calls `keys`, as Triton does, so that other objects raise the same AttributeError.
        if any(key != "decoupled" for key in transaction_policy_dict.keys()):  # noqa: SIM118
            raise ValueError(
                f"model transaction property in {_FUNCTION} '{self._name}' "
                "contains property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if "decoupled" in policy and policy["decoupled"] != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model "
                f"'{self._name}', which is already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = decoupled

    @property
    def _name(self) -> str:
        name: str = self._model_config["name"]
        return name

    def _add(self, kind: str, entry: dict[str, Any], properties: tuple[str, ...]) -> None:
        self._check_properties(kind, entry, properties)
        for present in self._model_config[kind]:
            if present["name"] == entry["name"]:
                self._check_agreement(kind, present, entry)
                present.update(entry)
                return
        self._model_config[kind].append(entry)

    def _check_properties(
        self, kind: str, entry: Mapping[str, Any], properties: tuple[str, ...]
    ) -> None:
        if any(key not in properties for key in entry):
            # Checked first, as in Triton. The text contains the name, so a missing name is a
            # KeyError there as well.
            quoted = [f"'{name}'" for name in properties]
            raise ValueError(
                f"{kind} '{entry['name']}' in {_FUNCTION} '{self._name}' contains property "
                f"other than {', '.join(quoted[:-1])} and {quoted[-1]}."
            )
        if "name" not in entry:
            raise ValueError(f"{kind} in {_FUNCTION} '{self._name}' is missing 'name' property.")
        for required in ("data_type", "dims"):
            if required not in entry:
                raise ValueError(
                    f"{kind} '{entry['name']}' in {_FUNCTION} '{self._name}' "
                    f"is missing '{required}' property."
                )

    def _check_agreement(
        self, kind: str, present: Mapping[str, Any], entry: Mapping[str, Any]
    ) -> None:
        name = entry["name"]
        if present["data_type"] not in ("TYPE_INVALID", entry["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype "
                f"{present['data_type']} for {kind} '{name}', model provides {entry['data_type']}"
            )
        if present["dims"] and present["dims"] != entry["dims"]:  # a tuple differs, as in Triton
            raise self._disagreement(name, "dims", present, entry)
        # A configuration from the server always has `optional`: False cannot be changed.
        if (
            "optional" in present
            and "optional" in entry
            and present["optional"] != entry["optional"]
        ):
            raise self._disagreement(name, "optional", present, entry)

    def _disagreement(
        self, tensor: str, key: str, present: Mapping[str, Any], entry: Mapping[str, Any]
    ) -> ValueError:
        return ValueError(
            f"model '{self._name}', tensor '{tensor}': the model expects {key} {entry[key]} "
            f"but the model configuration specifies {key} {present[key]}"
        )
