"""The bounds of the fields of protobuf messages."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from reference_server.codecs import proto_fields, proto_wire
from reference_server.codecs.infer_proto import InferMessageDecoder
from reference_server.codecs.proto_wire import varint
from reference_server.core.errors import ServerError

NUMBERS = st.sampled_from([1, 3, 7, 15, 16, 100, 2**29 - 1])
CONTENT = st.one_of(st.binary(max_size=5), st.just(bytes(200)))
LEAVES = st.one_of(
    st.builds(lambda n, c: varint(n << 3 | 2) + varint(len(c)) + c, NUMBERS, CONTENT),
    st.builds(lambda n, v: varint(n << 3) + varint(v), NUMBERS, st.integers(0, 2**64 - 1)),
    st.builds(lambda n: varint(n << 3 | 1) + bytes(8), NUMBERS),
    st.builds(lambda n: varint(n << 3 | 5) + bytes(4), NUMBERS),
)
FIELDS = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        lambda n, parts: varint(n << 3 | 3) + b"".join(parts) + varint(n << 3 | 4),
        NUMBERS,
        st.lists(inner, max_size=4),
    ),
    max_leaves=8,
)


def walked(data, most):
    """Return the results of all calls of `pass_fields`, or the error."""
    seen, groups, found, position = [], [], [], 0
    try:
        while position < len(data):
            before, position = (
                position,
                proto_fields.pass_fields(data, position, most, groups, found, 3),
            )
            seen.append((position, *groups, *found))
            if position == before:
                break
    except DecodeError as error:
        seen.append(str(error))
    return seen


def copied(data, most):
    """Return the end, the copied fields and the open groups of `copy_without_raw`."""
    head, groups, position, size = bytearray(len(data)), [], 0, 0
    try:
        while position < len(data):
            before = position
            position, size = proto_fields.copy_without_raw(data, position, most, groups, head, size)
            if position == before:
                break
    except DecodeError as error:
        return str(error)
    return position, bytes(head[:size]), groups


def one(data):
    """Return the bounds of the first field, or the end of the group that it begins."""
    groups = []
    try:
        tag, content, end = proto_fields.read_field(data, 0, groups)
        if groups:
            end = proto_fields.pass_groups(data, end, 1 << 10, groups)
    except DecodeError as error:
        return str(error)
    return tag, content, end, groups


@given(parts=st.lists(FIELDS, max_size=8), most=st.integers(1, 9), data=st.data())
def test_fields_end_where_the_next_begin(parts, most, data):
    whole = b"".join(parts)
    assert (walked(whole, most) or [(0,)])[-1][0] == len(whole)
    kept = [part for part in parts if part[:1] != b"\x3a"]
    assert copied(whole, most) == (len(whole), b"".join(kept), [])
    for part in parts:
        assert one(part + b"\x0a\x00")[2:] == (len(part), [])
        cut = part[: data.draw(st.integers(1, len(part)))]
        assert cut == part or one(cut)[2] < len(part)


def test_only_the_id_and_raw_contents_of_a_request_are_found():
    found = []
    data = b"\x0a\x01m\x1a\x01i\x3a\x02ab\xa3\x06\x3a\x00\xa4\x06\xba\x00\x00"
    assert proto_fields.pass_fields(data, 0, 99, [], found, 99) == len(data)
    assert found == [(3, 5, 6), (6, 8, 10), (16, 19, 19)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x00\x00", "the number 0"),
        (b"\x0e", "unknown type, or a group"),
        (b"\x0c", "unknown type, or a group"),
        (b"\x0b\x14", "unknown type, or a group"),
        (b"\x0b" * 101, "too many groups"),
        (b"\xff" * 11, "more than 10 bytes"),
    ],
)
def test_malformed_fields_are_refused(data, said):
    with pytest.raises(DecodeError, match=said):
        proto_fields.pass_fields(data, 0, 999, [])
    with pytest.raises(DecodeError, match=said):
        proto_fields.copy_without_raw(data, 0, 999, [], bytearray(len(data)), 0)


SMALL = st.binary(max_size=20)
MESSAGES = st.builds(
    pb.ModelInferRequest,
    model_name=st.text(max_size=5),
    id=st.text(max_size=5),
    inputs=st.lists(
        st.builds(
            pb.ModelInferRequest.InferInputTensor,
            name=st.text(max_size=3),
            shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        ),
        max_size=3,
    ),
    raw_input_contents=st.lists(st.one_of(SMALL, st.just(bytes(300))), max_size=3),
)


def read(data):
    """Return the message that `split` reads from `data`, or None if it refuses it."""
    try:
        received = InferMessageDecoder().read(data)
    except ServerError:
        return None
    message = pb.ModelInferRequest()
    message.CopyFrom(received.message)
    message.id = received.request_id
    message.ClearField("raw_input_contents")
    message.raw_input_contents.extend(bytes(content) for content in received.raw)
    return message


def expected(data):
    """Return the message that protobuf reads, or None if it refuses it."""
    try:
        return pb.ModelInferRequest.FromString(data)
    except DecodeError:
        return None


@given(MESSAGES, st.data())
def test_truncated_requests_are_refused_like_in_protobuf(message, data):
    whole = message.SerializeToString()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    assert read(cut) == expected(cut)


@given(SMALL)
def test_any_bytes_are_parsed_or_refused_like_in_protobuf(data):
    assert read(data) == expected(data)


@pytest.mark.parametrize(
    "more",
    [
        b"\xa0\x06\x01",
        b"\x38\x01",
        b"\xa3\x06\xa4\x06",
        b"\x42\x01x",
        b"\x3a\x81\x00x",
        b"\x3a\x81\x80\x80\x80\x80\x00x",
        b"\x3a\x81\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00x",
        b"\x02\x00",
        # Protobuf's parser in pure Python reads it; upb, C++ and tritonserver refuse it.
        bytes.fromhex("83012a00014a681233ca2bbcbb8401"),
    ],
    ids=[
        "another field",
        "contents as a number",
        "a group",
        "the next field",
        "a longer length",
        "a length of six bytes",
        "a length of eleven bytes",
        "field zero",
        "field zero in a group",
    ],
)
def test_unusual_messages_are_parsed_or_refused_like_in_protobuf(more):
    data = pb.ModelInferRequest(id="a", raw_input_contents=[b"b"]).SerializeToString() + more
    assert read(data) == expected(data)


def test_large_messages_are_not_cached():
    decoder = InferMessageDecoder()
    for more, is_long in ((b"\x3a\x00" * 3000, True), (b"\x3a\x88\x27" + bytes(5000), False)):
        data = pb.ModelInferRequest(model_name="m").SerializeToString() + more
        assert proto_wire.is_large(data) is is_long
        assert (decoder.read(data).head is None) is is_long


def test_raw_contents_are_views_of_the_received_bytes():
    data = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"abc"]).SerializeToString()
    (content,) = InferMessageDecoder().read(data).raw
    assert content.obj is data


@given(st.lists(st.one_of(SMALL, st.just(bytes(20_000))), max_size=3))
def test_a_response_equals_that_of_protobuf(contents):
    head = pb.ModelInferResponse(model_name="m", id="i")
    parts = proto_wire.response_parts(head.SerializeToString(), contents)
    head.raw_output_contents.extend(contents)
    assert pb.ModelInferResponse.FromString(b"".join(parts)) == head
    streamed = pb.ModelStreamInferResponse.FromString(b"".join(proto_wire.streamed(parts)))
    assert streamed == pb.ModelStreamInferResponse(infer_response=head)


def test_the_contents_of_a_response_are_not_copied():
    array = np.arange(4, dtype=np.float32)
    raw = array.data.cast("B")
    parts = proto_wire.streamed(proto_wire.response_parts(b"", [raw]))
    assert any(isinstance(part, memoryview) and part.obj is array for part in parts)


def test_only_the_first_of_many_raw_tensors_are_read():
    head, _, raw = proto_wire.split(b"\x0a\x01m" + b"\x3a\x01x" * 5000)
    assert (bytes(head), len(raw), bytes(raw[-1])) == (b"\x0a\x01m", 4096, b"x")


@pytest.mark.parametrize(
    "data",
    [
        b"\x1a\x01x" * 5000 + b"\x1a\x00",
        b"\x1a\x01x\x3a\x01y\x0a\x01m" * 5000,
        b"\x3a\x00" * 5000 + b"\x1a\x02\xc3\xa4" + b"\xa3\x06\x3a\x00\xa4\x06\x0a\x01m",
        b"\x3a\x00" * 5000 + b"\x1a\x02\xc3\xc3",
        b"\x3a\x00" * 5000 + b"\xa3\x06",
        b"\x3a\x00" * 5000 + b"\x3a\x01",
        b"\x3a\x00" * 5000 + b"\x02\x00",
        b"\x3a\x00" * 5000 + b"\x0a" + bytes([100]) + b"m" * 100,
    ],
    ids=[
        *("ids", "all mixed", "a group", "an id that is no text"),
        *("a group that is cut", "contents that are cut", "field zero", "a long name"),
    ],
)
def test_other_fields_are_read_beside_many_raw_tensors(data):
    found, wanted = read(data), expected(data)
    assert (found is None) is (wanted is None)
    if wanted is not None:
        del wanted.raw_input_contents[len(found.raw_input_contents) :]
        assert found == wanted


def test_many_fields_are_read_with_pauses(monkeypatch):
    pauses = []
    monkeypatch.setattr(proto_wire.gil, "back_off", lambda: pauses.append(None))
    head, _, raw = proto_wire.split(b"\x3a\x00" * 100_000)
    assert (bytes(head), len(raw)) == (b"", 4096)
    assert len(pauses) >= 100_000 // proto_fields.FIELDS
    with pytest.raises(ServerError, match="Unable to parse request"):
        proto_wire.split(bytes(10))
