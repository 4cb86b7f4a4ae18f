"""`triton-replay conformance` on three of the servers whose results docs/replay.md shows."""

import contextlib
import json
import re
import shutil

import pytest
from support.mlserver import start_mlserver
from support.servers import ROOT, start_reference_server, start_tritonserver

from triton_replay.__main__ import main
from triton_replay.capture.files import CaptureWriter
from triton_replay.capture.records import Closing, Opening, Request
from triton_replay.wire.grpc_messages import SERVICE, framed, messages

pytestmark = pytest.mark.oracle

SERVERS = ["triton", "reference"]
START = {"triton": start_tritonserver, "reference": start_reference_server}


@pytest.fixture(scope="module")
def healthy(probe_repository, tmp_path_factory):
    """Run a server with two probes, which are ready."""
    folder = tmp_path_factory.mktemp("conformance")
    for name in ("vector", "text"):
        shutil.copytree(probe_repository / name, folder / name)
    return folder


@pytest.fixture(scope="module", params=SERVERS)
def server(healthy, request):
    if request.param == "triton":
        request.getfixturevalue("oracle_installed")
    with START[request.param](healthy, allow_metrics=False) as started:
        yield request.param, started


def examined(capsys, http, grpc, model):
    """Return the verdict and the failed cases of each extension, and the exit code."""
    code = main(["conformance", f"--server={http}", f"--grpc={grpc}", f"--model={model}", "--json"])
    chapters = json.loads(capsys.readouterr().out)["extensions"]
    verdicts = {one["extension"]: one["verdict"] for one in chapters}
    failing = {
        (one["extension"], case["name"]): case
        for one in chapters
        for case in one["findings"]
        if case["result"] == "fails"
    }
    return verdicts, failing, code


def documented(column):
    """Return the verdicts that the page shows for a server."""
    page = (ROOT / "docs" / "replay.md").read_text()
    section = page.partition("\n### Four servers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    cells = [row.split(" | ") for row in rows[2:]]
    return {extension: row[column] for row in cells for extension in row[0].split(", ")}


def test_a_model_of_numbers(server, capsys):
    name, started = server
    verdicts, failing, code = examined(capsys, started.http, started.grpc, "vector")
    assert (failing, code) == ({}, 0)
    assert verdicts == documented(1 + SERVERS.index(name))


def test_a_model_of_texts(server, capsys):
    _, started = server
    verdicts, failing, code = examined(capsys, started.http, started.grpc, "text")
    assert (failing, code) == ({}, 0)
    assert {extension for extension, verdict in verdicts.items() if verdict != "serves"} == {
        "classification"  # which is of numbers
    }


def test_without_a_name_the_first_model_that_is_ready_is_taken(server, capsys):
    _, started = server
    assert main(["conformance", f"--server={started.http}"]) == 0
    first, _, *rows = capsys.readouterr().out.splitlines()
    assert first in [f"{started.http}, model {name}" for name in ("vector", "text")]
    assert [row.split()[-1] for row in rows if row.startswith("gRPC")] == ["-"] * 3


@pytest.fixture(scope="module")
def mlserver(tmp_path_factory):
    with start_mlserver(tmp_path_factory.mktemp("mlserver")) as addresses:
        yield addresses


def test_mlserver(mlserver, capsys):
    verdicts, failing, code = examined(capsys, *mlserver, "identity")
    assert code == 1
    assert verdicts == documented(3)
    unknown = failing["errors", "an unknown input"]
    assert unknown["reason"].startswith("found 200: ")
    start = "curl -i -X POST -H 'Content-Type: application/json' --data-raw "
    assert unknown["request"].startswith(start)


def test_answers_of_mlserver_do_not_differ(server, mlserver, tmp_path, capsys):
    """Over HTTP and gRPC, with and without ids, although the models have different names."""
    requests = []
    for number in range(6):
        more = {"id": str(number)} if number % 2 else {}
        data = [number / 3, 1e-6, -1.0]
        tensor = {"name": "X", "datatype": "FP32", "shape": [3]}
        body = json.dumps({**more, "inputs": [{**tensor, "data": data}]}).encode()
        target = "/v2/models/vector/infer"
        requests.append(Request(number, 0, number, number, "POST", target, (), len(body), body))
    call = messages.ModelInferRequest(model_name="vector", raw_input_contents=[bytes(12)])
    call.inputs.add(name="X", datatype="FP32", shape=[3])
    body = framed([call])
    target = f"{SERVICE}/ModelInfer"
    size = len(body)
    requests.append(Request(6, 1, 6, 6, "POST", target, (), size, body, protocol="grpc"))
    path = tmp_path / "a.trc"
    with contextlib.closing(CaptureWriter.create(path)) as writer:
        writer.write([Opening("none", "2026-01-01T00:00:00", "0", {}), *requests])
        writer.write([Closing(0, "stopped", {})])
    _, started = server
    addresses = [f"--a={started.http}", f"--a-grpc={started.grpc}"]
    addresses += [f"--b={mlserver[0]}", f"--b-grpc={mlserver[1]}"]
    code = main(["ab", str(path), *addresses, "--map-model=vector=identity", "--json"])
    document = json.loads(capsys.readouterr().out)
    (model,) = document["models"]
    assert (code, model["requests"], model["failures"]) == (0, 7, {"A": {}, "B": {}, "A again": {}})
    assert (model["differences"], model["noise"]) == ([], [])
