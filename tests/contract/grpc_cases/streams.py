"""ModelStreamInfer: the responses to each request, their order, and the end of the stream."""

from __future__ import annotations

from contract.grpc_casebook import byte_strings, chapter, floats, infer, stream, tensor

UNREADABLE = b"\xff\xff"
PARTIAL = "triton_enable_empty_final_response"


def good(request_id="1", model="vector", **fields):
    return infer(model, tensor("X", "FP32", [2]), raw=[floats(1, 2)], id=request_id, **fields)


def short(request_id="1"):
    return infer("vector", tensor("X", "FP32", [2]), raw=[b"x"], id=request_id)


def fault(what="error INVALID_ARG", request_id="f", model="faults"):
    return infer(
        model, tensor("what", "BYTES", [1]), raw=[byte_strings(what.encode())], id=request_id
    )


def slow_first():
    """Write a row of a large and a small request, which are answered in the order of sending."""
    large = infer("vector", tensor("X", "FP32", [2**18]), raw=[bytes(2**20)], id="large")
    return [large, good("small", "pair/1"), good("next")]


CASES = [
    *chapter(
        "stream",
        stream("of nothing"),
        stream("of one", good()),
        stream("of one with a version", good("1", "vector/1")),
        stream("of one without an id", good("")),
        stream("of twenty", *(good(str(number)) for number in range(20))),
        stream("of two models", good("1"), good("2", "mirror/1"), good("3")),
        stream("a large one first", *slow_first()),
        stream("unknown model", good("1", "nobody")),
        stream("version not a number", good("1", "vector/x")),
        stream("version not there", good("1", "vector/9")),
        stream("no data", infer("vector", tensor("X", "FP32", [2]), id="1")),
        stream("wrong size", short()),
        stream("wrong parameter", good(given={"timeout": "x"})),
        stream("unknown output without an id", infer("nobody")),
        stream("a model's error", fault()),
        stream("a model's error, with a version", fault(model="faults/1")),
        stream("a model raises", fault("raises ValueError")),
        stream("an error without text", fault("error without text")),
        stream(
            "a string cut",
            infer(
                "words",
                tensor("T", "BYTES", [2]),
                id="w",
                raw=[byte_strings(b"a") + b"\x05\x00\x00\x00x"],
            ),
        ),
        stream(
            "errors between answers",
            fault(),
            good("2"),
            good("3", "nobody"),
            good("4"),
            short("5"),
            good("6"),
        ),
        stream(
            "an ensemble",
            infer("chain", tensor("IN", "FP32", [1, 4]), id="q", raw=[floats(1, 2, 3, 4)]),
        ),
        stream("an ensemble's error", fault("error NOT_FOUND", model="faulty_chain")),
        stream("empty final response", good(given={PARTIAL: True})),
        stream("no empty final response", good(given={PARTIAL: False})),
        stream("empty final response is a number", good(given={PARTIAL: 1})),
        stream("another reserved parameter", good(given={"triton_final_response": True})),
        stream(
            "classes",
            infer("labelled", tensor("X", "FP32", [1, 2]), raw=[floats(1, 2)], outputs=[]),
        ),
        stream("not readable", UNREADABLE),
        stream("not readable, then a good one", UNREADABLE, good()),
        stream("a good one, then not readable", good("1"), UNREADABLE, good("3")),
    ),
    *chapter(
        "stream that ends with errors",
        # A separate row, because the real server crashed when other requests were in progress.
        stream("a model's error", fault(), code="INVALID_ARGUMENT", triton_grpc_error="true"),
        stream("refused", short("1"), good("2"), triton_grpc_error="true"),
        stream("unknown model", good("1", "nobody"), good("2"), triton_grpc_error="true"),
        stream("no error", good("1"), good("2"), triton_grpc_error="true"),
        stream("asked with another word", fault(), good("2"), triton_grpc_error="True"),
        stream("asked with a number", fault(), good("2"), triton_grpc_error="1"),
        stream("asked not to", fault(), good("2"), triton_grpc_error="false"),
    ),
]
