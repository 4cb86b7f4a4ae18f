"""Tensors, sequences and headers of requests, in both profiles: rows of docs/versions.md.

tests/contract compares 2.51 with the real server; the rows of newest are from Triton's sources.
"""

import json

import pytest
from server.support.versions import INFER, asked, tensor_message, vector
from tritonclient.grpc import service_pb2 as pb

from reference_server.testing import Code, ServerError, open_repository

# ---------------------------------------------------------------------- outputs named twice


def test_an_output_may_be_requested_only_once(newest, proven):
    body = vector(1, [1]) | {"id": "q", "outputs": [{"name": "Y"}, {"name": "Y"}]}
    reply = newest.http("POST", INFER, json.dumps(body).encode())
    expected = "[request id: q] output 'Y' already exists in request"
    assert (reply.status, reply.json()) == (400, {"error": expected})
    assert proven.http("POST", INFER, json.dumps(body).encode()).status == 200


# ---------------------------------------------------------------------- sizes and data


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ([2**63], "shape [-9223372036854775808] contains one or more invalid dimensions"),
        (
            [2**62, 4],
            "shape [4611686018427387904,4] causes total element count to exceed maximum size of "
            "9223372036854775807",
        ),
        ([2**64 - 1], "JSON input 'X' has a byte_size (18446744073709551615"),
    ],
)
def test_sizes_in_json_beyond_an_int64_are_refused(newest, shape, expected):
    document = {"inputs": [{"name": "X", "datatype": "FP32", "shape": shape, "data": [1]}]}
    if shape == [2**64 - 1]:
        expected = "JSON input 'X' has a byte_size ("
    status, error = asked(newest, INFER, document)
    assert status == 400
    assert expected in error


def test_byte_sizes_beyond_an_int64_are_refused(newest):
    document = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2**62], "data": [1]}]}
    assert asked(newest, INFER, document) == (
        400,
        "byte size overflow for input 'X': element count (4611686018427387904) * data type size "
        "(4) exceeds maximum allowed size (9223372036854775807)",
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (("rows", "X", "FP32", 1, -2), "tensor 'X' contains an invalid dimension [1,-2]"),
        (("text", "T", "BYTES", -2), "tensor 'T' contains an invalid dimension in shape [-2]"),
        (
            ("vector", "X", "FP32", 2**62),
            "byte size for tensor 'X' exceeds maximum size of 9223372036854775807",
        ),
        (
            ("rows", "X", "FP32", 4, 2**62),
            "byte size for tensor 'X' exceeds maximum size of 9223372036854775807",
        ),
        (
            ("rows", "X", "FP32", -3, 1),
            "[request id: <id_unknown>] inference request batch-size must be <= 4 for 'rows'",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_invalid_sizes_over_grpc_are_refused(newest, message, expected):
    with pytest.raises(ServerError) as caught:
        newest.grpc("ModelInfer", tensor_message(*message))
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, expected)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([1], "Failed to parse 'data' field: shape does not match true shape"),
        ([1, 2, 3], "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    ],
)
def test_a_wrong_number_of_elements_is_refused(newest, data, expected):
    assert asked(newest, INFER, vector(2, data)) == (500, expected)


def test_a_missing_string_is_refused(newest):
    document = {"inputs": [{"name": "T", "datatype": "BYTES", "shape": [2], "data": []}]}
    expected = "Failed to parse 'data' field: output buffer unavailable"
    assert asked(newest, "/v2/models/text/infer", document) == (500, expected)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("vector", "unexpected shape for input 'X' for model 'vector'. Expected [-1], got []. "),
        ("rows", "input 'X' has no shape but model requires batch dimension for 'rows'"),
    ],
)
def test_generate_reads_an_empty_list_as_a_tensor_without_a_shape(newest, model, expected):
    status, error = asked(newest, f"/v2/models/{model}/generate", {"X": []})
    assert (status, expected in error) == (400, True)


@pytest.mark.parametrize(
    ("model", "sequence_id", "expected"),
    [
        ("numbered", "a", "'ID' data-type is 'BYTES', but model 'numbered' expects 'UINT64'"),
        ("named", 7, "'ID' data-type is 'UINT64', but model 'named' expects 'BYTES'"),
        ("named", None, "'ID' data-type is 'UINT64', but model 'named' expects 'BYTES'"),
        ("numbered", 7, None),
        ("named", "a", None),
    ],
)
def test_correlation_ids_must_have_the_type_of_their_control(newest, model, sequence_id, expected):
    entry = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    parameters = {"sequence_start": True, "sequence_end": True}
    if sequence_id is not None:
        parameters["sequence_id"] = sequence_id
    document = {"inputs": [entry], "parameters": parameters}
    status, error = asked(newest, f"/v2/models/{model}/infer", document)
    if expected is None:
        assert status == 200
    else:
        start = "[request id: <id_unknown>] sequence batching control "
        assert (status, error) == (400, start + expected)


@pytest.mark.brute_force
def test_headers_of_reserved_names_are_not_forwarded(models):
    with open_repository(
        models, models=["vector"], options=["--http-header-forward-pattern=^(priority|x-|triton)"]
    ) as repository:
        body = vector(1, [1])
        expected = "Header 'priority' is reserved for Triton usage and cannot be forwarded."
        assert asked(repository, INFER, body, priority="1", x_a="2") == (400, expected)
        expected = "Header 'triton_x' is reserved for Triton usage and cannot be forwarded."
        reply = repository.http("POST", INFER, json.dumps(body).encode(), {"triton_x": "1"})
        assert reply.json()["error"] == expected
        assert asked(repository, INFER, body, Priority="1", timeout="3")[0] == 200


@pytest.mark.brute_force
@pytest.mark.parametrize(("elements", "status"), [(1_000_000, 200), (1_000_001, 400)])
def test_the_number_of_classified_elements_is_limited(newest, elements, status):
    message = pb.ModelInferRequest(model_name="vector")
    message.inputs.add(name="X", datatype="FP32", shape=[elements])
    message.raw_input_contents.append(bytes(4 * elements))
    message.outputs.add(name="Y").parameters["classification"].int64_param = 1
    if status == 200:
        assert newest.grpc("ModelInfer", message).outputs[0].shape == [1]
    else:
        with pytest.raises(ServerError, match=r"^classification output tensor too large$"):
            newest.grpc("ModelInfer", message)


def test_an_output_may_be_requested_only_once_over_grpc(newest, proven):
    message = tensor_message("vector", "X", "FP32", 1)
    message.outputs.add(name="Y")
    message.outputs.add(name="Y")
    with pytest.raises(ServerError, match="output 'Y' already exists in request"):
        newest.grpc("ModelInfer", message)
    assert proven.grpc("ModelInfer", message).outputs[0].name == "Y"
