"""Statistics of models that answer in other ways, and what both frontends tell of them.

What ordinary models and ensembles count is in statistics_scripts.py, what waiting requests count
in scheduler_scripts.py, and what the response cache and warm-up count in their own modules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from contract.casebook import get, infer, post, tensor
from contract.count_probes import FAULTS, FREE, ROWS, TOLD, over
from contract.probes import MODELS, Probe, write_probe
from contract.statistics_scripts import Script, counters, moved_since, play, succeeded
from contract.wire import ANSWER_SECONDS, exchange
from google.protobuf import json_format
from support.servers import COMPLETE, Server, start_reference_server, start_tritonserver
from support.waiting import eventually

pytestmark = pytest.mark.oracle

# Else a sequence ends when its next request is a second late.
LONG = "max_sequence_idle_microseconds: 600000000"
FLAGS = COMPLETE | {"allow_metrics": False, "model_control_mode": "explicit"}
PROBES = {
    "timed": Probe(FREE),
    "timed_chain": Probe(over("timed", "X", "Y", FREE), None),
    "reloaded": Probe(TOLD, FAULTS),
    "direct": Probe(f"{ROWS} sequence_batching {{ direct {{ }} {LONG} }}"),
    "oldest": Probe(
        f"{ROWS} sequence_batching {{ oldest {{ max_candidate_sequences: 4 }} {LONG} }}"
    ),
    "repeats": Probe(
        """
        input { name: "count" data_type: TYPE_INT32 dims: [1] }
        output { name: "number" data_type: TYPE_INT32 dims: [1] }
        model_transaction_policy { decoupled: true }
        """,
        MODELS / "counts_down.py",
    ),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models; both servers serve one folder."""
    folder = tmp_path_factory.mktemp("counted")
    for name, probe in PROBES.items():
        write_probe(folder, name, probe)
    return folder


@pytest.fixture(scope="module")
def triton(oracle_installed: None, repository: Path) -> Iterator[Server]:
    """The real server."""
    with start_tritonserver(repository, load_model=list(PROBES), **FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def reference(repository: Path) -> Iterator[Server]:
    """The reference server."""
    with start_reference_server(repository, load_model=list(PROBES), **FLAGS) as server:
        yield server


# ------------------------------------------------------------------------------- sequences


def in_sequence(model: str, number: int, *, starts: bool = False, ends: bool = False) -> bytes:
    """One row of the sequence of that number."""
    parameters = {"sequence_id": number, "sequence_start": starts, "sequence_end": ends}
    return infer(model, tensor("X", "FP32", [1, 2], [1, 2]), parameters=parameters)


def two_sequences(model: str) -> tuple[bytes, ...]:
    """Two sequences side by side: three rows of the first one, two of the second."""
    return (
        in_sequence(model, 7, starts=True),
        in_sequence(model, 8, starts=True),
        in_sequence(model, 7),
        in_sequence(model, 8, ends=True),
        in_sequence(model, 7, ends=True),
    )


SCRIPTS = [
    Script(
        "a batch is as large as its highest slot",
        "direct",
        two_sequences("direct"),
        succeeded(5) | {"batches of 1": 3, "batches of 2": 2},
    ),
    Script("the oldest batcher fills no slots", "oldest", two_sequences("oldest"), succeeded(5)),
    # The one behind it shows that the refusal had not moved anything.
    Script(
        "a request of no sequence",
        "direct",
        (in_sequence("direct", 9), in_sequence("direct", 10, starts=True, ends=True)),
        succeeded(1),
    ),
]


@pytest.mark.parametrize("server", ["triton", "reference"])
@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_sequences_count(script: Script, server: str, request: pytest.FixtureRequest):
    assert play(request.getfixturevalue(server).http, script) == script.moves


# ------------------------------------------------------------------------------- decoupled models


@pytest.mark.parametrize("server", ["triton", "reference"])
@pytest.mark.parametrize("responses", [0, 1, 3])
def test_a_decoupled_request_counts_once(
    responses: int, server: str, request: pytest.FixtureRequest
):
    asked = request.getfixturevalue(server)
    before = counters(asked.http, "repeats")
    sent = grpc_client.InferInput("count", [1], "INT32")
    sent.set_data_from_numpy(np.array([responses], np.int32))
    answers: SimpleQueue[object] = SimpleQueue()
    with grpc_client.InferenceServerClient(asked.grpc) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("repeats", [sent], enable_empty_final_response=True)
        for _ in range(responses + 1):
            assert not isinstance(answers.get(timeout=ANSWER_SECONDS), Exception)
        client.stop_stream()
    wanted = succeeded(1)
    assert eventually(lambda: moved_since(before, asked.http, "repeats"), wanted) == wanted


# ------------------------------------------------------------------------------- over and over


def statistics(server: Server, model: str) -> dict:
    (reply,) = exchange(server.http, get(f"/v2/models/{model}/stats")).replies
    (found,) = json.loads(reply.body)["model_stats"]
    return found


@pytest.mark.parametrize("server", ["triton", "reference"])
def test_a_model_that_is_loaded_again_counts_from_zero(server: str, request: pytest.FixtureRequest):
    asked = request.getfixturevalue(server)
    what = infer("reloaded", tensor("what", "BYTES", [1], ["answer good"]))
    bad = infer("reloaded", tensor("what", "BYTES", [1], ["raises ValueError"]))
    for one in (what, bad):
        exchange(asked.http, one)
    wanted = (1, 1)

    def counted() -> tuple[int, int]:
        found = counters(asked.http, "reloaded")
        return found["success"], found["fail"]

    assert eventually(counted, wanted) == wanted
    exchange(asked.http, post("/v2/repository/models/reloaded/unload", b""))

    def loads() -> int:
        path = "/v2/repository/models/reloaded/load"
        return exchange(asked.http, post(path, b"")).replies[0].status

    def is_gone() -> bool:
        ready = get("/v2/models/reloaded/ready")
        return exchange(asked.http, ready).replies[0].status != 200

    assert eventually(is_gone, True)
    assert loads() == 200
    found = statistics(asked, "reloaded")
    assert found["last_inference"] == 0
    assert found["batch_stats"] == []
    assert all(value == {"count": 0, "ns": 0} for value in found["inference_stats"].values())


def ask(server: Server, model: str, times: int = 1) -> None:
    """Ask one by one, and wait until all is counted, by the step of a chain as well."""
    before = {name: counters(server.http, name) for name in {model, "timed"}}
    for _ in range(times):
        exchange(server.http, infer(model, tensor("X", "FP32", [1], [1])))

    def moved() -> dict[str, dict[str, int]]:
        return {name: moved_since(counts, server.http, name) for name, counts in before.items()}

    wanted = dict.fromkeys(before, succeeded(times))
    assert eventually(moved, wanted) == wanted


@pytest.mark.parametrize("model", ["timed", "timed_chain"])
@pytest.mark.parametrize("server", ["triton", "reference"])
def test_durations_are_ordered_and_add_up(server: str, model: str, request: pytest.FixtureRequest):
    asked = request.getfixturevalue(server)
    ask(asked, model, 3)
    found = statistics(asked, model)
    ns = {name: value["ns"] for name, value in found["inference_stats"].items()}
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    assert all(ns[part] > 0 for part in parts)
    # A step may end when the ensemble has answered.
    assert model == "timed_chain" or sum(ns[part] for part in parts) <= ns["success"]
    assert ns["fail"] == ns["cache_hit"] == ns["cache_miss"] == 0
    (batch,) = found["batch_stats"]
    # Of requests that ran alone, the parts of batches are those of requests.
    assert {part: batch[part]["ns"] for part in parts[1:]} == {part: ns[part] for part in parts[1:]}
    assert (found["response_stats"], found["memory_usage"]) == ({}, [])


@pytest.mark.parametrize("server", ["triton", "reference"])
def test_both_fronts_tell_the_same(server: str, request: pytest.FixtureRequest):
    asked = request.getfixturevalue(server)
    ask(asked, "timed")
    with grpc_client.InferenceServerClient(asked.grpc) as client:
        message = client.get_inference_statistics("timed")
    told = json_format.MessageToDict(message.model_stats[0], preserving_proto_field_name=True)
    assert numbers(told) == {
        key: value for key, value in numbers(statistics(asked, "timed")).items() if value
    }


def numbers(value: object, path: str = "") -> dict[str, int]:
    """The numbers in nested objects and lists that are not zero, by where they stand."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return {path: int(value)} if str(value).isdecimal() and int(value) else {}
    return {k: n for key, part in items for k, n in numbers(part, f"{path}/{key}").items()}
