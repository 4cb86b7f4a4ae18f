"""The generate extension: a flat object of inputs and parameters, and a flat object back.

Pipelined requests are not here: now and then the real server closes such a connection unanswered.
"""

from __future__ import annotations

import json
from itertools import permutations

from contract.casebook import Case, case, chapter, get, post

MODEL = "/v2/models/vector"
VERBS = ("generate", "generate_stream")
NUMBER = "Unable to parse 'data': attempt to access JSON non-number as double"
SIGNED = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
UNSIGNED = "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer"
BOOLEAN = "Unable to parse 'data': attempt to access JSON non-boolean as boolean"
TEXT = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
ID = "Unable to parse 'id': attempt to access JSON non-string as string"
COUNT = "Unable to parse 'data': Shape does not match true shape of 'data' field"
SHAPE = "The schema can not convert input 'X' to tensor with proper shape"
TWICE = "input 'X' already exists in request"
PARAMETER = "has invalid type. It should be either 'int', 'bool', or 'string'."
NESTED = "Converting keyword: 'parameters': "
NO_OBJECT = "Expected JSON object for keyword: 'parameters': "
CODING = "Unsupported content-encoding, only 'identity' is supported."
HALF = "data via JSON is not supported. Please use the binary data format for input"
ONE = '"Y":1.0,"model_name":"vector","model_version":"1"}'


def given(model: str, body: object, verb: str = "generate", **headers: str) -> bytes:
    """Write a request; a body that is no text is written as JSON."""
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return post(f"/v2/models/{model}/{verb}", text, headers=headers)


def table(model: str, bodies: dict[str, tuple[int, str]], **more: object) -> list[Case]:
    """Write two cases for each body, one for each endpoint."""
    return [
        case(f"{verb} {model} {body or 'nothing'}", given(model, body, verb), *expected, **more)
        for body, expected in bodies.items()
        for verb in VERBS
    ]


DOCUMENTS = {
    "": (500, "The document is empty. at 0"),
    "{": (500, "Missing a name for object member. at 1"),
    "[]": (500, "attempt to get members for non-object"),
    "null": (500, "attempt to get members for non-object"),
    "1": (500, "attempt to get members for non-object"),
    '"text"': (500, "attempt to get members for non-object"),
    "{}": (400, "missing required input(s) ['X']"),
    '{"X":1} {}': (500, "must not be followed by other values."),
    '{"X":1,"parameters":{"Z":1}': (500, "Missing a comma or '}'"),
}
INPUTS = {
    '{"X":1}': (200, ONE),
    '{"X":[1]}': (200, ONE),
    '{"X":[1,2]}': (200, '"Y":[1.0,2.0]'),
    '{"X":[]}': (200, '"Y":[]'),
    '{"X":[[1],[2]]}': (200, '"Y":[1.0,2.0]'),
    '{"X":[[1],2]}': (200, '"Y":[1.0,2.0]'),
    '{"X":[[1,2],[3,4]]}': (500, COUNT),
    '{"X":[[1,2]]}': (500, COUNT),
    '{"X":null}': (500, NUMBER),
    '{"X":"a"}': (500, NUMBER),
    '{"X":["a"]}': (500, NUMBER),
    '{"X":true}': (500, NUMBER),
    '{"X":[true]}': (500, NUMBER),
    '{"X":{}}': (500, NUMBER),
    '{"X":{"a":1}}': (500, NUMBER),
    '{"X":[NaN,Infinity,-Infinity]}': (200, "[NaN,Infinity,-Infinity]"),
    '{"X":NaN}': (200, '"Y":NaN'),
    '{"X":1e39}': (200, '"Y":Infinity'),
    '{"X":0.1}': (200, '"Y":0.10000000149011612'),
    '{"X":[1],"X":[3]}': (400, TWICE),
    '{"X":[1],"X":"a"}': (400, TWICE),
    '{"X":"a","X":[1]}': (500, NUMBER),
}
PARAMETERS = {
    '{"X":1,"Z":1}': (200, ONE),
    '{"X":1,"Z":1.5}': (200, ONE),
    '{"X":1,"Z":"text"}': (200, ONE),
    '{"X":1,"Z":18446744073709551615}': (200, ONE),
    '{"X":1,"Z":null}': (400, f"parameter 'Z' {PARAMETER}"),
    '{"X":1,"Z":[1]}': (400, f"parameter 'Z' {PARAMETER}"),
    '{"X":1,"Z":{}}': (400, f"parameter 'Z' {PARAMETER}"),
    '{"Z":[],"X":"a"}': (400, f"parameter 'Z' {PARAMETER}"),
    '{"X":"a","Z":[]}': (500, NUMBER),
    '{"X":1,"triton_x":1}': (200, ONE),
    '{"X":1,"model_name":"z","model_version":7}': (200, ONE),
    '{"X":1,"inputs":[1]}': (400, f"parameter 'inputs' {PARAMETER}"),
}
IDS = {
    '{"X":1,"id":"q"}': (200, '"Y":1.0,"id":"q","model_name"'),
    '{"X":1,"id":""}': (200, ONE),
    '{"X":1,"id":"a\\"\\n"}': (200, '"id":"a\\"\\n"'),
    '{"X":1,"id":"q","id":"r"}': (200, '"id":"q"'),
    '{"X":1,"id":5}': (500, ID),
    '{"X":1,"id":null}': (500, ID),
    '{"X":1,"id":[]}': (500, ID),
    '{"X":"a","id":5}': (500, ID),
    '{"Z":[],"id":5}': (500, ID),
    '{"X":1,"parameters":{"id":"in"}}': (200, ONE),
    '{"X":1,"id":"out","parameters":{"id":"in"}}': (200, '"id":"out"'),
}
NESTED_CASES = {
    '{"parameters":{"X":[1]}}': (200, ONE),
    '{"parameters":{"X":1,"Z":2}}': (200, ONE),
    '{"X":1,"parameters":{}}': (200, ONE),
    '{"X":1,"parameters":{"p":1}}': (200, ONE),
    '{"X":1,"parameters":{"p":[1]}}': (400, f"{NESTED}parameter 'p' {PARAMETER}"),
    '{"X":1,"parameters":{"p":null}}': (400, f"{NESTED}parameter 'p' {PARAMETER}"),
    '{"X":1,"parameters":{"parameters":{}}}': (400, f"{NESTED}parameter 'parameters' {PARAMETER}"),
    '{"parameters":{"X":"a"}}': (500, f"{NESTED}{NUMBER}"),
    '{"X":1,"parameters":{"X":2}}': (400, NESTED),
    '{"parameters":{"X":2},"X":1}': (400, TWICE),
    '{"parameters":{"X":1},"parameters":{}}': (400, NESTED),
    '{"parameters":{"X":1,"X":2}}': (400, NESTED),
    '{"X":1,"parameters":1}': (500, f"{NO_OBJECT}attempt to access JSON non-object as object"),
    '{"X":1,"parameters":null}': (500, NO_OBJECT),
    '{"X":1,"parameters":[]}': (500, NO_OBJECT),
    '{"X":1,"parameters":"p"}': (500, NO_OBJECT),
    '{"X":"a","parameters":1}': (500, NUMBER),
    '{"parameters":1,"X":"a"}': (500, NO_OBJECT),
}
TYPES = {
    "BOOL": {"true": "true", "[true,false]": "[true,false]", "1": BOOLEAN, '"true"': BOOLEAN},
    "UINT8": {"255": "255", "-1": UNSIGNED, '"1"': UNSIGNED, "1.0": UNSIGNED, "256": "0"},
    "UINT16": {"[65535,0]": "[65535,0]", "null": UNSIGNED},
    "UINT32": {"4294967295": "4294967295", "[[]]": COUNT},
    "UINT64": {"18446744073709551615": "18446744073709551615", "18446744073709551616": UNSIGNED},
    "INT8": {"-128": "-128", "1.5": SIGNED, '[1,"a"]': SIGNED, "200": "-56"},
    "INT16": {"[-32768,32767]": "[-32768,32767]", "true": SIGNED},
    "INT32": {"-2147483648": "-2147483648", "[]": "[]", "{}": SIGNED},
    "INT64": {"-9223372036854775808": "-9223372036854775808", "9223372036854775808": SIGNED},
    "FP32": {"16777217": "16777216.0", '"x"': NUMBER},
    "FP64": {"[1e300,NaN]": "[1e300,NaN]", "1": "1.0", "[false]": NUMBER},
    "STRING": {'"s"': '"s"', '["s","t"]': '["s","t"]', '"é\\u0000\\"\\n"': "é", "1": TEXT},
    "FP16": {"1": f"receiving FP16 {HALF} FP16"},
    "BF16": {"1": f"receiving BF16 {HALF} BF16"},
}


def type_cases() -> list[Case]:
    rows = []
    for name, values in TYPES.items():
        for value, says in values.items():
            refused = 500 if says.startswith("Unable") else 400 if HALF in says else 0
            expected = (refused, says) if refused else (200, f'"{name}_OUT":{says}')
            if name == "STRING" and value.startswith('"é'):
                expected = (200, "é\\u0000\\")
            rows += table("types", {f'{{"{name}":{value}}}': expected})
    return rows


SHAPES = {
    "batched": {
        "[1,2,3,4]": (200, "[1.0,2.0,3.0,4.0]"),
        "[1,2,3,4,5,6,7,8]": (200, "8.0]"),
        "[1,2,3]": (400, SHAPE),
        "[1,2,3,4,5]": (400, SHAPE),
        "1": (400, SHAPE),
        "[]": (400, "Expected 16, got 0"),
        "[[1,2,3,4]]": (400, SHAPE),
        "[[1,2],[3,4],[5,6],[7,8]]": (500, COUNT),
    },
    "matrix": {
        "[1,2,3,4]": (200, '"Y":[1,2,3,4]'),
        "5": (200, '"Y":5'),
        "[]": (200, '"Y":[]'),
        "[[1,2],[3,4]]": (500, COUNT),
        "[1.0]": (500, SIGNED),
    },
    "reshaped": {"[1,2,3,4]": (200, '"Y":[1,2,3,4]'), "[1,2]": (400, SHAPE)},
    "elaborate": {
        "[1,2,3,4,5,6]": (200, '"Y":[1.0,2.0'),
        "[1,2,3,4,5,6,7,8,9,10,11,12]": (200, "12.0]"),
        "[1,2,3]": (400, SHAPE),
        "[1,2,3,4,5,6,7]": (400, SHAPE),
    },
    "versions": {"7": (200, '"model_version":"3"'), "[7,8]": (400, SHAPE)},
    "half": {"[1]": (400, f"receiving FP16 {HALF} X")},
    "bf16": {"[1]": (400, f"receiving BF16 {HALF} X")},
    "labelled": {"[1,2]": (200, '"Y":[1.0,2.0]')},
}
STRINGS = {
    '{"T":"hi"}': (200, '"U":"hi"'),
    '{"T":["a","b"]}': (200, '"U":["a","b"]'),
    '{"T":[["a"],["b"]]}': (200, '"U":["a","b"]'),
    '{"T":[["a","b"]]}': (400, "unexpected number of string elements 2"),
    '{"T":[1]}': (500, TEXT),
    '{"T":null}': (500, TEXT),
    '{"T":{}}': (500, TEXT),
    '{"T":true}': (500, TEXT),
    '{"T":""}': (200, '"U":""'),
}
SEVERAL = {
    '{"A":[1,2,3,4],"B":[5,6]}': (200, '{"OA":[1.0,2.0,3.0,4.0],"OB":[5,6],"model_name"'),
    '{"B":[5,6],"C":true,"A":[1,2,3,4]}': (200, '"OB":[5,6]'),
    '{"A":[1,2,3,4]}': (400, "missing required input(s) ['B']"),
    '{"A":"a","B":"b"}': (400, "can not convert input 'A'"),
}
REPEATED_NAMES = ("INT8", "INT16", "UINT8", "UINT16")


def orders(count: int) -> list[tuple[str, ...]]:
    """Return all orders of `count` inputs, each given twice, with the first uses in a fixed order.

    Other orders are the same with other names: all of two and three were compared with Triton.
    """
    names = REPEATED_NAMES[:count]
    found = dict.fromkeys(permutations(names * 2))
    return [order for order in found if tuple(dict.fromkeys(order)) == names]


def repetition(order: tuple[str, ...]) -> str:
    """Return the input that Triton names: the one whose second use comes first."""
    return next(name for at, name in enumerate(order) if name in order[:at])


def repeated_inputs() -> list[Case]:
    """Return the bodies in which several inputs are repeated, and those with another fault."""
    bodies = {
        "{"
        + ",".join(f'"{name}":1' for name in order)
        + "}": f"input '{repetition(order)}' already"
        for count in range(2, len(REPEATED_NAMES) + 1)
        for order in orders(count)
    }
    bodies |= {
        '{"INT8":1,"INT16":"a","INT8":1}': SIGNED,
        '{"INT8":1,"INT8":1,"INT16":"a"}': "input 'INT8' already",
        '{"INT8":1,"p":[],"INT8":1}': f"parameter 'p' {PARAMETER}",
        '{"parameters":{"INT8":1},"p":{"INT8":1,"INT8":1}}': f"parameter 'p' {PARAMETER}",
        '{"parameters":{"INT8":1,"INT16":1,"INT16":1,"INT8":1}}': NESTED,
        '{"INT8":1,"parameters":{"INT16":1},"INT8":1,"parameters":{}}': "input 'INT8' already",
        '{"INT8":1,"parameters":{"INT16":1},"parameters":{},"INT8":1}': NESTED,
    }
    return [
        case(f"types {body}", given("types", body), 500 if text == SIGNED else 400, text)
        for body, text in bodies.items()
    ]


FAULTS = (
    *("error default", "error NOT_FOUND", "error UNAVAILABLE", "error unicode", "error CANCELLED"),
    *("raises ValueError", "raises unicode", "returns too few", "returns dict"),
)
TENSORS = (
    *("nothing", "no elements", "a scalar", "another shape", "int64", "uint64", "bool", "float16"),
    *("float64", "special floats", "bytes objects", "str objects", "control characters"),
    *("another name", "one more", "the same name twice"),
)
HEADERS = {
    "Content-Encoding: gzip": (400, CODING),
    "Content-Encoding: identity": (200, ONE),
    "Content-Encoding: Identity": (400, CODING),
    "Content-Encoding: ": (400, CODING),
    "Accept-Encoding: gzip": (200, ONE),
    "Accept: text/plain": (200, ONE),
    "Content-Type: text/plain": (200, ONE),
    "Inference-Header-Content-Length: 3": (200, ONE),
    "Inference-Header-Content-Length: 999": (200, ONE),
    "Connection: close": (200, ONE),
}
FACTS = {
    "X": 1,
    "p": 1,
    "q": "s",
    "r": True,
    "f": 1.5,
    "id": "i",
    "sequence_id": 5,
    "sequence_start": True,
    "priority": 3,
    "timeout": 7,
    "binary_data_output": True,
    "headers": "h",
    "triton_x": 1,
    "": 0,
    "u": 18446744073709551615,
    "parameters": {"z": 2, "p": 9},
}


def with_header(line: str, verb: str) -> bytes:
    name, _, value = line.partition(": ")
    return given("vector", '{"X":1}', verb, **{name: value})


def plain(request: bytes) -> bytes:
    """Make a request one of HTTP/1.0."""
    return request.replace(b"HTTP/1.1", b"HTTP/1.0", 1)


CASES = [
    *chapter("generate document", *table("vector", DOCUMENTS)),
    *chapter("generate input", *table("vector", INPUTS)),
    *chapter("generate parameter", *table("vector", PARAMETERS)),
    *chapter("generate id", *table("vector", IDS)),
    *chapter("generate parameters", *table("vector", NESTED_CASES)),
    *chapter("generate type", *type_cases()),
    *chapter(
        "generate shape",
        *(
            row
            for model, values in SHAPES.items()
            for row in table(model, {f'{{"X":{text}}}': told for text, told in values.items()})
        ),
    ),
    *chapter("generate strings", *table("text", STRINGS), *table("words", STRINGS)),
    *chapter(
        "generate several",
        *table("pair", SEVERAL),
        *table(
            "pair",
            {'{"A":[1,2,3,4,5,6,7,8],"B":[5,6]}': (400, "batch size does not match")},
        ),
        *table(
            "optional",
            {
                '{"A":[1,2]}': (200, '{"OA":[1.0,2.0],"model_name"'),
                '{"A":[1,2],"B":[3,4]}': (200, '"OB":[3.0,4.0]'),
                '{"B":[3,4]}': (200, ""),
            },
        ),
    ),
    *chapter("generate repeated", *repeated_inputs()),
    *chapter(
        "generate facts",
        *table("mirror", {json.dumps(FACTS): (200, "facts")}),
        *table("mirror", {'{"X":1,"p":1,"p":2}': (200, '\\"p\\": 1')}),
        *table("mirror", {'{"X":1,"parameters":{"id":"in"}}': (200, '\\"id\\": \\"in\\"')}),
        *table("mirror", {'{"X":1,"parameters":{"a":1},"parameters":{"b":2}}': (200, "a")}),
    ),
    *chapter(
        "generate answer",
        *(
            row
            for what in FAULTS
            for row in table("faults", {json.dumps({"what": what}): (400, '{"error":"')})
        ),
        *(
            row
            for what in TENSORS
            for row in table(
                "faults",
                {json.dumps({"what": f"answer {what}"}): (400 if what == "float16" else 200, "")},
            )
        ),
        *table("faults", {'{"what":"answer no name"}': (400, "")}),
        *table("faulty_chain", {'{"what":"error default"}': (400, "in ensemble 'faulty_chain'")}),
        *table("chain", {'{"IN":[1,2,3,4],"id":"c"}': (200, '"sequence_end":false')}),
        *table("fork", {'{"IN":[1,2]}': (200, '{"LEFT":[1.0,2.0],"RIGHT":[1.0,2.0],"model')}),
        *table("no_execute", {'{"X":1}': (400, "does not implement `execute` method")}),
    ),
    *chapter(
        "generate header",
        *(
            case(f"{verb} {line}", with_header(line, verb), *expected)
            for line, expected in HEADERS.items()
            for verb in VERBS
        ),
    ),
    *chapter(
        "generate model",
        *(
            case(f"{verb} {model}", given(model, '{"X":1}', verb), *expected)
            for model, expected in {
                "vector/versions/1": (200, ONE),
                "vector/versions/01": (200, ONE),
                "vector/versions/9": (404, "'vector' version 9 is not found"),
                "vector/versions/99999999999999999999": (400, "(details: stol)"),
                "vector/versions/x": (404, "Not Found"),
                "nobody": (404, "'nobody' is not found"),
                "misspelt": (404, "'misspelt' is not found"),
                "fails_to_start": (404, "'fails_to_start' has no available versions"),
                "versions/versions/2": (404, "version 2 is not found"),
                "versions/versions/1": (200, '"model_version":"1"'),
            }.items()
            for verb in VERBS
        ),
        *(
            case(
                f"{verb} nobody, compressed",
                given("nobody", "", verb, **{"Content-Encoding": "gzip"}),
                404,
                "'nobody' is not found",
            )
            for verb in VERBS
        ),
    ),
    *chapter(
        "generate method",
        *(
            case(f"{word} {verb} {model}", get(f"/v2/models/{model}/{verb}", method=word), 405)
            for word in ("GET", "PUT", "HEAD", "DELETE", "OPTIONS")
            for verb in VERBS
            for model in ("vector", "nobody")
        ),
        case("a slash", post(f"{MODEL}/generate/", "{}"), 404),
        case("capitals", post(f"{MODEL}/Generate", "{}"), 404),
        case("a query", post(f"{MODEL}/generate?x=1", '{"X":1}'), 200, ONE),
    ),
    *chapter(
        "generate connection",
        *(case(f"HTTP/1.0 {verb}", plain(given("vector", '{"X":1}', verb)), 200) for verb in VERBS),
        case(
            "HTTP/1.0 kept",
            plain(given("vector", '{"X":1}', Connection="keep-alive")),
            200,
        ),
    ),
]
