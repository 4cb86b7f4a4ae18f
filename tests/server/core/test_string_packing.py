"""Byte strings packed to the wire form of BYTES, and unpacked."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.core import byte_strings

ELEMENTS = st.lists(st.one_of(st.binary(max_size=6), st.just(bytes(300))), max_size=8)


def wire_of(elements):
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)


@given(elements=ELEMENTS)
def test_strings_are_packed_with_their_lengths(elements):
    assert byte_strings.pack(elements) == wire_of(elements)


@pytest.mark.parametrize(
    "other", ["text", 1, None, bytearray(b"x"), type("Own", (bytes,), {})(b"")]
)
def test_elements_that_are_not_bytes_are_refused(other):
    assert byte_strings.pack([b"a", other]) is None


@given(elements=ELEMENTS, most=st.integers(1, 9), cut=st.integers(0, 3))
def test_whole_elements_are_unpacked(elements, most, cut):
    wire = wire_of(elements)
    whole = len(wire)
    for data in (wire + b"\xff\0\0\0rest"[: cut * 2 + 1], wire + b"\xff" * 4):
        found, position = [], 0
        while len(found) % most == 0 and position < whole:
            position = byte_strings.unpack(data, len(data), position, most, found)
        assert byte_strings.unpack(data, len(data), position, most, found) == position == whole
        assert found == elements
