"""The bodies of the shared memory endpoints: what a client registers, and what is registered."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import NamedTuple

from reference_server.codecs import rapid_json
from reference_server.codecs.json_numbers import encode_string
from reference_server.codecs.rapid_json_reader import JsonValue
from reference_server.core.errors import invalid_arg
from reference_server.core.metadata import CudaRegion, SystemRegion

_HANDLE_BYTES = 64
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]+")


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


def system_registration(body: memoryview) -> SystemRegistration:
    """The body of a registration. Raises ServerError, in the real server's order of faults."""
    document = rapid_json.loads(body)
    key = rapid_json.c_string(rapid_json.as_string(_field(document, "key")))
    offset = 0
    if isinstance(document, dict) and "offset" in document:
        offset = rapid_json.as_uint64(document["offset"])
    byte_size = rapid_json.as_uint64(_field(document, "byte_size"))
    return SystemRegistration(key, byte_size, offset)


def cuda_registration(body: memoryview) -> CudaRegistration:
    """The body of a registration. Raises ServerError, in the real server's order of faults."""
    document = rapid_json.loads(body)
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
