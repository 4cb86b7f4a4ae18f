"""The recorder: sampled, written and skipped records, and its end."""

import contextlib
import itertools
import json

import pytest

from triton_replay.capture.files import CaptureWriter, read_capture
from triton_replay.capture.records import Opening, Request, Response
from triton_replay.errors import CaptureIncomplete
from triton_replay.recording.recorder import Recorder, Selection
from triton_replay.recording.redaction import Redaction

# -- sampling: the share, reproducibility, and whole sequences


def infer(number, sequence=None, model="m"):
    parameters = {} if sequence is None else {"parameters": {"sequence_id": sequence}}
    body = json.dumps({"inputs": [], **parameters}).encode()
    target = f"/v2/models/{model}/infer"
    return Request(number, 0, 0, 0, "POST", target, (), len(body), body)


def taken(selection, requests):
    return [request.number for request in requests if selection.takes(request)]


def test_a_share_is_kept_reproducibly():
    requests = [infer(number) for number in range(4000)]
    first = taken(Selection(0.25, 1), requests)
    assert 900 < len(first) < 1100
    assert first == taken(Selection(0.25, 1), requests)
    assert first != taken(Selection(0.25, 2), requests)


def test_shares_of_zero_and_one():
    requests = [infer(number) for number in range(50)]
    assert taken(Selection(0.0), requests) == []
    assert len(taken(Selection(1.0), requests)) == 50


def test_a_sequence_is_kept_or_skipped_as_a_whole():
    selection = Selection(0.5)
    fates = [
        {selection.takes(infer(step, sequence, model)) for step in range(20)}
        for model in ("a", "b")
        for sequence in (*range(1, 15), "a word")
    ]
    assert all(len(fate) == 1 for fate in fates)
    assert {True} in fates
    assert {False} in fates


def test_requests_that_change_the_server_are_always_kept():
    target = "/v2/systemsharedmemory/region/r/register"
    requests = [Request(n, 0, 0, 0, "POST", target, (), 0) for n in range(20)]
    assert len(taken(Selection(0.0), requests)) == 20


# -- writing


def opened(path, **options):
    writer = CaptureWriter.create(path)
    writer.write([Opening("s:1", "now", "0", {})])
    recorder = Recorder(writer, itertools.count().__next__, **options)
    recorder.start()
    return recorder


def exchange(recorder, number, size=10):
    body = bytes(size)
    recorder.put(Request(number, 0, 0, 0, "POST", "/v2/models/m/infer", (), size, body))
    recorder.put(Response(number, 0, 0, 200, (), size, body))


def test_all_records_are_in_the_capture(tmp_path):
    recorder = opened(tmp_path / "a.trc")
    for number in range(100):
        exchange(recorder, number)
    recorder.close()
    capture = read_capture(tmp_path / "a.trc")
    assert [e.request.number for e in capture.exchanges] == list(range(100))
    assert all(e.response is not None for e in capture.exchanges)
    assert capture.complaint == ""
    assert recorder.recorded == 100


def test_written_records_are_readable_before_the_end(tmp_path):
    recorder = opened(tmp_path / "a.trc")
    exchange(recorder, 0)
    recorder.write_waiting()
    capture = read_capture(tmp_path / "a.trc")
    assert len(capture.exchanges) == 1
    assert "the recorder was killed, is still running, or the disk was full" in capture.complaint
    recorder.close()


def test_responses_to_skipped_requests_are_skipped(tmp_path):
    recorder = opened(tmp_path / "a.trc", selection=Selection(0.5))
    for number in range(100):
        exchange(recorder, number)
    recorder.close()
    capture = read_capture(tmp_path / "a.trc")
    assert all(e.response is not None for e in capture.exchanges)
    left_out = capture.closing.counts["requests that were not sampled"]
    assert len(capture.exchanges) + left_out == 100
    assert 30 < left_out < 70


def test_a_capture_of_the_largest_size_ends_with_the_reason(tmp_path):
    recorder = opened(tmp_path / "a.trc", max_capture=5000)
    for number in range(5):
        exchange(recorder, number, size=1000)
    with pytest.raises(CaptureIncomplete, match="--max-capture of 5000 bytes is reached"):
        recorder.close()
    capture = read_capture(tmp_path / "a.trc")
    assert capture.complaint.endswith("incomplete: --max-capture of 5000 bytes is reached")
    assert 1 <= len(capture.exchanges) <= 2
    assert (tmp_path / "a.trc").stat().st_size < 5000 + 200  # and the closing record


def test_records_dropped_because_of_a_slow_disk_are_counted(tmp_path):
    recorder = opened(tmp_path / "a.trc", max_waiting=1500)
    for number in range(3):
        exchange(recorder, number, size=1000)
    recorder.close()
    lost = read_capture(tmp_path / "a.trc").closing.counts
    assert lost["records for which the disk was too slow"] >= 1


def test_a_failing_disk_ends_the_recording_and_not_the_traffic(tmp_path):
    recorder = opened(tmp_path / "a.trc")
    exchange(recorder, 0)
    recorder.write_waiting()

    def full(records):
        raise CaptureIncomplete("a.trc: No space left on device")

    recorder.writer.write = full
    exchange(recorder, 1)
    recorder.write_waiting()
    exchange(recorder, 2)
    with pytest.raises(CaptureIncomplete, match="No space left"):
        recorder.close()
    assert len(read_capture(tmp_path / "a.trc").exchanges) == 1


def test_slow_redaction_does_not_delay_earlier_records(tmp_path):
    written = []

    class Slow(Redaction):
        def apply(self, message):
            written.append(recorder.recorded)
            return message

    second = itertools.count(0, 10**9)  # each call of the clock takes a second
    with contextlib.closing(CaptureWriter.create(tmp_path / "a.trc")) as writer:
        recorder = Recorder(writer, second.__next__, redaction=Slow())
        for number in range(3):
            recorder.put(Request(number, 0, 0, 0, "GET", "/v2", (), 0))
        recorder.write_waiting()
    assert written == [0, 1, 2]


def test_a_body_that_cannot_be_redacted_is_counted(tmp_path):
    recorder = opened(tmp_path / "a.trc", redaction=Redaction(tensors={"secret"}))
    exchange(recorder, 0)
    recorder.close()
    counts = read_capture(tmp_path / "a.trc").closing.counts
    assert counts == {"bodies that could not be redacted": 2}


def test_a_defect_in_the_thread_is_reported_at_the_end(tmp_path):
    class Broken(Redaction):
        def apply(self, message):
            raise KeyError("shape")

    recorder = opened(tmp_path / "a.trc", redaction=Broken())
    exchange(recorder, 0)
    with pytest.raises(CaptureIncomplete, match=r"the recorder failed: KeyError\('shape'\)"):
        recorder.close()
    assert "incomplete: the recorder failed" in read_capture(tmp_path / "a.trc").complaint
