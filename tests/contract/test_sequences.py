"""Sequences on both servers: the batches, their order and instances, and the control inputs.

The real server must form the batches of each script. Then both servers must agree in everything
that the model saw, in the errors, and in the statistics.
"""

from __future__ import annotations

import json
import queue
import re
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from contract import grpc_casebook as book
from contract.casebook import get, post
from contract.probes import MODELS as PROBE_MODELS
from contract.sequence_scripts import (
    BROKEN,
    DIFFERENCES,
    MODELS,
    SCRIPTS,
    STATES_OTHERWISE,
    Script,
)
from contract.statistics_scripts import counters
from contract.wire import exchange
from support.perf_analyzer import measured
from support.servers import COMPLETE, Server, start_reference_server, start_tritonserver
from support.waiting import PATIENCE_SECONDS, until
from tritonclient.grpc import service_pb2_grpc

pytestmark = pytest.mark.oracle

# Some models fail on purpose, so the servers are never ready; they are live when all are loaded.
LIVE = "/v2/health/live"
FLAGS = COMPLETE | {"model_load_thread_count": 8, "exit_on_error": False}
FIRST_STATE = struct.pack("<2i", 3, 4)


def write_models(repository: Path) -> Path:
    """Write the models of the scripts to a folder for one server."""
    model = (PROBE_MODELS / "sequences.py").read_text(encoding="utf-8")
    broken = {name: config for name, (config, _) in BROKEN.items()}
    for name, config in {**MODELS, **broken}.items():
        folder = repository / name
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(model, encoding="utf-8")
        (folder / "config.pbtxt").write_text(f'backend: "python"\n{config}', encoding="utf-8")
        (folder / "initial_state").mkdir()
        (folder / "initial_state" / "first").write_bytes(FIRST_STATE)
    return repository


@pytest.fixture(scope="module")
def triton(
    oracle_installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Path]]:
    repository = write_models(tmp_path_factory.mktemp("real"))
    with start_tritonserver(repository, ready_path=LIVE, **FLAGS) as server:
        yield server, repository


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    repository = write_models(tmp_path_factory.mktemp("ours"))
    with start_reference_server(repository, ready_path=LIVE, **FLAGS) as server:
        yield server, repository


class Player:
    """Plays one script over one stream, on which requests arrive in the order they are sent.

    If an iterative sequence has no end, the real server later adds an end request, and counts it as
    a failure. Set `adds_ends` for such a server to wait for these counts.
    """

    def __init__(
        self, server: Server, repository: Path, script: Script, *, adds_ends: bool
    ) -> None:
        self._server = server
        self._adds_ends = adds_ends and script.model.startswith("iterative")
        self._ended = 0
        self._script = script
        self._folder = repository / script.model
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._queued = 0
        self._due = 0
        self.errors: list[str] = []
        self.outputs: dict[str, list[str]] = {}

    def play(self) -> dict[str, Any]:
        """Play the script, and return everything that is visible of it."""
        (self._folder / "batches").unlink(missing_ok=True)
        before = counters(self._server.http, self._script.model)
        self._ended = before["fail"]
        with grpc.insecure_channel(self._server.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            requests = iter(self._requests.get, None)
            responses = stub.ModelStreamInfer(requests, timeout=PATIENCE_SECONDS)
            try:
                for step in self._script.steps.split(";"):
                    self._do(step.split(), responses)
                self._gather(responses)
            finally:
                (self._folder / "closed").unlink(missing_ok=True)
                self._requests.put(None)
        batches = self._batches()
        return {
            "batches": [batch for _, batch in batches],
            "instances": _in_order_of_appearance([instance for instance, _ in batches]),
            "errors": sorted(self.errors),
            "outputs": self.outputs,
            "counters": self._moved(before, [len(batch) for _, batch in batches]),
        }

    def _do(self, words: list[str], responses: Iterator[Any]) -> None:
        match words:
            case ["hold"]:
                self._queued = 0
                (self._folder / "closed").touch()
            case ["release"]:
                until(lambda: self._pending() == self._queued)
                (self._folder / "closed").unlink()
                self._gather(responses)
            case ["sleep", seconds]:
                time.sleep(float(seconds))
            case [name, *rest]:
                begun = len(self._batches())
                self._requests.put(self._request(name.lstrip("+!"), *rest))
                self._due += 1
                self._ended += self._adds_ends and "start" in rest and "end" not in rest
                if name.startswith("!"):
                    until(lambda: len(self._batches()) > begun)
                elif name.startswith("+"):
                    self._queued += 1
                else:
                    self._gather(responses)

    def _request(self, name: str, key: str, *words: str) -> Any:
        given: dict[str, object] = {
            word.partition("=")[0]: word.partition("=")[2] for word in words
        }
        rows, columns = (int(str(given.get(word, 1))) for word in ("rows", "cols"))
        batched = self._script.model not in ("alone", "two")
        values = [float(str(given.get("x", 0)))] * (rows * columns)
        parameters: dict[str, object] = {}
        if key != "-":
            number = int(key) if key.isdigit() else None
            parameters["sequence_id"] = key if number is None else _signed(number)
        for flag in ("start", "end"):
            if flag in given:
                parameters[f"sequence_{flag}"] = True
        if "timeout" in given:
            parameters["timeout"] = int(str(given["timeout"]))
        return book.infer(
            self._script.model,
            book.tensor("X", "FP32", [rows, columns] if batched else [columns]),
            raw=[book.floats(*values)],
            outputs=[book.output(str(given["outputs"]))] if "outputs" in given else [],
            given=parameters,
            id=name,
        )

    def _pending(self) -> int:
        """Return the number of requests that wait for an instance of the model."""
        text = exchange(self._server.metrics, get("/metrics")).replies[0].body.decode()
        name = rf'^nv_inference_pending_request_count{{model="{self._script.model}",[^}}]*}} (\d+)'
        found = re.search(name, text, re.MULTILINE)
        assert found is not None
        return int(found[1])

    def _gather(self, responses: Iterator[Any]) -> None:
        for _ in range(self._due):
            message = next(responses)
            if message.error_message:
                # The place in the model's file is its server's own.
                self.errors.append(message.error_message.partition("\n\nAt:")[0])
            else:
                response = message.infer_response
                self.outputs[response.id] = sorted(output.name for output in response.outputs)
        self._due = 0
        if self._adds_ends:
            until(lambda: self._count("fail") == self._ended, "the end of a sequence")

    def _count(self, name: str) -> int:
        return counters(self._server.http, self._script.model)[name]

    def _batches(self) -> list[tuple[str, list[dict[str, Any]]]]:
        path = self._folder / "batches"
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")
        return [tuple(json.loads(line)) for line in lines[:-1]]

    def _moved(self, before: dict[str, int], sizes: list[int]) -> dict[str, int]:
        """Return the changes of counters after all executions are counted."""
        until(lambda: self._count("execution_count") - before["execution_count"] >= len(sizes))
        after = counters(self._server.http, self._script.model)
        return {key: n - before.get(key, 0) for key, n in after.items() if n != before.get(key, 0)}


def _signed(number: int) -> int:
    """Return an unsigned id as the signed number of the protocol."""
    return number - 2**64 if number >= 2**63 else number


def _in_order_of_appearance(names: list[str]) -> list[int]:
    order = list(dict.fromkeys(names))
    return [order.index(name) for name in names]


Play = Callable[[Script], dict[str, Any]]


def _playing(server: tuple[Server, Path], *, adds_ends: bool = False) -> Play:
    played: dict[str, dict[str, Any]] = {}

    def play(script: Script) -> dict[str, Any]:
        if script.name not in played:
            played[script.name] = Player(*server, script, adds_ends=adds_ends).play()
        return played[script.name]

    return play


@pytest.fixture(scope="module")
def play_triton(triton: tuple[Server, Path]) -> Play:
    """Play a script on the real server, once."""
    return _playing(triton, adds_ends=True)


@pytest.fixture(scope="module")
def play_reference(reference: tuple[Server, Path]) -> Play:
    """Play a script on the reference server, once."""
    return _playing(reference)


def said(script: Script, record: dict[str, Any]) -> None:
    """Compare a record with the expectations of a script."""
    ids = [[request["id"] for request in batch] for batch in record["batches"]]
    expected = script.expected
    if script.parallel:
        ids, expected = sorted(ids), sorted(expected)
    assert ids == expected
    assert len(record["errors"]) == len(script.errors)
    for text, wanted in zip(record["errors"], sorted(script.errors), strict=True):
        assert text.startswith(wanted)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_the_real_server_makes_these_batches(script: Script, play_triton: Play):
    said(script, play_triton(script))


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_both_servers_agree(script: Script, play_triton: Play, play_reference: Play):
    real, ours = play_triton(script), play_reference(script)
    if script.name in DIFFERENCES:
        _, batches, errors = DIFFERENCES[script.name]
        said(Script(script.name, script.model, script.steps, batches, errors), ours)
        assert comparable(script, ours) != comparable(script, real), "the difference is gone"
        return
    assert comparable(script, ours) == comparable(script, real)
    if script.name in STATES_OTHERWISE:
        assert ours["batches"] != real["batches"], "the difference is gone"


def comparable(script: Script, record: dict[str, Any]) -> dict[str, Any]:
    """Return the comparable results: without the order of instances and known differences."""
    record = json.loads(json.dumps(record))
    if script.model.startswith("iterative"):
        # The real server counts the end of such a sequence as a failed request, now or later.
        record["counters"].pop("fail", None)
    if script.parallel:
        record["batches"].sort(key=json.dumps)
        record["instances"].sort()
    if script.name in STATES_OTHERWISE:
        for batch in record["batches"]:
            for request in batch:
                del request["SI"], request["TI"]
    return record


def test_the_reference_server_gives_each_request_what_the_one_before_it_left(
    play_reference: Play,
):
    (script,) = (script for script in SCRIPTS if script.name in STATES_OTHERWISE)
    batches = play_reference(script)["batches"]
    assert [[request["SI"][2] for request in batch] for batch in batches] == [
        ["[[3, 4]]"],
        ["[[4, 5]]"],
        ["[[5, 6]]"],
        ["[[3, 4]]"],
    ]


@pytest.mark.parametrize("model", MODELS)
def test_both_show_the_same_configuration(
    model: str, triton: tuple[Server, Path], reference: tuple[Server, Path]
):
    real, ours = (
        json.loads(exchange(server.http, get(f"/v2/models/{model}/config")).replies[0].body)
        for server, _ in (triton, reference)
    )
    assert ours["sequence_batching"] == real["sequence_batching"]


@pytest.mark.parametrize("model", BROKEN)
def test_neither_loads_it_and_both_say_why(
    model: str, triton: tuple[Server, Path], reference: tuple[Server, Path]
):
    _, text = BROKEN[model]
    for server, _ in (triton, reference):
        assert text in server.log
        ready = exchange(server.http, get(f"/v2/models/{model}/ready")).replies[0]
        assert ready.status == 400


def test_clients_do_not_send_what_the_server_adds(
    triton: tuple[Server, Path], reference: tuple[Server, Path]
):
    tensors = [
        {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]},
        {"name": "SI", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]},
    ]
    parameters = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    body = json.dumps({"parameters": parameters, "inputs": tensors})
    for server, _ in (triton, reference):
        (reply,) = exchange(server.http, post("/v2/models/state/infer", body)).replies
        assert reply.status == 400
        assert "expected 1 inputs but got 2 inputs for model 'state'" in reply.body.decode()


@pytest.mark.slow
def test_perf_analyzer_plays_sequences(oracle_installed: None, reference: tuple[Server, Path]):
    server, repository = reference
    batches = repository / "direct" / "batches"
    batches.unlink(missing_ok=True)
    measured(
        *(server, "grpc", "-m", "direct", "--shape", "X:1", "--concurrency-range", "3"),
        *("--num-of-sequences", "3", "--sequence-length", "5", "--sequence-length-variation", "0"),
        # Long enough for some sequences on a slow machine.
        *("--sequence-id-range", "1000:2000", "--measurement-interval", "500"),
    )
    lines = batches.read_text(encoding="utf-8").splitlines()
    requests = [request for line in lines for request in json.loads(line)[1] if request["sequence"]]
    by_sequence: dict[int, list[int]] = {}
    for request in requests:
        by_sequence.setdefault(request["sequence"], []).append(request["flags"])
    assert set(by_sequence) <= set(range(1000, 2000))
    whole = [flags for flags in by_sequence.values() if flags == [1, 0, 0, 0, 2]]
    assert len(whole) >= 5
