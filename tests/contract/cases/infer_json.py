"""Inference with JSON tensors: every form that is good, and each that is not."""

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
    """Send one tensor of a type to the probe that knows them all."""
    name = "STRING" if datatype == "BYTES" else datatype
    return infer("types", tensor(name, datatype, shape or [len(data)], data))


def raw(model: str, body: str | bytes) -> bytes:
    """Send a body that need not be JSON."""
    return post(infer_path(model), body)


def literal(datatype: str, elements: str | bytes, count: int = 1) -> bytes:
    """Send data in the words given, which need not be JSON."""
    text = elements.encode() if isinstance(elements, str) else elements
    name = "STRING" if datatype == "BYTES" else datatype
    head = f'{{"inputs":[{{"name":"{name}","datatype":"{datatype}","shape":[{count}],"data":['
    return raw("types", head.encode() + text + b"]}]}")


def given(**fields: str | None) -> bytes:
    """Send one input in the words given: a good one, with fields replaced, added, or taken out."""
    good = {"name": '"X"', "datatype": '"FP32"', "shape": "[1]", "data": "[1]"}
    members = [f'"{key}":{text}' for key, text in (good | fields).items() if text is not None]
    return inputs("{" + ",".join(members) + "}")


def read(numbers: list[float], code: str) -> bytes:
    """Send numbers in JSON, and ask for their bytes."""
    name = NAMES[code]
    given = tensor(name, name, [len(numbers)], numbers)
    return infer("types", given, parameters={"binary_data_output": True})


def written(numbers: list[float], code: str) -> bytes:
    """Send the bytes of numbers, and ask for JSON."""
    tail = struct.pack(f"<{len(numbers)}{code}", *numbers)
    return infer_binary("types", tail, binary(NAMES[code], NAMES[code], [len(numbers)], len(tail)))


def inputs(text: str) -> bytes:
    """Send an `inputs` array in the words given."""
    return raw("vector", f'{{"inputs":[{text}]}}')


NAMES = {"f": "FP32", "d": "FP64"}
_RNG = random.Random(754)
DOUBLES = [_RNG.gauss(0, 10.0 ** _RNG.randint(-8, 12)) for _ in range(200)]
FLOATS = list(struct.unpack("<200f", struct.pack("<200f", *DOUBLES)))

MISSING = "attempt to access non-existing object member"
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NOT_SIGNED = "attempt to access JSON non-signed-integer as signed-integer"
NOT_ARRAY = "attempt to access JSON non-array as array"
NOT_STRING = "attempt to access JSON non-string as string"
ONE_CONTENT = "'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But"
ONE_RAW = (
    "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'pair' model"
)
BINARY = '{"binary_data_size":4}'
MEMORY = '{"shared_memory_region":"r"}'
BOTH = '{"binary_data_size":4,"shared_memory_region":"r"}'
MISMATCH = "Shape does not match true shape of 'data' field"

CASES = [
    *chapter(
        "json",
        case("flat data", infer("batched", tensor("X", "FP32", [2, 4], list(range(8)))), 200),
        case(
            "nested data",
            infer("batched", tensor("X", "FP32", [2, 4], [[0, 1, 2, 3], [4, 5, 6, 7]])),
            200,
            "[0.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0]",
        ),
        case(
            "oddly nested data",
            infer("batched", tensor("X", "FP32", [1, 4], [[[0], 1], [[[2]], 3]])),
            200,
            "[0.0,1.0,2.0,3.0]",
        ),
        case(
            "empty lists between data",
            infer("batched", tensor("X", "FP32", [1, 4], [[], 0, [1, []], 2, 3])),
            200,
        ),
        case("two inputs", infer("pair", A, B), 200, '"data":[5,6]'),
        case("two inputs in the other order", infer("pair", B, A), 200, '"name":"OA"'),
        case("id", infer("vector", X, id="abc"), 200, '{"id":"abc","model_name":"vector"'),
        case("id of other letters", infer("vector", X, id='é "数字"\n'), 200),
        case("empty id", infer("vector", X, id=""), 200, '{"model_name":"vector"'),
        case(
            "no elements",
            infer("vector", tensor("X", "FP32", [0], [])),
            200,
            '"shape":[0],"data":[]',
        ),
        case(
            "no elements but data",
            infer("vector", tensor("X", "FP32", [0], [1, 2])),
            200,
            '"data":[]',
        ),
        case(
            "one dimension of zero",
            infer("matrix", tensor("X", "INT32", [3, 0], [])),
            200,
            '"shape":[3,0]',
        ),
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
            '{"id":"1"',
        ),
        case("a NUL ends the document", raw("vector", document(X) + "\0{{{"), 200),
        case("maximum batch", infer("batched", tensor("X", "FP32", [8, 4], [0] * 32)), 200),
        case("version in the URL", infer("vector/1", X), 200, '"model_version":"1"'),
        case("a ragged model", infer("ragged", tensor("X", "FP32", [1, 3], [1, 2, 3])), 200),
        case(
            "reshape",
            infer("reshaped", tensor("X", "INT32", [1, 4], [1, 2, 3, 4])),
            200,
            '"shape":[1,2,2]',
        ),
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
            '"name":"OB"',
        ),
        case(
            "left out", infer("optional", tensor("A", "FP32", [1, 2], [1, 2])), 200, '"name":"OA"'
        ),
        case(
            "the required one left out",
            infer("optional", tensor("B", "FP32", [1, 2], [1, 2])),
            200,
            '"name":"OB"',
        ),
        case(
            "none",
            infer("optional"),
            400,
            "expected number of inputs between 1 and 2 but got 0 inputs",
        ),
        case(
            "three",
            infer("optional", *(tensor(n, "FP32", [1, 2], [1, 2]) for n in "ABC")),
            400,
        ),
        case("unknown", infer("optional", tensor("C", "FP32", [1, 2], [1, 2])), 400),
        case("no input where all are optional", infer("types"), 200, '"outputs":[]'),
    ),
    *chapter(
        "number",
        case("BOOL", one("BOOL", [True, False]), 200, "[true,false]"),
        case("BOOL from 1", one("BOOL", [1]), 500, "non-boolean as boolean"),
        case("BOOL from text", one("BOOL", ["true"]), 500, "non-boolean as boolean"),
        *(
            case(f"{name} in full range", one(name, [low, high]), 200, f"[{low},{high}]")
            for name, low, high in (
                *((f"INT{n}", -(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (8, 16, 32, 64)),
                *((f"UINT{n}", 0, 2**n - 1) for n in (8, 16, 32, 64)),
            )
        ),
        *(
            case(f"{name} wraps", one(name, [value]), 200, f"[{wrapped}]")
            for name, value, wrapped in (
                ("INT8", 200, -56),
                ("INT16", 40000, -25536),
                ("INT32", 2**31, -(2**31)),
                ("UINT8", 256, 0),
                ("UINT16", 65537, 1),
                ("UINT32", 2**32, 0),
            )
        ),
        case("INT8 from a float", one("INT8", [1.0]), 500, NOT_SIGNED),
        case("INT32 from text", one("INT32", ["1"]), 500, NOT_SIGNED),
        case("INT32 from null", one("INT32", [None]), 500, NOT_SIGNED),
        case("INT32 from true", one("INT32", [True]), 500, NOT_SIGNED),
        case("INT64 too large", one("INT64", [INT64]), 500, NOT_SIGNED),
        case("INT64 too small", one("INT64", [-INT64 - 1]), 500, NOT_SIGNED),
        case("UINT8 negative", one("UINT8", [-1]), 500, NOT_UNSIGNED),
        case("UINT64 too large", one("UINT64", [UINT64]), 500, NOT_UNSIGNED),
        case("UINT32 from a float", one("UINT32", [1.5]), 500, NOT_UNSIGNED),
        case("FP32 from integers", one("FP32", [1, -2, UINT64]), 200),
        case(
            "FP32 rounds",
            one("FP32", [0.1, 123456789, 1e-45, 3.4028235e38]),
            200,
            "0.10000000149011612,123456792.0",
        ),
        case("FP32 too large", one("FP32", [1e39, -1e39]), 200, "[Infinity,-Infinity]"),
        case("FP32 from text", one("FP32", ["1"]), 500, "non-number as double"),
        case("FP32 from true", one("FP32", [True]), 500, "non-number as double"),
        case(
            "FP64 in shortest form",
            one(
                "FP64",
                [0.1, 1e21, 1e22, 1e20, 1e-6, 1e-7, 5e-324, -0.0, 1 / 3, 123456789.125],
            ),
            200,
            "[0.1,1e21,1e22,100000000000000000000.0,0.000001,1e-7,5e-324,-0.0",
        ),
        # Numbers as they come: most have as many digits as their type can tell.
        case("FP32 digits read", read(FLOATS, "f"), 200),
        case("FP64 digits read", read(DOUBLES, "d"), 200),
        case("FP32 digits written", written(FLOATS, "f"), 200),
        case("FP64 digits written", written(DOUBLES, "d"), 200),
        case("FP64 of large integers", one("FP64", [INT64, UINT64 - 1, UINT64]), 200),
        case(
            "FP64 not finite",
            one("FP64", [float("nan"), float("inf"), float("-inf")]),
            200,
            "[NaN,Infinity,-Infinity]",
        ),
        case("FP64 Inf in short", literal("FP64", "Inf,-Inf", 2), 200, "[Infinity,-Infinity]"),
        case("FP64 nan in small letters", literal("FP64", "nan"), 500, "Invalid value."),
        case("FP64 too large", literal("FP64", "1e400"), 500, "Number too big to be stored in"),
        case("a leading zero", literal("FP64", "01"), 500, "Missing a comma or ']'"),
        case("a plus in front", literal("FP64", "+1"), 500, "Invalid value."),
        case("a point at the end", literal("FP64", "1."), 500, "Miss fraction part in number."),
        case("an exponent of nothing", literal("FP64", "1e"), 500, "Miss exponent in number."),
        case("a point in front", literal("FP64", ".5"), 500, "Invalid value."),
        case("hexadecimal", literal("INT32", "0x10"), 500, "Missing a comma or ']'"),
        case("a large exponent of zero", literal("FP64", "0e999"), 500, "Number too big"),
        case("FP16", one("FP16", [1]), 400, "receiving FP16 data via JSON is not supported"),
        case("BF16", one("BF16", [1]), 400, "receiving BF16 data via JSON is not supported"),
        case("FP16 in no array", one("FP16", 1, [1]), 500, "non-array as array"),
    ),
    *chapter(
        "text",
        case("BYTES", one("BYTES", ["a", "", "Grüße 数字"]), 200, '["a","","Grüße 数字"]'),
        case("escapes", one("BYTES", ['"\\/\b\f\n\r\t\0\x1f']), 200, "\\u0000\\u001F"),
        case("escapes sent", literal("BYTES", '"\\u00e9\\ud83d\\ude00\\/"'), 200, '["é😀/"]'),
        case(
            "half of a pair", literal("BYTES", '"\\ud83d"'), 500, "The surrogate pair in string is"
        ),
        case("the other half", literal("BYTES", '"\\ude00"'), 200, "\\xed\\xb8\\x80"),
        case("not UTF-8", literal("BYTES", b'"\xff\xfe"'), 200),
        case(
            "a control character", literal("BYTES", b'"\x01"'), 500, "Invalid escape character in"
        ),
        case("a tabulator", literal("BYTES", b'"\t"'), 500),
        case("no closing quote", literal("BYTES", '"a'), 500, "Missing a closing quotation mark"),
        case(
            "number instead",
            one("BYTES", [1]),
            500,
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
        ),
        case(
            "too few",
            one("BYTES", ["a"], [2]),
            400,
            "expected 2 string elements for inference input 'STRING' for model 'types', got 1",
        ),
        case(
            "too many",
            one("BYTES", ["a", "b", "c"], [2]),
            400,
            "unexpected number of string elements 3 for inference input 'STRING' for model 'types'",
        ),
        case("nested", one("BYTES", [["a"], ["b"]], [2]), 200, '["a","b"]'),
        case("no elements", one("BYTES", [], [0]), 200, '"data":[]'),
        case("batched", infer("text", tensor("T", "BYTES", [3, 1], ["x", "yy", "zzz"])), 200),
        case("long", one("BYTES", ["数" * 20000]), 200),
        case("datatype STRING", infer("types", tensor("STRING", "STRING", [1], ["a"])), 400),
    ),
    *chapter(
        "outputs",
        case("one of two", infer("pair", A, B, outputs=[{"name": "OB"}]), 200, '"name":"OB"'),
        case(
            "in the other order", infer("pair", A, B, outputs=[{"name": "OB"}, {"name": "OA"}]), 200
        ),
        case("empty list", infer("pair", A, B, outputs=[]), 200, '"name":"OA"'),
        case("twice the same", infer("pair", A, B, outputs=[{"name": "OA"}, {"name": "OA"}]), 200),
        case(
            "unknown",
            infer("pair", A, B, outputs=[{"name": "OC"}]),
            400,
            "unexpected inference output 'OC' for model 'pair'",
        ),
        case(
            "without a name",
            infer("pair", A, B, outputs=[{}]),
            500,
            "Unable to parse 'name': " + MISSING,
        ),
        case(
            "name of a wrong kind",
            infer("pair", A, B, outputs=[{"name": 1}]),
            500,
            "Unable to parse 'name': attempt to access JSON non-string as string",
        ),
        case(
            "not a list",
            infer("pair", A, B, outputs={"name": "OA"}),
            500,
            "Unable to parse 'outputs'",
        ),
        case(
            "null",
            raw("pair", document(A, B)[:-1] + ',"outputs":null}'),
            500,
            "Unable to parse 'outputs'",
        ),
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
        case(
            "empty body of two inputs",
            raw("pair", ""),
            400,
            ONE_RAW,
        ),
        case(
            "only a brace",
            raw("vector", "{"),
            500,
            "failed to parse the request JSON buffer: Missing a name for object member. at 1",
        ),
        case(
            "no closing brace",
            raw("vector", document(X)[:-1]),
            500,
            "Missing a comma or '}' after an object member.",
        ),
        case(
            "no closing bracket",
            raw("vector", '{"inputs":[1'),
            500,
            "Missing a comma or ']' after an array element.",
        ),
        case("no colon", raw("vector", '{"inputs" 1}'), 500),
        case("no quotes", raw("vector", "{inputs:1}"), 500, "Missing a name for object member."),
        case("no closing quote", raw("vector", '{"inputs'), 500),
        case("a bad escape", raw("vector", '{"a":"\\x"}'), 500),
        case("a bad hex escape", raw("vector", '{"a":"\\u00g0"}'), 500),
        case(
            "a second document",
            raw("vector", document(X) + "{}"),
            500,
            "The document root must not be followed by other values.",
        ),
        case("a comment", raw("vector", "/* */" + document(X)), 500, "Invalid value."),
        case("a trailing comma", raw("vector", document(X)[:-1] + ",}"), 500),
        case("single quotes", raw("vector", "{'inputs':[]}"), 500),
        case("words", raw("vector", "hello"), 500, "Invalid value."),
        case("only white space", raw("vector", "   "), 500, "The document is empty."),
        case("an array", raw("vector", "[]"), 500, MISSING),
        case("a text", raw("vector", '"inputs"'), 500, MISSING),
        case("a number", raw("vector", "1"), 500, MISSING),
        case("null", raw("vector", "null"), 500, MISSING),
        case("true", raw("vector", "true"), 500, MISSING),
        case("a hundred brackets", raw("vector", "[" * 100 + "]" * 100), 500, MISSING),
    ),
    *chapter(
        "field",
        case(
            "no inputs", raw("vector", "{}"), 500, f"Unable to parse 'inputs': {MISSING} 'inputs'"
        ),
        case("inputs null", raw("vector", '{"inputs":null}'), 500, f"'inputs': {NOT_ARRAY}"),
        case("inputs an object", raw("vector", '{"inputs":{}}'), 500, f"'inputs': {NOT_ARRAY}"),
        case(
            "inputs empty", inputs(""), 400, "expected 1 inputs but got 0 inputs for model 'vector'"
        ),
        case("an input is a number", inputs("1"), 400, f"{ONE_CONTENT} no field is set"),
        case("an input is null", inputs("null"), 400, f"{ONE_CONTENT} no field is set"),
        case("an input is a list", inputs("[]"), 400, f"{ONE_CONTENT} no field is set"),
        case("an input is empty", inputs("{}"), 400, f"{ONE_CONTENT} no field is set"),
        case("no name", given(name=None), 500, f"Unable to parse 'name': {MISSING} 'name'"),
        case("name null", given(name="null"), 500, f"Unable to parse 'name': {NOT_STRING}"),
        case("name a number", given(name="1"), 500, f"Unable to parse 'name': {NOT_STRING}"),
        case("name empty", given(name='""'), 400, "unexpected inference input '' for model"),
        case("no datatype", given(datatype=None), 500, f"Unable to parse 'datatype': {MISSING}"),
        case("datatype a number", given(datatype="1"), 500, f"'datatype': {NOT_STRING}"),
        case("datatype empty", given(datatype='""'), 400, "invalid datatype for input X"),
        case("no shape", given(shape=None), 500, f"Unable to parse 'shape': {MISSING} 'shape'"),
        case("shape null", given(shape="null"), 500, f"Unable to parse 'shape': {NOT_ARRAY}"),
        case("shape a number", given(shape="1"), 500, f"Unable to parse 'shape': {NOT_ARRAY}"),
        case("shape of text", given(shape='["1"]'), 500, f"'shape': {NOT_UNSIGNED}"),
        case("shape of a float", given(shape="[1.0]"), 500, f"'shape': {NOT_UNSIGNED}"),
        case("shape negative", given(shape="[-1]"), 500, f"'shape': {NOT_UNSIGNED}"),
        case("shape nested", given(shape="[[1]]"), 500, f"'shape': {NOT_UNSIGNED}"),
        case(
            "shape too large",
            given(shape="[18446744073709551616]"),
            500,
            f"'shape': {NOT_UNSIGNED}",
        ),
        case("no data", given(data=None), 400, f"{ONE_CONTENT} no field is set"),
        case("data null", given(data="null"), 500, f"Unable to parse 'data': {NOT_ARRAY}"),
        case("data a number", given(data="1"), 500, f"Unable to parse 'data': {NOT_ARRAY}"),
        case("data a text", given(data='"1"'), 500, f"Unable to parse 'data': {NOT_ARRAY}"),
        case("data an object", given(data="{}"), 500, f"Unable to parse 'data': {NOT_ARRAY}"),
        case("an object in the data", given(data="[{}]"), 500, "Unable to parse 'data': "),
        case("null in the data", given(data="[null]"), 500, "non-number as double"),
        case("data and binary", given(parameters=BINARY), 400, " set 'data' 'binary_data_size'"),
        case(
            "data and memory", given(parameters=MEMORY), 400, " set 'data' 'shared_memory_region'"
        ),
        case(
            "binary and memory",
            given(data=None, parameters=BOTH),
            400,
            f"{ONE_CONTENT} set 'binary",
        ),
        case(
            "all three",
            given(parameters=BOTH),
            400,
            " set 'data' 'binary_data_size' 'shared_memory",
        ),
        case("id a number", raw("vector", '{"id":1,"inputs":[]}'), 500, f"'id': {NOT_STRING}"),
        case("id null", raw("vector", '{"id":null,"inputs":[]}'), 500, f"'id': {NOT_STRING}"),
    ),
    *chapter(
        "refused",
        case(
            "unknown input",
            infer("vector", tensor("Z", "FP32", [1], [1])),
            400,
            "unexpected inference input 'Z' for model 'vector'",
        ),
        case(
            "input twice",
            infer("vector", X, X),
            400,
            "[request id: <id_unknown>] input 'X' already exists in request",
        ),
        case(
            "input twice with an id",
            infer("vector", X, X, id="q1"),
            400,
            "[request id: q1] input 'X' already exists in request",
        ),
        case(
            "one input too few",
            infer("pair", A),
            400,
            "expected 2 inputs but got 1 inputs for model 'pair'. Got input(s) ['A'], but missing "
            "required input(s) ['B']. Please provide all required input(s).",
        ),
        case(
            "all inputs missing",
            infer("pair"),
            400,
            "Got input(s) [], but missing required input(s) ['A','B']",
        ),
        case(
            "one input too many",
            infer("pair", A, B, tensor("C", "FP32", [1], [1])),
            400,
            "expected 2 inputs but got 3 inputs",
        ),
        case(
            "right number, one unknown",
            infer("pair", A, tensor("C", "FP32", [1, 1], [1])),
            400,
            "unexpected inference input 'C' for model 'pair'",
        ),
        case(
            "wrong datatype",
            infer("vector", tensor("X", "INT32", [1], [1])),
            400,
            "inference input 'X' data-type is 'INT32', but model 'vector' expects 'FP32'",
        ),
        case(
            "unknown datatype",
            infer("vector", tensor("X", "FLOAT", [1], [1])),
            400,
            "invalid datatype for input X",
        ),
        case(
            "unknown datatype in no array",
            infer("vector", tensor("X", "FLOAT", [1], 1)),
            500,
            "non-array as array",
        ),
        case(
            "unknown datatype of no elements",
            infer("vector", tensor("X", "FLOAT", [0], [1])),
            400,
            "data-type is '<invalid>', but model 'vector' expects 'FP32'",
        ),
        case(
            "datatype in small letters",
            infer("vector", tensor("X", "fp32", [1], [1])),
            400,
            "invalid datatype for input X",
        ),
        case(
            "config name of a datatype",
            infer("vector", tensor("X", "TYPE_FP32", [1], [1])),
            400,
            "invalid datatype for input X",
        ),
        case(
            "wrong rank",
            infer("vector", tensor("X", "FP32", [1, 2], [1, 2])),
            400,
            "unexpected shape for input 'X' for model 'vector'. Expected [-1], got [1,2]. ",
        ),
        case("rank zero", infer("vector", tensor("X", "FP32", [], [1])), 400),
        case(
            "wrong size",
            infer("batched", tensor("X", "FP32", [1, 5], [0] * 5)),
            400,
            "Expected [-1,4], got [1,5]. NOTE: Setting a non-zero max_batch_size",
        ),
        case(
            "no batch dimension",
            infer("batched", tensor("X", "FP32", [4], [0] * 4)),
            400,
            "Expected [-1,4], got [4]. NOTE",
        ),
        case(
            "no shape at all",
            infer("batched", tensor("X", "FP32", [], [])),
            400,
            "input 'X' has no shape but model requires batch dimension for 'batched'",
        ),
        case(
            "batch too large",
            infer("batched", tensor("X", "FP32", [9, 4], [0] * 36)),
            400,
            "inference request batch-size must be <= 8 for 'batched'",
        ),
        case(
            "batch of zero",
            infer("batched", tensor("X", "FP32", [0, 4], [])),
            400,
            "Expected 16, got 0",
        ),
        case(
            "batches differ",
            infer("pair", A, tensor("B", "INT32", [2, 1, 2], [1] * 4)),
            400,
            "batch size does not match other inputs for 'pair'",
        ),
        case(
            "too few elements",
            infer("vector", tensor("X", "FP32", [3], [1, 2])),
            500,
            "Unable to parse 'data': " + MISMATCH,
        ),
        case(
            "too many elements",
            infer("vector", tensor("X", "FP32", [1], [1, 2])),
            500,
            "Unable to parse 'data': " + MISMATCH,
        ),
        case(
            "decoupled model",
            infer("decoupled", tensor("X", "FP32", [1], [1])),
            501,
            "HTTP end point doesn't support models with decoupled transaction policy",
        ),
        case(
            "reshape is not the request's shape",
            infer("reshaped", tensor("X", "INT32", [1, 2, 2], [1] * 4)),
            400,
            "Expected [-1,4], got [1,2,2]",
        ),
    ),
]
