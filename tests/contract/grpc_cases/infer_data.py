"""The data of inputs and outputs: raw and typed, of every type; and models' responses."""

from __future__ import annotations

import itertools
import struct

from contract.grpc_casebook import byte_strings, chapter, floats, infer, tensor, typed, unary
from contract.probes import TYPES

from reference_server.core.tensor import DATATYPES

# The fields of typed contents, each with the type in its name, and with two values.
FIELDS = {
    "bool_contents": ("BOOL", [True, False]),
    "int_contents": ("INT32", [-1, 2]),
    "int64_contents": ("INT64", [-(2**63), 2**63 - 1]),
    "uint_contents": ("UINT32", [1, 200]),
    "uint64_contents": ("UINT64", [1, 2**64 - 1]),
    "fp32_contents": ("FP32", [1.5, 2.0]),
    "fp64_contents": ("FP64", [0.1, 5e-324]),
    "bytes_contents": ("BYTES", [b"a", b"\x00\xff"]),
}
# The field with the elements of each type; FP16 and BF16 have none.
FIELD_OF = {
    **{name: field for field, (name, _) in FIELDS.items()},
    **dict.fromkeys(("INT8", "INT16"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16"), "uint_contents"),
}
WIRE_NAMES = ["BYTES" if name == "STRING" else name for name in TYPES]
SIZES = {name: DATATYPES[name].byte_size for name in WIRE_NAMES if name not in ("BYTES", "BF16")}
NAN, INF = float("nan"), float("inf")


def of_type(datatype, shape, contents=None, raw=()):
    name = "STRING" if datatype == "BYTES" else datatype
    return infer("types", tensor(name, datatype, shape, contents), raw=raw)


def typed_row(datatype, field):
    _, values = FIELDS[field]
    is_good = FIELD_OF.get(datatype) == field
    return unary(
        f"{datatype} in {field}",
        of_type(datatype, [2], typed(**{field: values})),
        "OK" if is_good else "INVALID_ARGUMENT",
    )


def both(one, other):
    contents = typed(**{one: FIELDS[one][1], other: FIELDS[other][1]})
    return unary(f"{one} and {other}", of_type("FP32", [2], contents), "INVALID_ARGUMENT")


def words(name, raw, shape, code="INVALID_ARGUMENT"):
    return unary(name, infer("words", tensor("T", "BYTES", shape), raw=[raw]), code)


def asked(what, code="OK", model="faults"):
    request = infer(model, tensor("what", "BYTES", [1]), raw=[byte_strings(what.encode())], id="e")
    return unary(what, request, code)


CASES = [
    *chapter("typed", (typed_row(d, field) for d in WIRE_NAMES for field in FIELDS)),
    *chapter(
        "typed",
        (
            unary(f"{d} with all empty", of_type(d, [2], typed()), "INVALID_ARGUMENT")
            for d in WIRE_NAMES
        ),
        (unary(f"{d} of no elements", of_type(d, [0], typed())) for d in WIRE_NAMES if d != "BF16"),
        itertools.starmap(both, itertools.combinations(FIELDS, 2)),
        unary("too few", of_type("FP32", [3], typed(fp32_contents=[1, 2])), "INVALID_ARGUMENT"),
        unary("too many", of_type("FP32", [1], typed(fp32_contents=[1, 2])), "INVALID_ARGUMENT"),
        unary(
            "strings, too few",
            of_type("BYTES", [3], typed(bytes_contents=[b"1", b"2"])),
            "INVALID_ARGUMENT",
        ),
        unary(
            "strings, too many",
            of_type("BYTES", [1], typed(bytes_contents=[b"1", b"2"])),
            "INVALID_ARGUMENT",
        ),
        unary(
            "strings, long and empty",
            of_type("BYTES", [3], typed(bytes_contents=[b"", b"x" * 70000, b"\x00"])),
        ),
        unary("halves of extremes", of_type("INT8", [2], typed(int_contents=[-128, 127]))),
        unary("INT16 of extremes", of_type("INT16", [2], typed(int_contents=[-32768, 32767]))),
        unary("UINT8 of extremes", of_type("UINT8", [2], typed(uint_contents=[0, 255]))),
        unary("UINT16 of extremes", of_type("UINT16", [2], typed(uint_contents=[0, 65535]))),
        unary("INT8 wraps", of_type("INT8", [2], typed(int_contents=[128, -129]))),
        unary("INT16 wraps", of_type("INT16", [1], typed(int_contents=[40000]))),
        unary("UINT8 wraps", of_type("UINT8", [1], typed(uint_contents=[256]))),
        unary("UINT16 wraps", of_type("UINT16", [1], typed(uint_contents=[2**32 - 1]))),
        unary(
            "numbers that are none",
            of_type("FP32", [4], typed(fp32_contents=[NAN, INF, -INF, -0.0])),
        ),
        unary(
            "doubles that are none",
            of_type("FP64", [4], typed(fp64_contents=[NAN, INF, -INF, -0.0])),
        ),
        unary(
            "two inputs",
            infer(
                "pair",
                tensor("A", "FP32", [1, 4], typed(fp32_contents=range(4))),
                tensor("B", "INT32", [1, 1, 2], typed(int_contents=[1, 2])),
            ),
        ),
        unary(
            "two inputs, the second without",
            infer(
                "pair",
                tensor("A", "FP32", [1, 4], typed(fp32_contents=range(4))),
                tensor("B", "INT32", [1, 1, 2]),
            ),
            "INVALID_ARGUMENT",
        ),
        unary(
            "two inputs, the first without",
            infer(
                "pair",
                tensor("A", "FP32", [1, 4]),
                tensor("B", "INT32", [1, 1, 2], typed(int_contents=[1, 2])),
            ),
            "INVALID_ARGUMENT",
        ),
        unary(
            "an unknown type",
            of_type("STRING", [2], typed(bytes_contents=[b"a", b"b"])),
            "INVALID_ARGUMENT",
        ),
        unary("an empty type", of_type("", [1], typed(fp32_contents=[1])), "INVALID_ARGUMENT"),
    ),
    *chapter(
        "raw",
        (
            unary(f"{d} of two", of_type(d, [2], raw=[bytes(range(2 * size))]))
            for d, size in SIZES.items()
            if d != "BOOL"
        ),
        unary("BOOL of two", of_type("BOOL", [2], raw=[b"\x01\x00"])),
        (unary(f"{d} of none", of_type(d, [0], raw=[b""])) for d in [*SIZES, "BYTES"]),
        (
            unary(
                f"{d} with a byte too many",
                of_type(d, [1], raw=[bytes(size + 1)]),
                "INVALID_ARGUMENT",
            )
            for d, size in SIZES.items()
        ),
        unary(
            "entries missing",
            infer(
                "pair",
                tensor("A", "FP32", [1, 4]),
                tensor("B", "INT32", [1, 1, 2]),
                raw=[floats(1, 2, 3, 4)],
            ),
            "INVALID_ARGUMENT",
        ),
        unary("entries too many", infer("vector", tensor("X", "FP32", [1]), raw=[floats(1), b"x"])),
        unary("no entry", infer("vector", tensor("X", "FP32", [1])), "INVALID_ARGUMENT"),
        unary(
            "beside typed",
            infer("vector", tensor("X", "FP32", [1], typed(fp32_contents=[1])), raw=[floats(1)]),
            "INVALID_ARGUMENT",
        ),
        unary(
            "beside empty contents",
            infer("vector", tensor("X", "FP32", [1], typed()), raw=[floats(1)]),
            "INVALID_ARGUMENT",
        ),
        unary(
            "an empty entry beside typed",
            infer("vector", tensor("X", "FP32", [1], typed(fp32_contents=[1])), raw=[b""]),
            "INVALID_ARGUMENT",
        ),
        unary(
            "numbers that are none",
            infer("vector", tensor("X", "FP32", [3]), raw=[floats(NAN, INF, -0.0)]),
        ),
        unary("an odd NaN", infer("vector", tensor("X", "FP32", [1]), raw=[b"\x01\x00\xa0\xff"])),
        unary("a megabyte", infer("vector", tensor("X", "FP32", [2**18]), raw=[bytes(2**20)])),
        unary("bfloat16", infer("bf16", tensor("X", "BF16", [1, 2]), raw=[b"\x80\x3f\x00\x40"])),
        unary("float16", infer("half", tensor("X", "FP16", [2]), raw=[struct.pack("<2e", 1, 2)])),
    ),
    *chapter(
        "strings",
        words("three", byte_strings(b"a", b"", b"\x00\xff"), [3], "OK"),
        words("of letters", byte_strings("数字".encode()), [1], "OK"),
        words("too few", byte_strings(b"a"), [2]),
        words("too many", byte_strings(b"a", b"b"), [1]),
        words("length cut", byte_strings(b"a") + b"\x01", [2]),
        words("data cut", byte_strings(b"a") + b"\x05\x00\x00\x00x", [2]),
        words("nothing", b"", [1]),
        words("nothing of none", b"", [0], "OK"),
        words("something of none", b"x", [0]),
        words("fewer than none", byte_strings(b"a"), [-2]),
        words("fewer than none, and none", b"", [-2]),
        words("a length beyond all", b"\xff\xff\xff\xff", [1]),
        words("a long one", byte_strings(b"x" * 100_000), [1], "OK"),
    ),
    *chapter(
        "model's error",
        (
            asked(f"error {code}", code)
            for code in (
                "UNKNOWN",
                "INTERNAL",
                "NOT_FOUND",
                "UNAVAILABLE",
                "ALREADY_EXISTS",
                "CANCELLED",
            )
        ),
        asked("error INVALID_ARG", "INVALID_ARGUMENT"),
        asked("error UNSUPPORTED", "UNIMPLEMENTED"),
        asked("error default", "INTERNAL"),
        asked("error without text", "INTERNAL"),
        asked("error unicode", "INVALID_ARGUMENT"),
        asked("error with tensors", "NOT_FOUND"),
        asked("raises ValueError", "INTERNAL"),
        asked("raises no text", "INTERNAL"),
        asked("raises KeyError", "INTERNAL"),
        asked("raises unicode", "INTERNAL"),
        asked("raises two lines", "INTERNAL"),
        asked("raises TritonModelException", "INTERNAL"),
        asked("returns too few", "INTERNAL"),
        asked("returns int", "INTERNAL"),
        asked("returns list of int", "INTERNAL"),
    ),
    *chapter(
        "ensemble's error",
        (
            asked(f"error {code}", code, "faulty_chain")
            for code in ("UNKNOWN", "NOT_FOUND", "CANCELLED")
        ),
        asked("raises ValueError", "INTERNAL", "faulty_chain"),
        asked("answer another shape", "INVALID_ARGUMENT", "faulty_chain"),
        asked("error INVALID_ARG", "INVALID_ARGUMENT", "outer_chain"),
    ),
    *chapter(
        "answer",
        (
            asked(f"answer {kind}")
            for kind in (
                *("good", "nothing", "another name", "one more", "no elements", "a scalar"),
                *("another shape", "a transposed view", "a stepped view", "int64", "uint64"),
                *("bool", "float16", "float64", "special floats", "bytes objects", "str objects"),
                *("fixed bytes", "bytes that are not utf-8", "control characters"),
            )
        ),
    ),
]
