"""Effects of models on a request: parameters, faults, ensembles, classification."""

from __future__ import annotations

from contract.casebook import binary, case, chapter, infer, infer_binary, tensor

X1 = tensor("X", "FP32", [1], [1])


def asked(**fields) -> bytes:
    """Request the model `mirror`, which returns the properties of the request."""
    return infer("mirror", X1, **fields)


def faults(what: str, model: str = "faults", **fields) -> bytes:
    """Request a fault from the model `faults`."""
    return infer(model, tensor("what", "BYTES", [1], [what]), **fields)


def classified(count: object, *values: float, **more) -> bytes:
    """Request the best classes of one row of values."""
    given = tensor("X", "FP32", [1, len(values)], list(values))
    return infer(
        "labelled", given, outputs=[{"name": "Y", "parameters": {"classification": count} | more}]
    )


INSTANCE = "Failed to process the request(s) for model 'faults_0', message: "
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
        case("none", asked(), 200),
        case("id reaches the model", asked(id="q7"), 200),
        case(
            "text, integer, bool, float",
            asked(parameters={"a": "x", "b": -3, "c": True, "d": 1.5}),
            200,
        ),
        case("other letters", asked(parameters={"é": '数字 "q" \\'}), 200),
        case("empty key and text", asked(parameters={"": ""}), 200),
        case("order is kept", asked(parameters={"z": 1, "a": 2, "m": 3}), 200),
        case("large integers", asked(parameters={"a": 2**63 - 1, "b": -(2**63), "c": 2**63}), 200),
        case("null", asked(parameters={"a": None}), 400),
        case("list", asked(parameters={"a": []}), 400),
        case("object", asked(parameters={"a": {}}), 400),
        case("not an object: list", asked(parameters=[]), 500),
        case("not an object: null", asked(parameters=None), 500),
        case("reserved beginning", asked(parameters={"triton_a": 1}), 400),
        case(
            "binary_data_output is not passed on",
            asked(parameters={"binary_data_output": False, "a": 1}),
            200,
        ),
        case(
            "priority and timeout are not passed on",
            asked(parameters={"priority": 1, "timeout": 500, "a": 1}),
            200,
        ),
        case("priority negative", asked(parameters={"priority": -1}), 500),
        case("priority of text", asked(parameters={"priority": "1"}), 500),
        case("timeout a float", asked(parameters={"timeout": 1.5}), 500),
        case(
            "sequence values",
            asked(parameters={"sequence_id": 42, "sequence_start": True, "sequence_end": True}),
            200,
        ),
        case("sequence id of text", asked(parameters={"sequence_id": "alpha"}), 200),
        case("sequence id negative", asked(parameters={"sequence_id": -1}), 500),
        case("sequence id of a fraction", asked(parameters={"sequence_id": 1.5}), 500),
        case("sequence id of 128 letters", asked(parameters={"sequence_id": "x" * 128}), 200),
        case("sequence id of 129 letters", asked(parameters={"sequence_id": "x" * 129}), 501),
        case("sequence id of 130 bytes", asked(parameters={"sequence_id": "é" * 65}), 501),
        case("sequence start of 1", asked(parameters={"sequence_start": 1}), 500),
        case("sequence end of text", asked(parameters={"sequence_end": "true"}), 500),
        case("all outputs are requested", asked(), 200),
        case("one output is requested", asked(outputs=[{"name": "again"}]), 200),
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
        case("float16", faults("answer float16"), 400),
        *(
            case(kind, faults(f"answer {kind}"), 500)
            for kind in ("unicode array", "complex", "big endian")
        ),
        case("no name", faults("answer no name"), 500),
    ),
    *chapter(
        "execute",
        *(
            case(f"raises {kind}", faults(f"raises {kind}"), 500)
            for kind in (
                "ValueError",
                "no text",
                "KeyError",
                "unicode",
                "two lines",
                "deep",
                "SystemExit",
                "KeyboardInterrupt",
                "TritonModelException",
            )
        ),
        *(
            case(f"error {code}", faults(f"error {code}"), status)
            for code, status in A_FAULT.items()
        ),
        case("error of the default code", faults("error default"), 500),
        case("error with tensors", faults("error with tensors"), 404),
        case("error without text", faults("error without text"), 500),
        case("error of other letters", faults("error unicode"), 400),
        case("error of a named request", faults("error NOT_FOUND", id="q9"), 404),
        case("returns too few", faults("returns too few"), 500),
        case("returns too many", faults("returns too many"), 500),
        *(
            case(f"returns {kind}", faults(f"returns {kind}"), 500)
            for kind in ("tuple", "dict", "int", "str")
        ),
        *(
            case(f"returns list of {kind}", faults(f"returns list of {kind}"), 500)
            for kind in ("int", "str")
        ),
        *(
            case(f"sends {kind}", faults(f"sends {kind}"), 200)
            for kind in ("and returns none", "and returns a list of none", "the flag afterwards")
        ),
        case("sends an error", faults("sends an error"), 503),
        case("a verb nobody knows", faults("dance"), 500),
        case("no execute method", infer("no_execute", X1), 500),
    ),
    *chapter(
        "ensemble",
        case("two steps", infer("chain", tensor("IN", "FP32", [2, 4], list(range(8)))), 200),
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
        case("id", infer("chain", tensor("IN", "FP32", [1, 4], [0] * 4), id="e1"), 200),
        case(
            "sequence values",
            infer(
                "chain",
                tensor("IN", "FP32", [1, 4], [0] * 4),
                parameters={"sequence_id": 5, "sequence_start": True},
            ),
            200,
        ),
        case(
            "sequence id of text",
            infer("chain", tensor("IN", "FP32", [1, 4], [0] * 4), parameters={"sequence_id": "s"}),
            200,
        ),
        case(
            "a sequence id of 64 bits",
            infer(
                "chain", tensor("IN", "FP32", [1, 4], [0] * 4), parameters={"sequence_id": 1 << 63}
            ),
            200,
        ),
        case(
            "other parameters are not echoed",
            infer("chain", tensor("IN", "FP32", [1, 4], [0] * 4), parameters={"a": 1}),
            200,
        ),
        case("two outputs", infer("fork", tensor("IN", "FP32", [3], [1, 2, 3])), 200),
        case(
            "one output of two",
            infer("fork", tensor("IN", "FP32", [1], [1]), outputs=[{"name": "RIGHT"}]),
            200,
        ),
        case("no elements", infer("fork", tensor("IN", "FP32", [0], [])), 200),
        case("wrong shape", infer("chain", tensor("IN", "FP32", [1, 3], [0] * 3)), 400),
        case("batch too large", infer("chain", tensor("IN", "FP32", [5, 4], [0] * 20)), 400),
        case("unknown input", infer("chain", tensor("X", "FP32", [1, 4], [0] * 4)), 400),
        case(
            "unknown output",
            infer("chain", tensor("IN", "FP32", [1, 4], [0] * 4), outputs=[{"name": "middle"}]),
            400,
        ),
        case("good answer of a faulty model", faults("answer good", "faulty_chain"), 200),
        case("a step raises", faults("raises ValueError", "faulty_chain"), 500),
        case("a step answers an error", faults("error NOT_FOUND", "faulty_chain"), 404),
        case("a step gives another datatype", faults("answer int64", "faulty_chain"), 400),
        case("a step gives another rank", faults("answer another shape", "faulty_chain"), 400),
        case("a step gives nothing", faults("answer nothing", "faulty_chain"), 400),
        case(
            "a step gives nothing, with id", faults("answer nothing", "faulty_chain", id="e2"), 400
        ),
        case("an inner ensemble fails", faults("raises ValueError", "outer_chain"), 500),
        case("an inner ensemble answers an error", faults("error UNAVAILABLE", "outer_chain"), 503),
        case("an inner ensemble answers", faults("answer good", "outer_chain"), 200),
    ),
    *chapter(
        "classification",
        case("best one", classified(1, 0.1, 0.9, 0.5), 200),
        case("best two", classified(2, 0.1, 0.9, 0.5), 200),
        case("more than there are", classified(9, 3, 1, 2), 200),
        case("no label for the fourth", classified(1, 0, 0, 0, 7), 200),
        case("large and negative values", classified(3, -1.5, 1e30, 0), 200),
        case("equal values", classified(3, 1, 1, 1), 200),
        case("infinite values", classified(2, float("inf"), float("-inf")), 200),
        case("zero is no classification", classified(0, 1, 2), 200),
        case("binary", classified(2, 0.1, 0.9, binary_data=True), 200),
        case("negative", classified(-1, 1, 2), 500),
        case("text", classified("1", 1, 2), 500),
        case(
            "a batch",
            infer(
                "labelled",
                tensor("X", "FP32", [2, 3], [1, 2, 3, 6, 5, 4]),
                outputs=[{"name": "Y", "parameters": {"classification": 1}}],
            ),
            200,
        ),
        case(
            "without a batch",
            infer(
                "vector",
                tensor("X", "FP32", [3], [1, 3, 2]),
                outputs=[{"name": "Y", "parameters": {"classification": 2}}],
            ),
            200,
        ),
        case(
            "integers",
            infer(
                "matrix",
                tensor("X", "INT32", [1, 3], [5, -7, 100000]),
                outputs=[{"name": "Y", "parameters": {"classification": 2}}],
            ),
            200,
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
        ),
    ),
]
