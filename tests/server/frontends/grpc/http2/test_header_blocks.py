"""Header blocks: decoded from clients, and encoded for clients."""

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
def test_blocks_of_a_client_are_decoded(lists):
    encoder, reader = Encoder(), HeaderReader(1 << 20)
    for number in range(2):  # the second block has references
        for one in lists:
            assert list(reader.read(encoder.encode(one, huffman=number == 0))) == one


@given(fields)
def test_clients_decode_a_block_repeatedly(written):
    block = header_blocks.write([*USUAL, *written])
    decoder = Decoder(1 << 20)
    for _ in range(2):
        assert [tuple(one) for one in decoder.decode(block, raw=True)] == [*USUAL, *written]
    assert not decoder.header_table.dynamic_entries


def test_a_block_of_references_is_decoded_once():
    encoder, reader = Encoder(), HeaderReader(1 << 16)
    reader.read(encoder.encode(USUAL))
    block = encoder.encode(USUAL)
    assert reader.read(block) is reader.read(block)


def test_a_changed_table_changes_the_meaning_of_references():
    encoder, reader = Encoder(), HeaderReader(1 << 16)
    reader.read(encoder.encode([(b"a", b"1")]))
    block = encoder.encode([(b"a", b"1")])
    assert reader.read(block) == ((b"a", b"1"),)
    reader.read(encoder.encode([(b"b", b"2")]))  # replaces the first entry
    assert reader.read(block) == ((b"b", b"2"),)


def test_the_number_of_remembered_blocks_is_limited():
    encoder, reader = Encoder(), HeaderReader(1 << 16)
    reader.read(encoder.encode([(b"a", b"1"), (b"b", b"2")]))
    for length in range(1, 200):
        assert reader.read(b"\xbe" * length) == ((b"b", b"2"),) * length
    assert len(reader._known) <= 64


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_rejected(block):
    with contextlib.suppress(ConnectionFault):
        HeaderReader(200).read(block)


def test_a_list_that_decodes_to_too_much_is_rejected():
    reader = HeaderReader(1_000)
    reader.read(Encoder().encode([(b"a", b"x" * 500)]))
    with pytest.raises(ConnectionFault) as caught:
        reader.read(b"\xbe\xbe")
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("resize", [b"\x20", b"\x3f\xe1\x1f", b"\x3f\x00"])
def test_a_block_may_have_two_table_size_updates(resize):
    usual = Encoder().encode(USUAL)
    assert list(HeaderReader(1 << 16).read(2 * resize + usual)) == USUAL
    with pytest.raises(ConnectionFault, match="too many table size updates") as caught:
        HeaderReader(1 << 16).read(3 * resize + usual)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR
