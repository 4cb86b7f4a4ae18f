"""The bounds of the fields of protobuf messages."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from reference_server.codecs import proto_fields
from reference_server.codecs.proto_wire import varint

NUMBERS = st.sampled_from([1, 3, 7, 15, 16, 100, 2**29 - 1])
CONTENT = st.one_of(st.binary(max_size=5), st.just(bytes(200)))
LEAVES = st.one_of(
    st.builds(lambda n, c: varint(n << 3 | 2) + varint(len(c)) + c, NUMBERS, CONTENT),
    st.builds(lambda n, v: varint(n << 3) + varint(v), NUMBERS, st.integers(0, 2**64 - 1)),
    st.builds(lambda n: varint(n << 3 | 1) + bytes(8), NUMBERS),
    st.builds(lambda n: varint(n << 3 | 5) + bytes(4), NUMBERS),
)
FIELDS = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        lambda n, parts: varint(n << 3 | 3) + b"".join(parts) + varint(n << 3 | 4),
        NUMBERS,
        st.lists(inner, max_size=4),
    ),
    max_leaves=8,
)
WIRE = st.one_of(
    st.lists(FIELDS, max_size=8).map(b"".join),
    st.lists(st.sampled_from([b"\x3a", b"\x1a", b"\x0b", b"\x0c", b"\xff", b"\x01", b"\0"])).map(
        b"".join
    ),
    st.binary(max_size=30),
)


def walked(data, most):
    """Return the results of all calls of `pass_fields`, or the error."""
    seen, groups, found, position = [], [], [], 0
    try:
        while position < len(data):
            before, position = (
                position,
                proto_fields.pass_fields(data, position, most, groups, found, 3),
            )
            seen.append((position, *groups, *found))
            if position == before:
                break
    except DecodeError as error:
        seen.append(str(error))
    return seen


def copied(data, most):
    """Return the end, the copied fields and the open groups of `copy_without_raw`."""
    head, groups, position, size = bytearray(len(data)), [], 0, 0
    try:
        while position < len(data):
            before = position
            position, size = proto_fields.copy_without_raw(data, position, most, groups, head, size)
            if position == before:
                break
    except DecodeError as error:
        return str(error)
    return position, bytes(head[:size]), groups


def one(data):
    """Return the bounds of the first field, or the end of the group that it begins."""
    groups = []
    try:
        tag, content, end = proto_fields.read_field(data, 0, groups)
        if groups:
            end = proto_fields.pass_groups(data, end, 1 << 10, groups)
    except DecodeError as error:
        return str(error)
    return tag, content, end, groups


@given(parts=st.lists(FIELDS, max_size=8), most=st.integers(1, 9), data=st.data())
def test_fields_end_where_the_next_begin(parts, most, data):
    whole = b"".join(parts)
    assert (walked(whole, most) or [(0,)])[-1][0] == len(whole)
    kept = [part for part in parts if part[:1] != b"\x3a"]
    assert copied(whole, most) == (len(whole), b"".join(kept), [])
    for part in parts:
        assert one(part + b"\x0a\x00")[2:] == (len(part), [])
        cut = part[: data.draw(st.integers(1, len(part)))]
        assert cut == part or one(cut)[2] < len(part)


def test_only_the_id_and_raw_contents_of_a_request_are_found():
    found = []
    data = b"\x0a\x01m\x1a\x01i\x3a\x02ab\xa3\x06\x3a\x00\xa4\x06\xba\x00\x00"
    assert proto_fields.pass_fields(data, 0, 99, [], found, 99) == len(data)
    assert found == [(3, 5, 6), (6, 8, 10), (16, 19, 19)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x00\x00", "without a number"),
        (b"\x0e", "no field of any kind"),
        (b"\x0c", "no field of any kind"),
        (b"\x0b\x14", "no field of any kind"),
        (b"\x0b" * 101, "too many groups"),
        (b"\xff" * 11, "more bytes than a number"),
    ],
)
def test_malformed_fields_are_refused(data, said):
    with pytest.raises(DecodeError, match=said):
        proto_fields.pass_fields(data, 0, 999, [])
    with pytest.raises(DecodeError, match=said):
        proto_fields.copy_without_raw(data, 0, 999, [], bytearray(len(data)), 0)
