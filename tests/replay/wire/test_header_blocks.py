"""Cached header blocks equal newly decoded ones."""

from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from triton_replay.wire.http2 import HeaderBlocks

NAMES = st.sampled_from([":status", "grpc-status", "content-type", "x-a", "x-" + "b" * 200])
VALUES = st.sampled_from(["200", "0", "", "application/grpc", "c" * 300])
FIELDS = st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=4)


@given(st.lists(FIELDS, max_size=30), st.lists(st.integers(0, 29), max_size=5))
def test_blocks_are_decoded_like_by_hpack(blocks, resizes):
    encoder, plain, blocks_of = Encoder(), Decoder(), HeaderBlocks()
    plain.max_allowed_table_size = 2**24
    for number, fields in enumerate(blocks):
        if number in resizes:
            encoder.header_table_size = 64 * number
        block = encoder.encode(fields)
        expected = tuple((n.decode(), v.decode()) for n, v in plain.decode(block, raw=True))
        assert blocks_of.decode(block) == expected


def test_a_repeated_block_returns_the_same_object():
    encoder, blocks = Encoder(), HeaderBlocks()
    fields = [("grpc-status", "0")]
    first = blocks.decode(encoder.encode(fields))
    second, third = (blocks.decode(encoder.encode(fields)) for _ in range(2))
    assert first == second
    assert second is third
