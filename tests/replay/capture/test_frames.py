"""Frames are read as written; truncated and changed ones are detected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_replay.capture.frames import Damage, check_preface, encode_frame, frames, preface
from triton_replay.errors import CaptureUnreadable

PARTS = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=5)


def written(parts) -> bytes:
    return preface() + b"".join(piece for part in parts for piece in encode_frame(*part))


def read(data: bytes):
    """Return the parts of valid frames, and the damage after them."""
    view = memoryview(data)
    found = list(frames(view, check_preface(view, "capture")))
    damage = found.pop() if found and isinstance(found[-1], Damage) else None
    return [(bytes(frame.meta), bytes(frame.body)) for frame in found], damage


@given(PARTS)
def test_frames_are_read_as_written(parts):
    assert read(written(parts)) == (parts, None)


@given(PARTS, st.data())
def test_a_truncated_file_has_its_whole_frames_and_a_damage(parts, data):
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


def test_zeros_after_a_crash_are_not_a_frame():
    parts = [(b"meta", b"body")]
    kept, damage = read(written(parts) + bytes(4096))
    assert kept == parts
    assert damage == Damage(len(written(parts)), "the record's checksum is wrong")


@pytest.mark.parametrize(
    ("data", "reported"),
    [
        (b"", "empty, or truncated"),
        (preface()[:5], "empty, or truncated"),
        (b"PK\x03\x04 something else", "not a capture: found b'PK"),
        (preface().replace(b"\r\n", b"\n") + b"...", "not a capture"),
        (preface()[:8] + b"\x02\0\0\0", "found capture version 2, expected 1"),
    ],
)
def test_the_start_of_other_files_is_rejected(data, reported):
    with pytest.raises(CaptureUnreadable, match=r"file\.trc: ") as failure:
        check_preface(memoryview(data), "file.trc")
    assert reported in str(failure.value)
