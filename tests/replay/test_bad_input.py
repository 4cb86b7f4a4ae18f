"""Captures that are cut, foreign, newer or being written, and servers that end."""

import contextlib
import dataclasses
import signal
import subprocess

import numpy as np
import pytest
from replay.serving import serving
from replay.traffic import MS, inputs, request, response, write_capture
from support.replaying import command, environment
from support.servers import free_ports
from support.waiting import until

from triton_replay.__main__ import main
from triton_replay.capture.frames import MAGIC
from triton_replay.capture.reader import read_capture
from triton_replay.capture.records import Closing, Opening
from triton_replay.capture.writer import CaptureWriter

VALUES = inputs(9)
NEWER = MAGIC + (2).to_bytes(4, "little")


def right(number, x):
    return np.float32(2) * x


@pytest.fixture
def whole(tmp_path):
    return write_capture(tmp_path / "whole.trc", right, VALUES)


@pytest.fixture
def cut(tmp_path, whole):
    """A capture whose disk lost its second half."""
    path = tmp_path / "cut.trc"
    data = whole.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


#: Each command that reads a capture; `{}` stands for it.
READING = {
    "show": "show {}",
    "show --json": "show {} --json",
    "replay": "replay {} --server={server} --output={folder}/out.trc --speed=max",
    "compare A": "compare {} {whole}",
    "compare B": "compare {whole} {}",
    "export": "export {} --output={folder}/out",
    "export --pytest": "export {} --output={folder}/out --pytest",
}


@pytest.fixture(params=READING)
def reading(request, tmp_path, whole):
    """Run a command on a capture: its name and its exit code."""

    def run(path):
        with serving() as server:
            words = READING[request.param].split()
            filled = [
                word.format(path, server=server, folder=tmp_path, whole=whole) for word in words
            ]
            return request.param, main(filled)

    return run


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file or directory"),
        (b"", "empty, or truncated before its first record"),
        (MAGIC[:5], "empty, or truncated before its first record"),
        (MAGIC + b"\1\0\0\0" + bytes(9), "the first record is not readable"),
        (b"PK\3\4 and more", "not a capture: found b'PK"),
        (NEWER, "found capture version 2, expected 1"),
    ],
)
def test_what_is_no_capture_is_told_and_left_as_it_is(reading, tmp_path, capsys, content, told):
    path = tmp_path / "strange.trc"
    if content is not None:
        path.write_bytes(content)
    _, code = reading(path)
    assert (code, told in capsys.readouterr().err) == (4, True)
    assert not (tmp_path / "out.trc").exists()
    assert not (tmp_path / "out").exists()
    assert content is None or path.read_bytes() == content


def test_of_a_capture_that_is_cut_off_all_before_is_used(reading, cut, capsys):
    size = cut.stat().st_size
    count = len(read_capture(cut).exchanges)
    name, code = reading(cut)
    told = capsys.readouterr().err
    assert f"the {count} requests before it are used" in told
    # The comparison has not compared what is lost, so it does not say that all is well.
    assert code == (5 if name.startswith("compare") else 0)
    assert cut.stat().st_size == size


def test_a_comparison_that_lacks_requests_says_how_many(whole, cut, capsys):
    count = len(VALUES) - len(read_capture(cut).exchanges)
    assert main(["compare", str(whole), str(cut)]) == 5
    told = f"triton-replay: {cut}: incomplete; {count} requests were not compared"
    assert told in capsys.readouterr().err


def test_a_capture_that_is_being_written_is_read_up_to_its_last_record(reading, tmp_path, capsys):
    path = tmp_path / "growing.trc"
    with contextlib.closing(CaptureWriter.create(path)) as writer:
        writer.write([Opening("s:1", "2026-01-01T00:00:00", "0", {})])
        for number, x in enumerate(VALUES):
            writer.write([request(number, x), response(number, right(number, x))])
        _, code = reading(path)
        assert (code, "is still running" in capsys.readouterr().err) == (0, True)
        writer.write([Closing(0, "stopped", {})])
    assert read_capture(path).complaint == ""


def test_a_server_that_dies_in_the_middle_of_a_replay(tmp_path, whole, capsys):
    out = tmp_path / "out.trc"
    with serving(answers=4) as server:
        words = [f"--server={server}", f"--output={out}", "--speed=max"]
        assert main(["replay", str(whole), *words]) == 3
        told = capsys.readouterr().err
    assert f"triton-replay: {server}: 5 of 9 requests have no response: " in told
    capture = read_capture(out)
    assert capture.complaint == ""
    assert [one.status for one in capture.exchanges] == ["200"] * 4 + ["none"] * 5


def test_a_server_that_dies_in_the_middle_of_the_suite_is_told_with_the_last_request(capsys):
    with serving(answers=6) as server:
        assert main(["conformance", f"--server={server}", "--model=m"]) == 3
    told = capsys.readouterr().err
    assert f"--server {server}: no server listens there: Connection refused, since " in told
    assert "curl -i -X " in told


def test_nobody_at_the_port_of_grpc_is_told_with_the_option(tmp_path, capsys):
    nobody = "127.0.0.1:{}".format(*free_ports(1))
    with serving() as server:
        assert main(["conformance", f"--server={server}", "--model=m", f"--grpc={nobody}"]) == 3
        assert f"--grpc {nobody}: no server listens there" in capsys.readouterr().err
        output = tmp_path / "a.trc"
        words = ["--listen=:0", "--grpc-listen=:0", f"--grpc-server={nobody}"]
        assert main(["record", f"--server={server}", *words, f"--output={output}"]) == 3
        assert f"--grpc-server {nobody}: no server listens there" in capsys.readouterr().err
    assert not output.exists()


def test_a_replay_that_is_interrupted_keeps_its_answers_and_says_so(tmp_path):
    path, out = tmp_path / "long.trc", tmp_path / "out.trc"
    with contextlib.closing(CaptureWriter.create(path)) as writer:
        first = request(0, VALUES[0])
        last = dataclasses.replace(request(1, VALUES[1]), connection=1, at=3600 * 1000 * MS)
        writer.write([Opening("s:1", "2026-01-01T00:00:00", "0", {}), first, last])
    with serving() as server:
        words = ("replay", path, f"--server={server}", f"--output={out}")
        process = subprocess.Popen(
            command(*words), env=environment(), stderr=subprocess.PIPE, text=True
        )
        with process:
            until(lambda: answered(out) or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            told = process.communicate(timeout=60)[1]
    assert process.returncode == 5, told
    assert "interrupted after 1 of 2 requests" in told
    assert "Traceback" not in told
    assert read_capture(out).complaint == f"{out}: incomplete: interrupted after 1 of 2 requests"
    assert answered(out) == 1


def answered(path):
    """How many answers are in a capture that is being written, or that is not there yet."""
    if not path.exists() or path.stat().st_size < 100:
        return 0
    return sum(one.response is not None for one in read_capture(path).exchanges)
