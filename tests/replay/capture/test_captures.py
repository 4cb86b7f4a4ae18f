"""Captures on disk: written, read, truncated, invalid, and on a full disk."""

import errno
import gzip
import io
import json
import os
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_replay.capture.files import CaptureWriter, read_capture
from triton_replay.capture.frames import Damage, check_preface, encode_frame, frames, preface
from triton_replay.capture.records import (
    Closing,
    Opening,
    Request,
    Response,
    decode_record,
    encode_record,
)
from triton_replay.commands.common import parse_size
from triton_replay.errors import CaptureIncomplete, CaptureUnreadable, ReplayError

# -- frames


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


# -- files


OPENING = Opening("localhost:8000", "2026-01-01T00:00:00+00:00", "0.1.0", {"sample": 1.0})
REQUEST = Request(7, 2, 1000, 2000, "POST", "/v2/models/m/infer", (("Host", "h"),), 3, b"abc")
RESPONSE = Response(
    7,
    3000,
    4000,
    200,
    (("Content-Length", "2"), ("X", "\x01\xff")),
    2,
    b"ok",
    parts=((3, 1), (4, 2)),
)
CLOSING = Closing(9000, "stopped", {"requests that were not sampled": 4})


def write(path, *records):
    writer = CaptureWriter.create(path)
    writer.write(records)
    writer.sync()
    writer.close()
    return path


def test_only_the_owner_can_read_a_capture(tmp_path):
    before = os.umask(0)
    try:
        path = write(tmp_path / "a.trc", OPENING)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("record", [OPENING, REQUEST, RESPONSE, CLOSING])
def test_a_record_is_read_as_written(record):
    meta, body = encode_record(record)
    assert decode_record(memoryview(meta), memoryview(body)) == record


def test_a_capture_gives_requests_with_their_responses(tmp_path):
    late = Response(8, 0, 0, 0, (), 0, ended="server")
    other = Request(8, 3, 1500, 2500, "GET", "/v2", (), 0)
    path = write(tmp_path / "a.trc", OPENING, REQUEST, other, late, RESPONSE, CLOSING)
    capture = read_capture(path)
    assert capture.opening == OPENING
    assert [(e.request, e.response) for e in capture.exchanges] == [
        (REQUEST, RESPONSE),
        (other, late),
    ]
    assert capture.closing == CLOSING
    assert capture.complaint == ""


def test_a_capture_of_a_killed_recorder_reports_it(tmp_path):
    path = write(tmp_path / "a.trc", OPENING, REQUEST)
    assert (
        "the recorder was killed, is still running, or the disk was full"
        in read_capture(path).complaint
    )
    whole = path.read_bytes()
    path.write_bytes(whole + b"".join(map(bytes, encode_frame(*encode_record(RESPONSE))))[:-1])
    capture = read_capture(path)
    assert [e.response for e in capture.exchanges] == [None]
    assert f"ends within a record at byte {len(whole)}; the 1 requests" in capture.complaint


def numbers(capture):
    return [exchange.request.number for exchange in capture.exchanges]


def requests(count):
    return [
        replace(REQUEST, number=number, body=bytes(1000), body_size=1000) for number in range(count)
    ]


@pytest.fixture(params=["gz", "zst"])
def packed(request, tmp_path):
    if request.param == "zst" and sys.version_info < (3, 14):
        pytest.importorskip("zstandard")
    return tmp_path / f"a.trc.{request.param}"


def test_a_compressed_capture_is_read_as_written(packed):
    writer = CaptureWriter.create(packed)
    writer.write([OPENING, *requests(9)])
    writer.write([RESPONSE])
    writer.write([])
    before = packed.stat().st_size
    writer.write([CLOSING])
    writer.close()
    assert (writer.requests, writer.size) == (9, packed.stat().st_size)
    assert packed.stat().st_mode & 0o777 == 0o600
    assert before < 1000
    capture = read_capture(packed)
    assert (numbers(capture), capture.closing, capture.complaint) == ([*range(9)], CLOSING, "")
    assert capture.exchanges[7].response == RESPONSE
    # What precedes the damage is read, as after a crash during the last write.
    data = packed.read_bytes()
    packed.write_bytes(data[: before + 20])
    damaged = read_capture(packed)
    assert numbers(damaged) == [*range(9)]
    assert damaged.complaint


def test_a_compressed_capture_on_a_full_disk_keeps_whole_writes(tmp_path):
    path = tmp_path / "a.trc.gz"
    with FullDisk(path, "x+") as disk:
        writer = CaptureWriter(disk, "a.trc.gz", gzip.compress)
        writer.write([OPENING, REQUEST])
        disk.room = 50
        with pytest.raises(CaptureIncomplete, match="No space left on device"):
            writer.write(requests(2))
        disk.room = 10_000
        writer.write([CLOSING])
    assert writer.requests == 1
    capture = read_capture(path)
    assert (numbers(capture), capture.complaint) == ([REQUEST.number], "")


def test_a_full_disk_keeps_whole_records_of_a_later_file(tmp_path):
    path = tmp_path / "a.trc"
    writer = CaptureWriter.create(path, rotate=100)
    writer.write([OPENING])
    writer.write([REQUEST])
    writer._file.close()
    with FullDisk(tmp_path / "a.2.trc", "r+") as disk:
        disk.seek(0, os.SEEK_END)
        writer._file, disk.room = disk, 50
        with pytest.raises(CaptureIncomplete, match="No space left on device"):
            writer.write([RESPONSE])
        disk.room = 10_000
        writer.write([CLOSING])
    capture = read_capture(path)
    assert (numbers(capture), capture.damage, capture.closing) == ([7], None, CLOSING)


@pytest.fixture
def rotated(tmp_path):
    """Return the first of the three files of a capture."""
    writer = CaptureWriter.create(tmp_path / "a.trc", rotate=2000)
    writer.write([OPENING])
    for record in requests(5):
        writer.write([record])
    writer.write([replace(RESPONSE, number=0), CLOSING])
    writer.close()
    assert writer.requests == 5
    assert writer.size == sum(path.stat().st_size for path in tmp_path.iterdir())
    return tmp_path / "a.trc"


def test_a_capture_in_several_files_is_read_as_one(rotated, tmp_path):
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.2.trc", "a.3.trc", "a.trc"]
    capture = read_capture(rotated)
    assert (numbers(capture), capture.complaint) == ([*range(5)], "")
    assert (capture.opening, capture.closing) == (OPENING, CLOSING)
    assert capture.exchanges[0].response.number == 0
    assert [file.name for file in capture.files] == ["a.trc", "a.2.trc", "a.3.trc"]
    second = read_capture(tmp_path / "a.2.trc")
    assert (numbers(second), second.opening.settings["part"]) == ([2, 3, 4], 2)


def test_a_missing_or_repeated_file_of_a_capture_is_reported(rotated, tmp_path):
    second = tmp_path / "a.2.trc"
    data = rotated.read_bytes()
    second.unlink()
    assert f"{rotated}: incomplete: {second}: cannot be read" in read_capture(rotated).complaint
    second.write_bytes(data)
    assert f"{second}: found twice" in read_capture(rotated).complaint
    assert numbers(read_capture(rotated)) == [0, 1]


def test_an_existing_file_is_not_overwritten_by_the_next_one(tmp_path):
    (tmp_path / "a.2.trc").touch()
    writer = CaptureWriter.create(tmp_path / "a.trc", rotate=100)
    with pytest.raises(CaptureIncomplete, match=r"a\.2\.trc: exists"):
        writer.write([OPENING, REQUEST])
    writer.write([CLOSING])
    writer.close()
    assert (tmp_path / "a.2.trc").stat().st_size == 0
    assert numbers(read_capture(tmp_path / "a.trc")) == [REQUEST.number]


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GiB", 2**30), ("1.5 MB", 1_500_000), ("20", 20), ("3kB", 3000), ("2TiB", 2**41)],
)
def test_sizes_have_units(text, size):
    assert parse_size(text, "--rotate") == size


@pytest.mark.parametrize("text", ["", "0", "GiB", "-1", "1e9", "1 XB", "9" * 18 + "TiB"])
def test_an_invalid_size_is_refused(text):
    with pytest.raises(ReplayError, match=r"--rotate: found .*, expected a size such as"):
        parse_size(text, "--rotate")


def test_an_unknown_record_is_reported(tmp_path):
    path = write(tmp_path / "a.trc", OPENING)
    with path.open("ab") as file:
        file.writelines(encode_frame(b'{"kind": "tensor"}', b""))
    with pytest.raises(CaptureUnreadable, match="found an unknown record"):
        read_capture(path)


TAG = "<script>alert(1)</script>"


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        *((REQUEST, name, TAG) for name in ("number", "connection", "at", "end", "body_size")),
        *((REQUEST, "number", value) for value in (True, 1.5, -1, 2**63, None, [1])),
        *(
            (REQUEST, name, value)
            for name in ("method", "target")
            for value in (1, "a\r\nb", "\0", "/\u0142")
        ),
        (REQUEST, "protocol", "ftp"),
        (REQUEST, "headers", [["a", "\u0142"]]),
        *((REQUEST, name, 1) for name in ("protocol", "redacted", "headers")),
        (REQUEST, "headers", [["a", "b\r\nc: d"]]),
        (REQUEST, "headers", [["a", 1]]),
        (REQUEST, "headers", [["a"]]),
        (REQUEST, "headers", ["ab"]),
        (REQUEST, "body", "x"),
        (RESPONSE, "status", TAG),
        (RESPONSE, "parts", [[1, TAG]]),
        (RESPONSE, "parts", TAG),
        (RESPONSE, "trailers", {}),
        (RESPONSE, "ended", None),
        (RESPONSE, "ended", "early"),
        (CLOSING, "counts", {"sampled": TAG}),
        (CLOSING, "counts", []),
        (OPENING, "settings", []),
        (OPENING, "server", 7),
        (OPENING, "server", "half of a pair \ud800"),
    ],
)
def test_a_field_of_another_type_is_reported(record, field, value):
    fields = json.loads(encode_record(record)[0]) | {field: value}
    with pytest.raises(CaptureUnreadable, match="found an unknown record"):
        decode_record(memoryview(json.dumps(fields).encode()), memoryview(b""))


@pytest.mark.parametrize(
    "meta",
    [b'{"kind": []}', b"[]", b"[" * 100_000, b'{"kind": "opening", "settings": 9' + b"9" * 9000],
)
def test_any_other_meta_is_reported(meta):
    with pytest.raises(CaptureUnreadable, match="found an unknown record"):
        decode_record(memoryview(meta), memoryview(b""))


class FullDisk(io.FileIO):
    """A file that accepts a number of bytes in small pieces, and then raises."""

    room = 10_000

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = super().write(bytes(data[: min(self.room, 100)]))
        self.room -= taken
        return taken


def test_whole_records_are_kept_on_a_full_disk(tmp_path):
    path = tmp_path / "a.trc"
    with FullDisk(path, "x+") as disk:
        writer = CaptureWriter(disk, "a.trc")
        writer.write([OPENING, REQUEST])
        disk.room = 50
        with pytest.raises(CaptureIncomplete, match="No space left on device"):
            writer.write([RESPONSE])
        disk.room = 10_000
        writer.write([CLOSING])
    capture = read_capture(path)
    assert (capture.damage, capture.closing) == (None, CLOSING)
    assert [(e.request, e.response) for e in capture.exchanges] == [(REQUEST, None)]
