"""Tensors, sequences and headers of requests, in both profiles: rows of docs/versions.md.

2.51 is compared with the real server in tests/contract; what is said of newest is from source.
"""

import json

import pytest
from server.support.versions import INFER, asked, tensor_message, vector
from tritonclient.grpc import service_pb2 as pb

from reference_server.testing import Code, ServerError, open_repository

# ---------------------------------------------------------------------- outputs named twice


def test_an_output_is_requested_once(newest, proven):
    body = vector(1, [1]) | {"id": "q", "outputs": [{"name": "Y"}, {"name": "Y"}]}
    reply = newest.http("POST", INFER, json.dumps(body).encode())
    told = "[request id: q] output 'Y' already exists in request"
    assert (reply.status, reply.json()) == (400, {"error": told})
    assert proven.http("POST", INFER, json.dumps(body).encode()).status == 200


# ---------------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("shape", "told"),
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
def test_sizes_in_json_that_no_int64_holds(newest, shape, told):
    document = {"inputs": [{"name": "X", "datatype": "FP32", "shape": shape, "data": [1]}]}
    if shape == [2**64 - 1]:
        told = "JSON input 'X' has a byte_size ("
    status, error = asked(newest, INFER, document)
    assert status == 400
    assert told in error


def test_more_bytes_than_an_int64_counts(newest):
    document = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2**62], "data": [1]}]}
    assert asked(newest, INFER, document) == (
        400,
        "byte size overflow for input 'X': element count (4611686018427387904) * data type size "
        "(4) exceeds maximum allowed size (9223372036854775807)",
    )


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (("rows", "X", "FP32", 1, -2), "tensor 'X' contains an invalid dimension [1,-2]"),
        (
            ("text", "T", "BYTES", -2),
            "tensor 'T' contains an invalid dimension in shape [-2]",
        ),
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
def test_sizes_over_grpc_that_are_none(newest, message, told):
    with pytest.raises(ServerError) as caught:
        newest.grpc("ModelInfer", tensor_message(*message))
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, told)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ([1], "Failed to parse 'data' field: shape does not match true shape"),
        ([1, 2, 3], "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    ],
)
def test_elements_that_are_too_few_or_too_many(newest, data, told):
    assert asked(newest, INFER, vector(2, data)) == (500, told)


def test_no_string_where_there_is_to_be_one(newest):
    document = {"inputs": [{"name": "T", "datatype": "BYTES", "shape": [2], "data": []}]}
    told = "Failed to parse 'data' field: output buffer unavailable"
    assert asked(newest, "/v2/models/text/infer", document) == (500, told)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("vector", "unexpected shape for input 'X' for model 'vector'. Expected [-1], got []. "),
        ("rows", "input 'X' has no shape but model requires batch dimension for 'rows'"),
    ],
)
def test_generate_takes_an_empty_list_for_a_tensor_without_a_shape(newest, model, told):
    status, error = asked(newest, f"/v2/models/{model}/generate", {"X": []})
    assert (status, told in error) == (400, True)


def test_an_output_is_requested_once_over_grpc_too(newest, proven):
    message = tensor_message("vector", "X", "FP32", 1)
    message.outputs.add(name="Y")
    message.outputs.add(name="Y")
    with pytest.raises(ServerError, match="output 'Y' already exists in request"):
        newest.grpc("ModelInfer", message)
    assert proven.grpc("ModelInfer", message).outputs[0].name == "Y"


@pytest.mark.parametrize(
    ("model", "sequence_id", "told"),
    [
        ("numbered", "a", "'ID' data-type is 'BYTES', but model 'numbered' expects 'UINT64'"),
        ("named", 7, "'ID' data-type is 'UINT64', but model 'named' expects 'BYTES'"),
        ("named", None, "'ID' data-type is 'UINT64', but model 'named' expects 'BYTES'"),
        ("numbered", 7, None),
        ("named", "a", None),
    ],
)
def test_correlation_ids_have_the_type_of_their_control(newest, model, sequence_id, told):
    entry = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    parameters = {"sequence_start": True, "sequence_end": True}
    if sequence_id is not None:
        parameters["sequence_id"] = sequence_id
    document = {"inputs": [entry], "parameters": parameters}
    status, error = asked(newest, f"/v2/models/{model}/infer", document)
    if told is None:
        assert status == 200
    else:
        start = "[request id: <id_unknown>] sequence batching control "
        assert (status, error) == (400, start + told)


def test_headers_of_reserved_names_are_not_forwarded(models):
    with open_repository(
        models, models=["vector"], options=["--http-header-forward-pattern=^(priority|x-|triton)"]
    ) as repository:
        body = vector(1, [1])
        told = "Header 'priority' is reserved for Triton usage and cannot be forwarded."
        assert asked(repository, INFER, body, priority="1", x_a="2") == (400, told)
        told = "Header 'triton_x' is reserved for Triton usage and cannot be forwarded."
        reply = repository.http("POST", INFER, json.dumps(body).encode(), {"triton_x": "1"})
        assert reply.json()["error"] == told
        assert asked(repository, INFER, body, Priority="1", timeout="3")[0] == 200


@pytest.mark.parametrize(("elements", "status"), [(1_000_000, 200), (1_000_001, 400)])
def test_only_so_many_elements_are_classified(newest, elements, status):
    message = pb.ModelInferRequest(model_name="vector")
    message.inputs.add(name="X", datatype="FP32", shape=[elements])
    message.raw_input_contents.append(bytes(4 * elements))
    message.outputs.add(name="Y").parameters["classification"].int64_param = 1
    if status == 200:
        assert newest.grpc("ModelInfer", message).outputs[0].shape == [1]
    else:
        with pytest.raises(ServerError, match=r"^classification output tensor too large$"):
            newest.grpc("ModelInfer", message)
