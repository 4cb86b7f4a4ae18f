"""Packing and unpacking byte strings, compiled and interpreted, compared with a simple loop."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.compiled import as_python, unless_compiled

from reference_server.core import string_packing

FORMS = [
    pytest.param(string_packing, id="compiled", marks=unless_compiled(string_packing)),
    pytest.param(as_python(string_packing), id="python"),
]
ELEMENTS = st.lists(st.one_of(st.binary(max_size=6), st.just(bytes(300))), max_size=8)


def wire_of(elements):
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)


@pytest.mark.parametrize("form", FORMS)
@given(elements=ELEMENTS)
def test_strings_are_packed_with_their_lengths(form, elements):
    assert form.pack(elements) == wire_of(elements)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "other", ["text", 1, None, bytearray(b"x"), type("Own", (bytes,), {})(b"")]
)
def test_elements_of_other_types_are_not_packed(form, other):
    assert form.pack([b"a", other]) is None


@pytest.mark.parametrize("form", FORMS)
@given(elements=ELEMENTS, most=st.integers(1, 9), cut=st.integers(0, 3))
def test_complete_strings_are_unpacked(form, elements, most, cut):
    wire = wire_of(elements)
    whole = len(wire)
    for data in (wire + b"\xff\0\0\0rest"[: cut * 2 + 1], wire + b"\xff" * 4):
        found, position = [], 0
        while len(found) % most == 0 and position < whole:
            position = form.unpack(data, len(data), position, most, found)
        assert form.unpack(data, len(data), position, most, found) == position == whole
        assert found == elements
