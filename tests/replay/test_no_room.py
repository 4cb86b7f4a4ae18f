"""Each command that writes, on a full disk: whole records are kept, and the exit code is 5.

A limit of the size of files simulates a full disk, with another error number. `/dev/full` is a
device of Linux.
"""

import contextlib
import dataclasses
import http.client
import os
import resource
import subprocess
from pathlib import Path

import pytest
from replay.serving import serving
from replay.traffic import MS, inputs, request, write_capture, write_records
from support.replaying import command, environment, recording

from triton_replay.__main__ import main
from triton_replay.capture.files import read_capture

FULL = Path("/dev/full")
VALUES = inputs(40)


@contextlib.contextmanager
def room(size):
    """Limit the size of files until the block ends."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def captures(tmp_path):
    """Two captures that differ."""
    a = write_capture(tmp_path / "a.trc", lambda n, x: x, VALUES)
    return a, write_capture(tmp_path / "b.trc", lambda n, x: x + 1, VALUES)


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("compare {a} {b} --html={folder}/page.html", "page.html"),
        ("compare {a} {b} --smallest={folder}/small", "small/group-1.trc"),
        ("export {a} --output={folder}/out", "out"),
        ("export {a} --output={folder}/out --pytest", "out"),
    ],
)
def test_a_full_disk_is_reported_with_the_file(captures, tmp_path, capsys, words, file):
    a, b = captures
    before = a.read_bytes()
    with room(400):
        code = main(words.format(a=a, b=b, folder=tmp_path).split())
    reported = capsys.readouterr().err
    assert code == 5, reported
    assert f"triton-replay: {tmp_path / file}: " in reported
    assert "File too large" in reported
    assert a.read_bytes() == before


@pytest.mark.parametrize("words", ["compare {a} {b} --html={}", "export {a} --output={}"])
def test_an_invalid_path_is_reported(captures, tmp_path, capsys, words):
    a, b = captures
    place = a / "below"
    assert main(words.format(place, a=a, b=b).split()) == 4
    assert f"triton-replay: {place}: cannot be written: Not a directory" in capsys.readouterr().err


def test_requests_generated_before_the_disk_is_full_are_kept(tmp_path, capsys):
    path = tmp_path / "load.trc"
    with room(10_000):
        code = main(["generate", f"--output={path}", "--model=m", "--input=x:FP32:100"])
    assert code == 5
    size = path.stat().st_size
    reported = f"{path}: File too large; {size} bytes of whole records are kept"
    assert reported in capsys.readouterr().err
    capture = read_capture(path)
    assert capture.damage is None
    assert len(capture.exchanges) > 5
    assert "no closing record" in capture.complaint


def test_a_capture_without_space_for_its_first_record_is_removed(tmp_path, capsys):
    path = tmp_path / "load.trc"
    with room(5):
        assert main(["generate", f"--output={path}", "--model=m", "--input=x:FP32:100"]) == 5
    assert "0 bytes of whole records are kept" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.brute_force
def test_a_replay_ends_when_the_disk_is_full(tmp_path, capsys):
    soon = [request(number, x) for number, x in enumerate(VALUES)]
    # It would be sent in an hour.
    late = dataclasses.replace(request(99, VALUES[0]), connection=1, at=3600 * 1000 * MS)
    path, out = write_records(tmp_path / "long.trc", *soon, late), tmp_path / "out.trc"
    with serving() as server, room(5_000):
        assert main(["replay", str(path), f"--server={server}", f"--output={out}"]) == 5
    assert f"{out}: File too large; " in capsys.readouterr().err
    assert 0 < len(read_capture(out).exchanges) < len(VALUES)


@pytest.mark.brute_force
def test_a_full_disk_ends_the_recording_and_not_the_proxy(tmp_path):
    path = tmp_path / "a.trc"
    with serving() as server, contextlib.ExitStack() as stack:
        with room(5_000):
            recorder = stack.enter_context(recording(server, path))
        assert all(ask(recorder.address) == 200 for _ in range(50))
        reported = recorder.process.stderr.readline()
        assert reported.startswith("recording ended; the proxy continues: ")
        assert "File too large" in reported
        assert ask(recorder.address) == 200
    assert recorder.returncode == 5
    capture = read_capture(path)
    count = len(capture.exchanges)
    assert 0 < count < 50
    assert f"{count} requests in {path}\n" in recorder.stderr_text
    assert f"triton-replay: {path}: File too large; " in recorder.stderr_text
    assert capture.damage is None


def ask(address):
    connection = http.client.HTTPConnection(address)
    with contextlib.closing(connection):
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status


@pytest.mark.brute_force
@pytest.mark.skipif(not FULL.exists(), reason="needs Linux's full device")
def test_a_result_that_cannot_be_printed_is_an_error(captures):
    words = command("compare", captures[0], captures[0])
    with FULL.open("w") as full:
        done = subprocess.run(
            words, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True
        )
    reported = "triton-replay: standard output: cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (5, reported)


@pytest.mark.brute_force
def test_a_closed_pipe_is_not_an_error(captures):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed_pipe:
        words = command("compare", *captures)
        done = subprocess.run(
            words, env=environment(), stdout=closed_pipe, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "")
