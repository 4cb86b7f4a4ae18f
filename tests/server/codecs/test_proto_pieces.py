"""Messages that are parsed in pieces equal those that protobuf parses at once."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from reference_server.codecs import proto_fields, proto_wire
from reference_server.codecs.proto_wire import varint
from reference_server.core.errors import ServerError

TEXT = st.text(max_size=40)
CONTENTS = st.builds(
    pb.InferTensorContents,
    bool_contents=st.lists(st.booleans(), max_size=60),
    int64_contents=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
    fp32_contents=st.lists(st.floats(width=32, allow_nan=False), max_size=20),
    fp64_contents=st.lists(st.floats(allow_nan=False), max_size=20),
    bytes_contents=st.lists(st.binary(max_size=50), max_size=20),
)
INPUT = st.builds(
    pb.ModelInferRequest.InferInputTensor,
    name=TEXT,
    datatype=TEXT,
    shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30),
    contents=CONTENTS,
)
PARAMETER = st.builds(pb.InferParameter, string_param=TEXT)
MESSAGES = st.builds(
    pb.ModelInferRequest,
    model_name=TEXT,
    inputs=st.lists(INPUT, max_size=3),
    parameters=st.dictionaries(TEXT, PARAMETER, max_size=5),
    raw_input_contents=st.lists(st.binary(max_size=50), max_size=5),
)


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def in_pieces(data, message_type=pb.ModelInferRequest):
    message = message_type()
    try:
        proto_wire.merge(message, data)
    except DecodeError:
        return None
    message.DiscardUnknownFields()
    return message


def whole(data, message_type=pb.ModelInferRequest):
    try:
        message = message_type.FromString(data)
    except DecodeError:
        return None
    message.DiscardUnknownFields()  # long ones are not cached
    return message


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Make pieces small and remove the pauses."""
    monkeypatch.setattr(proto_wire, "PIECE", 24)
    monkeypatch.setattr(proto_fields, "FIELDS", 4)
    monkeypatch.setattr(proto_wire.gil, "yield_gil", lambda: None)


@pytest.mark.brute_force
@given(st.lists(MESSAGES, max_size=3), st.data())
def test_messages_are_parsed_in_pieces_and_refused_if_truncated(messages, data):
    sent = b"".join(message.SerializeToString() for message in messages)
    assert in_pieces(sent) == whole(sent)
    cut = sent[: data.draw(st.integers(0, len(sent)))]
    assert in_pieces(cut) == whole(cut)


@given(MESSAGES, st.data())
def test_damaged_messages_are_parsed_or_refused_like_in_protobuf(message, data):
    sent = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if sent:
            sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    assert in_pieces(bytes(sent)) == whole(bytes(sent))


@pytest.mark.parametrize(
    "sent",
    [
        b"\xa3\x06" + b"\x0a\x01x" * 20 + b"\xa4\x06" + field(1, b"m"),
        b"\xa3\x06" + b"\xab\x06" * 50 + b"\xac\x06" * 50 + b"\xa4\x06",
        b"\xa3\x06" + b"\x0a\x01x" * 20 + b"\xac\x06",
        b"\xa3\x06" + b"\x0a\x01x" * 20,
        b"\xa4\x06" + bytes(30),
        field(100, bytes(90)) + field(1, b"m"),
        b"\x08\x01" * 40 + b"\x0d" + bytes(4) + b"\x09" + bytes(8),
        field(5, field(3, b"\xff" * 60)),
        field(5, field(3, b"\xff" * 30 + b"\x01" + b"\x01" * 30)),
        field(5, field(5, field(6, bytes(41)))),
        field(1, b"\xff" * 40),
        b"\x0e" + bytes(40),
    ],
    ids=[
        "a group",
        "groups in groups",
        "a group that another ends",
        "a group without an end",
        "the end of no group",
        "a long unknown field",
        "known fields of other types",
        "a number without an end",
        "a number that is too long",
        "floats that are cut",
        "an invalid text",
        "a type that there is not",
    ],
)
def test_unusual_messages_are_parsed_or_refused_like_in_protobuf(sent):
    assert in_pieces(sent) == whole(sent)


def test_files_may_be_long_and_texts_may_not(monkeypatch):
    monkeypatch.setattr(proto_wire, "LONGEST_TEXT", 1000)
    for length, is_read in ((1000, True), (1001, False)):
        name = pb.ModelReadyRequest(name="n" * length)
        found = in_pieces(name.SerializeToString(), pb.ModelReadyRequest)
        assert found == (name if is_read else None)
    asked = pb.ModelInferRequest()
    asked.parameters["key"].string_param = "p" * 1001
    assert in_pieces(asked.SerializeToString()) is None
    load = pb.RepositoryModelLoadRequest()
    load.parameters["file:1/model.py"].bytes_param = bytes(1001)
    assert in_pieces(load.SerializeToString(), pb.RepositoryModelLoadRequest) == load


def test_a_long_message_is_parsed_with_pauses(monkeypatch):
    monkeypatch.undo()
    pauses = []
    monkeypatch.setattr(proto_wire.gil, "yield_gil", lambda: pauses.append(None))
    count = 50_000
    for each in (b"\x42\x01x", b"\x10\x01"):
        sent = field(5, field(5, each * count))
        pauses.clear()
        assert proto_wire.parse(sent) == pb.ModelInferRequest.FromString(sent)
        assert len(pauses) >= len(sent) / proto_wire.PIECE - 1
    with pytest.raises(ServerError, match="Unable to parse request"):
        proto_wire.parse(field(5, field(5, b"\x42\x01x" * count))[:-1])
