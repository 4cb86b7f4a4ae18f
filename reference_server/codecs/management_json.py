"""Decodes and encodes the JSON of all HTTP operations except inference."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import orjson

from reference_server.codecs import rapid_json
from reference_server.codecs.json_exact_reader import JsonValue
from reference_server.codecs.json_writer import write_string
from reference_server.core.cpp import leading_integer
from reference_server.core.errors import ServerError, internal, invalid_arg, unavailable
from reference_server.core.metadata import (
    CudaRegion,
    ModelMetadata,
    ServerMetadata,
    Signature,
    SystemRegion,
    TensorConfig,
)
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.telemetry import BATCH_DURATIONS, DURATIONS, BatchStatistics, Snapshot

JsonObject = dict[str, object]
Buffer = bytes | bytearray | memoryview
LogValue = bool | int | str
#: The values of one trace setting; None clears it.
TraceChange = Sequence[str] | None

_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]+")
#: The size of a `cudaIpcMemHandle_t`.
_HANDLE_BYTES = 64


# -- metadata and statistics


def server_metadata(metadata: ServerMetadata) -> bytes:
    """Encode name, version and extensions of the server."""
    return orjson.dumps(
        {"name": metadata.name, "version": metadata.version, "extensions": metadata.extensions}
    )


def model_metadata(metadata: ModelMetadata) -> bytes:
    """Encode name, versions, platform, inputs and outputs of a model."""
    signature = metadata.signature
    return orjson.dumps(
        {
            "name": signature.name,
            "versions": [str(version) for version in metadata.versions],
            "platform": metadata.platform,
            "inputs": [_tensor(signature, tensor) for tensor in signature.inputs],
            "outputs": [_tensor(signature, tensor) for tensor in signature.outputs],
        }
    )


def _tensor(signature: Signature, tensor: TensorConfig) -> JsonObject:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.value,
        "shape": signature.full_dims(tensor),
    }


def statistics(snapshots: Sequence[Snapshot]) -> bytes:
    """Encode the counters of each model version, in the given order."""
    return orjson.dumps({"model_stats": [_model(snapshot) for snapshot in snapshots]})


def _model(snapshot: Snapshot) -> JsonObject:
    return {
        "name": snapshot.name,
        "version": str(snapshot.version),
        "last_inference": snapshot.last_inference_ms,
        "inference_count": snapshot.inference_count,
        "execution_count": snapshot.execution_count,
        "inference_stats": _durations(snapshot, DURATIONS),
        # Triton's Python backend reports no statistics per response, and no memory.
        "response_stats": {},
        "batch_stats": [
            {"batch_size": rows, **_durations(batch, BATCH_DURATIONS)}
            for rows, batch in snapshot.batches.items()
        ],
        "memory_usage": [],
    }


def _durations(counters: Snapshot | BatchStatistics, names: Iterable[str]) -> JsonObject:
    durations = {name: getattr(counters, name) for name in names}
    return {name: {"count": each.count, "ns": each.ns} for name, each in durations.items()}


# -- repository control


def index_request(body: Buffer, profile: TritonProfile) -> bool:
    """Return whether the request is for ready versions only. Raises ServerError."""
    if not len(body):
        return False
    document = rapid_json.loads(body, profile)
    if type(document) is not dict or "ready" not in document:
        return False
    ready = document["ready"]
    if profile.newer_request_checks and type(ready) is not bool:
        raise invalid_arg("Invalid value for 'ready': expected a boolean")
    return rapid_json.as_bool(ready)


def index(rows: Iterable[tuple[str, int | None, str | None, str]]) -> bytes:
    """Encode rows of name, version, state and reason; unknown values are left out."""
    return b"[%b]" % b",".join(_row(*row) for row in rows)


def _row(name: str, version: int | None, state: str | None, reason: str) -> bytes:
    members = [b'"name":' + write_string(name)]
    if version is not None:
        members.append(b'"version":"%d"' % version)
    if state is not None:
        members.append(b'"state":' + write_string(state))
    if reason:
        members.append(b'"reason":' + write_string(reason))
    return b"{%b}" % b",".join(members)


def load_parameters(body: Buffer, profile: TritonProfile = V2_51) -> dict[str, str | bytes]:
    """Return the parameters of a load request: `config` as text, `file:...` as bytes.

    Raises ServerError for other parameters, and for values that are no strings.
    """
    parameters: dict[str, str | bytes] = {}
    document = rapid_json.loads(body, profile) if len(body) else None
    if type(document) is not dict or "parameters" not in document:
        return parameters
    for key, value in rapid_json.members(document["parameters"]).items():
        text = rapid_json.as_string(value)
        if key == "config":
            parameters[key] = text
        elif key.startswith("file:"):
            parameters[key] = _from_base64(text)
        else:
            raise internal("unexpected error on creating Triton parameter")
    return parameters


def _from_base64(text: str) -> bytes:
    """Decode base64. As in Triton, other characters and an incomplete last group are skipped."""
    digits = _NOT_BASE64.sub("", text)
    digits = digits[:-1] if len(digits) % 4 == 1 else digits
    return base64.b64decode(digits + "=" * (-len(digits) % 4))


def unload_dependents(body: Buffer, profile: TritonProfile) -> bool:
    """Return whether dependents are unloaded, too; False for an unexpected body, as in Triton.

    Raises ServerError for a body that is not JSON if the imitated Triton release refuses it.
    """
    if not len(body):
        return False
    try:
        document = rapid_json.loads(body, profile)
    except ServerError:
        if profile.newer_request_checks:
            raise
        return False
    try:
        parameters = rapid_json.member(document, "parameters")
        return rapid_json.as_bool(rapid_json.member(parameters, "unload_dependents"))
    except ServerError:
        return False


# -- settings: members are read one by one. As in Triton, the changes before an invalid member are
# applied.


def encode_log_settings(settings: Mapping[str, LogValue]) -> bytes:
    """Encode the log settings."""
    return orjson.dumps(settings)


def read_log_settings(
    body: memoryview, profile: TritonProfile = V2_51
) -> Iterator[tuple[str, LogValue]]:
    """Yield the changes in a body, in Triton's order; null and unknown settings are ignored.

    Raises ServerError.
    """
    fields = rapid_json.fields(rapid_json.loads(body, profile))
    for name, read in _LOG_READERS.items():
        value = fields.get(name)
        if value is not None:
            yield name, read(value)


def _read_log_format(value: JsonValue) -> str:
    text = rapid_json.as_string(value)
    if text not in ("default", "ISO8601"):
        # Over gRPC, code and text differ.
        raise unavailable(f"invalid argument for --log_format, got: {text}")
    return text


_LOG_READERS: dict[str, Callable[[JsonValue], LogValue]] = {
    "log_file": lambda value: "",  # any value is refused
    "log_info": rapid_json.as_bool,
    "log_warning": rapid_json.as_bool,
    "log_error": rapid_json.as_bool,
    "log_verbose_level": rapid_json.as_uint64,
    "log_format": _read_log_format,
}


def encode_trace_settings(settings: Mapping[str, Sequence[str]]) -> bytes:
    """Encode the trace settings: the levels as a list, all other settings as strings.

    As in Triton, a setting that was given several times becomes several members with the same name.
    """
    members = [
        (name, shown)
        for name, values in settings.items()
        for shown in ([list(values)] if name == "trace_level" else values)
    ]
    parts = (orjson.dumps(name) + b":" + orjson.dumps(shown) for name, shown in members)
    return b"{" + b",".join(parts) + b"}"


def read_trace_settings(
    body: memoryview, profile: TritonProfile = V2_51
) -> Iterator[tuple[str, TraceChange]]:
    """Yield the changes in a body, in Triton's order; unknown settings are ignored.

    Raises ServerError.
    """
    fields = rapid_json.fields(rapid_json.loads(body, profile))
    for name, read in _TRACE_READERS.items():
        if name in fields:
            value = fields[name]
            yield name, None if value is None else read(value)


def _read_levels(value: JsonValue) -> list[str]:
    return [rapid_json.as_string(word) for word in rapid_json.as_array(value)]


def _read_text(value: JsonValue) -> list[str]:
    return [rapid_json.as_string(value)]


def _read_count(value: JsonValue) -> list[str]:
    (text,) = _read_text(value)
    number = leading_integer(text)
    if number is not None and -(2**31) <= number < -1:
        # Over gRPC, there is a space before the number.
        raise invalid_arg(f"Unable to parse 'trace_count'. Expecting value >= -1, got:{text}")
    return [text]


_TRACE_READERS: dict[str, Callable[[JsonValue], list[str]]] = {
    "trace_file": lambda value: [],  # any value is refused
    "trace_level": _read_levels,
    "trace_rate": _read_text,
    "trace_count": _read_count,
    "log_frequency": _read_text,
}


# -- shared memory regions


class SystemRegistration(NamedTuple):
    """The registration of a system region, without its name."""

    key: str
    byte_size: int
    offset: int


class CudaRegistration(NamedTuple):
    """The registration of a CUDA region, without its name."""

    raw_handle: bytes
    device_id: int
    byte_size: int


def system_registration(body: memoryview, profile: TritonProfile = V2_51) -> SystemRegistration:
    """Decode a registration. Raises ServerError for the first fault in Triton's order."""
    document = rapid_json.loads(body, profile)
    key = rapid_json.c_string(rapid_json.as_string(_field(document, "key")))
    offset = 0
    if isinstance(document, dict) and "offset" in document:
        offset = rapid_json.as_uint64(document["offset"])
    byte_size = rapid_json.as_uint64(_field(document, "byte_size"))
    return SystemRegistration(key, byte_size, offset)


def cuda_registration(body: memoryview, profile: TritonProfile = V2_51) -> CudaRegistration:
    """Decode a registration. Raises ServerError for the first fault in Triton's order."""
    document = rapid_json.loads(body, profile)
    encoded = rapid_json.as_string(rapid_json.member(_field(document, "raw_handle"), "b64"))
    byte_size = rapid_json.as_uint64(rapid_json.member(document, "byte_size"))
    device_id = rapid_json.as_uint64(rapid_json.member(document, "device_id"))
    handle = _from_base64(encoded)
    if len(handle) != _HANDLE_BYTES:
        raise invalid_arg("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return CudaRegistration(handle, device_id, byte_size)


def system_status(regions: Sequence[SystemRegion]) -> bytes:
    """Encode the regions, in the given order."""
    return b"[%b]" % b",".join(
        b'{"name":%b,"key":%b,"offset":%d,"byte_size":%d}'
        % (write_string(region.name), write_string(region.key), region.offset, region.byte_size)
        for region in regions
    )


def cuda_status(regions: Sequence[CudaRegion]) -> bytes:
    """Encode the regions, in the given order."""
    return b"[%b]" % b",".join(
        b'{"name":%b,"device_id":%d,"byte_size":%d}'
        % (write_string(region.name), region.device_id, region.byte_size)
        for region in regions
    )


def _field(document: JsonValue, name: str) -> JsonValue:
    if isinstance(document, dict) and name in document:
        return document[name]
    raise invalid_arg(f"Shared memory register request has no '{name}' field")
