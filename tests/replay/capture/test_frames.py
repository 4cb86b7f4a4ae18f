"""Frames: what was written comes back; what was cut or changed is noticed, and the rest is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_replay.capture.frames import Damage, check_preface, encode_frame, frames, preface
from triton_replay.errors import CaptureUnreadable

PARTS = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=5)


def written(parts) -> bytes:
    return preface() + b"".join(piece for part in parts for piece in encode_frame(*part))


def read(data: bytes):
    """The parts of whole frames, and the damage after them."""
    view = memoryview(data)
    found = list(frames(view, check_preface(view, "capture")))
    damage = found.pop() if found and isinstance(found[-1], Damage) else None
    return [(bytes(frame.meta), bytes(frame.body)) for frame in found], damage


@given(PARTS)
def test_frames_come_back_as_they_were_written(parts):
    assert read(written(parts)) == (parts, None)


@given(PARTS, st.data())
def test_of_a_file_that_is_cut_the_whole_frames_are_kept_and_the_rest_is_told(parts, data):
    whole = written(parts)
    cut = data.draw(st.integers(len(preface()), len(whole)))
    kept, damage = read(whole[:cut])
    assert kept == parts[: len(kept)]
    end = len(written(kept))
    assert len(kept) == len(parts) or len(written(parts[: len(kept) + 1])) > cut
    assert damage == (None if cut == end else Damage(end, "the file ends within a record"))


@given(PARTS.filter(len), st.data())
def test_one_changed_byte_never_gives_a_wrong_frame(parts, data):
    whole = bytearray(written(parts))
    place = data.draw(st.integers(len(preface()), len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    kept, damage = read(bytes(whole))
    assert kept == parts[: len(kept)]
    assert damage is not None
    assert damage.offset == len(written(kept)) <= place


def test_zeros_after_a_crash_of_the_machine_are_no_frame():
    parts = [(b"meta", b"body")]
    kept, damage = read(written(parts) + bytes(4096))
    assert kept == parts
    assert damage == Damage(len(written(parts)), "the record's checksum is wrong")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "empty, or truncated"),
        (preface()[:5], "empty, or truncated"),
        (b"PK\x03\x04 something else", "not a capture: found b'PK"),
        (preface().replace(b"\r\n", b"\n") + b"...", "not a capture"),
        (preface()[:8] + b"\x02\0\0\0", "found capture version 2, expected 1"),
    ],
)
def test_what_is_no_capture_is_told_apart(data, told):
    with pytest.raises(CaptureUnreadable, match=r"file\.trc: ") as failure:
        check_preface(memoryview(data), "file.trc")
    assert told in str(failure.value)
