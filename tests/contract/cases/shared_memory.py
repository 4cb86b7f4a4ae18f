"""Shared memory: the endpoints field by field, and inference from and into regions.

Every case begins without regions and with the same two objects, `ONE` and `TWO`. A case with
several requests sends them over one connection, and has the status of the last one.
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
#: The initial content of the objects.
OBJECTS = {
    ONE: (FIRST + SECOND + bytes(224) + STRINGS).ljust(4096, b"\0") + SECOND + bytes(4080),
    TWO: bytes(16384),
}

REFUSED = "failed to register shared memory region"
UNMAPPED = "unable to process address spaceInvalid argument"


# --------------------------------------------------------------------------------------- requests


def register(name: str = "r", key: Any = f"/{ONE}", byte_size: Any = 64, **more: Any) -> bytes:
    """Register a system region; None removes a field."""
    fields = {"key": key, "byte_size": byte_size} | more
    given = {field: value for field, value in fields.items() if value is not None}
    return post(f"{SYSTEM}/region/{name}/register", json.dumps(given))


def raw_register(body: str | bytes) -> bytes:
    """Register a system region with this body."""
    return post(f"{SYSTEM}/region/r/register", body)


HANDLE = base64.b64encode(bytes(range(64))).decode()


def cuda_register(name: str = "r", **changes: Any) -> bytes:
    """Register a CUDA region; None removes a field."""
    fields = {"raw_handle": {"b64": HANDLE}, "device_id": 0, "byte_size": 64} | changes
    given = {field: value for field, value in fields.items() if value is not None}
    return post(f"{CUDA}/region/{name}/register", json.dumps(given))


def unregister(name: str = "", kind: str = SYSTEM) -> bytes:
    """Unregister one region, or all."""
    return post(f"{kind}/region/{name}/unregister" if name else f"{kind}/unregister", "")


def status(name: str = "", kind: str = SYSTEM) -> bytes:
    """Request the status of one region, or of all."""
    return get(f"{kind}/region/{name}/status" if name else f"{kind}/status")


def where(region: Any = "one", size: Any = 16, offset: Any = None, **more: Any) -> dict[str, Any]:
    """Return the parameters of a tensor in shared memory; None removes a parameter."""
    parameters = {
        "shared_memory_region": region,
        "shared_memory_byte_size": size,
        "shared_memory_offset": offset,
    } | more
    return {"parameters": {key: value for key, value in parameters.items() if value is not None}}


def given(name: str, datatype: str, shape: list[int], *place: Any, **more: Any) -> dict[str, Any]:
    """Return an input in shared memory."""
    return {"name": name, "datatype": datatype, "shape": shape, **where(*place, **more)}


def x(*place: Any, **more: Any) -> dict[str, Any]:
    """Return the input X, four floats, in shared memory."""
    return given("X", "FP32", [4], *place, **more)


def wanted(name: str, *place: Any, **more: Any) -> dict[str, Any]:
    """Return an output in shared memory."""
    return {"name": name, **where(*place, **more)}


def y(*place: Any, **more: Any) -> list[dict[str, Any]]:
    """Return the outputs of a request: only Y, in shared memory."""
    return [wanted("Y", *place, **more)]


X = tensor("X", "FP32", [4], [1, 2, 3, 4])
REGIONS = (register("one", f"/{ONE}", 4096), register("two", f"/{TWO}", 8192))


def steps(name: str, requests: list[bytes], status: int) -> Case:
    """Write a case of several requests over one connection; `status` is that of the last."""
    return case(name, requests, status, replies=len(requests))


def used(name: str, request: bytes, status: int) -> Case:
    """Write a case of a request after the regions `one` and `two` are registered."""
    return steps(name, [*REGIONS, request], status)


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
    """Write cases of a type as input, as output, both at odd offsets, and both at one offset."""
    data = bits.tobytes()
    size, name = len(data), "STRING" if datatype == "BYTES" else datatype
    place = _put("two", 0, data)
    sent = binary(name, datatype, [3], size)
    inside = given(name, datatype, [3], "two", size, 0)
    listed = {"name": f"{name}_OUT", "parameters": {"binary_data": True}}
    odd = given(name, datatype, [3], "two", size, 65)
    return [
        steps(f"{datatype} in", [*REGIONS, place, infer("types", inside, outputs=[listed])], 200),
        steps(
            f"{datatype} out",
            [
                *REGIONS,
                infer_binary("types", data, sent, outputs=[wanted(f"{name}_OUT", "two", size, 0)]),
            ],
            200,
        ),
        steps(
            f"{datatype} at an odd place",
            [
                *REGIONS,
                _put("two", 65, data),
                infer("types", odd, outputs=[wanted(f"{name}_OUT", "two", size, 1027)]),
            ],
            200,
        ),
        steps(
            f"{datatype} onto itself",
            [
                *REGIONS,
                place,
                infer("types", inside, outputs=[wanted(f"{name}_OUT", "two", size, 0)]),
            ],
            200,
        ),
    ]


def _put(region: str, offset: int, data: bytes) -> bytes:
    """Make the server write bytes into a region, as an output of an identity model."""
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
            case(f"{kind}: status of none", status(kind=base), 200),
            case(f"{kind}: status posted", post(f"{base}/status", ""), 405),
            case(f"{kind}: status asked for by head", get(f"{base}/status", method="HEAD"), 405),
            case(f"{kind}: status with a query", get(f"{base}/status?x=1"), 200),
            case(f"{kind}: status with a slash", get(f"{base}/status/"), 404),
            case(f"{kind}: register got", get(f"{base}/region/r/register"), 405),
            case(f"{kind}: register all got", get(f"{base}/register"), 405),
            case(f"{kind}: register put", get(f"{base}/region/r/register", method="PUT"), 405),
            case(f"{kind}: register without a name", post(f"{base}/register", "{"), 400),
            case(f"{kind}: unregister got", get(f"{base}/region/r/unregister"), 405),
            case(f"{kind}: unregister all got", get(f"{base}/unregister"), 405),
            case(f"{kind}: unregister all of none", unregister(kind=base), 200),
            case(f"{kind}: unregister with a body", post(f"{base}/unregister", '{"x"'), 200),
            case(f"{kind}: unregister of an unknown name", unregister("r", base), 200),
            case(f"{kind}: status of an unknown name", status("r", base), 404),
            case(f"{kind}: no verb", get(f"{base}/region/r"), 404),
            case(f"{kind}: another verb", get(f"{base}/region/r/list"), 404),
            case(f"{kind}: an empty name", get(f"{base}/region//status"), 404),
            case(f"{kind}: two names", get(f"{base}/region/a/b/status"), 404),
            case(f"{kind}: a name with a percent sign", get(f"{base}/region/%61/status"), 404),
        )
    ),
)

_REGISTER = chapter(
    "shm register",
    *(
        steps(name, [request, status()], 200)
        for name, request in (
            ("good", register()),
            ("key without a slash", register(key=ONE)),
            ("key with two slashes", register(key=f"//{ONE}")),
            ("key with a NUL", register(key=f"{ONE}\0x")),
            ("whole object", register(byte_size=8192)),
            ("offset of a page", register(offset=4096, byte_size=4096)),
            ("offset of a page, less", register(offset=4096)),
            ("unknown field", register(more=1)),
            ("key twice", raw_register(f'{{"key":"{ONE}","byte_size":64,"key":"x"}}')),
            ("byte_size twice", raw_register(f'{{"key":"{ONE}","byte_size":64,"byte_size":"x"}}')),
            (
                "offset twice",
                raw_register(f'{{"key":"{ONE}","byte_size":64,"offset":0,"offset":-1}}'),
            ),
            ("name with a quote", register('a"b\\')),
            ("name with a percent sign", register("a%2Fb")),
            ("byte order mark", raw_register(f'\ufeff{{"key":"{ONE}","byte_size":9}}')),
        )
    ),
    *(
        steps(name, [request, status()], 200)
        for name, request in (
            ("refused leaves nothing", register(byte_size=0)),
            ("mistyped leaves nothing", register(byte_size="64")),
        )
    ),
    *(
        case(f"key {name}", register(key=key), code)
        for name, key, code in (
            ("missing", None, 400),
            ("of no object", f"/{NONE}", 500),
            ("a number", 5, 500),
            ("a list", [ONE], 500),
            ("true", True, 500),
            ("empty", "", 500),
            ("a slash", "/", 500),
            ("a dot", ".", 500),
            ("two dots", "..", 500),
            ("slash and two dots", "/..", 500),
            ("within a folder", f"/{ONE}/x", 500),
            ("by way of a folder", f"/./{ONE}", 500),
            ("out and in again", f"../shm/{ONE}", 500),
            ("outside", "/../../etc/hostname", 500),
            ("an absolute path", f"/dev/shm/{ONE}", 500),
            ("of 255 letters", "x" * 255, 500),
            ("of 256 letters", "x" * 256, 500),
            ("of 5000 letters", "x" * 5000, 500),
            ("of other letters", "/数", 500),
        )
    ),
    case("key null", raw_register('{"key":null,"byte_size":64}'), 500),
    *(
        case(f"byte_size {name}", register(byte_size=size), code)
        for name, size, code in (
            ("missing", None, 400),
            ("zero", 0, 400),
            ("one too many", 8193, 400),
            ("2**63", 2**63, 400),
            ("2**64-1", 2**64 - 1, 400),
            ("2**64", 2**64, 500),
            ("negative", -1, 500),
            ("a float", 64.0, 500),
            ("text", "64", 500),
            ("true", True, 500),
            ("a list", [64], 500),
        )
    ),
    case("byte_size null", raw_register(f'{{"key":"{ONE}","byte_size":null}}'), 500),
    *(
        case(f"offset {name}", register(offset=offset), code)
        for name, offset, code in (
            ("1", 1, 400),
            ("of half a page", 2048, 400),
            ("at the end", 8192, 400),
            ("behind the end", 12288, 400),
            ("2**63", 2**63, 400),
            ("2**64", 2**64, 500),
            ("negative", -4096, 500),
            ("a float", 0.0, 500),
            ("text", "0", 500),
            ("false", False, 500),
        )
    ),
    case("offset of the sum's wrap", register(byte_size=1, offset=2**64 - 1), 400),
    case("offset of a page's wrap", register(byte_size=8192, offset=2**64 - 4096), 400),
    case("offset and byte_size too large", register(offset=4096, byte_size=4097), 400),
    case("no bytes at a page", register(offset=4096, byte_size=0), 400),
    case("offset null", raw_register(f'{{"key":"{ONE}","byte_size":64,"offset":null}}'), 500),
    case("key before offset", register(key=5, offset="x", byte_size="x"), 500),
    case("offset before byte_size", register(byte_size=None, offset="x"), 500),
    *(
        case(f"body {name}", raw_register(body), code)
        for name, body, code in (
            ("empty", "", 500),
            ("cut", '{"key":', 500),
            ("of two values", "{} x", 500),
            ("an empty object", "{}", 400),
            ("a list", "[]", 400),
            ("text", '"x"', 400),
            ("null", "null", 400),
        )
    ),
    steps("name in use", [register(), register(key=TWO)], 400),
    steps("name in use, no object", [register(), register(key=NONE)], 400),
    steps("name in use, no key", [register(), register(key=None)], 400),
    steps("name in use by system", [register(), cuda_register()], 400),
    steps("several", [*REGIONS, register("a", TWO), status()], 200),
    steps("one of several", [*REGIONS, status("two")], 200),
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
    steps("one", [*REGIONS, unregister("one"), status()], 200),
    steps("twice", [*REGIONS, unregister("one"), unregister("one")], 200),
    steps("all", [*REGIONS, unregister(), status()], 200),
    steps("an unknown one", [*REGIONS, unregister("x"), status()], 200),
    steps("as cuda", [*REGIONS, unregister("one", CUDA), status()], 200),
    steps("all of cuda", [*REGIONS, unregister(kind=CUDA), status()], 200),
    steps("and register again", [register(), unregister("r"), register(), status("r")], 200),
    steps("status of the other kind", [register(), status("r", CUDA)], 404),
    steps("then use", [*REGIONS, unregister("one"), infer("vector", x())], 404),
    steps(
        "between two uses",
        [*REGIONS, infer("vector", x()), unregister("one"), infer("vector", x())],
        404,
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
    ),
)

_CUDA = chapter(
    "shm cuda register",
    *(
        case(name, cuda_register(**changes), code)
        for name, changes, code in (
            ("good, without a driver", {}, 400),
            ("unknown field", {"x": 1}, 400),
            ("no raw_handle", {"raw_handle": None}, 400),
            ("raw_handle a number", {"raw_handle": 5}, 500),
            ("raw_handle text", {"raw_handle": HANDLE}, 500),
            ("raw_handle a list", {"raw_handle": []}, 500),
            ("raw_handle empty", {"raw_handle": {}}, 500),
            ("raw_handle with more", {"raw_handle": {"b64": HANDLE, "x": 1}}, 400),
            *(
                (f"b64 {kind}", {"raw_handle": {"b64": value}}, code)
                for kind, value, code in (
                    ("a number", 5, 500),
                    ("null", None, 500),
                    ("empty", "", 400),
                    ("of no letters", "!!!!", 400),
                    ("too short", base64.b64encode(bytes(63)).decode(), 400),
                    ("too long", base64.b64encode(bytes(65)).decode(), 400),
                    ("twice", HANDLE * 2, 400),
                    ("without padding", HANDLE.rstrip("="), 400),
                    ("with half the padding", HANDLE[:-1], 400),
                    ("with a line feed", HANDLE[:40] + "\n" + HANDLE[40:], 400),
                    ("with a star", HANDLE[:40] + "*" + HANDLE[40:], 400),
                    ("with a NUL", HANDLE[:40] + "\0" + HANDLE[40:], 400),
                    ("with a dash", HANDLE[:40] + "-" + HANDLE[40:], 400),
                    ("one letter short", HANDLE.rstrip("=")[:-1], 400),
                )
            ),
            ("no byte_size", {"byte_size": None}, 500),
            ("byte_size zero", {"byte_size": 0}, 400),
            ("byte_size negative", {"byte_size": -1}, 500),
            ("byte_size text", {"byte_size": "64"}, 500),
            ("byte_size a float", {"byte_size": 64.0}, 500),
            ("byte_size 2**64-1", {"byte_size": 2**64 - 1}, 400),
            ("byte_size 2**64", {"byte_size": 2**64}, 500),
            ("no device_id", {"device_id": None}, 500),
            ("device_id of no device", {"device_id": 99}, 400),
            ("device_id negative", {"device_id": -1}, 500),
            ("device_id text", {"device_id": "0"}, 500),
            ("device_id true", {"device_id": True}, 500),
            ("device_id 2**31", {"device_id": 2**31}, 400),
            ("device_id 2**32", {"device_id": 2**32}, 400),
            ("device_id 2**64", {"device_id": 2**64}, 500),
            ("byte_size before device_id", {"byte_size": None, "device_id": "x"}, 500),
            ("handle after the rest", {"raw_handle": {"b64": ""}, "device_id": "x"}, 500),
        )
    ),
    *(
        case(f"body {name}", post(f"{CUDA}/region/r/register", body), code)
        for name, body, code in (
            ("empty", "", 500),
            ("cut", "{", 500),
            ("a list", "[]", 400),
            ("null", "null", 400),
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
    ),
    steps("name in use, bad handle", [register(), cuda_register(raw_handle={"b64": ""})], 400),
    steps("refused leaves nothing", [cuda_register(), status(kind=CUDA)], 200),
)

#: Names, offsets and sizes in a region of 4096 bytes, each with the status of an input, and of an
#: output, of 16 bytes there.
_PLACES = (
    ("at the end", 4080, 16, 200, 200),
    ("one byte over the end", 4081, 16, 400, 400),
    ("the last byte", 4095, 1, 400, 500),
    ("over the last byte", 4095, 2, 400, 400),
    ("behind the end", 4096, 1, 400, 400),
    ("nothing behind the end", 4096, 0, 400, 400),
    ("far behind the end", 2**63, 16, 400, 400),
    ("at the greatest offset", 2**64 - 1, 1, 400, 400),
    ("of the greatest size", 0, 2**64 - 1, 400, 400),
    ("of a sum that wraps to nothing", 16, 2**64 - 16, 400, 400),
    ("the whole region", 0, 4096, 400, 200),
    ("more than the region", 0, 4097, 400, 400),
    ("nothing at the beginning", 0, 0, 400, 400),
    ("nothing further on", 16, 0, 400, 500),
    ("without a size", 0, None, 400, 400),
    ("without a size, further on", 16, None, 400, 500),
    ("one byte too small", 16, 15, 400, 500),
    ("one byte too large", 16, 17, 400, 200),
    ("of a sum that wraps", 16, 2**64 - 8, 400, 200),
)
_MISTYPED = (
    ("region a number", {"shared_memory_region": 5}, 500),
    ("region null", {"shared_memory_region": None}, 500),
    ("region a list", {"shared_memory_region": ["one"]}, 500),
    ("region empty", {"shared_memory_region": ""}, 404),
    ("region unknown", {"shared_memory_region": "x"}, 404),
    ("region with a NUL", {"shared_memory_region": "one\0x"}, 200),
    *(
        (f"{field} {name}", {f"shared_memory_{field}": value}, 500)
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
    ("unknown beside", {"shared_memory_key": "x"}, 200),
)


def _exact(place: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a tensor with changed parameters; here, None is null."""
    return place | {"parameters": place["parameters"] | changes}


_INPUTS = chapter(
    "shm input",
    *(
        used(name, infer("vector", x("one", size, offset)), code)
        for name, offset, size, code, _ in _PLACES
    ),
    *(
        used(name, infer("vector", _exact(x("one", 16, 0), changes)), code)
        for name, changes, code in _MISTYPED
    ),
    used("offset left out", infer("vector", x()), 200),
    used("at an offset", infer("vector", x("one", 16, 16)), 200),
    used("at an odd offset", infer("vector", x("one", 16, 3)), 200),
    used("with an id", infer("vector", x(), id="q"), 200),
    used("with data", infer("vector", X | where()), 400),
    used("with binary data", infer("vector", x(binary_data_size=16)), 400),
    used("without region", infer("vector", x(None, 16)), 400),
    used("without region, with data", infer("vector", X | where(None, 5, 7)), 200),
    used("offset mistyped, with data", infer("vector", X | where(None, "x", "y")), 500),
    used(
        "size mistyped, with bad data", infer("vector", X | where(None, "x") | {"data": "x"}), 500
    ),
    used(
        "mistyped, with binary data",
        infer_binary("vector", FIRST, x(None, "x", "y", binary_data_size=16)),
        200,
    ),
    used("region, offset, size mistyped", infer("vector", x(5, "x", "y")), 500),
    used("offset, size mistyped", infer("vector", x("one", "x", "y")), 500),
    used("size mistyped, region unknown", infer("vector", x("z", "x")), 500),
    used(
        "name missing, region unknown",
        infer("vector", {"datatype": "FP32", "shape": [4], **where("z")}),
        500,
    ),
    used("shape mistyped", infer("vector", x(5) | {"shape": "x"}), 500),
    used("datatype unknown", infer("vector", x() | {"datatype": "FP99"}), 400),
    used("datatype unknown, region unknown", infer("vector", x("z") | {"datatype": "F"}), 404),
    used("name unknown", infer("vector", given("Z", "FP32", [4])), 400),
    used("twice", infer("vector", x(), x("z")), 400),
    used("batched", infer("batched", given("X", "FP32", [2, 4], "one", 32)), 200),
    used(
        "parameters twice",
        post(
            "/v2/models/vector/infer",
            '{"inputs":[{"name":"X","datatype":"FP32","shape":[4],"parameters":{'
            '"shared_memory_region":"one","shared_memory_region":5,'
            '"shared_memory_byte_size":16,"shared_memory_byte_size":"x"}}]}',
        ),
        200,
    ),
    used("parameters a list", infer("vector", X | {"parameters": [where()]}), 200),
    used("no elements at the beginning", infer("vector", x("one", 0, 0) | {"shape": [0]}), 400),
    used("no elements", infer("vector", x("one", 0, 8) | {"shape": [0]}), 200),
    used("no elements, of a size", infer("vector", x("one", 4, 8) | {"shape": [0]}), 400),
    used("bytes left over", infer_binary("vector", b"xxxx", x()), 400),
    used("strings", infer("words", given("T", "BYTES", [3], "one", 16, 256)), 200),
    used("too many strings", infer("words", given("T", "BYTES", [3], "one", 20, 256)), 400),
    used("too few strings", infer("words", given("T", "BYTES", [4], "one", 16, 256)), 400),
    used("a string cut", infer("words", given("T", "BYTES", [1], "one", 5, 256)), 400),
    used("a length cut", infer("words", given("T", "BYTES", [1], "one", 3, 256)), 400),
    used("no strings", infer("words", given("T", "BYTES", [0], "one", 0, 256)), 200),
    used("of an ensemble", infer("chain", given("IN", "FP32", [1, 4])), 200),
    used(
        "beside binary data",
        infer_binary(
            "pair",
            struct.pack("<2i", 7, 8),
            given("A", "FP32", [1, 4]),
            binary("B", "INT32", [1, 1, 2], 8),
        ),
        200,
    ),
    used(
        "twice the same bytes",
        infer("types", given("FP32", "FP32", [4]), given("INT32", "INT32", [4])),
        200,
    ),
    used(
        "of two regions",
        infer("types", given("FP32", "FP32", [4]), given("INT32", "INT32", [4], "two")),
        200,
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
    ),
)

_OUTPUTS = chapter(
    "shm output",
    *(
        used(name, infer("vector", X, outputs=y("one", size, offset)), code)
        for name, offset, size, _, code in _PLACES
    ),
    *(
        used(name, infer("vector", X, outputs=[_exact(wanted("Y", "one", 16, 0), changes)]), code)
        for name, changes, code in _MISTYPED
    ),
    used("offset left out", infer("vector", X, outputs=y("two")), 200),
    used("at an odd offset", infer("vector", X, outputs=y("two", 16, 1001)), 200),
    used("with an id", infer("vector", X, outputs=y("two"), id="q"), 200),
    used("binary_data true", infer("vector", X, outputs=y(binary_data=True)), 400),
    used("binary_data false", infer("vector", X, outputs=y(binary_data=False)), 200),
    used("binary_data 1", infer("vector", X, outputs=y(binary_data=1)), 500),
    used("binary_data 1, region 5", infer("vector", X, outputs=y(5, binary_data=1)), 500),
    used("classification", infer("vector", X, outputs=y(classification=1)), 400),
    used("classification 0", infer("vector", X, outputs=y(classification=0)), 400),
    used("classification mistyped", infer("vector", X, outputs=y(classification="x")), 400),
    used(
        "classification and binary_data",
        infer("vector", X, outputs=y(classification=1, binary_data=1)),
        400,
    ),
    used("classes, region unknown", infer("vector", X, outputs=y("z", classification=1)), 400),
    used("binary_data, region unknown", infer("vector", X, outputs=y("z", binary_data=True)), 400),
    used("size without region", infer("vector", X, outputs=y(None, 5, 7)), 200),
    used("mistyped without region", infer("vector", X, outputs=y(None, "x", "y")), 500),
    used(
        "mistyped without region, binary_data too",
        infer("vector", X, outputs=y(None, "x", binary_data="x")),
        500,
    ),
    used(
        "mistyped without region, classification too",
        infer("vector", X, outputs=y(None, "x", classification="x")),
        500,
    ),
    used(
        "binary_data_output",
        infer("vector", X, outputs=y("two"), parameters={"binary_data_output": True}),
        200,
    ),
    used("parameters a text", infer("vector", X, outputs=[{"name": "Y", "parameters": "x"}]), 200),
    used("unknown name", infer("vector", X, outputs=[wanted("Z")]), 400),
    used("unknown name, region unknown", infer("vector", X, outputs=[wanted("Z", "z")]), 404),
    used("twice, there and not", infer("vector", X, outputs=[*y("two"), {"name": "Y"}]), 200),
    used("twice, not and there", infer("vector", X, outputs=[{"name": "Y"}, *y("two")]), 200),
    used("twice, here and there", infer("vector", X, outputs=[*y("two"), *y("one")]), 200),
    used("twice, region unknown", infer("vector", X, outputs=[*y("two"), *y("z")]), 404),
    used("no elements", infer("vector", tensor("X", "FP32", [0], []), outputs=y("two")), 200),
    used(
        "strings",
        infer("words", given("T", "BYTES", [3], "one", 16, 256), outputs=[wanted("U", "two", 99)]),
        200,
    ),
    used(
        "strings, too small",
        infer("words", given("T", "BYTES", [3], "one", 16, 256), outputs=[wanted("U", "two", 15)]),
        500,
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
        "compressed", infer("vector", X, outputs=y("two"), headers={"Accept-Encoding": "gzip"}), 200
    ),
)

_BOTH = chapter(
    "shm both",
    used("one region", infer("vector", x(), outputs=y("one", 16, 1024)), 200),
    used("the same place", infer("vector", x(), outputs=y()), 200),
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
    ),
)

_DATATYPES = chapter(
    "shm datatype",
    *(row for name, bits in _TYPES.items() for row in _typed(name, bits)),
    # NumPy has no BF16, so this type has a separate model.
    *(
        used(
            f"BF16 {name}",
            infer("bf16", given("X", "BF16", [2, 2], "one", 8, at), outputs=outputs),
            200,
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

CASES = [*_ENDPOINTS, *_REGISTER, *_UNREGISTER, *_CUDA, *_INPUTS, *_OUTPUTS, *_BOTH, *_DATATYPES]
