"""Length-prefixed strings: packed, unpacked and truncated."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.core import byte_strings
from reference_server.core.byte_strings import Malformed

ELEMENTS = st.lists(st.binary(max_size=12), max_size=6)


def objects(elements):
    return byte_strings.as_array(elements, (len(elements),))


def wire(*elements):
    return b"".join(len(element).to_bytes(4, "little") + element for element in elements)


@given(ELEMENTS)
def test_byte_size_is_the_length_of_the_wire_form(elements):
    array = objects(elements)
    assert byte_strings.byte_size(array) == len(byte_strings.serialize(array))


@given(ELEMENTS, st.data())
def test_count_and_split_agree(elements, data):
    whole = wire(*elements)
    cut = memoryview(whole[: data.draw(st.integers(0, len(whole)))])
    found = []
    for look in (byte_strings.count, lambda raw: len(byte_strings.split(raw))):
        try:
            found.append(look(cut))
        except Malformed as fault:
            found.append((fault.elements, fault.available, fault.length))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("raw", "elements", "available", "length"),
    [
        pytest.param(b"\1\0", 0, 2, None, id="length cut"),
        pytest.param(wire(b"a", b"bc") + b"\0\0\0", 2, 3, None, id="length cut after two"),
        pytest.param(b"\x09\0\0\0abc", 0, 3, 9, id="content cut"),
        pytest.param(wire(b"a") + b"\x01\0\0\0", 1, 0, 1, id="content missing"),
        pytest.param(b"\xff\xff\xff\xffab", 0, 2, 2**32 - 1, id="length huge"),
    ],
)
def test_malformed_describes_the_remaining_bytes(raw, elements, available, length):
    with pytest.raises(Malformed) as caught:
        byte_strings.split(memoryview(raw))
    fault = caught.value
    assert (fault.elements, fault.available, fault.length) == (elements, available, length)


@pytest.mark.parametrize(
    ("element", "stored"),
    [
        (b"\xff\0", b"\xff\0"),
        (np.bytes_(b"ab"), b"ab"),
        ("数", "数".encode()),
        (7, b"7"),
        (None, b"None"),
        (2.5, b"2.5"),
    ],
)
def test_elements_become_bytes(element, stored):
    assert byte_strings.element_bytes(element) == stored


def test_serialize_takes_c_order():
    array = byte_strings.as_array([b"a", b"b", b"c", b"d"], (2, 2))
    assert byte_strings.serialize(array.T) == wire(b"a", b"c", b"b", b"d")


LONGER_ELEMENTS = st.lists(st.one_of(st.binary(max_size=6), st.just(bytes(300))), max_size=8)


def wire_of(elements):
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)


@given(elements=LONGER_ELEMENTS)
def test_strings_are_packed_with_their_lengths(elements):
    assert byte_strings.pack(elements) == wire_of(elements)


@pytest.mark.parametrize(
    "other", ["text", 1, None, bytearray(b"x"), type("Own", (bytes,), {})(b"")]
)
def test_elements_that_are_not_bytes_are_refused(other):
    assert byte_strings.pack([b"a", other]) is None


@given(elements=LONGER_ELEMENTS, most=st.integers(1, 9), cut=st.integers(0, 3))
def test_whole_elements_are_unpacked(elements, most, cut):
    wire = wire_of(elements)
    whole = len(wire)
    for data in (wire + b"\xff\0\0\0rest"[: cut * 2 + 1], wire + b"\xff" * 4):
        found, position = [], 0
        while len(found) % most == 0 and position < whole:
            position = byte_strings.unpack(data, len(data), position, most, found)
        assert byte_strings.unpack(data, len(data), position, most, found) == position == whole
        assert found == elements
