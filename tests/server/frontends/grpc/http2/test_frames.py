"""Frames are parsed alike however their bytes are split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.http2 import DATA, END_STREAM, HEADERS, PADDED, PING, PREFACE, frame

from reference_server.frontends.grpc.http2 import frames
from reference_server.frontends.grpc.http2.frames import ConnectionFault, FrameReader

MAX_FRAME, MAX_CONTROL = 500, 100

some_frames = st.lists(
    st.one_of(
        st.tuples(
            st.just(DATA),
            st.sampled_from([0, END_STREAM, PADDED]),
            st.integers(1, 9),
            st.binary(max_size=MAX_FRAME),
        ),
        st.tuples(
            st.integers(1, 255), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=99)
        ),
    ),
    max_size=6,
)


def read(pieces):
    reader = FrameReader(MAX_FRAME, MAX_CONTROL)
    return [found for piece in pieces for found in read_on(reader, piece)]


def read_on(reader, piece):
    return [
        (kind, flags, stream, bytes(payload))
        for kind, flags, stream, payload in reader.feed(memoryview(piece))
    ]


def joined(found):
    """Return the frames with the pieces of DATA joined."""
    whole = []
    is_open = False
    for kind, flags, stream, payload in found:
        if is_open and kind == DATA and whole[-1][2] == stream:
            payload = whole.pop()[3] + payload
        whole.append((kind, flags, stream, payload))
        is_open = kind == DATA and not flags & (END_STREAM | PADDED)
    return whole


@given(some_frames, st.data())
def test_any_split_gives_the_same_frames(sent, data):
    wire = PREFACE + b"".join(frame(*one) for one in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    ends = [*cuts, len(wire)]
    pieces = [wire[start:end] for start, end in zip([0, *cuts], ends, strict=True)]
    assert joined(read(pieces)) == joined(sent)


def greeted(max_frame=MAX_FRAME):
    reader = FrameReader(max_frame, MAX_CONTROL)
    assert list(reader.feed(memoryview(PREFACE))) == []
    return reader


@given(some_frames)
def test_whole_bytes_end_at_a_frame_boundary(sent):
    reader, rest, found = greeted(), b"".join(frame(*one) for one in sent), []
    while rest:
        size = reader.whole(memoryview(rest))
        assert size
        found += read_on(reader, rest[:size])
        rest = rest[size:]
    assert found == sent


def test_the_number_of_whole_frames_is_limited():
    pings = frame(PING, 0, 0, bytes(8)) * 40
    assert greeted().whole(memoryview(pings)) == len(pings) * 16 // 40


def test_the_rest_of_a_frame_and_the_following_frames_are_whole():
    reader, begun = greeted(), frame(DATA, 0, 1, bytes(100))
    assert len(read_on(reader, begun[:50])) == 1
    rest = begun[50:] + frame(DATA, END_STREAM, 1, b"x")
    assert reader.whole(memoryview(rest + begun[:20])) == len(rest)
    assert reader.whole(memoryview(rest[:10])) == 0


def test_a_long_frame_is_not_waited_for():
    reader = greeted(max_frame=5_000)
    wire = frame(DATA, 0, 1, b"short") + frame(DATA, 0, 1, bytes(3_000))
    assert reader.whole(memoryview(wire)) == 0


def test_data_is_passed_on_before_its_frame_is_complete():
    wire = PREFACE + frame(DATA, END_STREAM, 1, b"abcdef")
    assert read([wire[:-4]]) == [(DATA, 0, 1, b"ab")]
    assert read([wire[:-4], wire[-4:]])[1:] == [(DATA, END_STREAM, 1, b"cdef")]


def test_a_frame_is_a_view_of_the_received_bytes():
    arrived = memoryview(PREFACE + frame(PING, 0, 0, b"12345678"))
    ((*_, payload),) = FrameReader(MAX_FRAME, MAX_CONTROL).feed(arrived)
    assert payload.obj is arrived.obj


@pytest.mark.parametrize("kind", [DATA, HEADERS])
def test_a_length_is_checked_before_the_payload_arrives(kind):
    reader = FrameReader(MAX_FRAME, MAX_CONTROL)
    limit = MAX_FRAME if kind == DATA else MAX_CONTROL
    list(reader.feed(memoryview(PREFACE + frames.frame_header(kind, PADDED, 1, limit))))
    with pytest.raises(ConnectionFault):
        list(FrameReader(MAX_FRAME, MAX_CONTROL).feed(
            memoryview(PREFACE + frames.frame_header(kind, PADDED, 1, limit + 1))
        ))  # fmt: skip


@pytest.mark.parametrize("length", range(1, len(PREFACE)))
def test_a_preface_may_be_split(length):
    assert read([PREFACE[:length], PREFACE[length:] + frame(PING)]) == [(PING, 0, 0, b"")]
    with pytest.raises(ConnectionFault, match="no HTTP/2 preface"):
        read([PREFACE[: length - 1] + b"x"])
