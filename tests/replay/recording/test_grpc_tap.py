"""The gRPC tap: calls and streams from frames in any pieces."""

import itertools

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st
from replay.traffic import Records, pieces
from support.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    frame,
    message,
    settings,
)
from tritonclient.grpc import service_pb2

from triton_replay.capture.records import Request, Response, StreamMessage
from triton_replay.recording.grpc_tap import GrpcTap
from triton_replay.recording.recorder import Selection
from triton_replay.recording.redaction import Redaction
from triton_replay.wire.grpc_messages import MessageSplitter

SERVICE = "/inference.GRPCInferenceService"
RST_STREAM, CONTINUATION = 3, 9


class Side:
    """Writes the frames of one side."""

    def __init__(self, opening=b""):
        self.encoder = Encoder()
        self.bytes = opening + settings()

    def headers(self, stream, *pairs, flags=END_HEADERS):
        self.bytes += frame(HEADERS, flags, stream, self.encoder.encode(list(pairs)))
        return self

    def data(self, stream, data, flags=0):
        self.bytes += frame(DATA, flags, stream, data)
        return self

    def call(self, stream, method):
        return self.headers(
            stream,
            *((":method", "POST"), (":path", f"{SERVICE}/{method}")),
            *(("content-type", "application/grpc"), ("x-trace", "1")),
        )

    def answer(self, stream):
        return self.headers(stream, (":status", "200"), ("content-type", "application/grpc"))

    def status(self, stream, code):
        trailers = (("grpc-status", str(code)),)
        return self.headers(stream, *trailers, flags=END_HEADERS | END_STREAM)


def tap(max_body=1000):
    records, ticks = Records(), itertools.count(1)
    return GrpcTap(5, itertools.count(), lambda: next(ticks), records, max_body), records


CUTS = st.lists(st.integers(0, 999), max_size=6)


@given(CUTS, CUTS)
def test_calls_of_one_connection_are_separated_in_any_pieces(sent, answered):
    client = Side(PREFACE).call(1, "ModelInfer").call(3, "ServerLive")
    client.data(1, message(b"ab")[:3]).data(3, message(b""), END_STREAM)
    client.data(1, message(b"ab")[3:]).data(1, b"", END_STREAM)
    server = Side().answer(3).data(3, message(b"live")).status(3, 0)
    server.answer(1).data(1, message(b"done")).status(1, 5)
    connection, records = tap()
    for piece in pieces(client.bytes, sent):
        connection.sent(piece)
    for piece in pieces(server.bytes, answered):
        connection.answered(piece)
    connection.closed("client")
    live, infer, was_live, done = records
    assert (live.number, live.target, live.protocol) == (1, f"{SERVICE}/ServerLive", "grpc")
    assert (infer.number, infer.connection, bytes(infer.body)) == (0, 5, message(b"ab"))
    assert infer.headers == (("content-type", "application/grpc"), ("x-trace", "1"))
    assert infer.at < live.at < live.end < infer.end
    assert (was_live.number, bytes(was_live.body)) == (1, message(b"live"))
    assert was_live.trailers == (("grpc-status", "0"),)
    assert (done.number, done.status, done.trailers) == (0, 200, (("grpc-status", "5"),))
    assert records.counted == []


def test_messages_of_a_stream_are_recorded_one_by_one():
    client, server = Side(PREFACE).call(1, "ModelStreamInfer"), Side().answer(1)
    connection, records = tap()
    connection.sent(client.data(1, message(b"one") + message(b"two")).bytes)
    connection.answered(server.data(1, message(b"first")).bytes)
    assert [type(record) for record in records] == [Request, StreamMessage, StreamMessage]
    assert bytes(records[0].body) == message(b"one")
    two, first = records[1:]
    assert (two.sent, bytes(two.body)) == (True, message(b"two"))
    assert (first.sent, bytes(first.body)) == (False, message(b"first"))
    server.bytes = b""
    connection.answered(server.status(1, 0).bytes)
    assert (records[3].ended, records[3].trailers) == ("complete", (("grpc-status", "0"),))


def test_headers_in_pieces_with_padding_and_priority_are_read():
    client = Side(PREFACE)
    pairs = [(":path", f"{SERVICE}/ModelInfer"), ("content-type", "application/grpc")]
    block = client.encoder.encode(pairs)
    head = b"\x02" + bytes(5) + block[:4] + b"\0\0"
    client.bytes += frame(HEADERS, 0x8 | 0x20, 1, head)
    client.bytes += frame(CONTINUATION, END_HEADERS, 1, block[4:])
    connection, records = tap()
    connection.sent(client.data(1, b"\x01" + message(b"x") + b"\0", 0x8 | END_STREAM).bytes)
    assert [bytes(record.body) for record in records] == [message(b"x")]


@pytest.mark.parametrize("by", ["client", "server"])
def test_a_cancelled_call_records_the_side(by):
    client, server = Side(PREFACE).call(1, "ModelInfer"), Side()
    connection, records = tap()
    connection.sent(client.data(1, message(b"x"), END_STREAM).bytes)
    cancel = frame(RST_STREAM, 0, 1, bytes(4))
    if by == "client":
        connection.sent(cancel)
    else:
        connection.answered(server.bytes + cancel)
    assert (records[1].ended, records[1].status) == (by, 0)


def test_calls_in_progress_at_the_end_of_the_connection_have_no_response():
    client = Side(PREFACE).call(1, "ModelInfer").data(1, message(b"x"), END_STREAM)
    connection, records = tap()
    connection.sent(client.call(3, "ModelInfer").bytes)
    connection.closed("server")
    assert [type(record) for record in records] == [Request, Response]
    assert records[1].ended == "server"
    assert records.counted == ["incomplete requests"]


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        PREFACE + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff"),
        PREFACE + frame(DATA, 0x8, 1, b"\x09"),
        PREFACE + frame(CONTINUATION, 0, 1, b""),
        PREFACE + frame(HEADERS, 0, 1, b"") + settings(),
    ],
)
def test_an_unreadable_connection_is_counted_once(junk):
    connection, records = tap()
    connection.sent(junk)
    connection.sent(junk)
    connection.closed("client")
    assert records == []
    assert records.counted == ["connections that could not be read as gRPC"]


@given(st.lists(st.binary(max_size=20), max_size=5), CUTS)
def test_a_splitter_returns_messages_from_any_pieces(bodies, cuts):
    splitter = MessageSplitter()
    whole = b"".join(map(message, bodies))
    found = [one for piece in pieces(whole or b"\0", cuts) for one in splitter.feed(piece)]
    assert found == list(map(message, bodies))


def test_redaction_and_sampling_of_messages():
    infer = service_pb2.ModelInferRequest(model_name="m")
    infer.parameters["sequence_id"].int64_param = 7
    infer.inputs.add(name="secret", datatype="INT32", shape=[1])
    infer.inputs.add(name="x", datatype="INT32", shape=[1])
    infer.raw_input_contents.extend([b"abcd", b"efgh"])
    body = message(infer.SerializeToString())
    headers = (("content-type", "application/grpc"),)
    target = f"{SERVICE}/ModelInfer"
    requests = [
        Request(n, 0, 0, 0, "POST", target, headers, len(body), body, protocol="grpc")
        for n in range(20)
    ]
    redacted = Redaction(frozenset(), frozenset({"secret"})).apply(requests[0])
    read = service_pb2.ModelInferRequest.FromString(redacted.body[5:])
    assert list(read.raw_input_contents) == [bytes(4), b"efgh"]
    assert (redacted.redacted, redacted.whole) == (True, True)
    assert len({Selection(0.5).takes(request) for request in requests}) == 1
    answer = service_pb2.ModelStreamInferResponse()
    answer.infer_response.outputs.add(name="secret", datatype="FP32").contents.fp32_contents[:] = [
        7
    ]
    body = message(answer.SerializeToString())
    sent = StreamMessage(0, False, 0, len(body), body)
    redacted = Redaction(frozenset(), frozenset({"secret"})).apply(sent)
    read = service_pb2.ModelStreamInferResponse.FromString(redacted.body[5:])
    assert list(read.infer_response.outputs[0].contents.fp32_contents) == [0]
    junk = StreamMessage(0, False, 0, 7, message(b"\xff\xff"))
    assert Redaction(frozenset(), frozenset({"secret"})).apply(junk).body == b""


def test_frames_of_the_largest_size_are_recorded():
    body = message(bytes(2**24 - 6))
    connection, records = tap(max_body=len(body))
    client = Side(PREFACE).call(1, "ModelInfer").data(1, body, END_STREAM)
    sent = client.call(3, "ModelInfer").data(3, message(b"ab"), END_STREAM).bytes
    for at in range(0, len(sent), 2**20):
        connection.sent(sent[at : at + 2**20])
    request, later = records
    assert bytes(request.body) == body
    assert bytes(later.body) == message(b"ab")
