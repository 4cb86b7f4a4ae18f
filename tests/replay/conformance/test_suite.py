"""The conformance suite on servers with wrong responses, or none."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from support.servers import free_ports

from triton_replay.__main__ import main
from triton_replay.conformance.cases import Fails, same_as_json
from triton_replay.conformance.subject import HttpRequest, Input, NotApplicable, Reply

METADATA = {
    "name": "m",
    "platform": "p",
    "inputs": [{"name": "X", "datatype": "FP16", "shape": [-1, 2]}],
    "outputs": [{"name": "Y", "datatype": "FP16", "shape": [-1, 2]}],
}
PAGES = {
    "/v2": {"name": "s", "version": "1", "extensions": ["statistics", "binary_tensor_data"]},
    "/v2/models/m": METADATA,
    "/v2/repository/index": [
        {"name": "n", "state": "UNAVAILABLE"},
        {"name": "m", "state": "READY"},
    ],
    "/v2/models/m/stats": {"model_stats": []},
    "/v2/models/n": {**METADATA, "inputs": [], "outputs": []},
}


class Handler(BaseHTTPRequestHandler):
    """Serves PAGES, and 404 without JSON for other paths."""

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        page = PAGES.get(self.path)
        if self.path == "/v2/models/n/infer" and self.headers["Content-Type"] == "application/json":
            page = {"model_name": "n", "outputs": [], "error": "accepts everything"}
        body = b"what?" if page is None else json.dumps(page).encode()
        self.send_response(404 if page is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        """Do not log."""


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def test_only_announced_extensions_must_hold(server, capsys):
    assert main(["conformance", f"--server={server}", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["model"] == "m"
    verdicts = {one["extension"]: one["verdict"] for one in document["extensions"]}
    assert verdicts["metadata"] == "serves"
    assert verdicts["health"] == verdicts["statistics"] == "fails"
    assert verdicts["binary_tensor_data"] == "fails"
    assert verdicts["trace"] == verdicts["logging"] == "not served"
    assert verdicts["inference"] == verdicts["gRPC"] == "not tried"
    assert verdicts["model_repository"] == "not served"  # one of its two cases


def test_refusals_prove_nothing_if_a_valid_inference_is_refused_as_well(server, capsys):
    results = {}
    for model in ("m", "n"):
        main(["conformance", f"--server={server}", f"--model={model}", "--json"])
        chapters = {
            one["extension"]: one for one in json.loads(capsys.readouterr().out)["extensions"]
        }
        findings = chapters["errors"]["findings"]
        results[model] = {one["name"]: one["result"] for one in findings}
    assert results["m"]["no JSON"] == "not tried"
    assert results["m"]["metadata of an unknown model"] == "fails"
    # This model requires a Content-Type.
    assert chapters["inference"]["findings"][0]["result"] == "holds"
    assert results["n"]["no JSON"] == "fails"
    # Its responses are short, so they need no compression.
    request, answer = chapters["compression"]["findings"]
    assert (request["result"], answer["result"]) == ("holds", "not tried")
    assert answer["reason"].endswith("bytes need not be compressed")


def test_failed_cases_are_listed_with_a_command_that_repeats_them(server, capsys):
    assert main(["conformance", f"--server={server}"]) == 1
    out = capsys.readouterr().out
    assert "statistics             yes        fails       0 of 2" in out
    assert f"  found 404: what?, expected 200\n  curl -i -X GET http://{server}/v2/health" in out
    assert "| base64 -d | curl -i -X POST -H 'Content-Type: application/octet-stream' -H" in out
    assert "logging: settings" not in out


def test_a_missing_server_and_an_unknown_model_are_reported(server, capsys):
    (port,) = free_ports(1)
    assert main(["conformance", f"--server=127.0.0.1:{port}"]) == 3
    assert main(["conformance", f"--server={server}", "--model=no_model"]) == 2
    assert "metadata of model 'no_model': expected inputs" in capsys.readouterr().err


def test_binary_requests_are_repeated_by_base64():
    ask = HttpRequest("POST", "/x", b"{}\xff")
    assert ask.command("h:1") == (
        "echo e33/ | base64 -d | curl -i -X POST -H 'Content-Type: application/json' "
        "--data-binary @- http://h:1/x"
    )


@pytest.mark.parametrize(
    ("datatype", "raw", "data"),
    [
        ("BYTES", b"\1\0\0\0a" * 2, ["a", "a"]),
        ("INT16", b"\1\0" * 2, [1, 1]),
        ("BOOL", b"\1\1", [True, True]),
        ("FP64", b"\0\0\0\0\0\0\xf0\x3f" * 2, [1.0, 1.0]),
        ("BF16", b"\x80\x3f" * 2, None),
    ],
)
def test_inputs_are_generated_from_the_metadata(datatype, raw, data):
    one = Input("X", datatype, (1, 2))
    assert one.raw() == raw
    if data is None:
        with pytest.raises(NotApplicable):
            one.with_data()
    else:
        assert one.with_data()["data"] == data


@pytest.mark.parametrize(("in_json", "varies"), [((1, 1), False), ((1, 2), True)])
def test_values_that_vary_between_equal_requests_are_not_compared(in_json, varies):
    def reply(value):
        output = {"name": "y", "datatype": "FP32", "shape": [1], "data": [value]}
        return Reply(200, (), json.dumps({"outputs": [output]}).encode())

    answers = map(reply, in_json)
    subject = SimpleNamespace(
        outputs={"y": "FP32"}, infer=lambda: None, send=lambda _: next(answers)
    )
    if varies:
        same_as_json(subject, reply(3))
    else:
        with pytest.raises(Fails, match="the values differ from those in JSON"):
            same_as_json(subject, reply(3))
