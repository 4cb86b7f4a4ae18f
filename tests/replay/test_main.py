"""The command: its messages and exit codes."""

import json
import signal
import socket

import pytest
from replay.serving import serving
from replay.traffic import write_records
from support.servers import free_ports

from triton_replay.__main__ import main
from triton_replay.capture.files import read_capture
from triton_replay.capture.records import Closing, Request, Response
from triton_replay.commands import replay
from triton_replay.comparing.paired import STATISTICS
from triton_replay.wire.grpc_messages import framed, messages


@pytest.fixture
def capture(tmp_path):
    records = []
    for number in range(3):
        at = number * 10**9
        end = at + (number + 1) * 10**6
        records.append(Request(number, 0, at, at, "POST", "/v2/models/m/infer", (), 2, b"hi"))
        records.append(Response(number, end, end, 200, (), 2, b"ok"))
    records.append(Request(3, 0, 0, 0, "GET", "/v2", (), 0))
    closing = Closing(3 * 10**9, "stopped", {"requests that were not sampled": 5})
    return write_records(tmp_path / "a.trc", *records, closing, server="localhost:8000")


def call(number, model):
    body = framed([messages.ModelInferRequest(model_name=model)])
    target = "/inference.GRPCInferenceService/ModelInfer"
    return Request(number, 0, 0, 0, "POST", target, (), len(body), body, protocol="grpc")


def test_show_counts_requests_by_target_and_status(capture, capsys):
    assert main(["show", str(capture)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"{capture}: 4 requests to localhost:8000 in 2.0 s from 2026-01-01T00:00:00",
        "requests  status  median ms   service  target",
        "       3     200       2.00      2.00  POST /v2/models/m/infer",
        "       1    none          -         -  GET /v2",
        "not recorded: 5 requests that were not sampled",
    ]
    assert err == ""


def test_show_counts_calls_by_model(tmp_path, capsys):
    path = write_records(tmp_path / "a.trc", *map(call, range(3), "mnm"))
    assert main(["show", str(path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[0], row[-1]) for row in rows] == [("2", "m"), ("1", "n")]


def test_show_gives_json_lines(capture, capsys):
    assert main(["show", "--json", str(capture)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["request"]["number"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["response"]["status"] == 200
    assert rows[3]["response"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["show", "/nowhere.trc"], 4, "/nowhere.trc: cannot be read: No such file"),
        (["show", __file__], 4, "not a capture"),
        (["record", "--sample=2", "--output=x"], 2, "--sample: found 2.0, expected a share"),
        (["record", "--listen=9000", "--output=x"], 2, "--listen: found '9000', expected HOST:"),
        (["record", "--server=https://h:1", "--output=x"], 2, "TLS is not supported"),
        (["replay", "x", "--output=y", "--timeout=-1"], 2, "--timeout: found -1, expected seconds"),
    ],
)
def test_errors_have_exit_codes(arguments, code, reported, capsys):
    assert main(arguments) == code
    assert reported in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "reported"),
    [("/nowhere/x.trc", "cannot be written"), (__file__, "captures are not overwritten")],
)
def test_a_capture_that_cannot_be_created_is_reported(output, reported, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        assert main(["record", f"--server={address}", f"--output={output}"]) == 4
    assert f"{output}: " in (complaint := capsys.readouterr().err)
    assert reported in complaint


def test_a_port_in_use_is_reported_and_leaves_no_capture(tmp_path, capsys):
    output = tmp_path / "a.trc"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "{}:{}".format(*taken.getsockname())
        words = [f"--server={address}", f"--listen={address}", f"--output={output}"]
        assert main(["record", *words]) == 2
    assert f"--listen {address}" in capsys.readouterr().err
    assert not output.exists()


def test_a_missing_server_is_reported_and_leaves_no_capture(tmp_path, capsys):
    (port,) = free_ports(1)
    output = tmp_path / "a.trc"
    assert main(["record", f"--server=127.0.0.1:{port}", f"--output={output}"]) == 3
    assert f"--server 127.0.0.1:{port}: no server listens there" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(("kept", "target"), [(["Key"], "/v2?key=1"), ([], "/v2"), (7, "/v2")])
def test_a_replay_keeps_what_the_recording_kept(tmp_path, kept, target):
    records = Request(0, 0, 0, 0, "GET", "/v2?key=1", (), 0), Closing(0, "stopped", {})
    path = write_records(tmp_path / "a.trc", *records, keep_headers=kept)
    output = tmp_path / "b.trc"
    with serving() as server:
        assert main(["replay", str(path), f"--server={server}", f"--output={output}"]) == 0
    (exchange,) = read_capture(output).exchanges
    assert exchange.request.target == target


def test_a_replay_reports_responses_that_could_not_be_written(
    capture, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(replay, "MAX_WAITING", 10)
    output = tmp_path / "b.trc"
    with serving() as server:
        words = [str(capture), f"--server={server}", "--speed=max", "--model=/v2"]
        assert main(["replay", *words, f"--output={output}"]) == 5
    assert f"{output}: records for which the disk was too slow: 1 are" in capsys.readouterr().err
    assert read_capture(output).opening.settings["loop"] == "open"


@pytest.mark.brute_force
def test_signals_are_handled_after_a_replay_as_before_it(capture, tmp_path):
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.getsignal(number) for number in numbers]
    with serving() as server:
        words = [f"--server={server}", "--speed=max", f"--output={tmp_path / 'b.trc'}"]
        assert main(["replay", str(capture), *words]) == 0
    assert [signal.getsignal(number) for number in numbers] == before


def test_ab_compares_two_running_servers(capture, capsys):
    with serving() as a, serving() as b:
        assert main(["ab", str(capture), f"--a={a}", f"--b={b}", "--rounds=2"]) == 0
        table, _ = capsys.readouterr()
        assert f"A  {a}\nB  {b}\n\n8 requests, the answers of B to 0 differ\n" in table
        assert (
            "no verdict: fewer than 20 requests with a latency on all sides\n  m, 6 of 6\n" in table
        )
        arguments = [
            "ab",
            str(capture),
            f"--a={a}",
            f"--b={b}",
            f"--a2={b}",
            "--rounds=7",
            "--json",
        ]
        assert main([*arguments, "--fail-if=p50>10x", "--fail-if=errors>0"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["servers"] == {"A": a, "B": b, "A2": b}
        (model,) = [one for one in told["models"] if one["model"] == "m"]
        assert (model["timed"], model["differences"], model["failures"]["B"]) == (21, [], {})
        assert [one["statistic"] for one in model["latencies"]] == [*STATISTICS]


def test_ab_names_the_grpc_addresses_of_calls_without_response(tmp_path, capsys):
    path = write_records(tmp_path / "a.trc", call(0, "m"), Closing(9, "stopped", {}))
    with serving() as server:
        addresses = ["--a=h:1", f"--a-grpc={server}", "--b=h:1", f"--b-grpc={server}"]
        assert main(["ab", str(path), *addresses]) == 3
    assert f"{server} and {server}: none of 1 requests is answered" in capsys.readouterr().err


def test_ab_exits_with_1_if_only_b_fails(capture, capsys):
    with serving() as a, serving(answers=3) as b:
        assert main(["ab", str(capture), f"--a={a}", f"--b={b}"]) == 1
    table, messages = capsys.readouterr()
    assert "no response" in table
    assert "--fail-if errors>0: holds" in messages


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--fail-if=p95>2x"], "--fail-if: found 'p95>2x', expected differs>N"),
        (["--fail-if=p99>1.2.3x"], "--fail-if: found 'p99>1.2.3x', expected differs>N"),
        (["--timeout=nan"], "--timeout: found nan, expected seconds above 0"),
        (["--at-least=nan"], "--at-least: found 'nan', expected a percentage"),
        (["--at-least=-1"], "--at-least: found '-1', expected a percentage"),
        (["--rounds=0"], "--rounds: found 0, expected 1 or more"),
    ],
)
def test_ab_refuses_wrong_options(capture, capsys, arguments, text):
    assert main(["ab", str(capture), "--a=:1", "--b=:2", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_ab_names_the_server_that_is_missing(capture, capsys):
    (port,) = free_ports(1)
    with serving() as a:
        assert main(["ab", str(capture), f"--a={a}", f"--b=:{port}"]) == 3
    assert f"--b 127.0.0.1:{port}: no server listens there" in capsys.readouterr().err
