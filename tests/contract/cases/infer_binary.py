"""Inference with binary tensors after the JSON, raw requests, and compressed bodies."""

from __future__ import annotations

import struct
import zlib

from contract.casebook import (
    Case,
    binary,
    bodies,
    byte_strings,
    case,
    chapter,
    document,
    infer,
    infer_binary,
    infer_path,
    post,
    tensor,
)
from contract.wire import Exchange

FOUR = struct.pack("<4f", 1, 2, 3, 4)
X = binary("X", "FP32", [1, 4], 16)
XJ = tensor("X", "FP32", [1, 4], [1, 2, 3, 4])
A = binary("A", "FP32", [1, 4], 16)
B = binary("B", "INT32", [1, 1, 2], 8)
B_BYTES = struct.pack("<2i", -5, 6)
AS_BINARY = {"parameters": {"binary_data": True}}
ALL_BINARY = {"parameters": {"binary_data_output": True}}
HEADER_LENGTH = "Inference-Header-Content-Length"

SIZES = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "FP32": 4,
    "FP64": 8,
}


def batched(tail: bytes = FOUR, *, size: object = 16, **more) -> bytes:
    """Send bytes after the JSON as four FP32, which they need not be."""
    return infer_binary("batched", tail, binary("X", "FP32", [1, 4], size), **more)


def without_header(tail: bytes) -> bytes:
    """Send binary data without the header that has the length of the JSON."""
    return post(infer_path("batched"), document(X).encode() + tail)


def raw(model: str, body: bytes) -> bytes:
    """Send only the tensor, with a header length of zero."""
    return post(infer_path(model), body, headers={HEADER_LENGTH: "0"})


def words(tail: bytes, shape: list[int], size: int | None = None) -> bytes:
    """Send BYTES elements after the JSON."""
    given = binary("T", "BYTES", shape, len(tail) if size is None else size)
    return infer_binary("words", tail, given)


def encoded(encoding: str, body: bytes, **headers: str) -> bytes:
    """Send a body that is, or claims to be, compressed."""
    return post(infer_path("batched"), body, headers={"Content-Encoding": encoding} | headers)


def accepting(encodings: str, **more) -> bytes:
    """Request a compressed reply that is large enough for compression."""
    given = tensor("X", "FP32", [200], [0] * 200)
    return infer("vector", given, headers={"Accept-Encoding": encodings}, **more)


def inflate(body: bytes) -> bytes:
    """Decompress gzip or deflate; return any other body unchanged."""
    try:
        return zlib.decompress(body, wbits=47)
    except zlib.error:
        return body


def compressor_free(exchange: Exchange) -> Exchange:
    """Compare decompressed content, as compressed bytes depend on the library."""
    return bodies(inflate)(exchange)


PLAIN = document(XJ).encode()


def gzipped(plain: bytes) -> bytes:
    """Compress to the same bytes with each Python, which gzip.compress does not guarantee."""
    compressor = zlib.compressobj(9, wbits=31)
    return compressor.compress(plain) + compressor.flush()


GZIP = gzipped(PLAIN)

CASES: list[Case] = [
    *chapter(
        "binary",
        case("in", batched(), 200),
        case("in and out", batched(outputs=[{"name": "Y", **AS_BINARY}]), 200),
        case("out alone", infer("batched", XJ, outputs=[{"name": "Y", **AS_BINARY}]), 200),
        case("all out", infer("batched", XJ, **ALL_BINARY), 200),
        case(
            "all out, but one is listed",
            infer("batched", XJ, outputs=[{"name": "Y"}], **ALL_BINARY),
            200,
        ),
        case(
            "not out",
            infer(
                "batched",
                XJ,
                outputs=[{"name": "Y", "parameters": {"binary_data": False}}],
                **ALL_BINARY,
            ),
            200,
        ),
        case("two inputs", infer_binary("pair", FOUR + B_BYTES, A, B), 200),
        case("two inputs in the other order", infer_binary("pair", B_BYTES + FOUR, B, A), 200),
        case(
            "one input of two",
            infer_binary("pair", B_BYTES, tensor("A", "FP32", [1, 4], [1, 2, 3, 4]), B),
            200,
        ),
        case(
            "one output of two",
            infer_binary(
                "pair", FOUR + B_BYTES, A, B, outputs=[{"name": "OA"}, {"name": "OB", **AS_BINARY}]
            ),
            200,
        ),
        case("both outputs", infer_binary("pair", FOUR + B_BYTES, A, B, **ALL_BINARY), 200),
        case(
            "outputs in the other order",
            infer_binary(
                "pair",
                FOUR + B_BYTES,
                A,
                B,
                outputs=[{"name": "OB", **AS_BINARY}, {"name": "OA", **AS_BINARY}],
            ),
            200,
        ),
        case("id", batched(id="b1", **ALL_BINARY), 200),
        case(
            "header name in small letters",
            batched(headers={}).replace(
                b"Inference-Header-Content-Length", b"inference-header-content-length"
            ),
            200,
        ),
        case(
            "no elements",
            infer_binary("vector", b"", binary("X", "FP32", [0], 0), **ALL_BINARY),
            200,
        ),
        case("header over the whole body", infer_binary("batched", b"", XJ), 200),
        case(
            "unused parameters",
            infer_binary("batched", FOUR, {**X, "parameters": {"binary_data_size": 16, "a": 1}}),
            200,
        ),
        *(
            case(
                f"{name} both ways",
                infer_binary(
                    "types",
                    bytes(range(1, 1 + 2 * size)),
                    binary(name, name, [2], 2 * size),
                    **ALL_BINARY,
                ),
                200,
            )
            for name, size in SIZES.items()
        ),
        case(
            "BF16 both ways",
            infer_binary(
                "bf16", bytes(range(1, 13)), binary("X", "BF16", [3, 2], 12), **ALL_BINARY
            ),
            200,
        ),
        case(
            "BF16 out in JSON",
            infer_binary("bf16", bytes(12), binary("X", "BF16", [3, 2], 12)),
            400,
        ),
        case(
            "BOOL out in JSON",
            infer_binary("types", b"\x00\x01\x02\xff", binary("BOOL", "BOOL", [4], 4)),
            200,
        ),
        case(
            "FP16 out in JSON", infer_binary("half", b"\x00\x3c", binary("X", "FP16", [1], 2)), 400
        ),
        case(
            "FP32 not a number",
            infer_binary(
                "vector", b"\x00\x00\xc0\x7f\x00\x00\x80\xff", binary("X", "FP32", [2], 8)
            ),
            200,
        ),
        case(
            "a megabyte",
            infer_binary("vector", bytes(2**20), binary("X", "FP32", [2**18], 2**20), **ALL_BINARY),
            200,
        ),
    ),
    *chapter(
        "binary header",
        case("absent", without_header(b"\1" * 16), 500),
        case("absent, first byte NUL", without_header(b"\0" * 16), 400),
        case("absent, only white space", without_header(b" " * 16), 400),
        case("absent, no bytes", without_header(b""), 400),
        case("more than the body", batched(header_length=100000), 400),
        case("negative", batched(header_length=-1), 400),
        case("overflows", batched(header_length="9" * 30), 400),
        case("letters", batched(header_length="abc"), 400),
        case("empty", batched(header_length=""), 400),
        case("letters behind the number", batched(header_length=f"{len(document(X))}abc"), 200),
        case("a point behind the number", batched(header_length=f"{len(document(X))}.5"), 200),
        case("spaces before the number", batched(header_length=f"  {len(document(X))}"), 200),
        case("a plus before the number", batched(header_length=f"+{len(document(X))}"), 200),
        case("too small", batched(header_length=len(document(X)) - 1), 500),
        case("too large", batched(b"\1" * 16, header_length=len(document(X)) + 4), 500),
        case(
            "too large over NUL bytes", batched(bytes(16), header_length=len(document(X)) + 4), 400
        ),
    ),
    *chapter(
        "binary size",
        case("body too short", batched(FOUR[:12]), 400),
        case("body too short for two", infer_binary("pair", FOUR, A, B), 400),
        case("body too long", batched(FOUR + b"\1"), 400),
        case("nobody declared it", infer_binary("batched", FOUR, XJ), 400),
        case("smaller than the shape", batched(FOUR[:8], size=8), 400),
        case("larger than the shape", batched(FOUR * 2, size=32), 400),
        case("zero", batched(b"", size=0), 400),
        case(
            "zero, and a shape of zero",
            infer_binary("vector", b"", binary("X", "FP32", [0], 0)),
            200,
        ),
        case("negative", batched(size=-1), 500),
        case("text", batched(size="16"), 500),
        case("a float", batched(size=16.0), 500),
        case("null", batched(size=None), 500),
        case("and data", infer_binary("batched", FOUR, {**X, "data": [1]}), 400),
        case(
            "wrong datatype", infer_binary("batched", FOUR, binary("X", "INT32", [1, 4], 16)), 400
        ),
        case(
            "unknown datatype", infer_binary("batched", FOUR, binary("X", "FLOAT", [1, 4], 16)), 400
        ),
        case("wrong shape", infer_binary("batched", FOUR, binary("X", "FP32", [4], 16)), 400),
        case(
            "batch too large",
            infer_binary("batched", FOUR * 9, binary("X", "FP32", [9, 4], 144)),
            400,
        ),
        case(
            "a wanted kind of a wrong type",
            infer("batched", XJ, outputs=[{"name": "Y", "parameters": {"binary_data": 1}}]),
            500,
        ),
        case(
            "all wanted, of a wrong type",
            infer("batched", XJ, parameters={"binary_data_output": "true"}),
            500,
        ),
    ),
    *chapter(
        "binary text",
        case("in", words(byte_strings(b"a", b"", "数字".encode()), [3]), 200),
        case(
            "in and out",
            infer_binary(
                "words", byte_strings(b"a", b"bc"), binary("T", "BYTES", [2], 11), **ALL_BINARY
            ),
            200,
        ),
        case("bytes that are not UTF-8", words(byte_strings(b"\xff\x00\xfe"), [1]), 200),
        case("no elements", words(b"", [0]), 200),
        case("length beyond the end", words(b"\x09\0\0\0abc", [1]), 400),
        case("length huge", words(b"\xff\xff\xff\xffabc", [1]), 400),
        case("length too short", words(b"\x01\0\0\0abc", [1]), 400),
        case("half a length", words(b"\x01\0", [1]), 400),
        case("too few", words(byte_strings(b"a"), [2]), 400),
        case("too many", words(byte_strings(b"a", b"b"), [1]), 400),
        case("empty of one", words(b"", [1]), 400),
    ),
    *chapter(
        "raw",
        case("a variable dimension", raw("vector", FOUR), 200),
        case(
            "with a version", post(infer_path("vector/1"), FOUR, headers={HEADER_LENGTH: "0"}), 200
        ),
        case("not a whole number of elements", raw("vector", FOUR[:6]), 400),
        case("nothing", raw("vector", b""), 200),
        case("a fixed shape", raw("batched", FOUR), 200),
        case("too short for a fixed shape", raw("batched", FOUR[:8]), 400),
        case("too long for a fixed shape", raw("batched", FOUR * 2), 400),
        case("a ragged model", raw("ragged", FOUR), 200),
        case("FP16", raw("half", b"\x00\x3c\x00\x40"), 200),
        case("text", raw("text", "Grüße".encode()), 200),
        case("no text", raw("text", b""), 200),
        case("text of a variable number", raw("words", b"abc"), 400),
        case("two variable dimensions", raw("matrix", FOUR), 400),
        case("two inputs", raw("pair", FOUR), 400),
        case("optional inputs count", raw("optional", FOUR[:8]), 400),
        case("header of minus zero", batched(header_length="-0"), 400),
    ),
    *chapter(
        "compression",
        case("gzip", encoded("gzip", GZIP), 200),
        case("deflate", encoded("deflate", zlib.compress(PLAIN)), 200),
        case("gzip called deflate", encoded("deflate", GZIP), 200),
        case("deflate called gzip", encoded("gzip", zlib.compress(PLAIN)), 200),
        case("identity", encoded("identity", PLAIN), 200),
        case("no name", encoded("", PLAIN), 501),
        case(
            "gzip with binary data",
            encoded(
                "gzip",
                gzipped(document(X).encode() + FOUR),
                **{HEADER_LENGTH: str(len(document(X)))},
            ),
            200,
        ),
        case("gzip in capitals", encoded("GZIP", GZIP), 501),
        case("brotli", encoded("br", b"x"), 501),
        case("two codings", encoded("gzip, deflate", GZIP), 501),
        case("gzip of nothing", encoded("gzip", b""), 400),
        case("garbage", encoded("gzip", b"garbage!"), 400),
        case("a wrong checksum", encoded("gzip", GZIP[:-8] + bytes(8)), 200),
        case("cut short", encoded("gzip", GZIP[:-20]), 500),
        case("raw deflate", encoded("deflate", zlib.compress(PLAIN)[2:-4]), 400),
        case(
            "two members",
            encoded("gzip", gzipped(PLAIN[:30]) + gzipped(PLAIN[30:])),
            500,
        ),
        *(
            case(f"reply: {wanted!r}", accepting(wanted), 200, unstable=compressor_free)
            for wanted in (
                *("gzip", "deflate", "identity", "", "*", "br", "GZIP", "gzip, deflate"),
                *(
                    "deflate, gzip",
                    "gzip;q=0.5, deflate;q=0.8",
                    "gzip;q=0",
                    "identity;q=0.5, gzip;q=0.4",
                ),
                *("gzip; q=1, deflate;q=0.1", "gzip;q=abc", "br, gzip", "gzip;q=1.5,deflate;q=2"),
            )
        ),
        case(
            "reply with binary data", accepting("gzip", **ALL_BINARY), 200, unstable=compressor_free
        ),
        case("errors stay plain", infer("vector", headers={"Accept-Encoding": "gzip"}), 400),
    ),
]
