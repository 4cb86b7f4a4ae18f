"""The response cache, compared with NVIDIA's server: hits, stored responses, and counters.

Each script has separate models, so that their counters depend only on the script. If the real
server's answer is wrong, a row of OTHERWISE has the reference server's counters and the reason. A
row without any effect fails.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from contract.casebook import binary, infer, infer_binary, post, tensor
from contract.count_probes import CACHE_PROBES, FREE, REFUSED_CACHE_PROBES
from contract.probes import IDENTITY, Probe, write_probe
from contract.serving import both_servers, folder_of
from contract.statistics_scripts import Script, counters, play
from contract.wire import exchange
from support.servers import COMPLETE, Flag, Server, start_reference_server, start_tritonserver
from support.waiting import eventually, until

pytestmark = pytest.mark.oracle

SIZE = 65536
FLAGS: dict[str, Flag] = {
    **COMPLETE,
    "model_control_mode": "explicit",
    "load_model": list(CACHE_PROBES),
    "cache_config": f"local,size={SIZE}",
    "metrics_interval_ms": 100,
    "pinned_memory_pool_byte_size": 0,
}


repository = folder_of(CACHE_PROBES | REFUSED_CACHE_PROBES)
triton, reference = both_servers(**FLAGS)


def x(model: str, *values: float, **fields: object) -> bytes:
    """Send these numbers."""
    return infer(model, tensor("X", "FP32", [len(values)], list(values)), **fields)


def many(model: str, value: int, count: int) -> bytes:
    """Send one number, `count` times."""
    data = np.full(count, value, np.float32).tobytes()
    return infer_binary(model, data, binary("X", "FP32", [count], len(data)))


def rows(*values: float) -> bytes:
    shape = [len(values) // 2, 2]
    return infer("cached_rows", tensor("X", "FP32", shape, list(values)))


def matrix(shape: list[int], *values: int) -> bytes:
    return infer("cached_matrix", tensor("X", "INT32", shape, list(values)))


def pair(*names: str, outputs: tuple[str, ...] = (), value: float = 1) -> bytes:
    """Send both inputs in this order."""
    types = {"A": "FP32", "B": "INT32"}
    inputs = [tensor(name, types[name], [1], [value]) for name in names]
    wanted = [{"name": name} for name in outputs]
    return infer("cached_pair", *inputs, **({"outputs": wanted} if wanted else {}))


def told(model: str, what: str) -> bytes:
    return infer(model, tensor("what", "BYTES", [1], [what]))


def counted(executed: int = 0, hits: int = 0, misses: int | None = None, batch: int = 1) -> dict:
    """Return the counters of executed requests, each of which is a miss, and of hits."""
    moves = {
        "inference_count": executed * batch,
        "execution_count": executed,
        "success": executed + hits,
        "queue": executed + hits,
        "compute_input": executed,
        "compute_infer": executed,
        "compute_output": executed,
        "cache_hit": hits,
        "cache_miss": executed if misses is None else misses,
        f"batches of {batch}": executed,
    }
    return {name: count for name, count in moves.items() if count}


LARGE = 12800 // 4  # the cache has room for five of these responses

SCRIPTS = [
    Script("the second hits", "cached", (x("cached", 1), x("cached", 1)), counted(1, 1)),
    Script("other values miss", "cached", (x("cached", 2), x("cached", 3)), counted(2)),
    Script(
        "ids and parameters do not count",
        "cached",
        (x("cached", 4), x("cached", 4, id="other", parameters={"p": 1})),
        counted(1, 1),
    ),
    Script(
        "nor does the order of inputs",
        "cached_pair",
        (pair("A", "B"), pair("B", "A")),
        counted(1, 1),
    ),
    Script(
        "a batch is a request",
        "cached_rows",
        (rows(1, 2, 3, 4), rows(1, 2, 3, 4)),
        counted(1, 1, batch=2),
    ),
    Script("a row of it is another", "cached_rows", (rows(1, 2),), counted(1)),
    Script("without elements: not stored", "cached", (x("cached"), x("cached")), counted(2)),
    Script(
        "without outputs: stored",
        "cached_faults",
        (told("cached_faults", "answer nothing"),) * 2,
        counted(1, 1),
    ),
    Script(
        "larger than the cache",
        "cached",
        (many("cached", 1, SIZE // 4), many("cached", 1, SIZE // 4)),
        counted(2),
    ),
    Script(
        "the one not used for longest goes",
        "cached_evicted",
        # The first response is used again before the sixth is stored, so the second is evicted.
        tuple(many("cached_evicted", n, LARGE) for n in (1, 2, 3, 4, 5, 1, 6, 1, 3, 2)),
        counted(7, 3),
    ),
    Script(
        "a step of an ensemble",
        "cached_step",
        (x("over_cached", 1), x("over_cached", 1)),
        counted(1, 1),
        {"over_cached": counted(2, misses=0)},
    ),
    Script(
        "an ensemble whose step hits",
        "over_cached",
        (x("over_cached", 2), x("over_cached", 2)),
        counted(2, misses=0),
        {"cached_step": counted(1, 1)},
    ),
    Script(
        "an ensemble",
        "cached_chain",
        (x("cached_chain", 1), x("cached_chain", 1)),
        counted(1, 1),
        {"uncached_step": counted(1, misses=0)},
    ),
    Script(
        "behind an ensemble that hits",
        "uncached_step",
        (x("cached_chain", 2), x("cached_chain", 2)),
        counted(1, misses=0),
        {"cached_chain": counted(1, 1)},
    ),
    Script(
        "an ensemble's failure is not stored",
        "cached_faulty_chain",
        (told("cached_faulty_chain", "error NOT_FOUND"),) * 2,
        {"fail": 4},
    ),
    # The real server is wrong.
    Script(
        "the same bytes in another shape",
        "cached_matrix",
        (matrix([1, 4], 1, 2, 3, 4), matrix([2, 2], 1, 2, 3, 4)),
        counted(1, 1),
    ),
    Script(
        "other outputs of the same inputs",
        "cached_pair",
        (pair("A", "B", outputs=("OA",), value=2), pair("A", "B", outputs=("OB",), value=2)),
        counted(1, 1),
    ),
    Script(
        "an error response",
        "cached_faults",
        (told("cached_faults", "error NOT_FOUND"),) * 2,
        counted(1, 1),
    ),
    Script(
        "an execution that raises",
        "cached_faults",
        (told("cached_faults", "raises ValueError"),) * 2,
        counted(0, 1) | {"fail": 1, "execution_count": 1, "cache_miss": 1, "batches of 1": 1},
    ),
]

ERRORS = "an error is an error the second time, too; the real server stores an empty answer for it"
OTHERWISE: dict[str, tuple[str, dict[str, int]]] = {
    "the same bytes in another shape": (
        "the answer has the shape of its request; the real server's has that of another",
        counted(2),
    ),
    "other outputs of the same inputs": (
        "a client gets the outputs that it asked for; from the real server, those of another",
        counted(2),
    ),
    "an error response": (ERRORS, counted(2, misses=0)),
    "an execution that raises": (ERRORS, {"fail": 2, "execution_count": 2, "batches of 1": 2}),
}
ALIKE = [script for script in SCRIPTS if script.name not in OTHERWISE]
UNLIKE = [script for script in SCRIPTS if script.name in OTHERWISE]


def said(server: Server, script: Script) -> list[str]:
    """Return a server's responses to a script's requests."""
    return [str(exchange(server.http, request)) for request in script.requests]


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_the_real_server_counts_as_the_script_says(script: Script, triton: Server):
    assert play(triton.http, script) == script.moves


@pytest.mark.parametrize("script", ALIKE, ids=str)
def test_the_reference_server_counts_as_the_script_says(script: Script, reference: Server):
    assert play(reference.http, script) == script.moves


@pytest.mark.parametrize("script", ALIKE, ids=str)
def test_both_answer_alike(script: Script, triton: Server, reference: Server):
    assert said(reference, script) == said(triton, script)


@pytest.mark.parametrize("script", UNLIKE, ids=str)
def test_where_the_real_server_is_wrong_the_reference_server_counts_otherwise(
    script: Script, reference: Server
):
    _, moves = OTHERWISE[script.name]
    assert moves != script.moves
    script = Script(script.name, script.model, script.requests, moves)
    assert play(reference.http, script) == moves


def test_what_the_real_server_gets_wrong_is_right_here(reference: Server):
    shapes, outputs, errors = [], [], []
    for request in (matrix([1, 4], 5, 6, 7, 8), matrix([2, 2], 5, 6, 7, 8)):
        (reply,) = exchange(reference.http, request).replies
        shapes.append(json.loads(reply.body)["outputs"][0]["shape"])
    for name in ("OA", "OB"):
        request = pair("A", "B", outputs=(name,), value=3)
        (reply,) = exchange(reference.http, request).replies
        outputs += [output["name"] for output in json.loads(reply.body)["outputs"]]
    for _ in range(2):
        (reply,) = exchange(reference.http, told("cached_faults", "error NOT_FOUND")).replies
        errors.append(reply.status)
    assert (shapes, outputs, errors) == ([[1, 4], [2, 2]], ["OA", "OB"], [404, 404])


def test_what_one_front_has_stored_the_other_finds(triton: Server, reference: Server):
    sent = grpc_client.InferInput("X", [2], "FP32")
    sent.set_data_from_numpy(np.array([8, 9], np.float32))
    for server in (triton, reference):
        before = counters(server.http, "cached")
        exchange(server.http, x("cached", 8, 9))
        with grpc_client.InferenceServerClient(server.grpc) as client:
            result = client.infer("cached", [sent], request_id="mine")
        assert result.get_response().id == "mine"
        assert result.as_numpy("Y").tolist() == [8, 9]
        hits = before["cache_hit"] + 1
        assert eventually(lambda at=server: counters(at.http, "cached")["cache_hit"], hits) == hits


def test_the_log_says_what_was_not_stored(triton: Server, reference: Server):
    start = r"Failed to insert key \[\w+\] into response cache: "
    for server in (triton, reference):
        for request, why in (
            (
                many("cached", 2, SIZE // 4),
                rf"Requested byte_size: \d+ is greater than total cache size: {SIZE}",
            ),
            (x("cached"), "Response buffer from output was nullptr"),
        ):
            exchange(server.http, request)
            until(lambda at=server, line=start + why: re.search(line, at.log), why)


def load(server: Server, model: str) -> str:
    (reply,) = exchange(server.http, post(f"/v2/repository/models/{model}/load", b"")).replies
    return f"{reply.status} {reply.body.decode()}"


@pytest.mark.parametrize("model", REFUSED_CACHE_PROBES)
def test_some_models_cannot_be_cached(model: str, triton: Server, reference: Server):
    assert load(reference, model) == load(triton, model) != "200 "
    for server in (triton, reference):
        said = f"Response Cache does not currently support model {model} with "
        assert said in server.log


def test_another_load_of_a_model_is_asked_anew(repository: Path, reference: Server):
    """The real server continues to use responses of the earlier model."""
    request = x("cached_again", 1, 2)
    assert b'"data":[1.0,2.0]' in exchange(reference.http, request).replies[0].body
    file = repository / "cached_again" / "1" / "model.py"
    file.write_text(file.read_text().replace("given.as_numpy()", "given.as_numpy() * 2"))
    load(reference, "cached_again")
    assert b'"data":[2.0,4.0]' in exchange(reference.http, request).replies[0].body


# ------------------------------------------------------------------------------------- metrics


def metrics(server: Server) -> str:
    (reply,) = exchange(server.metrics, b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").replies
    return reply.body.decode()


def test_the_metrics_tell_of_the_cache_alike(triton: Server, reference: Server):
    def heads(server: Server) -> list[str]:
        return re.findall(r"(?m)^# (?:HELP|TYPE) nv_cache.*$", metrics(server))

    def series(server: Server) -> set[str]:
        return set(re.findall(r"(?m)^(nv_cache\S+) ", metrics(server)))

    real = heads(triton)
    assert len(real) == 2 * 12
    assert heads(reference) == real
    assert series(reference) == series(triton)


# ------------------------------------------------------------------------------- without a cache


@pytest.mark.parametrize("start", [start_tritonserver, start_reference_server])
def test_without_a_cache_the_setting_is_inert(
    start: object, oracle_installed: None, tmp_path: Path
):
    write_probe(tmp_path, "cached", Probe("response_cache { enable: true }" + FREE, IDENTITY))
    with start(tmp_path, allow_grpc=False) as server:
        script = Script("", "cached", (x("cached", 1), x("cached", 1)), counted(2, misses=0))
        assert play(server.http, script) == script.moves
        page = eventually(lambda: "nv_cache_num_hits_per_model{" in metrics(server), True)
        assert page is True
        assert "nv_cache_util" not in metrics(server)
