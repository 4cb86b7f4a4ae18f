"""Inference with tensors behind the JSON, raw requests, and compressed bodies."""

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
EXPECTING = "expecting {} additional bytes for model 'batched'"
LEFT_OVER = "unexpected additional input data for model 'batched'"
NOT_UNSIGNED = (
    "Unable to parse 'binary_data_size': "
    "attempt to access JSON non-unsigned-integer as unsigned-integer"
)

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
    """Send four FP32 behind the JSON, or whatever is claimed to be them."""
    return infer_binary("batched", tail, binary("X", "FP32", [1, 4], size), **more)


def without_header(tail: bytes) -> bytes:
    """Send binary data without saying where it begins."""
    return post(infer_path("batched"), document(X).encode() + tail)


def raw(model: str, body: bytes) -> bytes:
    """Send the tensor alone, as header length zero allows."""
    return post(infer_path(model), body, headers={HEADER_LENGTH: "0"})


def words(tail: bytes, shape: list[int], size: int | None = None) -> bytes:
    """Send BYTES elements behind the JSON."""
    given = binary("T", "BYTES", shape, len(tail) if size is None else size)
    return infer_binary("words", tail, given)


def encoded(encoding: str, body: bytes, **headers: str) -> bytes:
    """Send a body that is, or claims to be, compressed."""
    return post(infer_path("batched"), body, headers={"Content-Encoding": encoding} | headers)


def accepting(encodings: str, **more) -> bytes:
    """Ask for a compressed reply; it is large enough to be worth it."""
    given = tensor("X", "FP32", [200], [0] * 200)
    return infer("vector", given, headers={"Accept-Encoding": encodings}, **more)


def inflate(body: bytes) -> bytes:
    """Undo gzip or deflate, whichever it is; another body stays."""
    try:
        return zlib.decompress(body, wbits=47)
    except zlib.error:
        return body


def compressor_free(exchange: Exchange) -> Exchange:
    """Compare what was compressed: two libraries need not find the same bytes for it."""
    return bodies(inflate)(exchange)


PLAIN = document(XJ).encode()


def gzipped(plain: bytes) -> bytes:
    """Compress with the same bytes on each Python: gzip.compress writes other headers on some."""
    compressor = zlib.compressobj(9, wbits=31)
    return compressor.compress(plain) + compressor.flush()


GZIP = gzipped(PLAIN)

CASES: list[Case] = [
    *chapter(
        "binary",
        case("in", batched(), 200, '"data":[1.0,2.0,3.0,4.0]'),
        case(
            "in and out",
            batched(outputs=[{"name": "Y", **AS_BINARY}]),
            200,
            '"parameters":{"binary_data_size":16}',
        ),
        case("out alone", infer("batched", XJ, outputs=[{"name": "Y", **AS_BINARY}]), 200),
        case("all out", infer("batched", XJ, **ALL_BINARY), 200, '"binary_data_size":16'),
        case(
            "all out, but one is listed",
            infer("batched", XJ, outputs=[{"name": "Y"}], **ALL_BINARY),
            200,
            '"data":[',
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
            '"data":[',
        ),
        case("two inputs", infer_binary("pair", FOUR + B_BYTES, A, B), 200, "[-5,6]"),
        case(
            "two inputs in the other order",
            infer_binary("pair", B_BYTES + FOUR, B, A),
            200,
            "[-5,6]",
        ),
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
        case("id", batched(id="b1", **ALL_BINARY), 200, '{"id":"b1"'),
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
            '"binary_data_size":0',
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
                f'"binary_data_size":{2 * size}',
            )
            for name, size in SIZES.items()
        ),
        case(
            "BF16 both ways",
            infer_binary(
                "bf16", bytes(range(1, 13)), binary("X", "BF16", [3, 2], 12), **ALL_BINARY
            ),
            200,
            # As it came, once more, and with one added to the bits of each element.
            bytes(range(1, 13)).decode() * 2 + bytes(n + n % 2 for n in range(1, 13)).decode(),
        ),
        case(
            "BF16 out in JSON",
            infer_binary("bf16", bytes(12), binary("X", "BF16", [3, 2], 12)),
            400,
            "sending BF16 data via JSON is not supported",
        ),
        case(
            "BOOL out in JSON",
            infer_binary("types", b"\x00\x01\x02\xff", binary("BOOL", "BOOL", [4], 4)),
            200,
            "[false,true,true,true]",
        ),
        case(
            "FP16 out in JSON",
            infer_binary("half", b"\x00\x3c", binary("X", "FP16", [1], 2)),
            400,
            "sending FP16 data via JSON is not supported",
        ),
        case(
            "FP32 not a number",
            infer_binary(
                "vector", b"\x00\x00\xc0\x7f\x00\x00\x80\xff", binary("X", "FP32", [2], 8)
            ),
            200,
            "[NaN,-Infinity]",
        ),
        case(
            "a megabyte",
            infer_binary("vector", bytes(2**20), binary("X", "FP32", [2**18], 2**20), **ALL_BINARY),
            200,
        ),
    ),
    *chapter(
        "binary header",
        case(
            "absent",
            without_header(b"\1" * 16),
            500,
            "The document root must not be followed by other values.",
        ),
        case("absent, first byte NUL", without_header(b"\0" * 16), 400, EXPECTING.format(16)),
        case("absent, only white space", without_header(b" " * 16), 400, EXPECTING.format(16)),
        case("absent, no bytes", without_header(b""), 400, EXPECTING.format(16)),
        case(
            "more than the body",
            batched(header_length=100000),
            400,
            "inference header size should be in range (0, ",
        ),
        case(
            "negative",
            batched(header_length=-1),
            400,
            "inference header size should be in range (0, ",
        ),
        case(
            "overflows",
            batched(header_length="9" * 30),
            400,
            "inference header size should be in range (0, ",
        ),
        case("letters", batched(header_length="abc"), 400, "Expected 16, got"),
        case("empty", batched(header_length=""), 400, "Expected 16, got"),
        case("letters behind the number", batched(header_length=f"{len(document(X))}abc"), 200),
        case("a point behind the number", batched(header_length=f"{len(document(X))}.5"), 200),
        case("spaces before the number", batched(header_length=f"  {len(document(X))}"), 200),
        case("a plus before the number", batched(header_length=f"+{len(document(X))}"), 200),
        case(
            "too small",
            batched(header_length=len(document(X)) - 1),
            500,
            "Missing a comma or '}' after an object member.",
        ),
        case(
            "too large",
            batched(b"\1" * 16, header_length=len(document(X)) + 4),
            500,
            "The document root must not be followed by other values.",
        ),
        case(
            "too large over NUL bytes",
            batched(bytes(16), header_length=len(document(X)) + 4),
            400,
            EXPECTING.format(4),
        ),
    ),
    *chapter(
        "binary size",
        case("body too short", batched(FOUR[:12]), 400, EXPECTING.format(4)),
        case(
            "body too short for two",
            infer_binary("pair", FOUR, A, B),
            400,
            "unexpected size for input 'B', expecting 8 additional bytes for model 'pair'",
        ),
        case("body too long", batched(FOUR + b"\1"), 400, LEFT_OVER),
        case("nobody declared it", infer_binary("batched", FOUR, XJ), 400, LEFT_OVER),
        case(
            "smaller than the shape",
            batched(FOUR[:8], size=8),
            400,
            "input byte size mismatch for input 'X' for model 'batched'. Expected 16, got 8",
        ),
        case("larger than the shape", batched(FOUR * 2, size=32), 400, "Expected 16, got 32"),
        case("zero", batched(b"", size=0), 400, "Expected 16, got 0"),
        case(
            "zero, and a shape of zero",
            infer_binary("vector", b"", binary("X", "FP32", [0], 0)),
            200,
        ),
        case("negative", batched(size=-1), 500, NOT_UNSIGNED),
        case("text", batched(size="16"), 500, NOT_UNSIGNED),
        case("a float", batched(size=16.0), 500, NOT_UNSIGNED),
        case("null", batched(size=None), 500, NOT_UNSIGNED),
        case(
            "and data",
            infer_binary("batched", FOUR, {**X, "data": [1]}),
            400,
            "But set 'data' 'binary_data_size'",
        ),
        case(
            "wrong datatype",
            infer_binary("batched", FOUR, binary("X", "INT32", [1, 4], 16)),
            400,
            "data-type is 'INT32', but model 'batched' expects 'FP32'",
        ),
        case(
            "unknown datatype", infer_binary("batched", FOUR, binary("X", "FLOAT", [1, 4], 16)), 400
        ),
        case(
            "wrong shape",
            infer_binary("batched", FOUR, binary("X", "FP32", [4], 16)),
            400,
            "Expected [-1,4], got [4]",
        ),
        case(
            "batch too large",
            infer_binary("batched", FOUR * 9, binary("X", "FP32", [9, 4], 144)),
            400,
            "must be <= 8",
        ),
        case(
            "a wanted kind of a wrong type",
            infer("batched", XJ, outputs=[{"name": "Y", "parameters": {"binary_data": 1}}]),
            500,
            "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
        ),
        case(
            "all wanted, of a wrong type",
            infer("batched", XJ, parameters={"binary_data_output": "true"}),
            500,
            "Unable to parse 'binary_data_output': attempt to access JSON non-boolean as boolean",
        ),
    ),
    *chapter(
        "binary text",
        case("in", words(byte_strings(b"a", b"", "数字".encode()), [3]), 200, '["a","","数字"]'),
        case(
            "in and out",
            infer_binary(
                "words", byte_strings(b"a", b"bc"), binary("T", "BYTES", [2], 11), **ALL_BINARY
            ),
            200,
        ),
        case("bytes that are not UTF-8", words(byte_strings(b"\xff\x00\xfe"), [1]), 200),
        case("no elements", words(b"", [0]), 200, '"data":[]'),
        case(
            "length beyond the end",
            words(b"\x09\0\0\0abc", [1]),
            400,
            "incomplete string data for inference input 'T', expecting string of length 9 but only "
            "3 bytes available",
        ),
        case(
            "length huge",
            words(b"\xff\xff\xff\xffabc", [1]),
            400,
            "expecting string of length 4294967295 but only 3 bytes available",
        ),
        case(
            "length too short",
            words(b"\x01\0\0\0abc", [1]),
            400,
            "incomplete string length indicator for inference input 'T' for model 'words', "
            "expecting 4 bytes but only 2 bytes available. Please make sure",
        ),
        case("half a length", words(b"\x01\0", [1]), 400, "only 2 bytes available"),
        case(
            "too few",
            words(byte_strings(b"a"), [2]),
            400,
            "expected 2 string elements for inference input 'T' for model 'words', got 1",
        ),
        case(
            "too many",
            words(byte_strings(b"a", b"b"), [1]),
            400,
            "unexpected number of string elements 2 for inference input 'T' for model 'words'",
        ),
        case(
            "empty of one",
            words(b"", [1]),
            400,
            "expected 1 string elements for inference input 'T' for model 'words', got 0",
        ),
    ),
    *chapter(
        "raw",
        case("a variable dimension", raw("vector", FOUR), 200, '"shape":[4]'),
        case(
            "with a version", post(infer_path("vector/1"), FOUR, headers={HEADER_LENGTH: "0"}), 200
        ),
        case(
            "not a whole number of elements",
            raw("vector", FOUR[:6]),
            400,
            "input byte size mismatch for input 'raw_input' for model 'vector'. Expected 4, got 6",
        ),
        case("nothing", raw("vector", b""), 200, '"shape":[0]'),
        case("a fixed shape", raw("batched", FOUR), 200, '"shape":[1,4]'),
        case(
            "too short for a fixed shape",
            raw("batched", FOUR[:8]),
            400,
            "size mismatch for input 'raw_input' for model 'batched'. Expected 16, got 8",
        ),
        case("too long for a fixed shape", raw("batched", FOUR * 2), 400, "Expected 16, got 32"),
        case("a ragged model", raw("ragged", FOUR), 200, '"shape":[1,4]'),
        case("FP16", raw("half", b"\x00\x3c\x00\x40"), 200, '"datatype":"FP16"'),
        case("text", raw("text", "Grüße".encode()), 200, '"datatype":"BYTES"'),
        case("no text", raw("text", b""), 200),
        case(
            "text of a variable number",
            raw("words", b"abc"),
            400,
            "For BYTE datatype raw input 'T', the model must have input shape [1]",
        ),
        case(
            "two variable dimensions",
            raw("matrix", FOUR),
            400,
            "The shape of the raw input 'X' can not be deduced because there are more than one "
            "variable-sized dimension",
        ),
        case(
            "two inputs",
            raw("pair", FOUR),
            400,
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'pair' "
            "model configuration",
        ),
        case(
            "optional inputs count",
            raw("optional", FOUR[:8]),
            400,
            "but got 2 inputs in 'optional' model configuration",
        ),
        case("header of minus zero", batched(header_length="-0"), 400),
    ),
    *chapter(
        "compression",
        case("gzip", encoded("gzip", GZIP), 200, '"data":[1.0,2.0,3.0,4.0]'),
        case("deflate", encoded("deflate", zlib.compress(PLAIN)), 200, '"data":[1.0,2.0,3.0,4.0]'),
        case("gzip called deflate", encoded("deflate", GZIP), 200),
        case("deflate called gzip", encoded("gzip", zlib.compress(PLAIN)), 200),
        case("identity", encoded("identity", PLAIN), 200),
        case("no name", encoded("", PLAIN), 501, "Unsupported compression type"),
        case(
            "gzip with binary data",
            encoded(
                "gzip",
                gzipped(document(X).encode() + FOUR),
                **{HEADER_LENGTH: str(len(document(X)))},
            ),
            200,
        ),
        case("gzip in capitals", encoded("GZIP", GZIP), 501, "Unsupported compression type"),
        case("brotli", encoded("br", b"x"), 501, "Unsupported compression type"),
        case("two codings", encoded("gzip, deflate", GZIP), 501, "Unsupported compression type"),
        case("gzip of nothing", encoded("gzip", b""), 400, "nothing to be decompressed"),
        case("garbage", encoded("gzip", b"garbage!"), 400, "Expected 16, got 0"),
        case("a wrong checksum", encoded("gzip", GZIP[:-8] + bytes(8)), 200),
        case(
            "cut short", encoded("gzip", GZIP[:-20]), 500, "failed to parse the request JSON buffer"
        ),
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
