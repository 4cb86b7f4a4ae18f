"""Where fields begin and end: both forms alike, and as they were put together."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from server.support.compiled import as_python, unless_compiled

from reference_server.codecs import proto_fields
from reference_server.codecs.proto_pieces import varint

PYTHON = as_python(proto_fields)
FORMS = [
    pytest.param(proto_fields, id="compiled", marks=unless_compiled(proto_fields)),
    pytest.param(PYTHON, id="python"),
]
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


def walked(form, data, most):
    """All that can be seen of how `form` passes `data`, `most` fields at a time."""
    seen, groups, found, position = [], [], [], 0
    try:
        while position < len(data):
            before, position = position, form.passed(data, position, most, groups, found, 3)
            seen.append((position, *groups, *found))
            if position == before:
                break
    except DecodeError as error:
        seen.append(str(error))
    return seen


def copied(form, data, most):
    """The same where contents are left out."""
    head, groups, position, size = bytearray(len(data)), [], 0, 0
    try:
        while position < len(data):
            before = position
            position, size = form.without_raw(data, position, most, groups, head, size)
            if position == before:
                break
    except DecodeError as error:
        return str(error)
    return position, bytes(head[:size]), groups


def one(form, data):
    """The first field, and if it is a group where that ends."""
    groups = []
    try:
        tag, content, end = form.field(data, 0, groups)
        if groups:
            end = form.after_groups(data, end, 1 << 10, groups)
    except DecodeError as error:
        return str(error)
    return tag, content, end, groups


@pytest.mark.skipif(not proto_fields.IS_COMPILED, reason="proto_fields is not compiled")
@given(WIRE, st.integers(1, 9))
def test_both_forms_see_the_same(data, most):
    assert walked(proto_fields, data, most) == walked(PYTHON, data, most)
    assert copied(proto_fields, data, most) == copied(PYTHON, data, most)
    assert one(proto_fields, memoryview(data)) == one(PYTHON, memoryview(data))


@pytest.mark.parametrize("form", FORMS)
@given(parts=st.lists(FIELDS, max_size=8), most=st.integers(1, 9), data=st.data())
def test_fields_end_where_the_next_begin(form, parts, most, data):
    whole = b"".join(parts)
    assert (walked(form, whole, most) or [(0,)])[-1][0] == len(whole)
    kept = [part for part in parts if part[:1] != b"\x3a"]
    assert copied(form, whole, most) == (len(whole), b"".join(kept), [])
    for part in parts:
        assert one(form, part + b"\x0a\x00")[2:] == (len(part), [])
        cut = part[: data.draw(st.integers(1, len(part)))]
        assert cut == part or one(form, cut)[2] < len(part)


@pytest.mark.parametrize("form", FORMS)
def test_only_the_id_and_raw_contents_of_a_request_are_found(form):
    found = []
    data = b"\x0a\x01m\x1a\x01i\x3a\x02ab\xa3\x06\x3a\x00\xa4\x06\xba\x00\x00"
    assert form.passed(data, 0, 99, [], found, 99) == len(data)
    assert found == [(3, 5, 6), (6, 8, 10), (16, 19, 19)]


@pytest.mark.parametrize("form", FORMS)
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
def test_what_no_message_has_is_refused(form, data, said):
    with pytest.raises(DecodeError, match=said):
        form.passed(data, 0, 999, [])
    with pytest.raises(DecodeError, match=said):
        form.without_raw(data, 0, 999, [], bytearray(len(data)), 0)
