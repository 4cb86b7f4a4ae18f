"""Demanding clients over a real socket: long messages, many streams, slow readers."""

from __future__ import annotations

import struct

import grpc
import numpy as np
import pytest
import tritonclient.grpc as plain
from contract.grpc_casebook import SERVICE, floats, infer, tensor
from support.http2 import (
    DATA,
    END_STREAM,
    RST_STREAM,
    WINDOW_UPDATE,
    RawConnection,
    frame,
    head,
    message,
    settings,
)
from support.servers import Server
from tritonclient.grpc import service_pb2 as pb

SECONDS = 60
WIDE = struct.pack(">I", 1 << 20)
INFER, STREAM = f"{SERVICE}ModelInfer", f"{SERVICE}ModelStreamInfer"


def asked(count: int = 2, request_id: str = "") -> bytes:
    """Return a request to `vector` with this number of elements."""
    return infer(
        "vector", tensor("X", "FP32", (count,)), raw=[floats(*range(count))], id=request_id
    ).SerializeToString()


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_8_megabytes_both_ways(probed_reference: Server, compression: str | None):
    values = np.arange(2**21, dtype=np.float32) if compression is None else np.zeros(2**21, "f4")
    with plain.InferenceServerClient(probed_reference.grpc) as client:
        x = plain.InferInput("X", [2**21], "FP32").set_data_from_numpy(values)
        result = client.infer(
            "vector", [x], client_timeout=SECONDS, compression_algorithm=compression
        )
        np.testing.assert_array_equal(result.as_numpy("Y"), values)


def test_a_thousand_streams_at_once(probed_reference: Server):
    with RawConnection(probed_reference.grpc) as connection:
        connection.send(frame(WINDOW_UPDATE, 0, 0, WIDE))
        numbers = range(1, 2_001, 2)
        for number in numbers:
            connection.send(connection.headers(number, head(STREAM)))
        for number in numbers:
            connection.send(frame(DATA, 0, number, message(asked(request_id=str(number)))))
        for number in reversed(numbers):
            connection.send(frame(DATA, END_STREAM, number, b""))
        for number in numbers:
            answer = connection.answer(number)
            assert answer.trailers["grpc-status"] == "0"
            response = pb.ModelStreamInferResponse.FromString(answer.data[5:]).infer_response
            assert response.id == str(number)


def test_a_reader_without_a_window_gets_all_when_it_opens_one(probed_reference: Server):
    with RawConnection(probed_reference.grpc) as connection:
        connection.send(settings(_4=0))
        connection.request(1, INFER, message(asked(50_000)))
        connection.request(3, f"{SERVICE}ServerLive", message(b""))
        while len([answer for answer in connection.answers.values() if answer.blocks]) < 2:
            connection.read()
        connection.pinged()
        assert (connection.answers[1].data, connection.answers[3].data) == (b"", b"")
        connection.send(frame(WINDOW_UPDATE, 0, 3, WIDE))
        assert connection.answer(3).data == message(b"\x08\x01")
        connection.send(frame(WINDOW_UPDATE, 0, 1, WIDE), frame(WINDOW_UPDATE, 0, 0, WIDE))
        answer = connection.answer(1)
        response = pb.ModelInferResponse.FromString(answer.data[5:])
        assert response.raw_output_contents[0] == floats(*range(50_000))


def test_a_reader_that_lags_holds_up_nobody_else(probed_reference: Server):
    with RawConnection(probed_reference.grpc) as lagging:
        lagging.send(lagging.headers(1, head(STREAM)))
        for _ in range(20):
            lagging.send(frame(DATA, 0, 1, message(asked(3_000))))
        with grpc.insecure_channel(probed_reference.grpc) as channel:
            for _ in range(20):
                channel.unary_unary(INFER)(asked(), timeout=SECONDS)
        lagging.send(frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))
        lagging.pinged()
        lagging.send(frame(WINDOW_UPDATE, 0, 0, WIDE))
        lagging.request(3, f"{SERVICE}ServerLive", message(b""))
        assert lagging.answer(3).trailers["grpc-status"] == "0"


def test_a_client_that_vanishes_leaves_nothing_behind(probed_reference: Server):
    for number in range(20):
        connection = RawConnection(probed_reference.grpc)
        connection.send(connection.headers(1, head(INFER)), frame(DATA, 0, 1, b"\0\0\0\x01\0abc"))
        if number % 2:
            connection.socket.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: reset
        connection.socket.close()
    with grpc.insecure_channel(probed_reference.grpc) as channel:
        assert channel.unary_unary(INFER)(asked(), timeout=SECONDS)
    assert "Traceback" not in probed_reference.log
