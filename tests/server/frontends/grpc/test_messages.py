"""Messages in bodies: parsed from any pieces, compressed or not."""

import gzip
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.http2 import message

from reference_server.codecs import bodies
from reference_server.frontends.grpc import messages
from reference_server.frontends.grpc.calls import CallFailed, Status
from reference_server.frontends.grpc.messages import INFLATE, MessageReader, Packed

PACK = {"gzip": gzip.compress, "deflate": zlib.compress}


def read(pieces, encoding="identity"):
    reader = MessageReader(INFLATE[encoding])
    found = [one for piece in pieces for one in reader.feed(memoryview(piece))]
    return [one.plain() if isinstance(one, Packed) else bytes(one) for one in found]


@given(st.lists(st.binary(max_size=30), max_size=5), st.lists(st.integers(0, 20), max_size=20))
def test_any_split_gives_the_same_messages(sent, sizes):
    wire = b"".join(map(message, sent))
    pieces = []
    for size in sizes:
        pieces.append(wire[:size])
        wire = wire[size:]
    assert read([*pieces, wire]) == sent


@given(
    st.lists(st.binary(max_size=50), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=30),
)
def test_reading_in_place_gives_the_same_messages(sent, reads):
    reader, found = MessageReader(None), []
    wire = b"".join(map(message, sent))
    for most, is_placed in [*reads, (len(wire), False)]:
        size = min(most, len(wire), reader.missing) if is_placed else most
        if is_placed and size:
            piece = reader.buffer(size)
            assert len(piece) == size
            piece[:] = wire[:size]
        else:
            piece = memoryview(wire[:size])
        found += map(bytes, reader.feed(piece))
        wire = wire[size:]
    assert found == sent


@pytest.mark.parametrize("length", [100, 1_001, 4_096])
def test_the_end_of_a_message_in_pieces_is_aligned(length):
    reader = MessageReader(None)
    wire = memoryview(message(bytes(length)))
    assert list(reader.feed(wire[:50])) == []
    (whole,) = reader.feed(wire[50:])
    assert len(whole) == length
    assert np.frombuffer(whole[-64:], np.float64).flags.aligned


def test_a_complete_message_does_not_reference_the_read_buffer():
    buffer = bytearray(message(b"abc"))
    (whole,) = MessageReader(None).feed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert whole == b"abc"


def test_a_length_alone_takes_no_memory():
    list(MessageReader(None).feed(memoryview(struct.pack(">BI", 0, 2**31 - 1) + b"x")))


@pytest.mark.parametrize("encoding", PACK)
@pytest.mark.parametrize("broken", [b"", b"nonsense", "half"])
def test_malformed_compressed_messages_are_rejected(encoding, broken):
    data = PACK[encoding](bytes(100))[:-4] if broken == "half" else broken
    with pytest.raises(CallFailed) as caught:
        read([message(data, 1)], encoding)
    assert caught.value.status is Status.INTERNAL
    assert caught.value.message == f"Unexpected error decompressing data for algorithm {encoding}"


def test_a_too_long_message_is_rejected_before_its_bytes_arrive():
    with pytest.raises(
        CallFailed, match=r"larger than max \(2147483648 vs\. 2147483647\)"
    ) as caught:
        read([struct.pack(">BI", 0, 2**31) + b"x"])
    assert caught.value.status is Status.RESOURCE_EXHAUSTED


def test_a_message_that_decompresses_to_too_much_is_rejected(monkeypatch):
    monkeypatch.setattr(messages, "_MAX_BYTES", 1_000)
    assert read([message(gzip.compress(bytes(1_000)), 1)], "gzip") == [bytes(1_000)]
    with pytest.raises(CallFailed) as caught:
        read([message(gzip.compress(bytes(1_000_000)), 1)], "gzip")
    assert caught.value.status is Status.RESOURCE_EXHAUSTED


def test_the_compression_ratio_is_limited(monkeypatch):
    monkeypatch.setattr(bodies, "_FREE_BYTES", 1_000)
    packed = gzip.compress(bytes(100_000))
    assert 32 * len(packed) < 100_000
    with pytest.raises(CallFailed, match=r"larger than max \(\d+ vs\. \d+\)") as caught:
        read([message(packed, 1)], "gzip")
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
    assert read([message(gzip.compress(bytes(1_000)), 1)], "gzip") == [bytes(1_000)]


@pytest.mark.parametrize("encoding", INFLATE)
@pytest.mark.parametrize("parts", [[], [b""], [b"short"], [b"head", memoryview(bytes(1_000))]])
def test_written_messages_are_read(encoding, parts):
    prefix, *rest = messages.framed(parts, encoding)
    assert read([b"".join((prefix, *rest))], encoding) == [b"".join(parts)]
    assert sum(map(len, rest)) <= sum(map(len, parts))


def test_uncompressed_messages_are_not_copied():
    parts = [b"head", memoryview(bytes(1_000))]
    _, *rest = messages.framed(parts, "identity")
    assert all(one is other for one, other in zip(rest, parts, strict=True))


def test_a_message_that_decompresses_to_more_than_the_memory_is_rejected(monkeypatch):
    class NoMemory:
        eof = False

        def decompress(self, message, most):
            raise MemoryError

    monkeypatch.setattr(messages.zlib, "decompressobj", lambda wbits: NoMemory())
    with pytest.raises(CallFailed, match="does not fit the server's memory") as caught:
        read([message(gzip.compress(b"abc"), 1)], "gzip")
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
