"""Compressed bodies: codings, decompression and limits."""

import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.codecs import bodies
from reference_server.codecs.bodies import compress, decompress
from reference_server.core.errors import Code, ServerError

TEXT = b"some text " * 50


def opened(coding, body):
    return bytes(decompress(coding, memoryview(body)))


class _Watched:
    """A real unpacker that records the sizes of its inputs and outputs."""

    def __init__(self):
        self._real = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self.asked = []

    eof = property(lambda self: self._real.eof)
    unconsumed_tail = property(lambda self: self._real.unconsumed_tail)

    def decompress(self, data, most):
        self.asked.append((len(data), most))
        return self._real.decompress(data, most)


@pytest.mark.parametrize("plain", [bytes(3_000_000), random.Random(1).randbytes(700_000), TEXT])
@pytest.mark.parametrize("most", [1, 2**18 - 1, 2**18, 2**18 + 1, 700_000, 3_000_000, 2**30])
def test_bodies_are_decompressed_in_pieces(plain, most):
    unpacker = _Watched()
    assert bodies.unpack(unpacker, gzip.compress(plain), most) == plain[:most]
    assert all(given <= 2**16 and asked <= 2**18 for given, asked in unpacker.asked)


@given(st.binary(), st.integers(1, 64), st.integers(1, 5), st.integers(1, 300))
def test_a_truncated_stream_gives_its_readable_part_in_pieces(plain, piece, packed_piece, cut):
    body = gzip.compress(plain)[:cut]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_PIECE", piece)
        patch.setattr(bodies, "_PACKED_PIECE", packed_piece)
        found = bodies.unpack(zlib.decompressobj(zlib.MAX_WBITS | 32), body, 2**20)
    assert found == zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body)


def test_a_damaged_stream_is_refused():
    with pytest.raises(ServerError) as caught:
        opened("gzip", gzip.compress(TEXT)[:-8] + bytes(8))
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message.startswith("failed to decompress the gzip request body: Error -3")


def test_the_decompressed_size_is_bounded(monkeypatch):
    monkeypatch.setattr(bodies, "_FREE_BYTES", 1_000)
    packed = gzip.compress(bytes(100_000))
    with pytest.raises(ServerError) as caught:
        opened("gzip", packed)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        f"the gzip request body of {len(packed)} bytes decompresses to more than "
        f"{32 * len(packed)} bytes"
    )
    assert opened("gzip", gzip.compress(bytes(1_000))) == bytes(1_000)


@pytest.mark.parametrize(
    ("coding", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)]
)
def test_parts_become_one_stream(coding, unpack):
    assert unpack(compress(coding, [b"ab", memoryview(b"cd"), TEXT])) == b"abcd" + TEXT
