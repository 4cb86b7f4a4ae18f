"""Header blocks: what a client writes is read, and what is written a client reads."""

import contextlib

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from reference_server.frontends.grpc.http2 import header_blocks
from reference_server.frontends.grpc.http2.frames import ConnectionFault, ErrorCode
from reference_server.frontends.grpc.http2.header_blocks import HeaderReader

names = st.binary(min_size=1, max_size=200).map(bytes.lower)
fields = st.lists(st.tuples(names, st.binary(max_size=400)), max_size=5)
USUAL = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"x", b"y")]


@given(st.lists(fields, max_size=4))
def test_what_a_client_writes_is_read(lists):
    encoder, reader = Encoder(), HeaderReader(1 << 20)
    for number in range(2):  # the second time by reference
        for one in lists:
            assert list(reader.read(encoder.encode(one, huffman=number == 0))) == one


@given(fields)
def test_what_is_written_clients_read_again_and_again(written):
    block = header_blocks.write([*USUAL, *written])
    decoder = Decoder(1 << 20)
    for _ in range(2):
        assert [tuple(one) for one in decoder.decode(block, raw=True)] == [*USUAL, *written]
    assert not decoder.header_table.dynamic_entries


def test_a_block_of_references_is_read_once():
    encoder, reader = Encoder(), HeaderReader(1 << 16)
    reader.read(encoder.encode(USUAL))
    block = encoder.encode(USUAL)
    assert reader.read(block) is reader.read(block)


def test_the_same_references_mean_something_else_when_the_table_has_changed():
    encoder, reader = Encoder(), HeaderReader(1 << 16)
    reader.read(encoder.encode([(b"a", b"1")]))
    block = encoder.encode([(b"a", b"1")])
    assert reader.read(block) == ((b"a", b"1"),)
    reader.read(encoder.encode([(b"b", b"2")]))  # takes the place of the first
    assert reader.read(block) == ((b"b", b"2"),)


def test_what_is_remembered_is_bounded():
    encoder, reader = Encoder(), HeaderReader(1 << 16)
    reader.read(encoder.encode([(b"a", b"1"), (b"b", b"2")]))
    for length in range(1, 200):
        assert reader.read(b"\xbe" * length) == ((b"b", b"2"),) * length
    assert len(reader._known) <= 64


@given(st.binary(max_size=60))
def test_anything_is_read_or_refused(block):
    with contextlib.suppress(ConnectionFault):
        HeaderReader(200).read(block)


def test_a_list_that_grows_too_long_is_refused():
    reader = HeaderReader(1_000)
    reader.read(Encoder().encode([(b"a", b"x" * 500)]))
    with pytest.raises(ConnectionFault) as caught:
        reader.read(b"\xbe\xbe")
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("resize", [b"\x20", b"\x3f\xe1\x1f", b"\x3f\x00"])
def test_a_block_may_resize_the_table_twice(resize):
    usual = Encoder().encode(USUAL)
    assert list(HeaderReader(1 << 16).read(2 * resize + usual)) == USUAL
    with pytest.raises(ConnectionFault, match="too many table size updates") as caught:
        HeaderReader(1 << 16).read(3 * resize + usual)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR
