"""Judgements of `compare_answers` and `model_of` on single pairs of responses."""

import json

import numpy as np
import pytest
from support.http2 import message
from tritonclient.grpc import service_pb2

from triton_replay.capture.files import Exchange
from triton_replay.capture.records import Request, Response
from triton_replay.comparing.differences import compare_answers, model_of
from triton_replay.comparing.tolerances import Tolerances, parse_tolerances

SERVICE = "/inference.GRPCInferenceService"


def grpc_request(method, body):
    data = message(body.SerializeToString())
    target = f"{SERVICE}/{method}"
    return Request(0, 0, 0, 0, "POST", target, (), len(data), data, protocol="grpc")


def http_request(target, body=b""):
    return Request(0, 0, 0, 0, "POST", target, (), len(body), body)


def responses(*bodies):
    request = http_request("/v2/models/m/infer")
    return [Exchange(request, Response(0, 0, 0, 200, (), len(body), body)) for body in bodies]


def output(values):
    values = np.asarray(values, np.float32)
    tensor = {"name": "y", "datatype": "FP32", "shape": values.shape, "data": values.tolist()}
    return json.dumps({"model_name": "m", "outputs": [tensor]}).encode()


def found(a, b, tolerances=None):
    differences = compare_answers("m", *responses(a, b), tolerances or Tolerances())
    return [(one.kind, one.output) for one in differences]


@pytest.mark.parametrize(
    ("a", "b", "kind"),
    [
        ([0.599, 1], [0.594, 1], "rounding"),
        # Whole numbers that FP16 has are counts or ids.
        ([599, 1], [594, 1], "values"),
        ([5999, 1], [5996, 1], "rounding"),
        ([1, 2], [np.nan, 2], "NaN"),
        ([np.nan, 2], [1, 2], "NaN"),
        ([1, 2], [np.inf, 2], "infinity"),
        ([1, 2, 3], [3, 1, 2], "order"),
        ([[1], [2]], [[1], [5]], "values of some rows"),
    ],
)
def test_differences_of_floats_have_a_kind(a, b, kind):
    assert found(output(a), output(b)) == [(kind, "y")]


@pytest.mark.parametrize(
    ("datatype", "a", "b", "kind"),
    [
        ("INT64", [7, 9], [8, 9], "off by one"),
        ("UINT8", [7, 9], [6, 10], "off by one"),
        ("INT64", [7, 9], [8, 12], "values"),
        ("INT64", [1, 5], [2, 5], "off by one"),
        # Classes of a binary classifier.
        ("INT64", [0, 1], [1, 1], "values"),
        ("INT64", [0, 1], [1, 0], "order"),
        ("BYTES", ["a", "b"], ["b", "a"], "order"),
        ("BYTES", ["a", "b"], ["c", "a"], "values"),
    ],
)
def test_differences_of_other_values_have_a_kind(datatype, a, b, kind):
    tensor = {"name": "y", "datatype": datatype, "shape": [2]}
    bodies = (json.dumps({"outputs": [{**tensor, "data": data}]}).encode() for data in (a, b))
    assert found(*bodies) == [(kind, "y")]


INFER = service_pb2.ModelInferRequest(model_name="m")


@pytest.mark.parametrize(
    ("request_", "model"),
    [
        (grpc_request("ModelInfer", INFER), "m"),
        (grpc_request("ModelStreamInfer", INFER), "m"),
        (grpc_request("ModelInfer", service_pb2.ModelInferRequest()), f"{SERVICE}/ModelInfer"),
        # Its first field is a name as well, but no model executes the call.
        (
            grpc_request("ModelMetadata", service_pb2.ModelMetadataRequest(name="m")),
            f"{SERVICE}/ModelMetadata",
        ),
        (http_request("/v2/models/m/infer"), "m"),
        (http_request("/v2/models/m/versions/1/generate?x=1"), "m"),
        (http_request("/v2/models/m/config"), "/v2/models/m/config"),
        # A path like that of a gRPC call, over HTTP/1.
        (
            http_request(f"{SERVICE}/ModelInfer", message(INFER.SerializeToString())),
            f"{SERVICE}/ModelInfer",
        ),
    ],
)
def test_a_request_belongs_to_the_model_that_executes_it(request_, model):
    assert model_of(request_) == model


def test_equal_bodies_that_are_not_json_do_not_differ():
    assert found(b"pong", b"pong") == []


def test_unequal_bodies_that_are_not_json_differ_as_text():
    assert found(b"pong", b"ping") == [("text", "")]
    (difference,) = compare_answers("m", *responses(b"pong", b"ping"), Tolerances())
    assert difference.detail == "'pong' and 'ping'"


@pytest.mark.parametrize(
    ("a", "b", "detail"),
    [
        ("x" * 60, "y", f"'{'x' * 60}' and 'y'"),
        ("x" * 61, "y", f"'{'x' * 57}...' and 'y'"),
        # 80 bytes of a body are read.
        ("é" * 50, "y", f"'{'é' * 40}' and 'y'"),
    ],
)
def test_long_texts_are_cut(a, b, detail):
    (difference,) = compare_answers("m", *responses(a.encode(), b.encode()), Tolerances())
    assert difference.detail == detail


@pytest.mark.parametrize(
    ("a", "b", "detail"),
    [
        ({"x": {"y": 1}}, {"x": {"y": 2}}, "x.y: '1' and '2'"),
        ({"x": {"y": 1}}, {"x": {}}, "x.y: '1' and 'None'"),
        ({"x": {"y": 1}}, {"x": [1]}, "x: \"{'y': 1}\" and '[1]'"),
        ({"x": [1]}, {"x": {"y": 1}}, "x: '[1]' and \"{'y': 1}\""),
        ({"x": [1, [2]]}, {"x": [1, [3]]}, "x[1][0]: '2' and '3'"),
        ({"x": [1, 2]}, {"x": [1]}, "x: '[1, 2]' and '[1]'"),
    ],
)
def test_the_first_difference_of_json_has_its_path(a, b, detail):
    bodies = (json.dumps({"parameters": each}).encode() for each in (a, b))
    (difference,) = compare_answers("m", *responses(*bodies), Tolerances())
    assert difference.detail == detail


def exchanges_of(request, *documents):
    sent = http_request("/v2/models/m/infer", json.dumps(request).encode())
    bodies = [json.dumps({"outputs": [], **document}).encode() for document in documents]
    return [Exchange(sent, Response(0, 0, 0, 200, (), len(body), body)) for body in bodies]


@pytest.mark.parametrize(
    ("request_", "a", "b", "ignored", "fields"),
    [
        # The server invented the ids, on both sides or on one.
        ({}, {"id": "1"}, {"id": "2"}, (), []),
        ({"id": None}, {}, {"id": "2"}, (), []),
        ({"id": "7"}, {"id": "7"}, {"id": "2"}, (), ["id"]),
        ({"id": "7"}, {"id": "7"}, {}, (), ["id"]),
        ({"id": "7"}, {"id": "7"}, {"id": "2"}, ("id",), []),
        ({}, {"parameters": None}, {}, (), []),
        ({}, {"parameters": {}}, {"parameters": None}, (), []),
        ({}, {"model_version": None}, {}, (), []),
        ({}, {"model_version": "1"}, {"model_version": "2"}, (), ["model_version"]),
        ({}, {"model_version": "1"}, {"model_version": "2"}, ("model_version",), []),
        ({}, {"parameters": {"ms": 1}}, {"parameters": {"ms": 2}}, ("parameters.ms",), []),
        ({}, {"parameters": {"ms": 1}}, {}, ("parameters.ms",), []),
        ({}, {"parameters": {"a.b": 1}}, {}, ("parameters.a.b",), []),
        (
            {},
            {"parameters": {"ms": 1, "n": 1}},
            {"parameters": {"ms": 2, "n": 2}},
            ("parameters.ms",),
            ["parameters"],
        ),
        ({}, {"parameters": {"ms": 1}}, {"parameters": {"ms": 2}}, ("ms",), ["parameters"]),
    ],
)
def test_ignored_and_invented_fields_are_not_compared(request_, a, b, ignored, fields):
    pair = exchanges_of(request_, a, b)
    differences = compare_answers("m", *pair, Tolerances(ignored=ignored))
    assert [one.output for one in differences] == fields


def test_metadata_are_compared_by_field():
    request = http_request("/v2/models/m")
    document = {"name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [3]}]}
    bodies = [json.dumps({**document, "platform": name}).encode() for name in "ab"]
    pair = [Exchange(request, Response(0, 0, 0, 200, (), len(body), body)) for body in bodies]
    (difference,) = compare_answers("m", *pair, Tolerances())
    assert (difference.kind, difference.output) == ("field", "platform")
    assert not compare_answers("m", *pair, Tolerances(ignored=("platform",)))


def test_null_parameters_of_an_output_do_not_hide_its_values():
    tensor = {"name": "y", "datatype": "FP32", "shape": [1], "parameters": None}
    pair = exchanges_of({}, *({"outputs": [{**tensor, "data": [data]}]} for data in (1.0, 2.0)))
    (difference,) = compare_answers("m", *pair, Tolerances())
    assert (difference.kind, difference.output) == ("values", "y")


def test_half_precision_is_compared_in_units_of_its_type():
    def bf16(bits):
        data = np.array(bits, "<u2").tobytes()
        tensor = {"name": "y", "datatype": "BF16", "shape": [len(bits)]}
        tensor["parameters"] = {"binary_data_size": len(data)}
        text = json.dumps({"outputs": [tensor]}).encode()
        headers = (("Inference-Header-Content-Length", str(len(text))),)
        body = text + data
        response = Response(0, 0, 0, 200, headers, len(body), body)
        return Exchange(http_request("/v2/models/m/infer"), response)

    one = 0x3F80
    assert not compare_answers("m", bf16([one]), bf16([one + 2]), Tolerances())
    (difference,) = compare_answers("m", bf16([one]), bf16([one + 3]), Tolerances())
    assert difference.kind == "values"


@pytest.mark.parametrize(
    ("b", "detail"),
    [
        ([1, 1, np.inf], "1 of 3 elements, at [2] 1 and inf"),
        ([np.nan, 1, 5], "2 of 3 elements, at [0] 1 and nan"),
        ([1, 3, 9], "2 of 3 elements, at [2] 1 and 9"),
    ],
)
def test_the_worst_element_has_its_place(b, detail):
    (difference,) = compare_answers("m", *responses(output([1, 1, 1]), output(b)), Tolerances())
    assert difference.detail == detail


def test_json_and_text_differ():
    assert found(output([1]), b"ping") == [("text", "")]


@pytest.mark.parametrize(
    ("a", "b", "kind"),
    [
        # One dimension has no rows: some wrong elements are not "some rows".
        ([1, 2, 3], [1, 2, 9], "values"),
        ([[1, 2], [3, 4]], [[1, 2], [3, 9]], "values of some rows"),
        ([[1, 2], [3, 4]], [[1, 9], [3, 9]], "values"),
        ([[1, 2, 3]], [[1, 2, 9]], "values"),
        (1, 9, "values"),
    ],
)
def test_wrong_rows_are_distinguished_from_wrong_values(a, b, kind):
    assert found(output(a), output(b)) == [(kind, "y")]


@pytest.mark.parametrize(
    ("a", "b", "differs"),
    [
        ([[0, 0]], [[0, 0]], False),
        # A zero vector has no direction, so it is similar to itself only.
        ([[0, 0]], [[1, 1]], True),
        ([[1, 1]], [[0, 0]], True),
        ([[1, 1]], [[2, 2]], False),
    ],
)
def test_the_cosine_of_a_zero_vector_is_not_within_tolerance(a, b, differs):
    tolerances = parse_tolerances(["y:cosine=0.99"])
    assert bool(found(output(a), output(b), tolerances)) == differs
