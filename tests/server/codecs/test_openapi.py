"""The OpenAPI document: its examples are valid requests, and its schemas hold for answers."""

import json

import jsonschema
import numpy as np
import pytest
from server.support.frontend import Frontend, answering, served
from server.support.http import get, post

MODEL = """
    max_batch_size: 8
    input { name: "TEXT" data_type: TYPE_STRING dims: [1] }
    input { name: "ids" data_type: TYPE_INT64 dims: [-1, 2] }
    input { name: "half" data_type: TYPE_FP16 dims: [1] optional: true }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
IMAGE = """
    input { name: "pixels" data_type: TYPE_UINT8 dims: [224, 224] }
    output { name: "Y" data_type: TYPE_FP16 dims: [1] }
"""


@pytest.fixture
def client():
    return Frontend(
        served(MODEL, answer=answering(Y=np.float32([[1, 2]]))),
        served(IMAGE, "image"),
        served(IMAGE + "model_transaction_policy { decoupled: true }", "talk"),
        page=True,
    )


def answer(client, sent):
    reply = client.ask(sent)
    assert reply.status == 200
    return json.loads(reply.body)


def operation(client, path):
    return answer(client, get("/v2/openapi.json"))["paths"][path]["post"]


def test_every_loaded_model_has_its_paths(client):
    document = answer(client, get("/v2/openapi.json"))
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == {
        "/v2", "/v2/health/ready", "/v2/models/m/infer", "/v2/models/m/generate",
        "/v2/models/image/infer", "/v2/models/image/generate", "/v2/models/talk/generate_stream",
    }  # fmt: skip


def test_the_example_is_a_valid_request_and_the_response_fits_its_schema(client):
    infer = operation(client, "/v2/models/m/infer")
    body = infer["requestBody"]["content"]["application/json"]
    assert body["example"]["inputs"] == [
        {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["text"]},
        {"name": "ids", "shape": [1, 1, 2], "datatype": "INT64", "data": [0, 0]},
    ]
    jsonschema.Draft202012Validator.check_schema(body["schema"])
    jsonschema.validate(body["example"], body["schema"])
    found = answer(client, post("/v2/models/m/infer", json.dumps(body["example"]).encode()))
    (schema,) = infer["responses"]["200"]["content"].values()
    jsonschema.validate(found, schema["schema"])


@pytest.mark.parametrize("change", [{"name": "TXT"}, {"shape": [1, 2]}, {"data": [1.5]}])
def test_the_schema_refuses_what_the_server_refuses(client, change):
    body = operation(client, "/v2/models/m/infer")["requestBody"]["content"]["application/json"]
    place = 1 if "data" in change else 0
    body["example"]["inputs"][place].update(change)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body["example"], body["schema"])


def test_values_of_generate_are_elements_or_arrays(client):
    generate = operation(client, "/v2/models/m/generate")
    body = generate["requestBody"]["content"]["application/json"]
    assert body["example"] == {"TEXT": "text", "ids": [0, 0]}
    jsonschema.validate(body["example"], body["schema"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"TEXT": "text"}, body["schema"])


def test_large_examples_and_binary_data_types_have_no_data(client):
    infer = operation(client, "/v2/models/image/infer")
    (content,) = infer["requestBody"]["content"].values()
    assert content["example"]["inputs"] == [
        {"name": "pixels", "shape": [224, 224], "datatype": "UINT8"}
    ]
    (response,) = infer["responses"]["200"]["content"].values()
    (output,) = response["schema"]["properties"]["outputs"]["items"]["oneOf"]
    assert output["description"] == "FP16 needs the binary data extension."
    assert "data" not in output["properties"]


def test_without_pages_the_path_is_unknown_as_in_triton():
    reply = Frontend().ask(get("/v2/openapi.json"))
    assert (reply.status, reply.body) == (404, b'{"error":"Not Found"}')
