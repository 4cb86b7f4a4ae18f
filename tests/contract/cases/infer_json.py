"""Inference with JSON tensors: all valid forms, and many invalid ones."""

from __future__ import annotations

import random
import struct

from contract.casebook import (
    binary,
    case,
    chapter,
    document,
    infer,
    infer_binary,
    infer_path,
    post,
    tensor,
)

X = tensor("X", "FP32", [2], [1, 2])
A = tensor("A", "FP32", [1, 4], [1, 2, 3, 4])
B = tensor("B", "INT32", [1, 1, 2], [5, 6])
INT64 = 2**63
UINT64 = 2**64


def one(datatype: str, data, shape=None) -> bytes:
    """Send one tensor to the probe that has an input of each type."""
    name = "STRING" if datatype == "BYTES" else datatype
    return infer("types", tensor(name, datatype, shape or [len(data)], data))


def raw(model: str, body: str | bytes) -> bytes:
    """Send a body that need not be JSON."""
    return post(infer_path(model), body)


def literal(datatype: str, elements: str | bytes, count: int = 1) -> bytes:
    """Send this text as the data, which need not be JSON."""
    text = elements.encode() if isinstance(elements, str) else elements
    name = "STRING" if datatype == "BYTES" else datatype
    head = f'{{"inputs":[{{"name":"{name}","datatype":"{datatype}","shape":[{count}],"data":['
    return raw("types", head.encode() + text + b"]}]}")


def given(**fields: str | None) -> bytes:
    """Send a valid input with changed fields, as text; None removes a field."""
    good = {"name": '"X"', "datatype": '"FP32"', "shape": "[1]", "data": "[1]"}
    members = [f'"{key}":{text}' for key, text in (good | fields).items() if text is not None]
    return inputs("{" + ",".join(members) + "}")


def read(numbers: list[float], code: str) -> bytes:
    """Send numbers as JSON, and request binary outputs."""
    name = NAMES[code]
    given = tensor(name, name, [len(numbers)], numbers)
    return infer("types", given, parameters={"binary_data_output": True})


def written(numbers: list[float], code: str) -> bytes:
    """Send numbers as binary data, and request JSON outputs."""
    tail = struct.pack(f"<{len(numbers)}{code}", *numbers)
    return infer_binary("types", tail, binary(NAMES[code], NAMES[code], [len(numbers)], len(tail)))


def inputs(text: str) -> bytes:
    """Send an `inputs` array with this text."""
    return raw("vector", f'{{"inputs":[{text}]}}')


NAMES = {"f": "FP32", "d": "FP64"}
_RNG = random.Random(754)
DOUBLES = [_RNG.gauss(0, 10.0 ** _RNG.randint(-8, 12)) for _ in range(200)]
FLOATS = list(struct.unpack("<200f", struct.pack("<200f", *DOUBLES)))

BINARY = '{"binary_data_size":4}'
MEMORY = '{"shared_memory_region":"r"}'
BOTH = '{"binary_data_size":4,"shared_memory_region":"r"}'

CASES = [
    *chapter(
        "json",
        case("flat data", infer("batched", tensor("X", "FP32", [2, 4], list(range(8)))), 200),
        case(
            "nested data",
            infer("batched", tensor("X", "FP32", [2, 4], [[0, 1, 2, 3], [4, 5, 6, 7]])),
            200,
        ),
        case(
            "oddly nested data",
            infer("batched", tensor("X", "FP32", [1, 4], [[[0], 1], [[[2]], 3]])),
            200,
        ),
        case(
            "empty lists between data",
            infer("batched", tensor("X", "FP32", [1, 4], [[], 0, [1, []], 2, 3])),
            200,
        ),
        case("two inputs", infer("pair", A, B), 200),
        case("two inputs in the other order", infer("pair", B, A), 200),
        case("id", infer("vector", X, id="abc"), 200),
        case("id of other letters", infer("vector", X, id='é "数字"\n'), 200),
        case("empty id", infer("vector", X, id=""), 200),
        case("no elements", infer("vector", tensor("X", "FP32", [0], [])), 200),
        case("no elements but data", infer("vector", tensor("X", "FP32", [0], [1, 2])), 200),
        case("one dimension of zero", infer("matrix", tensor("X", "INT32", [3, 0], [])), 200),
        case("many elements", infer("vector", tensor("X", "FP32", [5000], list(range(5000)))), 200),
        case("unknown fields", infer("vector", X | {"more": {}}, extra=[1]), 200),
        case("input parameters of no meaning", infer("vector", X | {"parameters": {"a": 1}}), 200),
        case("input parameters not an object", infer("vector", X | {"parameters": 3}), 200),
        case(
            "white space",
            raw(
                "vector",
                ' {\n"inputs" : [{"name":"X","datatype":"FP32","shape":[ 1 ] ,"data":[1 ]}]\t}\r\n',
            ),
            200,
        ),
        case("byte order mark", raw("vector", "\ufeff" + document(X)), 200),
        case(
            "duplicate keys: the first wins",
            raw(
                "vector",
                '{"id":"1","id":"2","inputs":[{"name":"X","datatype":"FP32","shape":[1],"shape":[2],"data":[1]}]}',
            ),
            200,
        ),
        case("a NUL ends the document", raw("vector", document(X) + "\0{{{"), 200),
        case("maximum batch", infer("batched", tensor("X", "FP32", [8, 4], [0] * 32)), 200),
        case("version in the URL", infer("vector/1", X), 200),
        case("a ragged model", infer("ragged", tensor("X", "FP32", [1, 3], [1, 2, 3])), 200),
        case("reshape", infer("reshaped", tensor("X", "INT32", [1, 4], [1, 2, 3, 4])), 200),
        case(
            "escaped names",
            raw(
                "vector", '{"inputs":[{"name":"\\u0058","datatype":"FP32","shape":[1],"data":[1]}]}'
            ),
            200,
        ),
    ),
    *chapter(
        "optional input",
        case(
            "both",
            infer(
                "optional", tensor("A", "FP32", [1, 2], [1, 2]), tensor("B", "FP32", [1, 2], [3, 4])
            ),
            200,
        ),
        case("left out", infer("optional", tensor("A", "FP32", [1, 2], [1, 2])), 200),
        case(
            "the required one left out", infer("optional", tensor("B", "FP32", [1, 2], [1, 2])), 200
        ),
        case("none", infer("optional"), 400),
        case("three", infer("optional", *(tensor(n, "FP32", [1, 2], [1, 2]) for n in "ABC")), 400),
        case("unknown", infer("optional", tensor("C", "FP32", [1, 2], [1, 2])), 400),
        case("no input where all are optional", infer("types"), 200),
    ),
    *chapter(
        "number",
        case("BOOL", one("BOOL", [True, False]), 200),
        case("BOOL from 1", one("BOOL", [1]), 500),
        case("BOOL from text", one("BOOL", ["true"]), 500),
        *(
            case(f"{name} in full range", one(name, [low, high]), 200)
            for name, low, high in (
                *((f"INT{n}", -(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (8, 16, 32, 64)),
                *((f"UINT{n}", 0, 2**n - 1) for n in (8, 16, 32, 64)),
            )
        ),
        *(
            case(f"{name} wraps", one(name, [value]), 200)
            for name, value in (
                ("INT8", 200),
                ("INT16", 40000),
                ("INT32", 2**31),
                ("UINT8", 256),
                ("UINT16", 65537),
                ("UINT32", 2**32),
            )
        ),
        case("INT8 from a float", one("INT8", [1.0]), 500),
        case("INT32 from text", one("INT32", ["1"]), 500),
        case("INT32 from null", one("INT32", [None]), 500),
        case("INT32 from true", one("INT32", [True]), 500),
        case("INT64 too large", one("INT64", [INT64]), 500),
        case("INT64 too small", one("INT64", [-INT64 - 1]), 500),
        case("UINT8 negative", one("UINT8", [-1]), 500),
        case("UINT64 too large", one("UINT64", [UINT64]), 500),
        case("UINT32 from a float", one("UINT32", [1.5]), 500),
        case("FP32 from integers", one("FP32", [1, -2, UINT64]), 200),
        case("FP32 rounds", one("FP32", [0.1, 123456789, 1e-45, 3.4028235e38]), 200),
        case("FP32 too large", one("FP32", [1e39, -1e39]), 200),
        case("FP32 from text", one("FP32", ["1"]), 500),
        case("FP32 from true", one("FP32", [True]), 500),
        case(
            "FP64 in shortest form",
            one("FP64", [0.1, 1e21, 1e22, 1e20, 1e-6, 1e-7, 5e-324, -0.0, 1 / 3, 123456789.125]),
            200,
        ),
        # Random numbers, most of which have as many digits as their type allows.
        case("FP32 digits read", read(FLOATS, "f"), 200),
        case("FP64 digits read", read(DOUBLES, "d"), 200),
        case("FP32 digits written", written(FLOATS, "f"), 200),
        case("FP64 digits written", written(DOUBLES, "d"), 200),
        case("FP64 of large integers", one("FP64", [INT64, UINT64 - 1, UINT64]), 200),
        case("FP64 not finite", one("FP64", [float("nan"), float("inf"), float("-inf")]), 200),
        case("FP64 Inf in short", literal("FP64", "Inf,-Inf", 2), 200),
        case("FP64 nan in small letters", literal("FP64", "nan"), 500),
        case("FP64 too large", literal("FP64", "1e400"), 500),
        case("a leading zero", literal("FP64", "01"), 500),
        case("a plus in front", literal("FP64", "+1"), 500),
        case("a point at the end", literal("FP64", "1."), 500),
        case("an exponent of nothing", literal("FP64", "1e"), 500),
        case("a point in front", literal("FP64", ".5"), 500),
        case("hexadecimal", literal("INT32", "0x10"), 500),
        case("a large exponent of zero", literal("FP64", "0e999"), 500),
        case("FP16", one("FP16", [1]), 400),
        case("BF16", one("BF16", [1]), 400),
        case("FP16 in no array", one("FP16", 1, [1]), 500),
    ),
    *chapter(
        "text",
        case("BYTES", one("BYTES", ["a", "", "Grüße 数字"]), 200),
        case("escapes", one("BYTES", ['"\\/\b\f\n\r\t\0\x1f']), 200),
        case("escapes sent", literal("BYTES", '"\\u00e9\\ud83d\\ude00\\/"'), 200),
        case("half of a pair", literal("BYTES", '"\\ud83d"'), 500),
        case("the other half", literal("BYTES", '"\\ude00"'), 200),
        case("not UTF-8", literal("BYTES", b'"\xff\xfe"'), 200),
        case("a control character", literal("BYTES", b'"\x01"'), 500),
        case("a tabulator", literal("BYTES", b'"\t"'), 500),
        case("no closing quote", literal("BYTES", '"a'), 500),
        case("number instead", one("BYTES", [1]), 500),
        case("too few", one("BYTES", ["a"], [2]), 400),
        case("too many", one("BYTES", ["a", "b", "c"], [2]), 400),
        case("nested", one("BYTES", [["a"], ["b"]], [2]), 200),
        case("no elements", one("BYTES", [], [0]), 200),
        case("batched", infer("text", tensor("T", "BYTES", [3, 1], ["x", "yy", "zzz"])), 200),
        case("long", one("BYTES", ["数" * 20000]), 200),
        case("datatype STRING", infer("types", tensor("STRING", "STRING", [1], ["a"])), 400),
    ),
    *chapter(
        "outputs",
        case("one of two", infer("pair", A, B, outputs=[{"name": "OB"}]), 200),
        case(
            "in the other order", infer("pair", A, B, outputs=[{"name": "OB"}, {"name": "OA"}]), 200
        ),
        case("empty list", infer("pair", A, B, outputs=[]), 200),
        case("twice the same", infer("pair", A, B, outputs=[{"name": "OA"}, {"name": "OA"}]), 200),
        case("unknown", infer("pair", A, B, outputs=[{"name": "OC"}]), 400),
        case("without a name", infer("pair", A, B, outputs=[{}]), 500),
        case("name of a wrong kind", infer("pair", A, B, outputs=[{"name": 1}]), 500),
        case("not a list", infer("pair", A, B, outputs={"name": "OA"}), 500),
        case("null", raw("pair", document(A, B)[:-1] + ',"outputs":null}'), 500),
        case("of a wrong kind", infer("pair", A, B, outputs=["OA"]), 500),
        case(
            "parameters of no meaning",
            infer("pair", A, B, outputs=[{"name": "OA", "parameters": {"a": []}}]),
            200,
        ),
        case("FP16 in JSON", infer("half", tensor("X", "FP16", [0], [])), 400),
    ),
    *chapter(
        "syntax",
        case("empty body of two inputs", raw("pair", ""), 400),
        case("only a brace", raw("vector", "{"), 500),
        case("no closing brace", raw("vector", document(X)[:-1]), 500),
        case("no closing bracket", raw("vector", '{"inputs":[1'), 500),
        case("no colon", raw("vector", '{"inputs" 1}'), 500),
        case("no quotes", raw("vector", "{inputs:1}"), 500),
        case("no closing quote", raw("vector", '{"inputs'), 500),
        case("a bad escape", raw("vector", '{"a":"\\x"}'), 500),
        case("a bad hex escape", raw("vector", '{"a":"\\u00g0"}'), 500),
        case("a second document", raw("vector", document(X) + "{}"), 500),
        case("a comment", raw("vector", "/* */" + document(X)), 500),
        case("a trailing comma", raw("vector", document(X)[:-1] + ",}"), 500),
        case("single quotes", raw("vector", "{'inputs':[]}"), 500),
        case("words", raw("vector", "hello"), 500),
        case("only white space", raw("vector", "   "), 500),
        case("an array", raw("vector", "[]"), 500),
        case("a text", raw("vector", '"inputs"'), 500),
        case("a number", raw("vector", "1"), 500),
        case("null", raw("vector", "null"), 500),
        case("true", raw("vector", "true"), 500),
        case("a hundred brackets", raw("vector", "[" * 100 + "]" * 100), 500),
    ),
    *chapter(
        "field",
        case("no inputs", raw("vector", "{}"), 500),
        case("inputs null", raw("vector", '{"inputs":null}'), 500),
        case("inputs an object", raw("vector", '{"inputs":{}}'), 500),
        case("inputs empty", inputs(""), 400),
        case("an input is a number", inputs("1"), 400),
        case("an input is null", inputs("null"), 400),
        case("an input is a list", inputs("[]"), 400),
        case("an input is empty", inputs("{}"), 400),
        case("no name", given(name=None), 500),
        case("name null", given(name="null"), 500),
        case("name a number", given(name="1"), 500),
        case("name empty", given(name='""'), 400),
        case("no datatype", given(datatype=None), 500),
        case("datatype a number", given(datatype="1"), 500),
        case("datatype empty", given(datatype='""'), 400),
        case("no shape", given(shape=None), 500),
        case("shape null", given(shape="null"), 500),
        case("shape a number", given(shape="1"), 500),
        case("shape of text", given(shape='["1"]'), 500),
        case("shape of a float", given(shape="[1.0]"), 500),
        case("shape negative", given(shape="[-1]"), 500),
        case("shape nested", given(shape="[[1]]"), 500),
        case("shape too large", given(shape="[18446744073709551616]"), 500),
        case("no data", given(data=None), 400),
        case("data null", given(data="null"), 500),
        case("data a number", given(data="1"), 500),
        case("data a text", given(data='"1"'), 500),
        case("data an object", given(data="{}"), 500),
        case("an object in the data", given(data="[{}]"), 500),
        case("null in the data", given(data="[null]"), 500),
        case("data and binary", given(parameters=BINARY), 400),
        case("data and memory", given(parameters=MEMORY), 400),
        case("binary and memory", given(data=None, parameters=BOTH), 400),
        case("all three", given(parameters=BOTH), 400),
        case("id a number", raw("vector", '{"id":1,"inputs":[]}'), 500),
        case("id null", raw("vector", '{"id":null,"inputs":[]}'), 500),
    ),
    *chapter(
        "refused",
        case("unknown input", infer("vector", tensor("Z", "FP32", [1], [1])), 400),
        case("input twice", infer("vector", X, X), 400),
        case("input twice with an id", infer("vector", X, X, id="q1"), 400),
        case("one input too few", infer("pair", A), 400),
        case("all inputs missing", infer("pair"), 400),
        case("one input too many", infer("pair", A, B, tensor("C", "FP32", [1], [1])), 400),
        case("right number, one unknown", infer("pair", A, tensor("C", "FP32", [1, 1], [1])), 400),
        case("wrong datatype", infer("vector", tensor("X", "INT32", [1], [1])), 400),
        case("unknown datatype", infer("vector", tensor("X", "FLOAT", [1], [1])), 400),
        case("unknown datatype in no array", infer("vector", tensor("X", "FLOAT", [1], 1)), 500),
        case(
            "unknown datatype of no elements", infer("vector", tensor("X", "FLOAT", [0], [1])), 400
        ),
        case("datatype in small letters", infer("vector", tensor("X", "fp32", [1], [1])), 400),
        case("config name of a datatype", infer("vector", tensor("X", "TYPE_FP32", [1], [1])), 400),
        case("wrong rank", infer("vector", tensor("X", "FP32", [1, 2], [1, 2])), 400),
        case("rank zero", infer("vector", tensor("X", "FP32", [], [1])), 400),
        case("wrong size", infer("batched", tensor("X", "FP32", [1, 5], [0] * 5)), 400),
        case("no batch dimension", infer("batched", tensor("X", "FP32", [4], [0] * 4)), 400),
        case("no shape at all", infer("batched", tensor("X", "FP32", [], [])), 400),
        case("batch too large", infer("batched", tensor("X", "FP32", [9, 4], [0] * 36)), 400),
        case("batch of zero", infer("batched", tensor("X", "FP32", [0, 4], [])), 400),
        case("batches differ", infer("pair", A, tensor("B", "INT32", [2, 1, 2], [1] * 4)), 400),
        case("too few elements", infer("vector", tensor("X", "FP32", [3], [1, 2])), 500),
        case("too many elements", infer("vector", tensor("X", "FP32", [1], [1, 2])), 500),
        case("decoupled model", infer("decoupled", tensor("X", "FP32", [1], [1])), 501),
        case(
            "reshape is not the request's shape",
            infer("reshaped", tensor("X", "INT32", [1, 2, 2], [1] * 4)),
            400,
        ),
    ),
]
