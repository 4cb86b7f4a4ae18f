"""The JSON of all HTTP operations but inference, both ways."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import orjson

from reference_server.codecs import rapid_json
from reference_server.codecs.json_data import encode_string
from reference_server.codecs.rapid_json_reader import JsonValue
from reference_server.core.errors import ServerError, internal, invalid_arg, unavailable
from reference_server.core.metadata import (
    CudaRegion,
    ModelMetadata,
    ServerMetadata,
    Signature,
    SystemRegion,
    TensorConfig,
)
from reference_server.core.numerals import leading_integer
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.telemetry import Duration, Snapshot

JsonObject = dict[str, object]
Buffer = bytes | bytearray | memoryview
LogValue = bool | int | str
#: The values of one trace setting; None clears it.
TraceChange = Sequence[str] | None

_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]+")
_NOT_BASE64_BYTES = re.compile(rb"[^A-Za-z0-9+/]")
#: The size of a `cudaIpcMemHandle_t`.
_HANDLE_BYTES = 64


# -- metadata and statistics


def server_metadata(metadata: ServerMetadata) -> bytes:
    """Name, version, extensions."""
    return orjson.dumps(
        {
            "name": metadata.name,
            "version": metadata.version,
            "extensions": metadata.extensions,
        }
    )


def model_metadata(metadata: ModelMetadata) -> bytes:
    """Name, versions, platform, inputs, outputs."""
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
    """The counters of each model version, in the order given."""
    return orjson.dumps({"model_stats": [_model(snapshot) for snapshot in snapshots]})


def _model(snapshot: Snapshot) -> JsonObject:
    return {
        "name": snapshot.name,
        "version": str(snapshot.version),
        "last_inference": snapshot.last_inference_ms,
        "inference_count": snapshot.inference_count,
        "execution_count": snapshot.execution_count,
        "inference_stats": {
            "success": _duration(snapshot.success),
            "fail": _duration(snapshot.fail),
            "queue": _duration(snapshot.queue),
            "compute_input": _duration(snapshot.compute_input),
            "compute_infer": _duration(snapshot.compute_infer),
            "compute_output": _duration(snapshot.compute_output),
            "cache_hit": _duration(snapshot.cache_hit),
            "cache_miss": _duration(snapshot.cache_miss),
        },
        # Triton's Python backend reports no statistics per response, and no memory.
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": _duration(batch.compute_input),
                "compute_infer": _duration(batch.compute_infer),
                "compute_output": _duration(batch.compute_output),
            }
            for rows, batch in snapshot.batches.items()
        ],
        "memory_usage": [],
    }


def _duration(duration: Duration) -> JsonObject:
    return {"count": duration.count, "ns": duration.ns}


# -- repository control


def index_request(body: Buffer, profile: TritonProfile) -> bool:
    """Whether only ready versions are asked for. Raises ServerError."""
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
    """The index: rows of name, version, state and reason; what is not known is left out."""
    return b"[%b]" % b",".join(_row(*row) for row in rows)


def _row(name: str, version: int | None, state: str | None, reason: str) -> bytes:
    members = [b'"name":' + encode_string(name)]
    if version is not None:
        members.append(b'"version":"%d"' % version)
    if state is not None:
        members.append(b'"state":' + encode_string(state))
    if reason:
        members.append(b'"reason":' + encode_string(reason))
    return b"{%b}" % b",".join(members)


def load_parameters(body: Buffer, profile: TritonProfile = V2_51) -> dict[str, str | bytes]:
    """The parameters of a load request: `config` as text, `file:...` as bytes.

    Raises ServerError for what is neither, and for values that are no strings.
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
    """The bytes that base64 stands for; as in Triton, characters of another alphabet are skipped.

    So is what is left of a group that is not whole.
    """
    digits = _NOT_BASE64_BYTES.sub(b"", text.encode("utf-8", "surrogateescape"))
    digits = digits[:-1] if len(digits) % 4 == 1 else digits
    return base64.b64decode(digits + b"=" * (-len(digits) % 4))


def unload_dependents(body: Buffer, profile: TritonProfile) -> bool:
    """Whether an unload request wants that. As in Triton, a body that makes no sense says no.

    Raises ServerError for one that is not even JSON where the profile does.
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


# -- settings: members are read one by one, as they are asked for: what stands before a fault
# has been applied, as in Triton


def encode_log_settings(settings: Mapping[str, LogValue]) -> bytes:
    """The body of a reply."""
    return orjson.dumps(settings)


def read_log_settings(
    body: memoryview, profile: TritonProfile = V2_51
) -> Iterator[tuple[str, LogValue]]:
    """The changes in a request's body, in the order in which Triton looks for them.

    Raises ServerError; what is none of the settings, or null, is left out.
    """
    fields = _fields(rapid_json.loads(body, profile))
    for name, read in _LOG_READERS.items():
        value = fields.get(name)
        if value is not None:
            yield name, read(value)


def _read_log_format(value: JsonValue) -> str:
    text = rapid_json.as_string(value)
    if text not in ("default", "ISO8601"):
        # Over gRPC it is another code and another text.
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
    """The body of a reply: the levels are a list, all others strings.

    As in Triton, a setting that was given several times is as many members of one name.
    """
    members = [
        (name, told)
        for name, values in settings.items()
        for told in ([list(values)] if name == "trace_level" else values)
    ]
    parts = (orjson.dumps(name) + b":" + orjson.dumps(told) for name, told in members)
    return b"{" + b",".join(parts) + b"}"


def read_trace_settings(
    body: memoryview, profile: TritonProfile = V2_51
) -> Iterator[tuple[str, TraceChange]]:
    """The changes in a request's body, in the order in which Triton looks for them.

    Raises ServerError; what is none of the settings is left out.
    """
    fields = _fields(rapid_json.loads(body, profile))
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
        # Over gRPC a space stands before the number.
        raise invalid_arg(f"Unable to parse 'trace_count'. Expecting value >= -1, got:{text}")
    return [text]


_TRACE_READERS: dict[str, Callable[[JsonValue], list[str]]] = {
    "trace_file": lambda value: [],  # any value is refused
    "trace_level": _read_levels,
    "trace_rate": _read_text,
    "trace_count": _read_count,
    "log_frequency": _read_text,
}


def _fields(value: JsonValue) -> dict[str, JsonValue]:
    """The members of an object; anything else has none."""
    return value if isinstance(value, dict) else {}


# -- shared memory regions


class SystemRegistration(NamedTuple):
    """What a client says of a system region, apart from its name."""

    key: str
    byte_size: int
    offset: int


class CudaRegistration(NamedTuple):
    """What a client says of a CUDA region, apart from its name."""

    raw_handle: bytes
    device_id: int
    byte_size: int


def system_registration(body: memoryview, profile: TritonProfile = V2_51) -> SystemRegistration:
    """The body of a registration. Raises ServerError, in the real server's order of faults."""
    document = rapid_json.loads(body, profile)
    key = rapid_json.c_string(rapid_json.as_string(_field(document, "key")))
    offset = 0
    if isinstance(document, dict) and "offset" in document:
        offset = rapid_json.as_uint64(document["offset"])
    byte_size = rapid_json.as_uint64(_field(document, "byte_size"))
    return SystemRegistration(key, byte_size, offset)


def cuda_registration(body: memoryview, profile: TritonProfile = V2_51) -> CudaRegistration:
    """The body of a registration. Raises ServerError, in the real server's order of faults."""
    document = rapid_json.loads(body, profile)
    encoded = rapid_json.as_string(rapid_json.member(_field(document, "raw_handle"), "b64"))
    byte_size = rapid_json.as_uint64(rapid_json.member(document, "byte_size"))
    device_id = rapid_json.as_uint64(rapid_json.member(document, "device_id"))
    handle = _decoded(encoded)
    if len(handle) != _HANDLE_BYTES:
        raise invalid_arg("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return CudaRegistration(handle, device_id, byte_size)


def system_status(regions: Sequence[SystemRegion]) -> bytes:
    """The regions, in the order given."""
    return b"[%b]" % b",".join(
        b'{"name":%b,"key":%b,"offset":%d,"byte_size":%d}'
        % (encode_string(region.name), encode_string(region.key), region.offset, region.byte_size)
        for region in regions
    )


def cuda_status(regions: Sequence[CudaRegion]) -> bytes:
    """The regions, in the order given."""
    return b"[%b]" % b",".join(
        b'{"name":%b,"device_id":%d,"byte_size":%d}'
        % (encode_string(region.name), region.device_id, region.byte_size)
        for region in regions
    )


def _field(document: JsonValue, name: str) -> JsonValue:
    if isinstance(document, dict) and name in document:
        return document[name]
    raise invalid_arg(f"Shared memory register request has no '{name}' field")


def _decoded(text: str) -> bytes:
    """Base64 as the real server's decoder takes it: it skips what is not in the alphabet."""
    digits = _NOT_BASE64.sub("", text)
    whole = len(digits) // 4 * 4
    rest = digits[whole:]
    tail = base64.b64decode(rest + "=" * (4 - len(rest))) if len(rest) > 1 else b""
    return base64.b64decode(digits[:whole]) + tail
