"""Shared memory: the endpoints field by field, and inference from and into regions.

Every case begins without regions and with the same two objects, `ONE` and `TWO`; a case of several
requests sends them over one connection, and its row is about the last.
"""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np
from contract.casebook import (
    Case,
    binary,
    byte_strings,
    case,
    chapter,
    get,
    infer,
    infer_binary,
    post,
    tensor,
)
from contract.recordings import PROCESS

SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
_PREFIX = f"contract_{PROCESS}_"
ONE, TWO, NONE = (_PREFIX + name for name in ("one", "two", "none"))
FIRST, SECOND = struct.pack("<4f", 1, 2, 3, 4), struct.pack("<4f", 5, 6, 7, 8)
STRINGS = byte_strings(b"ab", b"\xff\0", b"")
#: What lies in the objects at first.
OBJECTS = {
    ONE: (FIRST + SECOND + bytes(224) + STRINGS).ljust(4096, b"\0") + SECOND + bytes(4080),
    TWO: bytes(16384),
}

NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NOT_STRING = "attempt to access JSON non-string as string"
REFUSED = "failed to register shared memory region"
UNMAPPED = "unable to process address spaceInvalid argument"
BAD_OFFSET = "Invalid offset for shared memory region: 'one'"
BAD_END = "Invalid offset + byte size for shared memory region: 'one'"
TOO_SMALL = "should be at least 16 bytes to hold the results"


# --------------------------------------------------------------------------------------- requests


def register(name: str = "r", key: Any = f"/{ONE}", byte_size: Any = 64, **more: Any) -> bytes:
    """Register a system region; None takes a field out."""
    fields = {"key": key, "byte_size": byte_size} | more
    given = {field: value for field, value in fields.items() if value is not None}
    return post(f"{SYSTEM}/region/{name}/register", json.dumps(given))


def raw_register(body: str | bytes) -> bytes:
    """Register a system region in the words given."""
    return post(f"{SYSTEM}/region/r/register", body)


HANDLE = base64.b64encode(bytes(range(64))).decode()


def cuda_register(name: str = "r", **changes: Any) -> bytes:
    """Register a CUDA region; None takes a field out."""
    fields = {"raw_handle": {"b64": HANDLE}, "device_id": 0, "byte_size": 64} | changes
    given = {field: value for field, value in fields.items() if value is not None}
    return post(f"{CUDA}/region/{name}/register", json.dumps(given))


def unregister(name: str = "", kind: str = SYSTEM) -> bytes:
    """Unregister one region, or all."""
    return post(f"{kind}/region/{name}/unregister" if name else f"{kind}/unregister", "")


def status(name: str = "", kind: str = SYSTEM) -> bytes:
    """Ask for one region, or all."""
    return get(f"{kind}/region/{name}/status" if name else f"{kind}/status")


def where(region: Any = "one", size: Any = 16, offset: Any = None, **more: Any) -> dict[str, Any]:
    """The parameters of a tensor in shared memory; None takes one out."""
    parameters = {
        "shared_memory_region": region,
        "shared_memory_byte_size": size,
        "shared_memory_offset": offset,
    } | more
    return {"parameters": {key: value for key, value in parameters.items() if value is not None}}


def given(name: str, datatype: str, shape: list[int], *place: Any, **more: Any) -> dict[str, Any]:
    """An input in shared memory."""
    return {"name": name, "datatype": datatype, "shape": shape, **where(*place, **more)}


def x(*place: Any, **more: Any) -> dict[str, Any]:
    """The input X, four floats, in shared memory."""
    return given("X", "FP32", [4], *place, **more)


def wanted(name: str, *place: Any, **more: Any) -> dict[str, Any]:
    """An output that goes to shared memory."""
    return {"name": name, **where(*place, **more)}


def y(*place: Any, **more: Any) -> list[dict[str, Any]]:
    """The output Y alone, which goes to shared memory."""
    return [wanted("Y", *place, **more)]


X = tensor("X", "FP32", [4], [1, 2, 3, 4])
REGIONS = (register("one", f"/{ONE}", 4096), register("two", f"/{TWO}", 8192))


def steps(name: str, requests: list[bytes], status: int, says: str = "") -> Case:
    """Several requests over one connection; the row is about the last."""
    return case(name, requests, status, says, replies=len(requests))


def used(name: str, request: bytes, status: int, says: str = "") -> Case:
    """A request once the regions `one` and `two` are registered."""
    return steps(name, [*REGIONS, request], status, says)


# ------------------------------------------------------------------------------------- data types

_TYPES = {
    "BOOL": np.array([True, False, True]),
    "FP16": np.array([1.5, -0.0, np.inf], np.float16),
    "FP32": np.array([1.5, np.nan, -np.inf], np.float32),
    "FP64": np.array([1.5, 5e-324, -1e308]),
    **{
        f"{kind.upper()}{bits}": np.array([limits.min, 1, limits.max], limits.dtype)
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
        for limits in (np.iinfo(f"{kind}{bits}"),)
    },
    "BYTES": np.frombuffer(byte_strings(b"", b"\0\xff", "数".encode()), np.uint8),
}


def _typed(datatype: str, bits: np.ndarray) -> list[Case]:
    """A type out of a region, into one, both at an odd place, and both at the same place."""
    data = bits.tobytes()
    size, name = len(data), "STRING" if datatype == "BYTES" else datatype
    place = _put("two", 0, data)
    sent = binary(name, datatype, [3], size)
    inside = given(name, datatype, [3], "two", size, 0)
    listed = {"name": f"{name}_OUT", "parameters": {"binary_data": True}}
    odd = given(name, datatype, [3], "two", size, 65)
    return [
        steps(
            f"{datatype} in",
            [*REGIONS, place, infer("types", inside, outputs=[listed])],
            200,
            '"binary_data_size":' + str(size),
        ),
        steps(
            f"{datatype} out",
            [
                *REGIONS,
                infer_binary("types", data, sent, outputs=[wanted(f"{name}_OUT", "two", size, 0)]),
            ],
            200,
            f'"datatype":"{datatype}","shape":[3]}}]}}',
        ),
        steps(
            f"{datatype} at an odd place",
            [
                *REGIONS,
                _put("two", 65, data),
                infer("types", odd, outputs=[wanted(f"{name}_OUT", "two", size, 1027)]),
            ],
            200,
            '"shape":[3]}]}',
        ),
        steps(
            f"{datatype} onto itself",
            [
                *REGIONS,
                place,
                infer("types", inside, outputs=[wanted(f"{name}_OUT", "two", size, 0)]),
            ],
            200,
            '"shape":[3]}]}',
        ),
    ]


def _put(region: str, offset: int, data: bytes) -> bytes:
    """Have the server itself put bytes into a region: as an output of the bytes' identity."""
    return infer_binary(
        "types",
        data,
        binary("UINT8", "UINT8", [len(data)], len(data)),
        outputs=[wanted("UINT8_OUT", region, len(data), offset)],
    )


# ------------------------------------------------------------------------------------- the tables

_ENDPOINTS = chapter(
    "shm endpoint",
    *(
        row
        for kind, base in (("system", SYSTEM), ("cuda", CUDA))
        for row in (
            case(f"{kind}: status of none", status(kind=base), 200, "[]"),
            case(f"{kind}: status posted", post(f"{base}/status", ""), 405, "Method Not Allowed"),
            case(f"{kind}: status asked for by head", get(f"{base}/status", method="HEAD"), 405),
            case(f"{kind}: status with a query", get(f"{base}/status?x=1"), 200, "[]"),
            case(f"{kind}: status with a slash", get(f"{base}/status/"), 404, "Not Found"),
            case(f"{kind}: register got", get(f"{base}/region/r/register"), 405),
            case(f"{kind}: register all got", get(f"{base}/register"), 405),
            case(f"{kind}: register put", get(f"{base}/region/r/register", method="PUT"), 405),
            case(
                f"{kind}: register without a name",
                post(f"{base}/register", "{"),
                400,
                f"'region name' is necessary to register {kind} shared memory region",
            ),
            case(f"{kind}: unregister got", get(f"{base}/region/r/unregister"), 405),
            case(f"{kind}: unregister all got", get(f"{base}/unregister"), 405),
            case(f"{kind}: unregister all of none", unregister(kind=base), 200),
            case(f"{kind}: unregister with a body", post(f"{base}/unregister", '{"x"'), 200),
            case(f"{kind}: unregister of an unknown name", unregister("r", base), 200),
            case(
                f"{kind}: status of an unknown name",
                status("r", base),
                404,
                f"Unable to find {kind} shared memory region: 'r'",
            ),
            case(f"{kind}: no verb", get(f"{base}/region/r"), 404, "Not Found"),
            case(f"{kind}: another verb", get(f"{base}/region/r/list"), 404, "Not Found"),
            case(f"{kind}: an empty name", get(f"{base}/region//status"), 404, "Not Found"),
            case(f"{kind}: two names", get(f"{base}/region/a/b/status"), 404, "Not Found"),
            case(
                f"{kind}: a name with a percent sign",
                get(f"{base}/region/%61/status"),
                404,
                "region: '%61'",
            ),
        )
    ),
)

_REGISTER = chapter(
    "shm register",
    *(
        steps(name, [request, status()], 200, says)
        for name, request, says in (
            ("good", register(), f'[{{"name":"r","key":"/{ONE}","offset":0,"byte_size":64}}]'),
            ("key without a slash", register(key=ONE), f'"key":"{ONE}"'),
            ("key with two slashes", register(key=f"//{ONE}"), f'"key":"//{ONE}"'),
            ("key with a NUL", register(key=f"{ONE}\0x"), f'"key":"{ONE}"'),
            ("whole object", register(byte_size=8192), '"byte_size":8192'),
            ("offset of a page", register(offset=4096, byte_size=4096), '"offset":4096'),
            ("offset of a page, less", register(offset=4096), '"offset":4096'),
            ("unknown field", register(more=1), '"byte_size":64'),
            ("key twice", raw_register(f'{{"key":"{ONE}","byte_size":64,"key":"x"}}'), f'"{ONE}"'),
            (
                "byte_size twice",
                raw_register(f'{{"key":"{ONE}","byte_size":64,"byte_size":"x"}}'),
                '"byte_size":64',
            ),
            (
                "offset twice",
                raw_register(f'{{"key":"{ONE}","byte_size":64,"offset":0,"offset":-1}}'),
                '"offset":0',
            ),
            ("name with a quote", register('a"b\\'), '"name":"a\\"b\\\\"'),
            ("name with a percent sign", register("a%2Fb"), '"name":"a%2Fb"'),
            ("byte order mark", raw_register(f'\ufeff{{"key":"{ONE}","byte_size":9}}'), ":9}]"),
        )
    ),
    *(
        steps(name, [request, status()], 200, "[]")
        for name, request in (
            ("refused leaves nothing", register(byte_size=0)),
            ("mistyped leaves nothing", register(byte_size="64")),
        )
    ),
    *(
        case(f"key {name}", register(key=key), code, says)
        for name, key, code, says in (
            ("missing", None, 400, "Shared memory register request has no 'key' field"),
            ("of no object", f"/{NONE}", 500, f"Unable to open shared memory region: '/{NONE}'"),
            ("a number", 5, 500, NOT_STRING),
            ("a list", [ONE], 500, NOT_STRING),
            ("true", True, 500, NOT_STRING),
            ("empty", "", 500, "Unable to open shared memory region: ''"),
            ("a slash", "/", 500, "region: '/'"),
            ("a dot", ".", 500, "region: '.'"),
            ("two dots", "..", 500, "region: '..'"),
            ("slash and two dots", "/..", 500, "region: '/..'"),
            ("within a folder", f"/{ONE}/x", 500, "Unable to open"),
            ("by way of a folder", f"/./{ONE}", 500, "Unable to open"),
            ("out and in again", f"../shm/{ONE}", 500, "Unable to open"),
            ("outside", "/../../etc/hostname", 500, "Unable to open"),
            ("an absolute path", f"/dev/shm/{ONE}", 500, "Unable to open"),
            ("of 255 letters", "x" * 255, 500, "Unable to open"),
            ("of 256 letters", "x" * 256, 500, "Unable to open"),
            ("of 5000 letters", "x" * 5000, 500, "Unable to open"),
            ("of other letters", "/数", 500, "Unable to open shared memory region: '/数'"),
        )
    ),
    case("key null", raw_register('{"key":null,"byte_size":64}'), 500, NOT_STRING),
    *(
        case(f"byte_size {name}", register(byte_size=size), code, says)
        for name, size, code, says in (
            ("missing", None, 400, "Shared memory register request has no 'byte_size' field"),
            ("zero", 0, 400, f"{REFUSED} 'r': {UNMAPPED}"),
            ("one too many", 8193, 400, f"{REFUSED} 'r': invalid args"),
            ("2**63", 2**63, 400, "invalid args"),
            ("2**64-1", 2**64 - 1, 400, "invalid args"),
            ("2**64", 2**64, 500, NOT_UNSIGNED),
            ("negative", -1, 500, NOT_UNSIGNED),
            ("a float", 64.0, 500, NOT_UNSIGNED),
            ("text", "64", 500, NOT_UNSIGNED),
            ("true", True, 500, NOT_UNSIGNED),
            ("a list", [64], 500, NOT_UNSIGNED),
        )
    ),
    case("byte_size null", raw_register(f'{{"key":"{ONE}","byte_size":null}}'), 500, NOT_UNSIGNED),
    *(
        case(f"offset {name}", register(offset=offset), code, says)
        for name, offset, code, says in (
            ("1", 1, 400, UNMAPPED),
            ("of half a page", 2048, 400, UNMAPPED),
            ("at the end", 8192, 400, "invalid args"),
            ("behind the end", 12288, 400, "invalid args"),
            ("2**63", 2**63, 400, "invalid args"),
            ("2**64", 2**64, 500, NOT_UNSIGNED),
            ("negative", -4096, 500, NOT_UNSIGNED),
            ("a float", 0.0, 500, NOT_UNSIGNED),
            ("text", "0", 500, NOT_UNSIGNED),
            ("false", False, 500, NOT_UNSIGNED),
        )
    ),
    case("offset of the sum's wrap", register(byte_size=1, offset=2**64 - 1), 400, REFUSED),
    case("offset of a page's wrap", register(byte_size=8192, offset=2**64 - 4096), 400, REFUSED),
    case("offset and byte_size too large", register(offset=4096, byte_size=4097), 400, "invalid"),
    case("no bytes at a page", register(offset=4096, byte_size=0), 400, UNMAPPED),
    case(
        "offset null",
        raw_register(f'{{"key":"{ONE}","byte_size":64,"offset":null}}'),
        500,
        NOT_UNSIGNED,
    ),
    case("key before offset", register(key=5, offset="x", byte_size="x"), 500, NOT_STRING),
    case("offset before byte_size", register(byte_size=None, offset="x"), 500, NOT_UNSIGNED),
    *(
        case(f"body {name}", raw_register(body), code, says)
        for name, body, code, says in (
            ("empty", "", 500, "The document is empty. at 0"),
            ("cut", '{"key":', 500, "failed to parse the request JSON buffer"),
            ("of two values", "{} x", 500, "must not be followed by other values. at 3"),
            ("an empty object", "{}", 400, "no 'key' field"),
            ("a list", "[]", 400, "no 'key' field"),
            ("text", '"x"', 400, "no 'key' field"),
            ("null", "null", 400, "no 'key' field"),
        )
    ),
    steps("name in use", [register(), register(key=TWO)], 400, "region 'r' already in manager"),
    steps("name in use, no object", [register(), register(key=NONE)], 400, "already in manager"),
    steps("name in use, no key", [register(), register(key=None)], 400, "no 'key' field"),
    steps("name in use by system", [register(), cuda_register()], 400, "already in manager"),
    steps("several", [*REGIONS, register("a", TWO), status()], 200, '[{"name":"a"'),
    steps("one of several", [*REGIONS, status("two")], 200, '[{"name":"two"'),
    steps("same key again", [register(key=TWO), register("s", key=TWO), status()], 200),
    steps(
        "same key at another offset",
        [register(key=TWO), register("s", key=TWO, offset=4096), status()],
        200,
    ),
    steps("same object by another key", [register(), register("s", key=ONE), status()], 200),
)

_UNREGISTER = chapter(
    "shm unregister",
    steps("one", [*REGIONS, unregister("one"), status()], 200, '[{"name":"two"'),
    steps("twice", [*REGIONS, unregister("one"), unregister("one")], 200),
    steps("all", [*REGIONS, unregister(), status()], 200, "[]"),
    steps("an unknown one", [*REGIONS, unregister("x"), status()], 200, '"name":"one"'),
    steps("as cuda", [*REGIONS, unregister("one", CUDA), status()], 200, '"name":"one"'),
    steps("all of cuda", [*REGIONS, unregister(kind=CUDA), status()], 200, '"name":"one"'),
    steps("and register again", [register(), unregister("r"), register(), status("r")], 200, "r"),
    steps(
        "status of the other kind",
        [register(), status("r", CUDA)],
        404,
        "The region named 'r' is registered as system shared memory, not CUDA shared memory",
    ),
    steps("then use", [*REGIONS, unregister("one"), infer("vector", x())], 404, "Unable to find"),
    steps(
        "between two uses",
        [*REGIONS, infer("vector", x()), unregister("one"), infer("vector", x())],
        404,
        "Unable to find shared memory region: 'one'",
    ),
    steps(
        "and another object of that name",
        [
            *REGIONS,
            infer("vector", x()),
            unregister("one"),
            register("one", TWO),
            infer("vector", x()),
        ],
        200,
        "[0.0,0.0,0.0,0.0]",
    ),
)

_CUDA_REFUSED = "failed to register shared memory region: invalid args"
_BAD_HANDLE = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
_MISSING = "attempt to access non-existing object member"
_CUDA = chapter(
    "shm cuda register",
    *(
        case(name, cuda_register(**changes), code, says)
        for name, changes, code, says in (
            ("good, without a driver", {}, 400, _CUDA_REFUSED),
            ("unknown field", {"x": 1}, 400, _CUDA_REFUSED),
            ("no raw_handle", {"raw_handle": None}, 400, "request has no 'raw_handle' field"),
            ("raw_handle a number", {"raw_handle": 5}, 500, f"{_MISSING} 'b64'"),
            ("raw_handle text", {"raw_handle": HANDLE}, 500, f"{_MISSING} 'b64'"),
            ("raw_handle a list", {"raw_handle": []}, 500, f"{_MISSING} 'b64'"),
            ("raw_handle empty", {"raw_handle": {}}, 500, f"{_MISSING} 'b64'"),
            ("raw_handle with more", {"raw_handle": {"b64": HANDLE, "x": 1}}, 400, _CUDA_REFUSED),
            *(
                (f"b64 {kind}", {"raw_handle": {"b64": value}}, code, says)
                for kind, value, code, says in (
                    ("a number", 5, 500, NOT_STRING),
                    ("null", None, 500, NOT_STRING),
                    ("empty", "", 400, _BAD_HANDLE),
                    ("of no letters", "!!!!", 400, _BAD_HANDLE),
                    ("too short", base64.b64encode(bytes(63)).decode(), 400, _BAD_HANDLE),
                    ("too long", base64.b64encode(bytes(65)).decode(), 400, _BAD_HANDLE),
                    ("twice", HANDLE * 2, 400, _BAD_HANDLE),
                    ("without padding", HANDLE.rstrip("="), 400, _CUDA_REFUSED),
                    ("with half the padding", HANDLE[:-1], 400, _CUDA_REFUSED),
                    ("with a line feed", HANDLE[:40] + "\n" + HANDLE[40:], 400, _CUDA_REFUSED),
                    ("with a star", HANDLE[:40] + "*" + HANDLE[40:], 400, _CUDA_REFUSED),
                    ("with a NUL", HANDLE[:40] + "\0" + HANDLE[40:], 400, _CUDA_REFUSED),
                    ("with a dash", HANDLE[:40] + "-" + HANDLE[40:], 400, _CUDA_REFUSED),
                    ("one letter short", HANDLE.rstrip("=")[:-1], 400, _BAD_HANDLE),
                )
            ),
            ("no byte_size", {"byte_size": None}, 500, f"{_MISSING} 'byte_size'"),
            ("byte_size zero", {"byte_size": 0}, 400, _CUDA_REFUSED),
            ("byte_size negative", {"byte_size": -1}, 500, NOT_UNSIGNED),
            ("byte_size text", {"byte_size": "64"}, 500, NOT_UNSIGNED),
            ("byte_size a float", {"byte_size": 64.0}, 500, NOT_UNSIGNED),
            ("byte_size 2**64-1", {"byte_size": 2**64 - 1}, 400, _CUDA_REFUSED),
            ("byte_size 2**64", {"byte_size": 2**64}, 500, NOT_UNSIGNED),
            ("no device_id", {"device_id": None}, 500, f"{_MISSING} 'device_id'"),
            ("device_id of no device", {"device_id": 99}, 400, _CUDA_REFUSED),
            ("device_id negative", {"device_id": -1}, 500, NOT_UNSIGNED),
            ("device_id text", {"device_id": "0"}, 500, NOT_UNSIGNED),
            ("device_id true", {"device_id": True}, 500, NOT_UNSIGNED),
            ("device_id 2**31", {"device_id": 2**31}, 400, _CUDA_REFUSED),
            ("device_id 2**32", {"device_id": 2**32}, 400, _CUDA_REFUSED),
            ("device_id 2**64", {"device_id": 2**64}, 500, NOT_UNSIGNED),
            ("byte_size before device_id", {"byte_size": None, "device_id": "x"}, 500, "byte_size"),
            (
                "handle after the rest",
                {"raw_handle": {"b64": ""}, "device_id": "x"},
                500,
                NOT_UNSIGNED,
            ),
        )
    ),
    *(
        case(f"body {name}", post(f"{CUDA}/region/r/register", body), code, says)
        for name, body, code, says in (
            ("empty", "", 500, "The document is empty. at 0"),
            ("cut", "{", 500, "Missing a name for object member. at 1"),
            ("a list", "[]", 400, "no 'raw_handle' field"),
            ("null", "null", 400, "no 'raw_handle' field"),
        )
    ),
    case(
        "fields twice",
        post(
            f"{CUDA}/region/r/register",
            f'{{"raw_handle":{{"b64":"{HANDLE}"}},"raw_handle":5,"byte_size":64,"byte_size":"x",'
            '"device_id":0,"device_id":"x"}',
        ),
        400,
        _CUDA_REFUSED,
    ),
    steps(
        "name in use, bad handle",
        [register(), cuda_register(raw_handle={"b64": ""})],
        400,
        _BAD_HANDLE,
    ),
    steps("refused leaves nothing", [cuda_register(), status(kind=CUDA)], 200, "[]"),
)

#: Offsets and sizes in a region of 4096 bytes, and the answers as the place of an input and an
#: output of 16 bytes.
_PLACES = (
    ("at the end", 4080, 16, 200, "", 200, ""),
    ("one byte over the end", 4081, 16, 400, BAD_END, 400, BAD_END),
    ("the last byte", 4095, 1, 400, "Expected 16, got 1", 500, TOO_SMALL),
    ("over the last byte", 4095, 2, 400, BAD_END, 400, BAD_END),
    ("behind the end", 4096, 1, 400, BAD_OFFSET, 400, BAD_OFFSET),
    ("nothing behind the end", 4096, 0, 400, BAD_OFFSET, 400, BAD_OFFSET),
    ("far behind the end", 2**63, 16, 400, BAD_OFFSET, 400, BAD_OFFSET),
    ("at the greatest offset", 2**64 - 1, 1, 400, BAD_OFFSET, 400, BAD_OFFSET),
    ("of the greatest size", 0, 2**64 - 1, 400, BAD_END, 400, BAD_END),
    ("of a sum that wraps to nothing", 16, 2**64 - 16, 400, BAD_END, 400, BAD_END),
    ("the whole region", 0, 4096, 400, "Expected 16, got 4096", 200, ""),
    ("more than the region", 0, 4097, 400, BAD_END, 400, BAD_END),
    ("nothing at the beginning", 0, 0, 400, BAD_END, 400, BAD_END),
    ("nothing further on", 16, 0, 400, "Expected 16, got 0", 500, TOO_SMALL),
    ("without a size", 0, None, 400, BAD_END, 400, BAD_END),
    ("without a size, further on", 16, None, 400, "Expected 16, got 0", 500, TOO_SMALL),
    ("one byte too small", 16, 15, 400, "Expected 16, got 15", 500, TOO_SMALL),
    ("one byte too large", 16, 17, 400, "Expected 16, got 17", 200, ""),
    ("of a sum that wraps", 16, 2**64 - 8, 400, "Expected 16, got 1844674407370955", 200, ""),
)
_MISTYPED = (
    ("region a number", {"shared_memory_region": 5}, 500, f"'shared_memory_region': {NOT_STRING}"),
    ("region null", {"shared_memory_region": None}, 500, f"'shared_memory_region': {NOT_STRING}"),
    ("region a list", {"shared_memory_region": ["one"]}, 500, NOT_STRING),
    ("region empty", {"shared_memory_region": ""}, 404, "Unable to find shared memory region: ''"),
    ("region unknown", {"shared_memory_region": "x"}, 404, "shared memory region: 'x'"),
    ("region with a NUL", {"shared_memory_region": "one\0x"}, 200, ""),
    *(
        (f"{field} {name}", {f"shared_memory_{field}": value}, 500, f"{field}': {NOT_UNSIGNED}")
        for field in ("byte_size", "offset")
        for name, value in (
            ("text", "16"),
            ("negative", -1),
            ("a float", 16.0),
            ("null", None),
            ("true", True),
            ("2**64", 2**64),
            ("a list", [16]),
        )
    ),
    ("unknown beside", {"shared_memory_key": "x"}, 200, ""),
)


def _exact(place: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A tensor whose parameters are changed, where None is null."""
    return place | {"parameters": place["parameters"] | changes}


_INPUTS = chapter(
    "shm input",
    *(
        used(name, infer("vector", x("one", size, offset)), code, says)
        for name, offset, size, code, says, *_ in _PLACES
    ),
    *(
        used(name, infer("vector", _exact(x("one", 16, 0), changes)), code, says)
        for name, changes, code, says in _MISTYPED
    ),
    used("offset left out", infer("vector", x()), 200, "[1.0,2.0,3.0,4.0]"),
    used("at an offset", infer("vector", x("one", 16, 16)), 200, "[5.0,6.0,7.0,8.0]"),
    used("at an odd offset", infer("vector", x("one", 16, 3)), 200),
    used("with an id", infer("vector", x(), id="q"), 200, '{"id":"q"'),
    used(
        "with data",
        infer("vector", X | where()),
        400,
        "But set 'data' 'shared_memory_region'",
    ),
    used(
        "with binary data",
        infer("vector", x(binary_data_size=16)),
        400,
        "But set 'binary_data_size' 'shared_memory_region'",
    ),
    used("without region", infer("vector", x(None, 16)), 400, "But no field is set"),
    used("without region, with data", infer("vector", X | where(None, 5, 7)), 200),
    used(
        "offset mistyped, with data",
        infer("vector", X | where(None, "x", "y")),
        500,
        "Unable to parse 'shared_memory_offset'",
    ),
    used(
        "size mistyped, with bad data",
        infer("vector", X | where(None, "x") | {"data": "x"}),
        500,
        "Unable to parse 'shared_memory_byte_size'",
    ),
    used(
        "mistyped, with binary data",
        infer_binary("vector", FIRST, x(None, "x", "y", binary_data_size=16)),
        200,
    ),
    used("region, offset, size mistyped", infer("vector", x(5, "x", "y")), 500, "memory_region'"),
    used("offset, size mistyped", infer("vector", x("one", "x", "y")), 500, "memory_offset'"),
    used("size mistyped, region unknown", infer("vector", x("z", "x")), 500, "memory_byte_size'"),
    used(
        "name missing, region unknown",
        infer("vector", {"datatype": "FP32", "shape": [4], **where("z")}),
        500,
        "Unable to parse 'name'",
    ),
    used("shape mistyped", infer("vector", x(5) | {"shape": "x"}), 500, "Unable to parse 'shape'"),
    used("datatype unknown", infer("vector", x() | {"datatype": "FP99"}), 400, "'<invalid>'"),
    used("datatype unknown, region unknown", infer("vector", x("z") | {"datatype": "F"}), 404),
    used("name unknown", infer("vector", given("Z", "FP32", [4])), 400, "unexpected inference"),
    used("twice", infer("vector", x(), x("z")), 400, "input 'X' already exists in request"),
    used("batched", infer("batched", given("X", "FP32", [2, 4], "one", 32)), 200, "8.0]"),
    used(
        "parameters twice",
        post(
            "/v2/models/vector/infer",
            '{"inputs":[{"name":"X","datatype":"FP32","shape":[4],"parameters":{'
            '"shared_memory_region":"one","shared_memory_region":5,'
            '"shared_memory_byte_size":16,"shared_memory_byte_size":"x"}}]}',
        ),
        200,
        "[1.0,2.0,3.0,4.0]",
    ),
    used("parameters a list", infer("vector", X | {"parameters": [where()]}), 200),
    used("no elements at the beginning", infer("vector", x("one", 0, 0) | {"shape": [0]}), 400),
    used("no elements", infer("vector", x("one", 0, 8) | {"shape": [0]}), 200, '"data":[]'),
    used("no elements, of a size", infer("vector", x("one", 4, 8) | {"shape": [0]}), 400, "got 4"),
    used("bytes left over", infer_binary("vector", b"xxxx", x()), 400, "unexpected additional"),
    used("strings", infer("words", given("T", "BYTES", [3], "one", 16, 256)), 200, '"ab"'),
    used(
        "too many strings", infer("words", given("T", "BYTES", [3], "one", 20, 256)), 400, "4 for"
    ),
    used("too few strings", infer("words", given("T", "BYTES", [4], "one", 16, 256)), 400, "got 3"),
    used(
        "a string cut", infer("words", given("T", "BYTES", [1], "one", 5, 256)), 400, "incomplete"
    ),
    used(
        "a length cut", infer("words", given("T", "BYTES", [1], "one", 3, 256)), 400, "incomplete"
    ),
    used("no strings", infer("words", given("T", "BYTES", [0], "one", 0, 256)), 200, '"data":[]'),
    used("of an ensemble", infer("chain", given("IN", "FP32", [1, 4])), 200, "[1.0,2.0,3.0,4.0]"),
    used(
        "beside binary data",
        infer_binary(
            "pair",
            struct.pack("<2i", 7, 8),
            given("A", "FP32", [1, 4]),
            binary("B", "INT32", [1, 1, 2], 8),
        ),
        200,
        '"data":[7,8]',
    ),
    used(
        "twice the same bytes",
        infer("types", given("FP32", "FP32", [4]), given("INT32", "INT32", [4])),
        200,
        "1065353216",
    ),
    used(
        "of two regions",
        infer("types", given("FP32", "FP32", [4]), given("INT32", "INT32", [4], "two")),
        200,
        '"data":[0,0,0,0]',
    ),
    steps(
        "of a region that begins further on",
        [register("one", ONE, 4096, offset=4096), infer("vector", x())],
        200,
    ),
    steps(
        "at the end of a region that begins further on",
        [register("one", ONE, 4096, offset=4096), infer("vector", x("one", 16, 4080))],
        200,
    ),
    steps(
        "behind a region that begins further on",
        [register("one", ONE, 4096, offset=4096), infer("vector", x("one", 16, 4081))],
        200,
    ),
    steps(
        "the same request again",
        [*REGIONS, infer("vector", x()), _put("one", 0, SECOND), infer("vector", x())],
        200,
        "[5.0,6.0,7.0,8.0]",
    ),
)

_OUTPUTS = chapter(
    "shm output",
    *(
        used(name, infer("vector", X, outputs=y("one", size, offset)), code, says)
        for name, offset, size, _, _, code, says in _PLACES
    ),
    *(
        used(
            name,
            infer("vector", X, outputs=[_exact(wanted("Y", "one", 16, 0), changes)]),
            code,
            says,
        )
        for name, changes, code, says in _MISTYPED
    ),
    used("offset left out", infer("vector", X, outputs=y("two")), 200, '"shape":[4]}]}'),
    used("at an odd offset", infer("vector", X, outputs=y("two", 16, 1001)), 200),
    used("with an id", infer("vector", X, outputs=y("two"), id="q"), 200, '{"id":"q"'),
    used("binary_data true", infer("vector", X, outputs=y(binary_data=True)), 400, "'binary_data'"),
    used("binary_data false", infer("vector", X, outputs=y(binary_data=False)), 200),
    used("binary_data 1", infer("vector", X, outputs=y(binary_data=1)), 500, "Unable to set"),
    used("binary_data 1, region 5", infer("vector", X, outputs=y(5, binary_data=1)), 500, "to set"),
    used("classification", infer("vector", X, outputs=y(classification=1)), 400, "classification'"),
    used("classification 0", infer("vector", X, outputs=y(classification=0)), 400),
    used("classification mistyped", infer("vector", X, outputs=y(classification="x")), 400),
    used(
        "classification and binary_data",
        infer("vector", X, outputs=y(classification=1, binary_data=1)),
        400,
        "'classification'",
    ),
    used("classes, region unknown", infer("vector", X, outputs=y("z", classification=1)), 400),
    used("binary_data, region unknown", infer("vector", X, outputs=y("z", binary_data=True)), 400),
    used("size without region", infer("vector", X, outputs=y(None, 5, 7)), 200, '"data":[1.0'),
    used(
        "mistyped without region",
        infer("vector", X, outputs=y(None, "x", "y")),
        500,
        "Unable to parse 'shared_memory_offset'",
    ),
    used(
        "mistyped without region, binary_data too",
        infer("vector", X, outputs=y(None, "x", binary_data="x")),
        500,
        "Unable to parse 'shared_memory_byte_size'",
    ),
    used(
        "mistyped without region, classification too",
        infer("vector", X, outputs=y(None, "x", classification="x")),
        500,
        "Unable to set 'classification'",
    ),
    used(
        "binary_data_output",
        infer("vector", X, outputs=y("two"), parameters={"binary_data_output": True}),
        200,
        '"shape":[4]}]}',
    ),
    used("parameters a text", infer("vector", X, outputs=[{"name": "Y", "parameters": "x"}]), 200),
    used("unknown name", infer("vector", X, outputs=[wanted("Z")]), 400, "unexpected inference"),
    used("unknown name, region unknown", infer("vector", X, outputs=[wanted("Z", "z")]), 404),
    used("twice, there and not", infer("vector", X, outputs=[*y("two"), {"name": "Y"}]), 200),
    used("twice, not and there", infer("vector", X, outputs=[{"name": "Y"}, *y("two")]), 200),
    used("twice, here and there", infer("vector", X, outputs=[*y("two"), *y("one")]), 200),
    used("twice, region unknown", infer("vector", X, outputs=[*y("two"), *y("z")]), 404, "'z'"),
    used(
        "no elements",
        infer("vector", tensor("X", "FP32", [0], []), outputs=y("two")),
        200,
        '"shape":[0]}]}',
    ),
    used(
        "strings",
        infer("words", given("T", "BYTES", [3], "one", 16, 256), outputs=[wanted("U", "two", 99)]),
        200,
        '"shape":[3]}]}',
    ),
    used(
        "strings, too small",
        infer("words", given("T", "BYTES", [3], "one", 16, 256), outputs=[wanted("U", "two", 15)]),
        500,
        "output 'U' (15 bytes) should be at least 16 bytes",
    ),
    used(
        "two in one region",
        infer(
            "types",
            tensor("FP32", "FP32", [2], [1, 2]),
            tensor("INT8", "INT8", [3], [1, 2, 3]),
            outputs=[wanted("INT8_OUT", "two", 3, 8), wanted("FP32_OUT", "two", 8, 0)],
        ),
        200,
    ),
    used(
        "two at one place",
        infer(
            "types",
            tensor("FP32", "FP32", [2], [1, 2]),
            tensor("INT8", "INT8", [3], [1, 2, 3]),
            outputs=[wanted("INT8_OUT", "two", 3), wanted("FP32_OUT", "two", 8)],
        ),
        200,
    ),
    *(
        used(
            f"two, the {which} too small",
            infer(
                "types",
                tensor("INT8", "INT8", [3], [1, 2, 3]),
                tensor("FP32", "FP32", [2], [1, 2]),
                outputs=[wanted("INT8_OUT", "two", a), wanted("FP32_OUT", "two", b, 8)],
            ),
            500,
            "to hold the results",
        )
        for which, a, b in (("first", 2, 8), ("second", 3, 7))
    ),
    *(
        used(
            f"beside one in {form}",
            infer(
                "types",
                tensor("INT8", "INT8", [3], [1, 2, 3]),
                tensor("FP32", "FP32", [2], [1, 2]),
                outputs=[wanted("INT8_OUT", "two", 3), {"name": "FP32_OUT"} | parameters],
            ),
            200,
            said,
        )
        for form, parameters, said in (
            ("JSON", {}, '"data":[1.0,2.0]'),
            ("binary", {"parameters": {"binary_data": True}}, '"binary_data_size":8'),
            ("classes", {"parameters": {"classification": 1}}, '"data":["2.000000:1"]'),
        )
    ),
    used(
        "of an ensemble",
        infer("chain", X | {"name": "IN", "shape": [1, 4]}, outputs=[wanted("OUT")]),
        200,
    ),
    used(
        "then a fault",
        infer("faults", tensor("what", "BYTES", [1], ["raise"]), outputs=y("two")),
        500,
    ),
    steps(
        "of a region that begins further on",
        [register("one", ONE, 4096, offset=4096), infer("vector", X, outputs=y("one", 16, 32))],
        200,
    ),
    used(
        "compressed",
        infer("vector", X, outputs=y("two"), headers={"Accept-Encoding": "gzip"}),
        200,
    ),
)

_BOTH = chapter(
    "shm both",
    used("one region", infer("vector", x(), outputs=y("one", 16, 1024)), 200, '"shape":[4]}]}'),
    used("the same place", infer("vector", x(), outputs=y()), 200, '"shape":[4]}]}'),
    used("one float on", infer("vector", x(), outputs=y("one", 16, 4)), 200),
    used("one float back", infer("vector", x("one", 16, 4), outputs=y("one", 16, 0)), 200),
    used("two regions", infer("vector", x(), outputs=y("two")), 200),
    used(
        "exchanged",
        infer(
            "types",
            given("FP32", "FP32", [4], "one", 16, 0),
            given("INT32", "INT32", [4], "one", 16, 16),
            outputs=[wanted("FP32_OUT", "one", 16, 16), wanted("INT32_OUT", "one", 16, 0)],
        ),
        200,
    ),
    used(
        "of an ensemble, the same place",
        infer("chain", given("IN", "FP32", [1, 4]), outputs=[wanted("OUT")]),
        200,
    ),
    steps(
        "the same request again and again",
        [*REGIONS, *[infer("vector", x(), outputs=y("two", 16, 8))] * 3],
        200,
        '"shape":[4]}]}',
    ),
    steps(
        "one's output is the other's input",
        [
            *REGIONS,
            infer("vector", x("one", 16, 16), outputs=y("two", 16, 8)),
            infer("vector", x("two", 16, 8), outputs=y("one", 16, 2000)),
            infer("vector", x("one", 16, 2000)),
        ],
        200,
        "[5.0,6.0,7.0,8.0]",
    ),
)

_DATATYPES = chapter(
    "shm datatype",
    *(row for name, bits in _TYPES.items() for row in _typed(name, bits)),
    # NumPy has no BF16, so it has a model of its own.
    *(
        used(
            f"BF16 {name}",
            infer("bf16", given("X", "BF16", [2, 2], "one", 8, at), outputs=outputs),
            200,
            '"name":"same","datatype":"BF16","shape":[2,2]}',
        )
        for name, at, outputs in (
            ("once", 16, [wanted("same", "two", 8)]),
            (
                "three times",
                0,
                [
                    wanted("same", "two", 8, 0),
                    wanted("again", "two", 8, 8),
                    wanted("more", "two", 8, 16),
                ],
            ),
            ("onto itself", 8, [wanted("same", "one", 8, 8), wanted("more", "one", 8, 4)]),
        )
    ),
)

CASES = [
    *_ENDPOINTS,
    *_REGISTER,
    *_UNREGISTER,
    *_CUDA,
    *_INPUTS,
    *_OUTPUTS,
    *_BOTH,
    *_DATATYPES,
]
