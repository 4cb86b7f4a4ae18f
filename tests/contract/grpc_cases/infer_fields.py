"""ModelInfer, field by field: names, versions, parameters, outputs, shapes, and several faults."""

from __future__ import annotations

import re

from contract.grpc_casebook import (
    Unsigned,
    byte_strings,
    chapter,
    details,
    floats,
    infer,
    ints,
    messages,
    output,
    tensor,
    typed,
    unary,
)
from contract.grpc_cases.models import ABSENT, NOT_LOADED, VERSIONS
from tritonclient.grpc import service_pb2 as pb

X = tensor("X", "FP32", [2])
DATA = floats(1, 2)
A, B = tensor("A", "FP32", [1, 4]), tensor("B", "INT32", [1, 1, 2])
A_DATA, B_DATA = floats(1, 2, 3, 4), ints(1, 2)
LABELLED = tensor("X", "FP32", [1, 4])

# One value of each kind that a parameter can hold.
VALUES = {
    "true": True,
    "false": False,
    "a number": 5,
    "zero": 0,
    "a negative number": -5,
    "the least number": -(2**63),
    "text": "s",
    "empty text": "",
    "a double": 1.5,
    "an unsigned number": Unsigned(7),
    "the largest unsigned number": Unsigned(2**64 - 1),
    "nothing": None,
}
# For each parameter of a request, its allowed types, and invalid values.
TAKES = {
    "sequence_id": {int, str},
    "sequence_start": {bool},
    "sequence_end": {bool},
    "priority": {int, Unsigned},
    "timeout": {int},
    "triton_enable_empty_final_response": {bool},
    "triton_other": set(),
    "mine": {bool, int, str, float},
    "binary_data_output": {bool, int, str, float},
    "headers": {bool, int, str, float},
    "": {bool, int, str, float},
}


@messages
def one_order(message):
    """Sort the outputs, which have the order of a hash table."""
    pairs = sorted(
        zip(message.outputs, message.raw_output_contents, strict=True), key=lambda p: p[0].name
    )
    del message.outputs[:], message.raw_output_contents[:]
    message.outputs.extend(pair[0] for pair in pairs)
    message.raw_output_contents.extend(pair[1] for pair in pairs)


any_input_named = details(lambda text: re.sub(r"input '[^']*'", "input", text))


def good(model="vector", **fields):
    return infer(model, X, raw=[DATA], **fields)


def pair(a=A, b=B, raw=(A_DATA, B_DATA), **fields):
    return infer("pair", a, b, raw=raw, **fields)


def given(key, what):
    """Write the row about a parameter of a request with a type of value."""
    value = VALUES[what]
    is_good = type(value) in TAKES[key] and not (key == "priority" and value < 0)
    code = "OK" if is_good else "INVALID_ARGUMENT"
    return unary(f"{key} is {what}", good("mirror", given={key: value}), code)


def of_input(key, what):
    """Write the row about a parameter of an input."""
    refused = key.startswith("shared_memory_")
    request = infer("vector", tensor("X", "FP32", [2], **{key: VALUES[what]}), raw=[DATA])
    return unary(f"{key} of an input is {what}", request, "INVALID_ARGUMENT" if refused else "OK")


def of_output(key, what):
    """Write the row about a parameter of an output."""
    value = VALUES[what]
    refused = key.startswith("shared_memory_") or (
        key == "classification" and (type(value) is not int or value <= 0)
    )
    request = good(outputs=[output("Y", **{key: value})])
    return unary(f"{key} of an output is {what}", request, "INVALID_ARGUMENT" if refused else "OK")


def classified(count, model="labelled", data=(1, 4, 2, 3), shape=(1, 4), **more):
    wanted = output("Y", classification=count)
    x = tensor("X", "FP32", shape)
    return infer(model, x, raw=[floats(*data)], outputs=[wanted], **more)


CASES = [
    *chapter(
        "infer",
        unary("good", good()),
        unary("with an id", good(id="a b/数")),
        unary("with a version", good("vector/1")),
        unary("nothing at all", b"", "NOT_FOUND"),
        unary("unknown fields", good().SerializeToString() + b"\xa0\x06\x01"),
        unary("an id twice", good(id="a").SerializeToString() + b"\x1a\x01b"),
        unary("id not UTF-8", good().SerializeToString() + b"\x1a\x01\xff", "INTERNAL"),
        unary("raw contents as a number", good().SerializeToString() + b"\x38\x01"),
        unary("raw contents first", b"\x3a\x08" + DATA + infer("vector", X).SerializeToString()),
        unary("raw contents cut", good().SerializeToString()[:-1], "INTERNAL"),
        unary("a group", good().SerializeToString() + b"\xa3\x06\xa4\x06"),
        (unary(f"model {m}", good(m), "NOT_FOUND") for m in ["nobody", "数", "", *NOT_LOADED]),
        (
            unary(
                f"version {what}",
                pb.ModelInferRequest(
                    model_version=text, model_name="vector", inputs=[X], raw_input_contents=[DATA]
                ),
                code,
            )
            for what, (text, code) in VERSIONS.items()
        ),
        (unary(f"version {what}", good(f"vector/{v}"), "NOT_FOUND") for what, v in ABSENT.items()),
        unary(
            "versions, the greatest", infer("versions", tensor("X", "FP32", [1]), raw=[floats(1)])
        ),
        unary(
            "versions, the least", infer("versions/1", tensor("X", "FP32", [1]), raw=[floats(1)])
        ),
        unary(
            "versions, not served",
            infer("versions/2", tensor("X", "FP32", [1]), raw=[floats(1)]),
            "NOT_FOUND",
        ),
    ),
    *chapter("parameter", (given(key, what) for key in TAKES for what in VALUES)),
    *chapter(
        "parameter",
        unary(
            "a long sequence_id", good("mirror", given={"sequence_id": "x" * 129}), "UNIMPLEMENTED"
        ),
        unary("a sequence_id of 128", good("mirror", given={"sequence_id": "x" * 128})),
        unary(
            "a sequence_id of 128 letters and more bytes",
            good("mirror", given={"sequence_id": "é" * 128}),
            "UNIMPLEMENTED",
        ),
        unary(
            "all that are known",
            good(
                "mirror",
                id="i",
                given={
                    "sequence_id": "me",
                    "sequence_start": True,
                    "sequence_end": True,
                    "timeout": 3,
                    "priority": Unsigned(3),
                    "triton_enable_empty_final_response": True,
                },
            ),
        ),
        unary("a name that is nearly reserved", good("mirror", given={"Triton_x": 1})),
        unary("reserved prefix alone", good("mirror", given={"triton_": 1}), "INVALID_ARGUMENT"),
    ),
    *chapter(
        "parameter",
        (
            row(key, what)
            for row in (of_input, of_output)
            for key in ("classification", "binary_data", "other", "")
            for what in VALUES
        ),
        (
            row(key, what)
            for row in (of_input, of_output)
            for key in ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")
            for what in VALUES
        ),
    ),
    *chapter(
        "inputs",
        unary("none", infer("vector"), "INVALID_ARGUMENT"),
        unary("one missing", infer("pair", A, raw=[A_DATA]), "INVALID_ARGUMENT"),
        unary(
            "one too many",
            infer("vector", X, A, raw=[DATA, A_DATA]),
            "INVALID_ARGUMENT",
            unstable=details(lambda t: t.replace("'A','X'", "'X','A'")),
        ),
        unary("one twice", infer("pair", A, A, raw=[A_DATA, A_DATA]), "INVALID_ARGUMENT"),
        unary(
            "twice with an id", infer("pair", A, A, raw=[A_DATA] * 2, id="7"), "INVALID_ARGUMENT"
        ),
        unary(
            "unknown",
            infer("pair", A, tensor("Q", "FP32", [1, 4]), raw=[A_DATA] * 2),
            "INVALID_ARGUMENT",
        ),
        unary(
            "without a name",
            infer("vector", tensor("", "FP32", [2]), raw=[DATA]),
            "INVALID_ARGUMENT",
        ),
        unary("in another order", infer("pair", B, A, raw=[B_DATA, A_DATA])),
        unary("optional, left out", infer("optional", tensor("A", "FP32", [1, 2]), raw=[DATA])),
        unary("optional alone", infer("optional", tensor("B", "FP32", [1, 2]), raw=[DATA])),
        *(
            unary(
                f"datatype {name!r}",
                infer("vector", tensor("X", name, [2]), raw=[DATA]),
                "INVALID_ARGUMENT",
            )
            for name in ("INT32", "FP16", "BYTES", "BF16", "", "FLOAT", "fp32", "TYPE_FP32", "数")
        ),
    ),
    *chapter(
        "outputs",
        unary("both", pair(outputs=[output("OA"), output("OB")])),
        unary("in another order", pair(outputs=[output("OB"), output("OA")])),
        unary("one", pair(outputs=[output("OB")])),
        unary("one twice", pair(outputs=[output("OB"), output("OB")])),
        unary("unknown", pair(outputs=[output("Z")]), "INVALID_ARGUMENT"),
        unary("without a name", pair(outputs=[output("")]), "INVALID_ARGUMENT"),
        unary("an input's name", pair(outputs=[output("A")]), "INVALID_ARGUMENT"),
        unary(
            "of an ensemble",
            infer("fork", tensor("IN", "FP32", [2]), raw=[DATA], outputs=[output("LEFT")]),
        ),
    ),
    *chapter(
        "classes",
        *(unary(f"{n} of four", classified(n)) for n in (1, 2, 4, 5, 2**31 - 1)),
        *(unary(f"{n} of four", classified(n), "INVALID_ARGUMENT") for n in (0, -1)),
        unary("more than 32 bits", classified(2**40)),
        unary("of two rows", classified(2, data=(1, 4, 2, 3, 9, 8, 7, 6), shape=(2, 4))),
        unary("of equal values", classified(3, data=(1, 1, 1, 1))),
        unary("of numbers that are none", classified(4, data=(float("inf"), 1, -float("inf"), 0))),
        unary(
            "once with and once without",
            infer(
                "labelled",
                LABELLED,
                raw=[A_DATA],
                outputs=[output("Y", classification=1), output("Y")],
            ),
        ),
        unary(
            "once without and once with",
            infer(
                "labelled",
                LABELLED,
                raw=[A_DATA],
                outputs=[output("Y"), output("Y", classification=1)],
            ),
        ),
        unary("of a model that does not batch", classified(1, "vector", (1, 4, 2, 3), (4,))),
        *(
            unary(
                f"of {name}",
                infer(
                    "types",
                    tensor(name, name, [2]),
                    raw=[data],
                    outputs=[output(f"{name}_OUT", classification=1)],
                ),
                code,
            )
            for name, data, code in (
                ("INT8", b"\x01\x02", "OK"),
                ("UINT8", b"\xff\x02", "OK"),
                ("INT64", bytes(16), "OK"),
                ("UINT64", b"\xff" * 16, "OK"),
                ("FP64", bytes(16), "OK"),
                ("BOOL", b"\x01\x00", "INVALID_ARGUMENT"),
                ("FP16", bytes(4), "INVALID_ARGUMENT"),
            )
        ),
    ),
    *chapter(
        "shape",
        *(
            unary(
                f"{shape} of a vector",
                infer("vector", tensor("X", "FP32", shape), raw=[DATA]),
                "INVALID_ARGUMENT",
            )
            for shape in ([], [-1], [-2], [0], [1], [3], [2, 1], [1, 2], [2**40])
        ),
        unary("[0] of a vector without data", infer("vector", tensor("X", "FP32", [0]), raw=[b""])),
        unary(
            "with an id",
            infer("vector", tensor("X", "FP32", [3]), raw=[DATA], id="q"),
            "INVALID_ARGUMENT",
        ),
        *(
            unary(
                f"{shape} of a batch",
                infer("batched", tensor("X", "FP32", shape), raw=[A_DATA]),
                "INVALID_ARGUMENT",
            )
            for shape in (
                [],
                [4],
                [1],
                [-1, 4],
                [-3, 4],
                [9, 4],
                [1, -1],
                [1, 5],
                [1, 4, 1],
                [2, 4],
                [1, 3],
            )
        ),
        unary("a full batch", infer("batched", tensor("X", "FP32", [8, 4]), raw=[A_DATA * 8])),
        unary(
            "a batch of none with one row's data",
            infer("batched", tensor("X", "FP32", [0, 4]), raw=[A_DATA]),
        ),
        unary(
            "a batch of none of strings",
            infer("text", tensor("T", "BYTES", [0, 1]), raw=[byte_strings(b"a")]),
        ),
        unary(
            "a batch of none, reshaped",
            infer("reshaped", tensor("X", "INT32", [0, 4]), raw=[ints(1, 2, 3, 4)]),
        ),
        unary(
            "a batch of none without data",
            infer("batched", tensor("X", "FP32", [0, 4]), raw=[b""]),
            "INVALID_ARGUMENT",
        ),
        unary(
            "batches that differ",
            pair(tensor("A", "FP32", [2, 4]), raw=(A_DATA * 2, B_DATA)),
            "INVALID_ARGUMENT",
            unstable=any_input_named,
        ),
        unary("reshaped", infer("reshaped", tensor("X", "INT32", [1, 4]), raw=[ints(1, 2, 3, 4)])),
        unary(
            "strings below zero",
            infer("text", tensor("T", "BYTES", [-1, 1]), raw=[byte_strings(b"a")]),
            "INVALID_ARGUMENT",
        ),
        unary(
            "beyond 64 bits",
            infer("vector", tensor("X", "FP32", [2**62]), raw=[DATA]),
            "INVALID_ARGUMENT",
        ),
        unary(
            "below 64 bits",
            infer("vector", tensor("X", "FP32", [-(2**63)]), raw=[DATA]),
            "INVALID_ARGUMENT",
        ),
    ),
    *chapter(
        "first fault",
        unary("version, then model", good("nobody/x"), "INVALID_ARGUMENT"),
        unary("model, then parameter", good("nobody", given={"timeout": True}), "NOT_FOUND"),
        unary(
            "parameter, then input twice",
            infer("vector", X, X, raw=[DATA] * 2, given={"timeout": True}),
            "INVALID_ARGUMENT",
        ),
        unary("input twice, then its data", infer("vector", X, X), "INVALID_ARGUMENT"),
        unary(
            "input twice, then output",
            infer("vector", X, X, raw=[DATA] * 2, outputs=[output("Y", classification="1")]),
            "INVALID_ARGUMENT",
        ),
        unary(
            "data, then output's parameter",
            infer("vector", X, outputs=[output("Y", classification="1")]),
            "INVALID_ARGUMENT",
        ),
        unary(
            "data, then unknown output",
            infer("vector", X, outputs=[output("Z")]),
            "INVALID_ARGUMENT",
        ),
        unary(
            "output's parameter, then unknown output",
            good(outputs=[output("Z", classification="1")]),
            "INVALID_ARGUMENT",
        ),
        unary(
            "unknown output, then input",
            infer("vector", tensor("Q", "FP32", [2]), raw=[DATA], outputs=[output("Z")]),
            "INVALID_ARGUMENT",
        ),
        unary(
            "first input's data, then second's parameter",
            infer("pair", A, tensor("B", "INT32", [1, 1, 2], shared_memory_offset=1)),
            "INVALID_ARGUMENT",
        ),
        unary(
            "raw and typed, then type of the typed",
            infer("vector", tensor("X", "FP32", [2], typed(int_contents=[1])), raw=[DATA]),
            "INVALID_ARGUMENT",
        ),
        unary(
            "shared memory wrong, then classes wrong",
            good(outputs=[output("Y", classification="1", shared_memory_region=1)]),
            "INVALID_ARGUMENT",
        ),
        unary(
            "classes wrong, then region unknown",
            good(
                outputs=[
                    output(
                        "Y", classification=0, shared_memory_region="zz", shared_memory_byte_size=8
                    )
                ]
            ),
            "INVALID_ARGUMENT",
        ),
    ),
    *chapter(
        "ensemble",
        unary("chain", infer("chain", tensor("IN", "FP32", [1, 4]), raw=[A_DATA], id="q")),
        unary(
            "of no rows, with the data of one",
            infer("chain", tensor("IN", "FP32", [0, 4]), raw=[A_DATA]),
        ),
        unary("fork", infer("fork", tensor("IN", "FP32", [2]), raw=[DATA]), unstable=one_order),
        *(
            unary(
                f"sequence_id {value}",
                infer(
                    "chain",
                    tensor("IN", "FP32", [1, 4]),
                    raw=[A_DATA],
                    given={"sequence_id": value, "sequence_start": True},
                ),
            )
            for value in (0, 5, -5, -(2**63), "me", "")
        ),
    ),
]
