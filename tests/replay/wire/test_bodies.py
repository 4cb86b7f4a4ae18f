"""Decompression within a limit, sequence ids at any position, and headers of a load."""

import gzip
import json
import tracemalloc
import zlib
from types import SimpleNamespace

import pytest

from triton_replay.addresses import Address
from triton_replay.loading.http_server import HttpRequests, message
from triton_replay.wire.bodies import NotUnderstood, inflate, sequence_of
from triton_replay.wire.grpc_messages import split_messages, with_prefix
from triton_replay.wire.http2_client import call_fields

BOMB = bytes(16 * 2**20)
ENCODERS = {"gzip": gzip.compress, "deflate": zlib.compress}


def encoded(name, data):
    return (("Content-Encoding", name),), ENCODERS[name](data)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("size", [0, 1, 1000])
def test_a_body_of_the_largest_size_is_decompressed(name, size):
    data = bytes(range(250)) * 4
    assert bytes(inflate(*encoded(name, data[:size]), size)) == data[:size]
    if size:
        with pytest.raises(NotUnderstood, match=f"has more than {size - 1} bytes"):
            inflate(*encoded(name, data[:size]), size - 1)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_bomb_needs_no_memory_beyond_the_limit(name):
    headers, body = encoded(name, BOMB)
    tracemalloc.start()
    try:
        with pytest.raises(NotUnderstood, match="has more than 1000000 bytes"):
            inflate(headers, body, 1_000_000)
        with pytest.raises(NotUnderstood, match="has more than 1000000 bytes"):
            split_messages(with_prefix(body, compressed=True), 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


def test_members_of_gzip_are_joined():
    headers, body = encoded("gzip", b"ab")
    assert inflate(headers, body + gzip.compress(b"cd"), 4) == b"abcd"
    with pytest.raises(NotUnderstood, match="has more than 3 bytes"):
        inflate(headers, body + gzip.compress(b"cd"), 3)


def test_messages_of_a_call_share_one_limit():
    one = with_prefix(zlib.compress(bytes(600)), compressed=True)
    assert split_messages(one * 2, 1200) == [bytes(600)] * 2
    with pytest.raises(NotUnderstood, match="has more than"):
        split_messages(one * 2, 1199)


@pytest.mark.parametrize("name", ENCODERS)
def test_incomplete_data_are_refused(name):
    headers, body = encoded(name, bytes(1000))
    with pytest.raises(NotUnderstood, match=f"the body is not {name}"):
        inflate(headers, body[:-5])


def sequence_body(before, tail=b""):
    document = {"inputs": [{"data": ["x" * before]}], "parameters": {"sequence_id": 7}}
    text = json.dumps(document).encode()
    return (("Inference-Header-Content-Length", str(len(text))),) if tail else (), text + tail


@pytest.mark.parametrize("tail", [b"", b"binary"])
@pytest.mark.parametrize("before", [0, 4000, 4096, 100_000])
def test_a_sequence_id_is_found_at_any_position(before, tail):
    headers, body = sequence_body(before, tail)
    assert sequence_of(headers, body) == "7"
    escaped = body.replace(b"sequence_id", b"sequence\\u005fid")
    assert sequence_of((), escaped.removesuffix(tail)) == "7"


def test_binary_data_contain_no_sequence_id():
    text = b'{"inputs": []}'
    headers = (("Inference-Header-Content-Length", str(len(text))),)
    assert sequence_of(headers, text + b'"sequence_id"') == ""


def test_a_sequence_id_is_looked_for_within_the_limit():
    headers, body = encoded("gzip", sequence_body(1000)[1])
    assert sequence_of(headers, body) == "7"
    assert sequence_of(headers, body, 1000) == ""


@pytest.mark.parametrize(
    ("headers", "binary", "expected"),
    [
        ((), False, ["Host: h:1", "Content-Type: application/json"]),
        ((), True, ["Host: h:1", "Content-Type: application/octet-stream"]),
        ((("content-type", "a/b"), ("HOST", "x")), True, ["content-type: a/b", "HOST: x"]),
    ],
)
def test_a_load_sends_the_host_and_the_type_of_its_bodies(headers, binary, expected):
    model = SimpleNamespace(path="/v2/models/m", outputs=())
    requests = HttpRequests(
        Address("h", 1), model, headers, {}, {}, binary_inputs=binary, binary_outputs=binary
    )
    lines = requests.whole(SimpleNamespace(tensors=())).decode().split("\r\n")
    assert lines[: len(expected) + 1] == ["POST /v2/models/m/infer HTTP/1.1", *expected]
    described = message("POST", "/x", Address("h", 1), headers, b"{}").decode().split("\r\n")
    assert described[1:3] == [expected[0], expected[1].replace("octet-stream", "json")]
    assert "Content-Type" not in message("GET", "/x", Address("h", 1), ()).decode()
    fields = dict(call_fields("/s/m", Address("h", 1), headers))
    assert fields[":authority"] == ("x" if headers else "h:1")
    assert "host" not in fields
