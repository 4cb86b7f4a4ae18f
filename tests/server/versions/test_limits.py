"""The limits of requests over HTTP, in both profiles: rows of docs/versions.md.

tests/contract compares 2.51 with the real server; the rows of newest are from Triton's sources.
"""

import gzip
import json
import zlib

import pytest
from server.support.versions import INFER, bystander_answers_during, named, post, vector

CURE = "Use --http-max-input-size to increase the limit."


def too_large(size):
    return {
        "error": f"request JSON size of {size} bytes exceeds the maximum allowed input size of 200 "
        f"bytes. {CURE}"
    }


@pytest.mark.parametrize(
    "path",
    [
        INFER,
        "/v2/models/vector/generate",
        "/v2/repository/models/vector/load",
        "/v2/repository/models/vector/unload",
        "/v2/trace/setting",
        "/v2/logging",
    ],
)
def test_json_of_more_bytes_is_refused(small, path):
    size = 201
    reply = small.http("POST", path, b"x" * size)
    assert (reply.status, reply.json()) == (400, too_large(size))
    assert reply.headers["Content-Type"] == "application/json"


def test_json_at_the_limit_is_read(small):
    text = json.dumps(vector(1, [1]))
    assert post(small, INFER, text.ljust(200).encode())[0] == 200
    assert post(small, INFER, text.ljust(201).encode())[0] == 400


def test_the_binary_part_is_not_limited(small):
    head = json.dumps(vector(5000, parameters={"binary_data_size": 20000})).encode()
    sizes = {"Inference_Header_Content_Length": str(len(head))}
    assert post(small, INFER, head + bytes(20000), **sizes)[0] == 200
    sizes = {"Inference_Header_Content_Length": "201"}
    reply = small.http("POST", INFER, head.ljust(201) + bytes(20000), named(sizes))
    assert (reply.status, reply.json()) == (400, too_large(201))


@pytest.mark.brute_force
def test_long_json_does_not_block_other_requests(newest):
    body = json.dumps(vector(1_000_000, [0.5] * 1_000_000)).encode()
    reply, answers = bystander_answers_during(
        newest, lambda attacked: attacked.http("POST", INFER, body)
    )
    assert (reply.status, answers > 1) == (200, True)


@pytest.mark.parametrize(("size", "status"), [(200, 200), (204, 400), (40_000, 400)])
def test_a_raw_body_is_limited(small, size, status):
    reply = small.http("POST", INFER, bytes(size), {"Inference-Header-Content-Length": "0"})
    assert reply.status == status
    if status == 400:
        assert reply.json()["error"] == (
            f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
            f"200 bytes. {CURE}"
        )


def test_a_tensor_in_json_is_limited_by_its_shape_regardless_of_its_data(small):
    reply = small.http("POST", INFER, json.dumps(vector(51, [1])).encode())
    assert (reply.status, reply.json()["error"]) == (
        400,
        "JSON input 'X' has a byte_size (204 bytes) that exceeds the maximum allowed value of 200 "
        f"bytes. {CURE}",
    )


def test_the_inputs_of_generate_are_limited_together(small):
    body = json.dumps({"A": [0] * 40, "B": [0] * 11}, separators=(",", ":")).encode()
    reply = small.http("POST", "/v2/models/two/generate", body)
    assert (reply.status, reply.json()["error"]) == (
        400,
        "request size of 160 bytes with input 'B' of size 44 bytes exceeds the maximum allowed "
        f"input size of 200. {CURE}",
    )


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize(("size", "status"), [(200, 200), (201, 400), (1_000_000, 400)])
def test_a_decompressed_body_is_limited(small, coding, size, status):
    text = json.dumps(vector(1, [1])).ljust(size).encode()
    packed = gzip.compress(text) if coding == "gzip" else zlib.compress(text)
    reply = small.http("POST", INFER, packed, {"Content-Encoding": coding})
    assert reply.status == status
    if status == 400:
        assert reply.headers["Content-Type"] == "text/plain"
        assert reply.json()["error"] == (
            f"Decompressed data size exceeds the maximum allowed value of 200 bytes. {CURE}"
        )


def test_by_default_newest_accepts_64_mib_and_2_51_any_size(newest, proven):
    body = json.dumps(vector(16777217, [1])).encode()
    assert "byte_size (67108868 bytes)" in newest.http("POST", INFER, body).json()["error"]
    assert "Unable to parse 'data'" in proven.http("POST", INFER, body).json()["error"]


@pytest.mark.parametrize("document", ["}", "\n: 1"])
@pytest.mark.parametrize("path", [INFER, "/v2/repository/index", "/v2/logging"])
def test_a_document_without_a_value_is_reported_as_empty(newest, proven, path, document):
    at = len(document) - len(document.lstrip())
    for server, why in {newest: "The document is empty.", proven: "Invalid value."}.items():
        reply = server.http("POST", path, document.encode())
        expected = f"failed to parse the request JSON buffer: {why} at {at}"
        assert (reply.status, reply.json()) == (500, {"error": expected})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        (
            "99999999999",
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            "[ -2147483648, 2147483647 ], got: 99999999999",
        ),
        ("-1", "inference header size should be in range (0, 8), got: -1"),
    ],
)
def test_a_header_length_is_a_number(newest, value, expected):
    reply = newest.http("POST", INFER, bytes(8), {"Inference-Header-Content-Length": value})
    assert (reply.status, reply.json()["error"]) == (400, expected)
    assert reply.headers["Content-Type"] == "text/plain"
