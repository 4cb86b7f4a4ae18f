"""Effects of models on a request: parameters, faults, ensembles, classification."""

from __future__ import annotations

from contract.casebook import (
    binary,
    case,
    chapter,
    infer,
    infer_binary,
    tensor,
)

X1 = tensor("X", "FP32", [1], [1])


def asked(**fields) -> bytes:
    """Ask the mirror what a request looks like from inside a model."""
    return infer("mirror", X1, **fields)


def faults(what: str, model: str = "faults", **fields) -> bytes:
    """Ask a model to do something wrong."""
    return infer(model, tensor("what", "BYTES", [1], [what]), **fields)


def classified(count: object, *values: float, **more) -> bytes:
    """Ask for the best classes of one row of values."""
    given = tensor("X", "FP32", [1, len(values)], list(values))
    return infer(
        "labelled", given, outputs=[{"name": "Y", "parameters": {"classification": count} | more}]
    )


BAD_PARAMETER = "has invalid type. It should be either 'int', 'bool', or 'string'."
INSTANCE = "Failed to process the request(s) for model 'faults_0', message: "
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
A_FAULT = {
    "UNKNOWN": 400,
    "INTERNAL": 500,
    "NOT_FOUND": 404,
    "INVALID_ARG": 400,
    "UNAVAILABLE": 503,
    "UNSUPPORTED": 501,
    "ALREADY_EXISTS": 400,
    "CANCELLED": 400,
}

CASES = [
    *chapter(
        "parameter",
        case("none", asked(), 200, '\\"parameters\\": {}'),
        case("id reaches the model", asked(id="q7"), 200, '\\"id\\": \\"q7\\"'),
        case(
            "text, integer, bool, float",
            asked(parameters={"a": "x", "b": -3, "c": True, "d": 1.5}),
            200,
            '{\\"a\\": \\"x\\", \\"b\\": -3, \\"c\\": true, \\"d\\": 1.5}',
        ),
        case("other letters", asked(parameters={"é": '数字 "q" \\'}), 200),
        case("empty key and text", asked(parameters={"": ""}), 200),
        case(
            "order is kept",
            asked(parameters={"z": 1, "a": 2, "m": 3}),
            200,
            '{\\"z\\": 1, \\"a\\": 2, \\"m\\": 3}',
        ),
        case("large integers", asked(parameters={"a": 2**63 - 1, "b": -(2**63), "c": 2**63}), 200),
        case("null", asked(parameters={"a": None}), 400, "parameter 'a' " + BAD_PARAMETER),
        case("list", asked(parameters={"a": []}), 400, "parameter 'a' " + BAD_PARAMETER),
        case("object", asked(parameters={"a": {}}), 400, "parameter 'a' " + BAD_PARAMETER),
        case(
            "not an object: list",
            asked(parameters=[]),
            500,
            "failed to get request params.: attempt to get members for non-object",
        ),
        case("not an object: null", asked(parameters=None), 500, "failed to get request params."),
        case(
            "reserved beginning",
            asked(parameters={"triton_a": 1}),
            400,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should",
        ),
        case(
            "binary_data_output is not passed on",
            asked(parameters={"binary_data_output": False, "a": 1}),
            200,
            '\\"parameters\\": {\\"a\\": 1}',
        ),
        case(
            "priority and timeout are not passed on",
            asked(parameters={"priority": 1, "timeout": 500, "a": 1}),
            200,
            '\\"timeout\\": 500',
        ),
        case(
            "priority negative",
            asked(parameters={"priority": -1}),
            500,
            "Unable to parse 'priority': " + NOT_UNSIGNED,
        ),
        case(
            "priority of text",
            asked(parameters={"priority": "1"}),
            500,
            "Unable to parse 'priority': " + NOT_UNSIGNED,
        ),
        case(
            "timeout a float",
            asked(parameters={"timeout": 1.5}),
            500,
            "Unable to parse 'timeout': " + NOT_UNSIGNED,
        ),
        case(
            "sequence values",
            asked(parameters={"sequence_id": 42, "sequence_start": True, "sequence_end": True}),
            200,
            '\\"correlation\\": 42, \\"flags\\": 3',
        ),
        case(
            "sequence id of text",
            asked(parameters={"sequence_id": "alpha"}),
            200,
            '\\"correlation\\": \\"alpha\\"',
        ),
        case(
            "sequence id negative",
            asked(parameters={"sequence_id": -1}),
            500,
            "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
        ),
        case(
            "sequence id of a fraction",
            asked(parameters={"sequence_id": 1.5}),
            500,
            "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
        ),
        case("sequence id of 128 letters", asked(parameters={"sequence_id": "x" * 128}), 200),
        case(
            "sequence id of 129 letters",
            asked(parameters={"sequence_id": "x" * 129}),
            501,
            "string correlation ID cannot be longer than 128 characters",
        ),
        case(
            "sequence id of 130 bytes",
            asked(parameters={"sequence_id": "é" * 65}),
            501,
            "string correlation ID cannot be longer than 128 characters",
        ),
        case(
            "sequence start of 1",
            asked(parameters={"sequence_start": 1}),
            500,
            "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
        ),
        case(
            "sequence end of text",
            asked(parameters={"sequence_end": "true"}),
            500,
            "Unable to parse 'sequence_end': attempt to access JSON non-boolean as boolean",
        ),
        case(
            "all outputs are requested", asked(), 200, '\\"outputs\\": [\\"again\\", \\"facts\\"]'
        ),
        case(
            "one output is requested",
            asked(outputs=[{"name": "again"}]),
            200,
            '\\"outputs\\": [\\"again\\"]',
        ),
    ),
    *chapter(
        "answer",
        *(
            case(kind, faults(f"answer {kind}"), 200)
            for kind in (
                *("good", "nothing", "another name", "one more", "the same name twice"),
                *(
                    "no elements",
                    "a scalar",
                    "another shape",
                    "a transposed view",
                    "a stepped view",
                ),
                *("int64", "uint64", "bool", "float64", "special floats", "bytes objects"),
                *("str objects", "number objects", "fixed bytes", "bytes that are not utf-8"),
                "control characters",
            )
        ),
        *(
            case(
                f"{kind}, binary",
                faults(f"answer {kind}", parameters={"binary_data_output": True}),
                200,
            )
            for kind in (
                *("nothing", "no elements", "a scalar", "another shape", "a transposed view"),
                *("float16", "special floats", "bytes objects", "str objects", "fixed bytes"),
            )
        ),
        case(
            "float16", faults("answer float16"), 400, "sending FP16 data via JSON is not supported"
        ),
        *(
            case(
                kind,
                faults(f"answer {kind}"),
                500,
                INSTANCE + "TritonModelException: NumPy dtype is not supported.",
            )
            for kind in ("unicode array", "complex", "big endian")
        ),
        case("no name", faults("answer no name"), 500, "Tensor name cannot be an empty string."),
    ),
    *chapter(
        "execute",
        *(
            case(f"raises {kind}", faults(f"raises {kind}"), 500, INSTANCE + text)
            for kind, text in (
                ("ValueError", "ValueError: bad value here\\n\\nAt:\\n  "),
                ("no text", "ValueError: <EMPTY MESSAGE>"),
                ("KeyError", "KeyError: 'k'"),
                ("unicode", "RuntimeError: naïve 数字"),
                ("two lines", 'RuntimeError: one\\n\\"two\\"'),
                ("deep", "ValueError: bad value here"),
                ("SystemExit", "SystemExit: 3"),
                ("KeyboardInterrupt", "KeyboardInterrupt: <EMPTY MESSAGE>"),
                ("TritonModelException", "TritonModelException: a refusal of the model"),
            )
        ),
        *(
            case(
                f"error {code}",
                faults(f"error {code}"),
                status,
                f'{{"error":"a fault of kind {code}"}}',
            )
            for code, status in A_FAULT.items()
        ),
        case(
            "error of the default code",
            faults("error default"),
            500,
            '{"error":"the default code"}',
        ),
        case("error with tensors", faults("error with tensors"), 404, '{"error":"the error wins"}'),
        case("error without text", faults("error without text"), 500, '{"error":""}'),
        case(
            "error of other letters",
            faults("error unicode"),
            400,
            '{"error":"naïve \\"数字\\"\\n"}',
        ),
        case("error of a named request", faults("error NOT_FOUND", id="q9"), 404),
        case(
            "returns too few",
            faults("returns too few"),
            500,
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0",
        ),
        case(
            "returns too many",
            faults("returns too many"),
            500,
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2",
        ),
        *(
            case(
                f"returns {kind}",
                faults(f"returns {kind}"),
                500,
                f"Expected a list in the execute return, found type '<class '{kind}'>'.",
            )
            for kind in ("tuple", "dict", "int", "str")
        ),
        *(
            case(
                f"returns list of {kind}",
                faults(f"returns list of {kind}"),
                500,
                f"found type '<class '{kind}'>'.",
            )
            for kind in ("int", "str")
        ),
        *(
            case(f"sends {kind}", faults(f"sends {kind}"), 200, '"data":[1.0]')
            for kind in ("and returns none", "and returns a list of none", "the flag afterwards")
        ),
        case("sends an error", faults("sends an error"), 503, '{"error":"sent, not returned"}'),
        case("a verb nobody knows", faults("dance"), 500, "object has no attribute 'dance'"),
        case(
            "no execute method",
            infer("no_execute", X1),
            500,
            "does not implement `execute` method.",
        ),
    ),
    *chapter(
        "ensemble",
        case(
            "two steps",
            infer("chain", tensor("IN", "FP32", [2, 4], list(range(8)))),
            200,
            '"parameters":{"sequence_id":0,"sequence_start":false,"sequence_end":false}',
        ),
        case(
            "two steps, binary",
            infer_binary(
                "chain",
                bytes(32),
                binary("IN", "FP32", [2, 4], 32),
                parameters={"binary_data_output": True},
            ),
            200,
        ),
        case(
            "id", infer("chain", tensor("IN", "FP32", [1, 4], [0] * 4), id="e1"), 200, '{"id":"e1"'
        ),
        case(
            "sequence values",
            infer(
                "chain",
                tensor("IN", "FP32", [1, 4], [0] * 4),
                parameters={"sequence_id": 5, "sequence_start": True},
            ),
            200,
            '"sequence_id":5',
        ),
        case(
            "sequence id of text",
            infer("chain", tensor("IN", "FP32", [1, 4], [0] * 4), parameters={"sequence_id": "s"}),
            200,
            '"sequence_id":"s"',
        ),
        case(
            "a sequence id of 64 bits",
            infer(
                "chain", tensor("IN", "FP32", [1, 4], [0] * 4), parameters={"sequence_id": 1 << 63}
            ),
            200,
            '"sequence_id":-9223372036854775808',
        ),
        case(
            "other parameters are not echoed",
            infer("chain", tensor("IN", "FP32", [1, 4], [0] * 4), parameters={"a": 1}),
            200,
        ),
        case(
            "two outputs",
            infer("fork", tensor("IN", "FP32", [3], [1, 2, 3])),
            200,
        ),
        case(
            "one output of two",
            infer("fork", tensor("IN", "FP32", [1], [1]), outputs=[{"name": "RIGHT"}]),
            200,
        ),
        case(
            "no elements",
            infer("fork", tensor("IN", "FP32", [0], [])),
            200,
        ),
        case(
            "wrong shape",
            infer("chain", tensor("IN", "FP32", [1, 3], [0] * 3)),
            400,
            "unexpected shape for input 'IN' for model 'chain'. Expected [-1,4], got [1,3].",
        ),
        case(
            "batch too large",
            infer("chain", tensor("IN", "FP32", [5, 4], [0] * 20)),
            400,
            "must be <= 4 for 'chain'",
        ),
        case(
            "unknown input",
            infer("chain", tensor("X", "FP32", [1, 4], [0] * 4)),
            400,
            "unexpected inference input 'X' for model 'chain'",
        ),
        case(
            "unknown output",
            infer("chain", tensor("IN", "FP32", [1, 4], [0] * 4), outputs=[{"name": "middle"}]),
            400,
            "unexpected inference output 'middle' for model 'chain'",
        ),
        case(
            "good answer of a faulty model",
            faults("answer good", "faulty_chain"),
            200,
            '"data":[1.0]',
        ),
        case(
            "a step raises",
            faults("raises ValueError", "faulty_chain"),
            500,
            "in ensemble 'faulty_chain', " + INSTANCE,
        ),
        case(
            "a step answers an error",
            faults("error NOT_FOUND", "faulty_chain"),
            404,
            "in ensemble 'faulty_chain', a fault of kind NOT_FOUND",
        ),
        case(
            "a step gives another datatype",
            faults("answer int64", "faulty_chain"),
            400,
            "in ensemble 'faulty_chain', ",
        ),
        case(
            "a step gives another rank",
            faults("answer another shape", "faulty_chain"),
            400,
            "in ensemble 'faulty_chain', ",
        ),
        case(
            "a step gives nothing",
            faults("answer nothing", "faulty_chain"),
            400,
            "in ensemble 'faulty_chain', ",
        ),
        case(
            "a step gives nothing, with id",
            faults("answer nothing", "faulty_chain", id="e2"),
            400,
            "[request id: e2] expected 1 inputs but got 0 inputs for model 'vector'",
        ),
        case(
            "an inner ensemble fails",
            faults("raises ValueError", "outer_chain"),
            500,
            "in ensemble 'outer_chain', in ensemble 'faulty_chain', ",
        ),
        case(
            "an inner ensemble answers an error",
            faults("error UNAVAILABLE", "outer_chain"),
            503,
            "in ensemble 'outer_chain', in ensemble 'faulty_chain', a fault",
        ),
        case(
            "an inner ensemble answers", faults("answer good", "outer_chain"), 200, '"data":[1.0]'
        ),
    ),
    *chapter(
        "classification",
        case("best one", classified(1, 0.1, 0.9, 0.5), 200, '["0.900000:1:dog"]'),
        case(
            "best two",
            classified(2, 0.1, 0.9, 0.5),
            200,
            '"shape":[1,2],"data":["0.900000:1:dog","0.500000:2:Bär"]',
        ),
        case("more than there are", classified(9, 3, 1, 2), 200, '"shape":[1,3]'),
        case("no label for the fourth", classified(1, 0, 0, 0, 7), 200, '["7.000000:3"]'),
        case(
            "large and negative values",
            classified(3, -1.5, 1e30, 0),
            200,
            "1000000015047466219876688855040.000000:1",
        ),
        case("equal values", classified(3, 1, 1, 1), 200),
        case("infinite values", classified(2, float("inf"), float("-inf")), 200),
        case("zero is no classification", classified(0, 1, 2), 200, '"datatype":"FP32"'),
        case("binary", classified(2, 0.1, 0.9, binary_data=True), 200, '"binary_data_size"'),
        case(
            "negative", classified(-1, 1, 2), 500, "Unable to set 'classification': " + NOT_UNSIGNED
        ),
        case("text", classified("1", 1, 2), 500, "Unable to set 'classification': " + NOT_UNSIGNED),
        case(
            "a batch",
            infer(
                "labelled",
                tensor("X", "FP32", [2, 3], [1, 2, 3, 6, 5, 4]),
                outputs=[{"name": "Y", "parameters": {"classification": 1}}],
            ),
            200,
            '"shape":[2,1],"data":["3.000000:2:Bär","6.000000:0:cat"]',
        ),
        case(
            "without a batch",
            infer(
                "vector",
                tensor("X", "FP32", [3], [1, 3, 2]),
                outputs=[{"name": "Y", "parameters": {"classification": 2}}],
            ),
            200,
            '"shape":[2],"data":["3.000000:1","2.000000:2"]',
        ),
        case(
            "integers",
            infer(
                "matrix",
                tensor("X", "INT32", [1, 3], [5, -7, 100000]),
                outputs=[{"name": "Y", "parameters": {"classification": 2}}],
            ),
            200,
            '["100000:2","5:0"]',
        ),
        case(
            "FP16",
            infer_binary(
                "half",
                b"\x00\x3c",
                binary("X", "FP16", [1], 2),
                outputs=[{"name": "Y", "parameters": {"classification": 1}}],
            ),
            400,
            "class result not available for output due to unsupported type 'FP16'",
        ),
    ),
]
