"""`triton-replay load` on a small server: requests, measurements, reports."""

import csv
import json
import re
import signal
import socket
import subprocess
from functools import partial
from pathlib import Path

import pytest
from support.replaying import command, environment
from support.servers import free_ports, start_reference_server

from triton_replay.__main__ import main

PROTOCOLS = ["http", "grpc"]
COLUMNS = [
    *("Concurrency", "Inferences/Second", "Client Send", "Network+Server Send/Recv"),
    *("Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output"),
    *("Client Recv", "p50 latency", "p90 latency", "p95 latency", "p99 latency"),
]


UNTIL_ENDED = ("--concurrency-range", "1:100000")


def count_of(out):
    """Return the number of successful requests of each load."""
    return [int(count) for count in re.findall(r"    Request count: (\d+)", out)]


@pytest.fixture(params=PROTOCOLS)
def protocol(request):
    return request.param


@pytest.mark.brute_force
def test_a_closed_loop_is_measured_at_each_concurrency(load, protocol, tmp_path):
    path = tmp_path / "a.csv"
    words = ("--concurrency-range", "1:5:2", "-f", str(path))
    code, out, err = load("rows", *words, protocol=protocol)
    assert code == 0, out + err
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["Concurrency"] for row in rows] == ["1", "3", "5"]
    assert list(rows[0]) == COLUMNS
    assert all(float(row["Inferences/Second"]) > 0 for row in rows)
    assert all(int(row["p50 latency"]) <= int(row["p99 latency"]) for row in rows)
    assert re.findall(r"^Request concurrency: (\d+)", out, re.M) == ["1", "3", "5"]
    assert err.count("window 3: ") == 3


def test_an_open_loop_sends_at_its_rate(load, protocol, tmp_path):
    path = tmp_path / "a.csv"
    words = ("--request-rate-range", "400", "-f", str(path))
    code, out, err = load("rows", *words, protocol=protocol)
    assert code == 0, out + err
    (row,) = csv.DictReader(path.read_text().splitlines())
    assert list(row) == ["Request Rate", *COLUMNS[1:]]
    assert row["Request Rate"] == "400"
    assert "Request Rate: 400 inference requests per seconds" in out


@pytest.mark.brute_force
def test_the_default_is_rates_below_the_capacity(load):
    _, out, err = load("rows", "-p", "1000", "-r", "3")
    rates = [float(rate) for rate in re.findall(r"^Request Rate: ([\d.]+), ", out, re.M)]
    assert len(rates) == 6, out + err
    assert rates == sorted(rates)
    assert "concurrency 1, window 1" in err


def test_intervals_of_a_file_are_used(load, tmp_path):
    path = tmp_path / "intervals"
    path.write_text("1000\n3000\n")
    code, out, _ = load("rows", "--request-intervals", str(path), "--request-count", "8")
    assert code == 0
    assert count_of(out) == [8]
    assert "Request Rate: 500 " in out


def test_sequences_have_ids_starts_and_ends(load, asked, protocol):
    words = ("--sequence-length", "3", "--sequence-length-variation", "0")
    code, out, err = load(
        "turns",
        *(*words, "-t", "2", "--request-count", "12", "--sequence-id-range", "7:9"),
        protocol=protocol,
    )
    assert (code, count_of(out)) == (0, [12]), err
    by_id = {}
    for sequence, flags, _ in asked():
        by_id.setdefault(sequence, []).append(flags)
    assert sorted(by_id) == [7, 8]
    for flags in by_id.values():
        # The load ends the last one early where its place had more than half of the requests.
        assert re.fullmatch("(102)+(12)?", "".join(map(str, flags)))


def test_each_stream_of_a_file_is_one_sequence(load, asked, tmp_path, protocol):
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"data": [[{"X": [1]}, {"X": [2]}], [{"X": [3]}]]}))
    words = ("--input-data", str(path), "-t", "1", "--request-count", "6")
    code, _, err = load("turns", *words, protocol=protocol)
    assert code == 0, err
    assert [(flags, x) for _, flags, x in asked()] == [(1, [1]), (2, [2]), (3, [3])] * 2


def test_an_open_loop_alternates_between_sequences(load, asked, protocol):
    words = ("--request-rate-range", "500", "--num-of-sequences", "3", "--request-count", "12")
    length = ("--sequence-length", "4", "--sequence-length-variation", "0")
    code, out, err = load("turns", *words, *length, protocol=protocol)
    assert (code, count_of(out)) == (0, [12]), err
    begun, ended = set(), set()
    for sequence, flags, _ in asked():
        begun |= {sequence} if flags & 1 else set()
        assert sequence in begun - ended
        assert len(begun - ended) <= 3
        ended |= {sequence} if flags & 2 else set()
    assert begun == ended >= {1, 2, 3}


def test_batches_texts_and_files_reach_the_model(load, tmp_path, protocol):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "X").write_text("word\n")
    for words in (
        *(("-b", "4"), ("--string-data", "one"), ("--string-length", "3")),
        *(("--input-data", "zero"), ("--input-data", str(folder), "-b", "2")),
    ):
        code, out, err = load("texts", "-t", "1", "--request-count", "3", *words, protocol=protocol)
        assert code == 0, out + err
        assert "Failed" not in out


def test_each_row_of_a_batch_counts_as_an_inference(load, protocol):
    words = ("-t", "1", "-b", "4", "--request-count", "5")
    code, out, _ = load("rows", *words, protocol=protocol)
    assert code == 0
    assert count_of(out) == [5]
    assert re.findall(r"Inference count: (\d+)", out) == ["20"]


def test_tensors_in_json(load):
    formats = ("--input-tensor-format", "json", "--output-tensor-format", "json")
    for model in ("rows", "texts"):
        code, out, _ = load(model, "-t", "2", "--request-count", "9", *formats)
        assert (code, count_of(out)) == (0, [9])


def test_shared_memory_regions_are_removed(load, protocol):
    before = set(Path("/dev/shm").iterdir())
    words = ("-t", "2", "--request-count", "9", "--shared-memory", "system")
    for model in ("rows", "texts"):
        code, out, err = load(model, *words, "--output-shared-memory-size=999", protocol=protocol)
        assert (code, count_of(out)) == (0, [9]), err
    assert set(Path("/dev/shm").glob("triton_replay_*")) <= before


def test_a_threshold_ends_the_range_and_bisection_finds_the_last_load(load):
    code, out, _ = load("rows", "--concurrency-range", "1:4", "-l", "0.001")
    assert code == 0
    assert re.findall(r"^Concurrency: (\d+)", out, re.M) == ["1"]
    code, out, _ = load("rows", "--concurrency-range", "1:4", "-l", "10000", "--binary-search")
    assert code == 0
    assert re.findall(r"^Concurrency: (\d+)", out, re.M) == ["1", "4"]


@pytest.mark.brute_force
def test_metrics_have_columns(load, server, tmp_path):
    path = tmp_path / "a.csv"
    where = ("--metrics-url", f"{server.metrics}/metrics", "--metrics-interval", "5")
    words = ("-t", "1", "-f", str(path), "--verbose-csv", "--collect-metrics")
    times = ("--measurement-mode", "time_windows", "-p", "100")
    code, _, err = load("rows", *words, *where, *times)
    assert code == 0, err
    (row,) = csv.DictReader(path.read_text().splitlines())
    more = ["Avg latency", "request/response", "response wait"]
    devices = ["Avg GPU Utilization", "Avg GPU Power Usage", "Max GPU Memory Usage"]
    assert list(row) == [*COLUMNS, *more, *devices, "Total GPU Memory"]


def test_requests_that_all_fail_end_the_load_with_their_reason(load, protocol):
    code, _, err = load("refuses", "-t", "2", protocol=protocol)
    assert code == 2
    assert re.search(r"all \d+ requests failed; the last one: .*not today", err)


def test_an_unknown_model_is_reported(load, protocol):
    code, _, err = load("no_model", "-t", "1", protocol=protocol)
    assert code == 2
    assert "-m no_model: " in err
    assert "unknown model" in err


def test_a_missing_server_is_reported(capsys, protocol):
    (port,) = free_ports(1)
    assert main(["load", "-m", "x", "-u", f"127.0.0.1:{port}", "-i", protocol]) == 3
    assert f"-u 127.0.0.1:{port}: no server listens there" in capsys.readouterr().err


def test_a_server_without_responses_is_unreachable(capsys, protocol):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        words = ["load", "-m", "x", "-u", address, "-i", protocol, "--timeout", "0.05"]
        assert main(words) == 3
    assert "no response from the server for 0.05 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "words", "reported"),
    [
        ("any", (), "--shape: X has shape [-1]; expected fixed sizes, e.g. --shape X:16"),
        ("any", ("--shape", "Z:1"), "--shape Z: not an input of any; expected X"),
        ("any", ("--shape", "X:1,2"), "--shape X: found [1, 2], expected [-1]"),
        ("any", ("--shape", "X"), "--shape: found 'X', expected INPUT:SIZE,..."),
        ("any", ("--shape", "X:1", "-b", "2"), "-b: found 2, expected 1"),
        ("rows", ("-b", "9"), "-b: found 9, expected 1 to 8"),
        ("rows", ("--concurrency-range", "1:x"), "expected START:END:STEP of whole numbers"),
        ("rows", ("--concurrency-range", "1:0"), "expected --latency-threshold"),
        ("rows", ("-t", "1", "--request-rate-range", "1"), "expected one of them"),
        ("rows", ("--streaming",), "--streaming: found -i http, expected -i grpc"),
        (
            "rows",
            ("--shared-memory", "cuda"),
            "--shared-memory: found cuda, expected none or system",
        ),
        ("rows", ("--input-data", "/nowhere.json"), "/nowhere.json: cannot be read"),
        ("rows", ("--request-parameter", "a:1"), "expected NAME:VALUE:TYPE"),
        ("rows", ("--percentile", "100"), "--percentile: found 100, expected 1 to 99"),
        ("rows", ("--goodput", "fast"), "--goodput: found 'fast', expected milliseconds"),
        ("rows", ("--goodput", "50,first:0"), "--goodput: found '50,first:0'"),
        ("rows", ("-p", "0"), "--measurement-interval: found 0"),
        ("turns", ("-t", "3", "--sequence-id-range", "1:3"), "found 2 ids, expected at least 3"),
    ],
)
def test_invalid_options_are_reported(load, model, words, reported):
    code, _, err = load(model, *words)
    assert code == 2
    assert reported in err


def test_a_decoupled_model_is_measured_by_its_first_response(load, tmp_path):
    path = tmp_path / "a.csv"
    words = ("--streaming", "-t", "2", "--request-count", "9", "-f", str(path))
    goals = ("--goodput", "first:60000,last:60000,between:60000", "--hdr", str(tmp_path))
    code, out, err = load("many", *words, *goals, protocol="grpc")
    assert code == 0, err
    assert "    Goodput: " in out
    assert "(100.0% of requests)" in out
    times = dict(re.findall(r"^    (.* p(?:50|99)): (\d+) usec", out, re.M))
    assert {*times} == {
        f"{name} p{n}" for name in ("Last response", "Between responses") for n in (50, 99)
    }
    assert int(times["Last response p99"]) >= int(times["Between responses p99"])
    histogram = (tmp_path / "concurrency-2.hgrm").read_text().splitlines()
    assert histogram[-2].endswith("Total count    =            9]")
    (row,) = csv.DictReader(path.read_text().splitlines())
    assert row["Goodput"] == row["Inferences/Second"]
    responses = float(row["Response Throughput"]) / float(row["Inferences/Second"])
    assert responses == pytest.approx(3, rel=1e-4)
    assert "Response Throughput: " in out


def test_a_stream_has_the_same_responses_as_a_call(load):
    code, out, err = load("rows", "--streaming", "-t", "3", "--request-count", "9", protocol="grpc")
    assert (code, count_of(out)) == (0, [9]), err


def test_an_error_on_a_stream_is_reported(load):
    code, _, err = load("refuses", "--streaming", "-t", "2", protocol="grpc")
    assert code == 2
    assert "not today" in err


def test_a_decoupled_model_needs_a_stream(load, protocol):
    code, _, err = load("many", "-t", "1", protocol=protocol)
    assert code == 2
    assert "-m many: a decoupled model; expected -i grpc --streaming" in err


@pytest.mark.brute_force
def test_requests_larger_than_a_socket_or_a_window_are_sent_in_pieces(load):
    words = ("--shape", "X:1000000", "-t", "3", "--request-count", "9")
    for protocol, more in (("http", ()), ("grpc", ()), ("grpc", ("--streaming",))):
        code, out, err = load("any", *words, *more, protocol=protocol)
        assert (code, count_of(out)) == (0, [9]), err


def test_the_port_of_the_other_protocol_is_reported(load, server):
    for protocol, address in (("http", server.grpc), ("grpc", server.http)):
        code, _, err = load("rows", "-u", address, protocol=protocol)
        assert code == 2
        assert "-m rows: the response is not " in err or "-m rows: the server closed" in err


def test_a_missing_metrics_page_is_reported(load):
    (port,) = free_ports(1)
    where = ("--collect-metrics", "--metrics-url", f"127.0.0.1:{port}/metrics")
    code, _, err = load("rows", "-t", "1", *where)
    assert code == 3
    assert f"--metrics-url 127.0.0.1:{port}: no server listens there" in err


@pytest.mark.parametrize("name", ["gzip", "deflate"])
def test_messages_of_grpc_are_compressed(load, asked, name):
    length = ("--sequence-length", "3", "--sequence-length-variation", "0")
    words = ("-t", "1", "--request-count", "3", "--grpc-compression-algorithm", name, *length)
    for more in ((), ("--streaming",)):
        code, out, err = load("turns", *words, *more, protocol="grpc")
        assert (code, count_of(out)) == (0, [3]), err
    assert len(asked()) == 6


def test_statistics_of_composing_models_are_reported(load, protocol):
    words = ("-t", "1", "--request-count", "3", "--bls-composing-models", "any:1,texts")
    code, out, err = load("rows", *words, protocol=protocol)
    assert (code, count_of(out)) == (0, [3]), err
    assert "Composing" not in out  # it had no requests


def test_parameters_and_headers_are_sent(load, protocol):
    words = ("--request-parameter", "timeout:5000000:int", "-H", "x-a: b", "-t", "1")
    code, out, err = load("rows", *words, "--request-count", "3", protocol=protocol)
    assert (code, count_of(out)) == (0, [3]), err


def test_times_of_each_request_are_exported(load, asked, tmp_path, protocol):
    path = tmp_path / "a.json"
    words = ("-t", "2", "--request-count", "9", "--profile-export-file", str(path))
    assert load("turns", *words, protocol=protocol)[0] == 0
    document = json.loads(path.read_text())
    (experiment,) = document["experiments"]
    assert experiment["experiment"] == {"mode": "concurrency", "value": 2}
    start, end = experiment["window_boundaries"]
    assert len(experiment["requests"]) == 9
    for request in experiment["requests"]:
        (answered,) = request["response_timestamps"]
        assert request["timestamp"] < answered <= end
        assert request["sequence_id"] in {sequence for sequence, _, _ in asked()}
    assert start < end


def test_a_page_shows_each_load(load, tmp_path):
    path = tmp_path / "a.html"
    words = ("--concurrency-range", "1:3", "--html", str(path))
    assert load("rows", *words)[0] == 0
    page = path.read_text()
    assert page.count("<svg") == 2
    assert all(f"<td>{count} in flight<td" in page for count in (1, 2, 3))
    assert "Closed loop" in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_file_that_cannot_be_written_is_reported(load):
    words = ("-t", "1", "--request-count", "3", "-f", "/nowhere/a.csv")
    code, _, err = load("rows", *words)
    assert code == 4
    assert "/nowhere/a.csv: cannot be written" in err


@pytest.mark.brute_force
def test_results_before_the_exit_of_the_server_are_reported(load_repository, tmp_path, short):
    path = tmp_path / "a.csv"
    with start_reference_server(load_repository) as server:
        words = ("load", "-m", "rows", "-u", server.http, *short, *UNTIL_ENDED, "-f", path)
        reported, code = interrupted(words, "concurrency 3, ", server.process.kill)
    assert code == 3, reported
    assert f"-u {server.http}: the server stopped listening" in reported or "closed the" in reported
    assert [row["Concurrency"] for row in csv.DictReader(path.read_text().splitlines())][:2] == [
        "1",
        "2",
    ]


@pytest.mark.brute_force
def test_results_before_an_interrupt_are_reported(server, tmp_path, short):
    path = tmp_path / "a.csv"
    words = ("load", "-m", "rows", "-u", server.http, *short, *UNTIL_ENDED, "-f", path)
    reported, code = interrupted(words, "concurrency 3, ", None)
    assert code == 5, reported
    assert "interrupted; " in reported
    assert [row["Concurrency"] for row in csv.DictReader(path.read_text().splitlines())][:2] == [
        "1",
        "2",
    ]


def interrupted(words, when, act):
    """Run a load; `act` or interrupt at its first progress. Return messages and exit code."""
    with subprocess.Popen(
        command(*words),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        next(line for line in process.stderr if line.startswith(when))
        (act or partial(process.send_signal, signal.SIGINT))()
        return process.stderr.read(), process.wait()
