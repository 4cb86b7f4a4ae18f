"""Captures that are truncated, invalid, newer or incomplete, and servers that exit."""

import contextlib
import dataclasses
import signal
import subprocess

import numpy as np
import pytest
from replay.serving import serving
from replay.traffic import MS, inputs, request, response, write_capture, write_records
from support.replaying import command, environment
from support.servers import free_ports
from support.waiting import until

from triton_replay.__main__ import main
from triton_replay.capture.files import CaptureWriter, read_capture
from triton_replay.capture.frames import MAGIC
from triton_replay.capture.records import Closing, Opening

VALUES = inputs(9)
NEWER = MAGIC + (2).to_bytes(4, "little")


def right(number, x):
    return np.float32(2) * x


@pytest.fixture
def whole(tmp_path):
    return write_capture(tmp_path / "whole.trc", right, VALUES)


@pytest.fixture
def cut(tmp_path, whole):
    """A truncated capture."""
    path = tmp_path / "cut.trc"
    data = whole.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


#: Each command that reads a capture; `{}` stands for it.
READING = {
    "show": "show {}",
    "replay": "replay {} --server={server} --output={folder}/out.trc --speed=max",
    "compare A": "compare {} {whole}",
    "compare B": "compare {whole} {}",
    "export": "export {} --output={folder}/out",
    "export --pytest": "export {} --output={folder}/out --pytest",
}


@pytest.fixture(params=READING)
def reading(request, tmp_path, whole):
    """Run a command on a capture; return its name and exit code."""

    def run(path):
        with serving() as server:
            words = READING[request.param].split()
            filled = [
                word.format(path, server=server, folder=tmp_path, whole=whole) for word in words
            ]
            return request.param, main(filled)

    return run


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (None, "No such file or directory"),
        (b"", "empty, or truncated before its first record"),
        (MAGIC + b"\1\0\0\0" + bytes(9), "the first record is not readable"),
        (NEWER, "found capture version 2, expected 1"),
    ],
)
def test_a_file_that_is_not_a_capture_is_reported_and_not_changed(
    reading, tmp_path, capsys, content, reported
):
    path = tmp_path / "strange.trc"
    if content is not None:
        path.write_bytes(content)
    _, code = reading(path)
    assert (code, reported in capsys.readouterr().err) == (4, True)
    assert not (tmp_path / "out.trc").exists()
    assert not (tmp_path / "out").exists()
    assert content is None or path.read_bytes() == content


@pytest.mark.brute_force
def test_the_records_before_a_truncation_are_used(reading, cut, capsys):
    size = cut.stat().st_size
    count = len(read_capture(cut).exchanges)
    name, code = reading(cut)
    reported = capsys.readouterr().err
    assert f"the {count} requests before it are used" in reported
    # The comparison has not compared what is lost, so it does not say that all is well.
    assert code == (5 if name.startswith("compare") else 0)
    assert cut.stat().st_size == size


@pytest.mark.parametrize("first", [True, False])
def test_a_comparison_with_a_shorter_replay_is_no_success(tmp_path, whole, capsys, first):
    short = write_capture(tmp_path / "short.trc", right, VALUES[:2])
    pair = [short, whole] if first else [whole, short]
    assert main(["compare", *map(str, pair)]) == 5
    lost = len(VALUES) - 2
    reported = f"{short}: lacks {lost} of the {len(VALUES)} requests in {whole}, which were not"
    assert reported in capsys.readouterr().err


@pytest.mark.brute_force
def test_an_open_capture_is_read_up_to_its_last_record(reading, tmp_path, capsys):
    path = tmp_path / "growing.trc"
    with contextlib.closing(CaptureWriter.create(path)) as writer:
        writer.write([Opening("s:1", "2026-01-01T00:00:00", "0", {})])
        for number, x in enumerate(VALUES):
            writer.write([request(number, x), response(number, right(number, x))])
        _, code = reading(path)
        assert (code, "is still running" in capsys.readouterr().err) == (0, True)
        writer.write([Closing(0, "stopped", {})])
    assert read_capture(path).complaint == ""


@pytest.mark.brute_force
def test_a_server_that_exits_during_a_replay(tmp_path, whole, capsys):
    out = tmp_path / "out.trc"
    with serving(answers=4) as server:
        words = [f"--server={server}", f"--output={out}", "--speed=max"]
        assert main(["replay", str(whole), *words]) == 3
        reported = capsys.readouterr().err
    assert f"triton-replay: {server}: 5 of 9 requests have no response: " in reported
    capture = read_capture(out)
    assert capture.complaint == ""
    assert [one.status for one in capture.exchanges] == ["200"] * 4 + ["none"] * 5


def test_a_server_that_exits_during_the_suite_is_reported_with_the_last_request(capsys):
    with serving(answers=6) as server:
        assert main(["conformance", f"--server={server}", "--model=m"]) == 3
    reported = capsys.readouterr().err
    assert f"--server {server}: no server listens there: Connection refused, since " in reported
    assert "curl -i -X " in reported


def test_a_missing_grpc_server_is_reported_with_the_option(tmp_path, capsys):
    missing = "127.0.0.1:{}".format(*free_ports(1))
    with serving() as server:
        assert main(["conformance", f"--server={server}", "--model=m", f"--grpc={missing}"]) == 3
        assert f"--grpc {missing}: no server listens there" in capsys.readouterr().err
        output = tmp_path / "a.trc"
        words = ["--listen=:0", "--grpc-listen=:0", f"--grpc-server={missing}"]
        assert main(["record", f"--server={server}", *words, f"--output={output}"]) == 3
        assert f"--grpc-server {missing}: no server listens there" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.brute_force
def test_an_interrupted_replay_keeps_its_responses_and_reports_it(tmp_path):
    last = dataclasses.replace(request(1, VALUES[1]), connection=1, at=3600 * 1000 * MS)
    path = write_records(tmp_path / "long.trc", request(0, VALUES[0]), last)
    out = tmp_path / "out.trc"
    with serving() as server:
        words = ("replay", path, f"--server={server}", f"--output={out}")
        process = subprocess.Popen(
            command(*words), env=environment(), stderr=subprocess.PIPE, text=True
        )
        with process:
            until(lambda: answered(out) or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            reported = process.communicate(timeout=60)[1]
    assert process.returncode == 5, reported
    assert "interrupted after 1 of 2 requests" in reported
    assert "Traceback" not in reported
    assert read_capture(out).complaint == f"{out}: incomplete: interrupted after 1 of 2 requests"
    assert answered(out) == 1


def answered(path):
    """Count the responses in a capture that is incomplete, or does not exist yet."""
    if not path.exists() or path.stat().st_size < 100:
        return 0
    return sum(one.response is not None for one in read_capture(path).exchanges)


def test_a_capture_cannot_control_the_terminal(tmp_path, capsys):
    sent = dataclasses.replace(request(1, VALUES[0]), target="/v2\x1b[2J\x9b31m")
    closing = Closing(9, "\x1b[31mred", {"\x1bc": 3})
    path = write_records(tmp_path / "a.trc", sent, closing, server="\x1b]0;title\x07")
    assert main(["show", str(path)]) == 0
    printed = "".join(capsys.readouterr())
    assert not any(ord(character) in {7, 0x1B, 0x9B} for character in printed)
    assert "/v2\\x1b[2J\\x9b31m" in printed
