"""The generate extension: requests and responses are flat JSON objects.

There are no pipelined requests, because the real server sometimes closes their connections.
"""

from __future__ import annotations

import json
from itertools import permutations

from contract.casebook import Case, case, chapter, get, post

MODEL = "/v2/models/vector"
VERBS = ("generate", "generate_stream")


def given(model: str, body: object, verb: str = "generate", **headers: str) -> bytes:
    """Write a request; a body that is not a string is encoded as JSON."""
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return post(f"/v2/models/{model}/{verb}", text, headers=headers)


def table(model: str, bodies: dict[str, int], **more: object) -> list[Case]:
    """Write two cases for each body, one for each endpoint."""
    return [
        case(f"{verb} {model} {body or 'nothing'}", given(model, body, verb), status, **more)
        for body, status in bodies.items()
        for verb in VERBS
    ]


DOCUMENTS = {
    "": 500,
    "{": 500,
    "[]": 500,
    "null": 500,
    "1": 500,
    '"text"': 500,
    "{}": 400,
    '{"X":1} {}': 500,
    '{"X":1,"parameters":{"Z":1}': 500,
}
INPUTS = {
    '{"X":1}': 200,
    '{"X":[1]}': 200,
    '{"X":[1,2]}': 200,
    '{"X":[]}': 200,
    '{"X":[[1],[2]]}': 200,
    '{"X":[[1],2]}': 200,
    '{"X":[[1,2],[3,4]]}': 500,
    '{"X":[[1,2]]}': 500,
    '{"X":null}': 500,
    '{"X":"a"}': 500,
    '{"X":["a"]}': 500,
    '{"X":true}': 500,
    '{"X":[true]}': 500,
    '{"X":{}}': 500,
    '{"X":{"a":1}}': 500,
    '{"X":[NaN,Infinity,-Infinity]}': 200,
    '{"X":NaN}': 200,
    '{"X":1e39}': 200,
    '{"X":0.1}': 200,
    '{"X":[1],"X":[3]}': 400,
    '{"X":[1],"X":"a"}': 400,
    '{"X":"a","X":[1]}': 500,
}
PARAMETERS = {
    '{"X":1,"Z":1}': 200,
    '{"X":1,"Z":1.5}': 200,
    '{"X":1,"Z":"text"}': 200,
    '{"X":1,"Z":18446744073709551615}': 200,
    '{"X":1,"Z":null}': 400,
    '{"X":1,"Z":[1]}': 400,
    '{"X":1,"Z":{}}': 400,
    '{"Z":[],"X":"a"}': 400,
    '{"X":"a","Z":[]}': 500,
    '{"X":1,"triton_x":1}': 200,
    '{"X":1,"model_name":"z","model_version":7}': 200,
    '{"X":1,"inputs":[1]}': 400,
}
IDS = {
    '{"X":1,"id":"q"}': 200,
    '{"X":1,"id":""}': 200,
    '{"X":1,"id":"a\\"\\n"}': 200,
    '{"X":1,"id":"q","id":"r"}': 200,
    '{"X":1,"id":5}': 500,
    '{"X":1,"id":null}': 500,
    '{"X":1,"id":[]}': 500,
    '{"X":"a","id":5}': 500,
    '{"Z":[],"id":5}': 500,
    '{"X":1,"parameters":{"id":"in"}}': 200,
    '{"X":1,"id":"out","parameters":{"id":"in"}}': 200,
}
NESTED_CASES = {
    '{"parameters":{"X":[1]}}': 200,
    '{"parameters":{"X":1,"Z":2}}': 200,
    '{"X":1,"parameters":{}}': 200,
    '{"X":1,"parameters":{"p":1}}': 200,
    '{"X":1,"parameters":{"p":[1]}}': 400,
    '{"X":1,"parameters":{"p":null}}': 400,
    '{"X":1,"parameters":{"parameters":{}}}': 400,
    '{"parameters":{"X":"a"}}': 500,
    '{"X":1,"parameters":{"X":2}}': 400,
    '{"parameters":{"X":2},"X":1}': 400,
    '{"parameters":{"X":1},"parameters":{}}': 400,
    '{"parameters":{"X":1,"X":2}}': 400,
    '{"X":1,"parameters":1}': 500,
    '{"X":1,"parameters":null}': 500,
    '{"X":1,"parameters":[]}': 500,
    '{"X":1,"parameters":"p"}': 500,
    '{"X":"a","parameters":1}': 500,
    '{"parameters":1,"X":"a"}': 500,
}
#: For each type, valid values and refused values.
TYPES: dict[str, tuple[list[str], list[str]]] = {
    "BOOL": (["true", "[true,false]"], ["1", '"true"']),
    "UINT8": (["255", "256"], ["-1", '"1"', "1.0"]),
    "UINT16": (["[65535,0]"], ["null"]),
    "UINT32": (["4294967295"], ["[[]]"]),
    "UINT64": (["18446744073709551615"], ["18446744073709551616"]),
    "INT8": (["-128", "200"], ["1.5", '[1,"a"]']),
    "INT16": (["[-32768,32767]"], ["true"]),
    "INT32": (["-2147483648", "[]"], ["{}"]),
    "INT64": (["-9223372036854775808"], ["9223372036854775808"]),
    "FP32": (["16777217"], ['"x"']),
    "FP64": (["[1e300,NaN]", "1"], ["[false]"]),
    "STRING": (['"s"', '["s","t"]', '"é\\u0000\\"\\n"'], ["1"]),
}


def type_cases() -> list[Case]:
    """Write the cases of all types."""
    statuses = {
        f'{{"{name}":{value}}}': status
        for name, values in TYPES.items()
        for status, given in zip((200, 500), values, strict=True)
        for value in given
    }
    return table("types", {**statuses, '{"FP16":1}': 400, '{"BF16":1}': 400})


SHAPES = {
    "batched": {
        "[1,2,3,4]": 200,
        "[1,2,3,4,5,6,7,8]": 200,
        "[1,2,3]": 400,
        "[1,2,3,4,5]": 400,
        "1": 400,
        "[]": 400,
        "[[1,2,3,4]]": 400,
        "[[1,2],[3,4],[5,6],[7,8]]": 500,
    },
    "matrix": {"[1,2,3,4]": 200, "5": 200, "[]": 200, "[[1,2],[3,4]]": 500, "[1.0]": 500},
    "reshaped": {"[1,2,3,4]": 200, "[1,2]": 400},
    "elaborate": {
        "[1,2,3,4,5,6]": 200,
        "[1,2,3,4,5,6,7,8,9,10,11,12]": 200,
        "[1,2,3]": 400,
        "[1,2,3,4,5,6,7]": 400,
    },
    "versions": {"7": 200, "[7,8]": 400},
    "half": {"[1]": 400},
    "bf16": {"[1]": 400},
    "labelled": {"[1,2]": 200},
}
STRINGS = {
    '{"T":"hi"}': 200,
    '{"T":["a","b"]}': 200,
    '{"T":[["a"],["b"]]}': 200,
    '{"T":[["a","b"]]}': 400,
    '{"T":[1]}': 500,
    '{"T":null}': 500,
    '{"T":{}}': 500,
    '{"T":true}': 500,
    '{"T":""}': 200,
}
SEVERAL = {
    '{"A":[1,2,3,4],"B":[5,6]}': 200,
    '{"B":[5,6],"C":true,"A":[1,2,3,4]}': 200,
    '{"A":[1,2,3,4]}': 400,
    '{"A":"a","B":"b"}': 400,
}
REPEATED_NAMES = ("INT8", "INT16", "UINT8", "UINT16")


def orders(count: int) -> list[tuple[str, ...]]:
    """Return all orders of `count` inputs that each occur twice, up to renaming of the inputs.

    For two and three inputs, all orders with all names were compared with Triton.
    """
    names = REPEATED_NAMES[:count]
    found = dict.fromkeys(permutations(names * 2))
    return [order for order in found if tuple(dict.fromkeys(order)) == names]


def repeated_inputs() -> list[Case]:
    """Return bodies that repeat several inputs, and bodies that also have another fault."""
    bodies = {
        "{" + ",".join(f'"{name}":1' for name in order) + "}": 400
        for count in range(2, len(REPEATED_NAMES) + 1)
        for order in orders(count)
    }
    bodies |= {
        '{"INT8":1,"INT16":"a","INT8":1}': 500,
        '{"INT8":1,"INT8":1,"INT16":"a"}': 400,
        '{"INT8":1,"p":[],"INT8":1}': 400,
        '{"parameters":{"INT8":1},"p":{"INT8":1,"INT8":1}}': 400,
        '{"parameters":{"INT8":1,"INT16":1,"INT16":1,"INT8":1}}': 400,
        '{"INT8":1,"parameters":{"INT16":1},"INT8":1,"parameters":{}}': 400,
        '{"INT8":1,"parameters":{"INT16":1},"parameters":{},"INT8":1}': 400,
    }
    return [case(f"types {body}", given("types", body), status) for body, status in bodies.items()]


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
    "Content-Encoding: gzip": 400,
    "Content-Encoding: identity": 200,
    "Content-Encoding: Identity": 400,
    "Content-Encoding: ": 400,
    "Accept-Encoding: gzip": 200,
    "Accept: text/plain": 200,
    "Content-Type: text/plain": 200,
    "Inference-Header-Content-Length: 3": 200,
    "Inference-Header-Content-Length: 999": 200,
    "Connection: close": 200,
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
    """Convert a request to HTTP/1.0."""
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
        *table("pair", {'{"A":[1,2,3,4,5,6,7,8],"B":[5,6]}': 400}),
        *table("optional", {'{"A":[1,2]}': 200, '{"A":[1,2],"B":[3,4]}': 200, '{"B":[3,4]}': 200}),
    ),
    *chapter("generate repeated", *repeated_inputs()),
    *chapter(
        "generate facts",
        *table("mirror", {json.dumps(FACTS): 200}),
        *table("mirror", {'{"X":1,"p":1,"p":2}': 200}),
        *table("mirror", {'{"X":1,"parameters":{"id":"in"}}': 200}),
        *table("mirror", {'{"X":1,"parameters":{"a":1},"parameters":{"b":2}}': 200}),
    ),
    *chapter(
        "generate answer",
        *(row for what in FAULTS for row in table("faults", {json.dumps({"what": what}): 400})),
        *(
            row
            for what in TENSORS
            for row in table(
                "faults",
                {json.dumps({"what": f"answer {what}"}): 400 if what == "float16" else 200},
            )
        ),
        *table("faults", {'{"what":"answer no name"}': 400}),
        *table("faulty_chain", {'{"what":"error default"}': 400}),
        *table("chain", {'{"IN":[1,2,3,4],"id":"c"}': 200}),
        *table("fork", {'{"IN":[1,2]}': 200}),
        *table("no_execute", {'{"X":1}': 400}),
    ),
    *chapter(
        "generate header",
        *(
            case(f"{verb} {line}", with_header(line, verb), status)
            for line, status in HEADERS.items()
            for verb in VERBS
        ),
    ),
    *chapter(
        "generate model",
        *(
            case(f"{verb} {model}", given(model, '{"X":1}', verb), status)
            for model, status in {
                "vector/versions/1": 200,
                "vector/versions/01": 200,
                "vector/versions/9": 404,
                "vector/versions/99999999999999999999": 400,
                "vector/versions/x": 404,
                "nobody": 404,
                "misspelt": 404,
                "fails_to_start": 404,
                "versions/versions/2": 404,
                "versions/versions/1": 200,
            }.items()
            for verb in VERBS
        ),
        *(
            case(
                f"{verb} nobody, compressed",
                given("nobody", "", verb, **{"Content-Encoding": "gzip"}),
                404,
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
        case("a query", post(f"{MODEL}/generate?x=1", '{"X":1}'), 200),
    ),
    *chapter(
        "generate connection",
        *(case(f"HTTP/1.0 {verb}", plain(given("vector", '{"X":1}', verb)), 200) for verb in VERBS),
        case("HTTP/1.0 kept", plain(given("vector", '{"X":1}', Connection="keep-alive")), 200),
    ),
]
