"""`reference-server page`: the live page of a real Triton server, from its public interfaces."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from contract.casebook import infer, tensor
from contract.probes import Probe, write_probe
from contract.runtime_models import RUNTIME_MODELS
from contract.wire import exchange
from support.browser import needs_chromium, open_browser
from support.servers import (
    COMPLETE,
    ROOT,
    Server,
    free_ports,
    start_reference_server,
    start_tritonserver,
)
from support.waiting import eventually

from reference_server import watching

pytestmark = pytest.mark.slow

GEARED = RUNTIME_MODELS["geared"]
TWICE = Probe("""
    input { name: "X" data_type: TYPE_FP32 dims: [1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [1] }
    instance_group { count: 2 kind: KIND_CPU }
""")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote") / "models"
    write_probe(folder, "twice", TWICE)
    write_probe(folder, "broken", TWICE)
    (folder / "broken" / "1" / "model.py").write_text("raise ValueError('<b>no</b>')")
    write_probe(folder, "geared", Probe('backend: "python"\n' + GEARED.config, GEARED.code))
    onnx.save(GEARED.graph(), folder / "geared" / "1" / "model.onnx")
    return folder


@contextlib.contextmanager
def page_of(server: str, metrics: str) -> Iterator[str]:
    """Serve the page of a server; yield the page's address."""
    (port,) = free_ports(1)
    words = ["page", f"--server={server}", f"--metrics={metrics}", f"--port={port}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "reference_server", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"http://127.0.0.1:{port}/\n"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == 0


@pytest.fixture(
    scope="module", params=[pytest.param("real", marks=pytest.mark.oracle), "reference"]
)
def watched(repository: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Server, str]]:
    """Run a server, and the page that shows it."""
    flags = COMPLETE | {"allow_grpc": False, "exit_on_error": False}
    if request.param == "real":
        request.getfixturevalue("oracle_installed")
        starting = start_tritonserver(repository, ready_path="/v2/health/live", **flags)
    else:
        starting = start_reference_server(repository, ready_path="/v2/health/live", **flags)
    with starting as server, page_of(server.http, server.metrics) as page:
        yield server, page


def status(page: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{page}/status.json") as reply:
        return json.load(reply)


def models(page: str) -> dict[str, dict[str, Any]]:
    return {model["name"]: model for model in status(page)["models"]}


def test_it_shows_what_the_server_tells_of_its_models(watched: tuple[Server, str]):
    server, page = watched
    ids = tensor("input_ids", "INT64", [1, 3], [[1, 2, 3]])
    for request in (infer("twice", tensor("X", "FP32", [1], [1])), infer("geared", ids)):
        exchange(server.http, request)
    # The counts of ge_runtime come a quarter of a second later, a status may be a second old.
    gears = [["batch 1, tokens 4", 1.0]]
    assert eventually(lambda: models(page)["geared"].get("gears"), gears) == gears
    told = models(page)
    assert {name: (model["state"], model["version"]) for name, model in told.items()} == {
        "broken": ("UNAVAILABLE", "1"),
        "geared": ("READY", "1"),
        "twice": ("READY", "1"),
    }
    assert "<b>no</b>" in told["broken"]["reason"]
    assert (told["twice"]["instances"], told["geared"]["instances"]) == (2, 1)
    assert told["twice"]["pending"] == 0
    assert told["twice"]["batches"] == [[1, 1]]
    assert (told["twice"]["counts"]["success"], told["twice"]["counts"]["fail"]) == (1, 0)
    assert told["geared"]["counts"]["infer"] > 0
    assert told["geared"]["padding"] == 0.25
    assert told["geared"]["memory_bytes"] > 0
    machine = status(page)["machine"]
    assert 0 < machine["used"] < machine["total"]


def test_nothing_but_looking_is_possible(watched: tuple[Server, str]):
    _, page = watched
    told = status(page)
    assert (told["http_port"], told["log"]) == (None, False)
    for request in (
        urllib.request.Request(f"{page}/status.json", data=b"{}"),
        urllib.request.Request(f"{page}/v2/models/twice/infer", data=b"{}"),
        urllib.request.Request(f"{page}/v2"),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request)
        assert caught.value.code in (404, 405)
        caught.value.close()


def test_a_name_without_a_url_is_shown_without_instances(monkeypatch: pytest.MonkeyPatch):
    entry = {"name": "two words", "version": "1", "state": "READY"}
    parts = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    times = {part: {"count": 0, "ns": 0} for part in parts}
    replies = {
        "/v2": {"name": "triton", "version": "2"},
        "/v2/models/stats": {
            "model_stats": [entry | {"inference_stats": times, "batch_stats": []}]
        },
        "/v2/repository/index": [entry],
    }

    def fetch(address: str, method: str, path: str) -> bytes:
        if path not in replies:
            raise OSError(f"404 {path}")
        return json.dumps(replies[path]).encode()

    monkeypatch.setattr(watching, "_fetch", fetch)
    (model,) = watching.RemoteStatus("a:1", "a:2").read()["models"]
    assert (model["name"], model["state"], model["instances"]) == ("two words", "READY", None)


def test_the_memory_of_the_machine_is_read_from_the_metrics():
    page = "nv_cpu_memory_used_bytes 12\nnv_cpu_memory_total_bytes 2.5e+10\n"
    assert list(watching._parsed(page)) == [
        ("nv_cpu_memory_used_bytes", {}, 12),
        ("nv_cpu_memory_total_bytes", {}, 2.5e10),
    ]


def test_a_long_label_is_read_once():
    page = f'nv_inference_pending_request_count{{model="m",{"x" * 1_000_000}}} 1\n'
    assert list(watching._parsed(page)) == [
        ("nv_inference_pending_request_count", {"model": "m"}, 1)
    ]


@needs_chromium
def test_a_browser_shows_it(watched: tuple[Server, str], tmp_path: Path):
    server, page = watched
    with open_browser(tmp_path) as browser:
        browser.open(f"{page}/")
        browser.wait_for("models.tBodies.length")
        assert f"Models of {server.http}" in browser.text
        assert "triton 2.51.0: 2 of 3 models ready" in browser.text
        assert "<b>no</b>" in browser.text
        assert "Send a request" not in browser.text
        assert browser.complaints == []


@pytest.fixture
def nobody() -> str:
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"


def test_a_server_that_does_not_answer_is_told(nobody: str):
    with page_of(nobody, nobody) as page:
        with pytest.raises(urllib.error.HTTPError) as caught:
            status(page)
        with caught.value as reply:
            text = json.load(reply)["error"]
        assert reply.code == 502
        assert text.startswith(f"GET /v2 of {nobody}: ")


def test_a_server_without_metrics_is_shown_without_them(nobody: str, tmp_path: Path):
    shutil.copytree(ROOT / "examples" / "models" / "spell", tmp_path / "spell")
    flags = {"allow_grpc": False, "allow_metrics": False}
    with start_reference_server(tmp_path, **flags) as server, page_of(server.http, nobody) as page:
        assert status(page)["server"].endswith(f", without metrics: {nobody} does not answer")
        (model,) = status(page)["models"]
        assert (model["pending"], model["memory_bytes"], model["gears"]) == (None, 0, [])


@pytest.mark.parametrize("words", [["--server=triton"], ["--server=triton:x"], ["--port=x"]])
def test_what_is_no_address_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        watching.main(words)
    assert ended.value.code == 2
    assert words[0].partition("=")[2] in capsys.readouterr().err
