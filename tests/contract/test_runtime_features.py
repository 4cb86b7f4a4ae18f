"""Features of ge_runtime for a model.py of three lines, over HTTP, on both servers.

Both servers get equal requests in the same order, so their counters must be equal at the end.
`runtime_models` has the configurations of the models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from contract.casebook import binary, byte_strings, get, infer_binary
from contract.runtime_models import BATCH, BATCH_INPUTS, DEFAULTS, write_models
from contract.wire import Reply, exchange
from runtime.support.graphs import encode
from support.servers import Flag, Server, start_reference_server, start_tritonserver
from support.waiting import eventually

pytestmark = pytest.mark.oracle

# Some models fail on purpose, so the servers are never ready; they are live when all are loaded.
LIVE = "/v2/health/live"
FLAGS: dict[str, Flag] = {
    "allow_grpc": False,
    "exit_on_error": False,
    "model_load_thread_count": 4,
}
FAILED = r"failed to load '{}' version 1"

POISON = 99
"""A token that the encoder's table lacks."""

# BF16 has no NumPy type: its elements are their bits here.
DTYPES = {
    "BOOL": np.dtype(bool),
    **{name: np.dtype(name.lower()) for name in DEFAULTS if "INT" in name},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.dtype(np.uint16),
}
TYPES = {np.dtype(object): "BYTES"} | {DTYPES[name]: name for name in DTYPES if name != "BF16"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the models to one folder for both servers, so that paths in messages are equal."""
    folder = tmp_path_factory.mktemp("features")
    write_models(folder)
    return folder


@pytest.fixture(scope="module")
def servers(oracle_installed: None, repository: Path) -> Iterator[tuple[Server, Server]]:
    with (
        start_tritonserver(repository, ready_path=LIVE, **FLAGS) as real,
        start_reference_server(repository, ready_path=LIVE, **FLAGS) as reference,
    ):
        for server in (real, reference):
            assert {*re.findall(FAILED.format(r"(\w+)"), server.log)} == {*FAULTS}, server.log
        yield real, reference


def request(model: str, inputs: dict[str, np.ndarray], **fields) -> bytes:
    """Return an infer request with binary inputs and outputs.

    Inputs may be named after their types, as BF16 must be.
    """
    given, tail = [], b""
    for name, values in inputs.items():
        named = name.partition("_")[0]
        datatype = named if named in DTYPES else TYPES[values.dtype]
        content = byte_strings(*values.ravel()) if datatype == "BYTES" else values.tobytes()
        given.append(binary(name, datatype, values.shape, len(content)))
        tail += content
    fields["parameters"] = {"binary_data_output": True, **fields.get("parameters", {})}
    return infer_binary(model, tail, *given, **fields)


def tokens(*rows: Iterable[int]) -> dict[str, np.ndarray]:
    return {"input_ids": np.array(rows, np.int64)}


def send(server: Server, sent: bytes) -> Reply:
    (reply,) = exchange(server.http, sent).replies
    return reply


def at_once(server: Server, requests: list[bytes]) -> list[Reply]:
    """Send all requests before any is answered; return the replies."""
    with ThreadPoolExecutor(len(requests)) as clients:
        return list(clients.map(send, [server] * len(requests), requests))


def same(servers: tuple[Server, Server], sent: bytes) -> Reply:
    """Return the reply of both servers after checking that all bytes are equal."""
    real, ours = (send(server, sent) for server in servers)
    assert str(ours) == str(real)
    assert ours.body == real.body
    return real


def outputs(reply: Reply) -> dict[str, np.ndarray]:
    """Return the tensors of an answer by name."""
    assert reply.status == 200, str(reply)
    start = int(reply.header("Inference-Header-Content-Length") or 0)
    tensors = {}
    for output in json.loads(reply.body[:start])["outputs"]:
        end = start + output["parameters"]["binary_data_size"]
        content, start = reply.body[start:end], end
        if output["datatype"] == "BYTES":
            values = np.array([*strings(content)], object)
        else:
            values = np.frombuffer(content, DTYPES[output["datatype"]])
        tensors[output["name"]] = values.reshape(output["shape"])
    assert start == len(reply.body)
    return tensors


def strings(content: bytes) -> Iterator[bytes]:
    """Yield BYTES elements, each of which follows four bytes with its length."""
    while content:
        end = 4 + int.from_bytes(content[:4], "little")
        yield content[4:end]
        content = content[end:]


def refusal(reply: Reply) -> tuple[int, str]:
    """Return the status and text of an error."""
    return reply.status, json.loads(reply.body)["error"]


def counts(server: Server, model: str) -> dict[str, float]:
    """Return a model's runtime metrics, by family, or by family and other label."""
    page = exchange(server.metrics, get("/metrics")).replies[0].body.decode()
    pattern = rf'(?m)^ge_runtime_(\w+){{(.*)model="{model}",version="1"(.*)}} (.+)$'
    found = {}
    for family, before, after, value in re.findall(pattern, page):
        label = re.search(r'(?:gear|le)="(.+)"', before + after)
        found[f"{family} {label[1]}" if label else family] = float(value)
    return found


class Counting:
    """The changes of one model's runtime counters on one server, from now on."""

    def __init__(self, server: Server, model: str) -> None:
        self._server, self._model = server, model
        self._before = counts(server, model)

    def moved(self, wanted: dict[str, float]) -> dict[str, float]:
        """Wait for the wanted changes of these counters, which are exported later; return them."""

        def read() -> dict[str, float]:
            now = counts(self._server, self._model)
            return {name: now.get(name, 0) - self._before.get(name, 0) for name in wanted}

        return eventually(read, wanted)


# ------------------------------------------------------------------------ request batches and their
# parts

LENGTHS = [3, 30, 1, 32, 2, 29, 3, 31] * 2


def rows_of(lengths: Iterable[int]) -> list[list[int]]:
    """Return different rows of tokens."""
    return [[(7 * row + place) % 16 for place in range(n)] for row, n in enumerate(lengths)]


def test_a_batch_of_unequal_lengths_is_executed_in_the_cheapest_executions(servers):
    rows = rows_of(LENGTHS)
    wanted = {
        "useful_elements_total": sum(LENGTHS),
        "executed_elements_total": 8 * 3 + 8 * 32,
        "launches_total": 2,
        "launch_rows_count": 2,
        "launch_rows_bucket 4": 0,
        "launch_rows_bucket 8": 2,
        "isolations_total": 0,
    }
    for server in servers:
        counting = Counting(server, "window")
        replies = at_once(server, [request("window", tokens(row)) for row in rows])
        embeddings = np.concatenate([outputs(reply)["embedding"] for reply in replies])
        np.testing.assert_allclose(embeddings, encode(rows), rtol=1e-6)
        assert counting.moved(wanted) == wanted


def test_one_poisonous_request_of_a_batch_fails_alone(servers):
    rows = rows_of([5] * BATCH)
    rows[11][2] = POISON
    sent = [request("window", tokens(row), id=f"r{n}") for n, row in enumerate(rows)]
    wanted = {"culprits_total": 1, "isolations_total": 5, "launches_total": 4}
    wanted["failed_launches_total"] = 5  # of 16, 8, 4, 2 and 1 requests
    texts = []
    for server in servers:
        counting = Counting(server, "window")
        replies = at_once(server, sent)
        status, text = refusal(replies.pop(11))
        texts.append(text)
        assert status == 400
        assert text.startswith(f"[request id: r11] input 'input_ids': found {POISON} at [0, 2], ")
        assert f"idx={POISON} must be within" in text
        embeddings = np.concatenate([outputs(reply)["embedding"] for reply in replies])
        np.testing.assert_allclose(embeddings, encode(rows[:11] + rows[12:]), rtol=1e-6)
        assert counting.moved(wanted) == wanted
    assert texts[1] == texts[0]


def test_rows_are_packed_without_padding(servers):
    rows = rows_of([3, 1, 5, 2])
    wanted = {"launches_total": 1, "useful_elements_total": 11, "executed_elements_total": 11}
    for server in servers:
        counting = Counting(server, "packed")
        replies = at_once(server, [request("packed", tokens(row)) for row in rows])
        for row, reply in zip(rows, replies, strict=True):
            answer = outputs(reply)
            told = [100 * token + place for place, token in enumerate(row)]
            assert answer["told"].tolist() == [told]
            assert answer["row_sum"].tolist() == [[sum(row)]]
            assert answer["row_length"].tolist() == [[len(row)]]
        assert counting.moved(wanted) == wanted


# --------------------------------------------------------------------------------------- gears

GEARED = {
    "one row": ([4], "batch 1, tokens 4"),
    "one token more": ([5], "batch 1, tokens 8"),
    "rows of padding": ([9, 9, 9], "batch 4, tokens 16"),
}


@pytest.mark.parametrize(("lengths", "gear"), GEARED.values(), ids=GEARED)
def test_executions_have_the_size_of_a_gear(servers, lengths, gear):
    rows = rows_of(lengths)
    sizes = [int(size) for size in re.findall(r"\d+", gear)]
    wanted = {
        f"gear_launches_total {gear}": 1,
        "launches_total": 1,
        "useful_elements_total": sum(lengths),
        "executed_elements_total": np.prod(sizes),
    }
    counting = [Counting(server, "geared") for server in servers]
    embedding = outputs(same(servers, request("geared", tokens(*rows))))["embedding"]
    np.testing.assert_allclose(embedding, encode(rows), rtol=1e-6)
    for count in counting:
        assert count.moved(wanted) == wanted


# ------------------------------------------------------------------------------------- tensors

NOTES = np.array([[[b""], [b"a"]], [["\0é".encode()], [b"long " * 100]]], object)
NUMBERS = np.array([[0, 1, 2, 3, 4], [1, 0, 100, 127, 1]])


def bfloat16(numbers: np.ndarray) -> np.ndarray:
    """Return the BF16 bits of numbers that need no rounding."""
    return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


VALUES = {name: NUMBERS.astype(dtype) for name, dtype in DTYPES.items()}
VALUES["BF16"] = bfloat16(NUMBERS)
PASSED = {"note": NOTES, "BF16_kept": bfloat16(np.array([[0.5], [-3]]))}


def test_every_type_goes_in_and_comes_out(servers):
    answer = outputs(same(servers, request("types", VALUES | PASSED)))
    for name, values in VALUES.items():
        np.testing.assert_array_equal(answer.pop(f"{name}_OUT"), values, strict=True)
    for name, values in PASSED.items():
        np.testing.assert_array_equal(answer.pop(f"{name}_too"), values, strict=True)
    assert answer == {}


def test_inputs_left_out_have_their_defaults(servers):
    answer = outputs(same(servers, request("types", {"FP32": VALUES["FP32"]} | PASSED)))
    for name in DEFAULTS.keys() - {"FP32"}:
        default = np.full(NUMBERS.shape, DEFAULTS[name] == "true" or float(DEFAULTS[name]))
        expected = bfloat16(default) if name == "BF16" else default.astype(DTYPES[name])
        np.testing.assert_array_equal(answer[f"{name}_OUT"], expected, strict=True)


def test_an_input_that_is_not_optional_is_missed(servers):
    status, text = refusal(same(servers, request("types", {"INT8": VALUES["INT8"]} | PASSED)))
    # The servers only count inputs.
    assert (status, text.partition(",")[0]) == (400, "found no input 'FP32'")


def test_batch_inputs_tell_what_a_batch_consists_of(servers):
    for server in servers:
        sent = [request("described", {"x": np.full((1, n), n, np.int32)}) for n in (3, 5)]
        told = [outputs(reply)["told"].tolist()[0] for reply in at_once(server, sent)]
        first = min(row[2] for row in told)  # whichever came first
        ends = {3: (3, 8), 5: (8, 5)}[first]
        assert told == [[n * n, n, end, end, 5, n, n] for n, end in zip((3, 5), ends, strict=True)]


def test_batch_inputs_are_in_the_configuration(servers):
    told = [
        {"kind": kind, "target_name": [name], "data_type": "TYPE_INT32", "source_input": ["x"]}
        for name, kind in BATCH_INPUTS.items()
    ]
    for server in servers:
        config = json.loads(send(server, get("/v2/models/described/config")).body)
        assert config["batch_input"] == told


def test_tensors_that_the_model_prepares_have_rows_of_their_own(servers):
    texts = np.array([b"abc", b"bee", b"p"], object)
    answer = outputs(same(servers, request("prepared", {"text": texts})))
    expected = encode([[0, 1, 2], [1, 4, 4], [15]])
    np.testing.assert_allclose(answer["embedding"], expected, rtol=1e-6)


def of_sequence(model: str, value: float, sequence: object, flags: str) -> bytes:
    """Return a request with a row of three equal numbers. flags: "start", "end" or both."""
    told = {f"sequence_{flag}": True for flag in flags.split()}
    row = np.full((1, 3), value, np.float32)
    return request(model, {"x": row}, parameters={"sequence_id": sequence, **told})


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_each_sequence_finds_the_state_it_left(servers, strategy):
    model, answers = f"{strategy}_states", {}
    # While one sequence is alone in a batch, `direct` fills the slots before its own up.
    script = [
        (1, 4, "start"),
        (2, 10, "start"),
        (2, 10, ""),
        (1, 4, ""),
        (2, 10, "end"),
        (1, 4, "end"),
        (1, 2, "start end"),
        ("a", 8, "start"),
        ("a", 8, "end"),
    ]
    for sequence, value, flags in script:
        reply = same(servers, of_sequence(model, value, sequence, flags))
        answers.setdefault(sequence, []).append(outputs(reply)["y"][0, 0])
    assert answers == {1: [8, 12, 14, 4], 2: [20, 30, 35], "a": [16, 24]}


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_a_request_that_is_refused_leaves_its_sequence_as_it_was(servers, strategy):
    model = f"{strategy}_states"
    same(servers, of_sequence(model, 4, 7, "start"))
    reply = same(servers, of_sequence(model, 101, 7, ""))
    assert refusal(reply) == (
        400,
        "input 'x': found 101.0 at [0, 0], expected -100.0 to 100.0 (range.x)",
    )
    answer = outputs(same(servers, of_sequence(model, 4, 7, "end")))
    assert answer["y"][0, 0] == 12


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([b"ab", b""], "input 'text': found a text without letters, expected one or more"),
        (
            [b"a"] * 5,
            "input 'input_ids': found 5 rows in shape [5, 1], expected 1 to 4 (rows)",
        ),
        (
            [b"abcdefghi"],
            "input 'input_ids': found tokens 9 in shape [1, 9], expected 1 to 8 (limit.tokens)",
        ),
    ],
    ids=["refused by the model", "too many rows", "too long"],
)
def test_what_cannot_be_prepared_or_executed_is_refused(servers, texts, said):
    reply = same(servers, request("prepared", {"text": np.array(texts, object)}))
    assert refusal(reply) == (400, said)


# ------------------------------------------------------------------------ deadlines, and bad models


def test_a_request_past_its_deadline_is_not_executed(servers):
    wanted = {"departed_total": 1, "launches_total": 0, "culprits_total": 0}
    sent = request("geared", tokens([1, 2]), id="late", parameters={"timeout": 1})
    for server in servers:
        counting = Counting(server, "geared")
        status, text = refusal(send(server, sent))
        assert status == 503
        assert re.fullmatch(
            r"\[request id: late\] found a deadline that passed \d+\.\d ms ago, "
            r"expected a later one",
            text,
        )
        assert counting.moved(wanted) == wanted


FAULTS = {
    "misconfigured": [
        "Internal: ConfigFault: 7 faults in the configuration of model 'misconfigured':",
        "parameter 'limits.tokens': found no such parameter, expected one of: ",
        "; did you mean 'limit.tokens'?",
        "parameter 'axes.types': found nothing, expected 1 name(s), one per -1 of dims [-1]",
        "parameter 'engine': found no engine 'onnx', expected one of: auto, ",
        "parameter 'limit.tokens': found 'many', expected a whole number of at least 1",
        "parameter 'gears.batch': found batch 16, expected at most 8 (the most rows of a batch)",
        "parameter 'gears.tokens': found 'auto', expected gears as in '16, 32'; or 'auto 4'",
        "parameter 'pad.input_id': found no input 'input_id', expected one of: input_ids, types",
    ],
    "mismatched": [
        "Internal: ConfigFault: 4 faults in the configuration of model 'mismatched':",
        "input 'image': found FP32[*,1,*,*] in the graph, expected FP64[batch,1,h,w]",
        "input 'size': found no graph input 'size', expected one of: image, mask",
        "graph input 'mask' FP32[*,*,*]: found no source, expected an input in ",
        "output 'sums': found FP32[*,2] in the graph, expected FP32[batch,3]",
    ],
    "typeless": [
        "Invalid argument: batch input data type must be TYPE_INT32 or TYPE_FP32 for typeless"
    ],
    "sourceless": ["Invalid argument: unknown source input name 'ids' for sourceless"],
}


@pytest.mark.parametrize("model", FAULTS)
def test_all_that_is_wrong_with_a_model_is_told_when_it_is_loaded(servers, model):
    pattern = FAILED.format(model) + ': (.*)"'
    (real,), (ours,) = (re.findall(pattern, server.log) for server in servers)
    assert ours == real
    assert [text for text in FAULTS[model] if text not in real] == []


# --------------------------------------------------------------------------------- all together

# Durations; what depends on how long answers are in use; what a process takes; and what is planned
# with the package onnx, which the models of the real server lack.
UNEQUAL = re.compile(r"_seconds|_spilled|workspace_bytes|total_bytes|resident_bytes")


def test_in_the_end_both_have_counted_the_same(servers):
    def counted(server: Server) -> list[str]:
        page = exchange(server.metrics, get("/metrics")).replies[0].body.decode()
        lines = [line for line in page.splitlines() if "ge_runtime_" in line]
        return sorted(line for line in lines if not UNEQUAL.search(line))

    eventually(lambda: counted(servers[1]) == counted(servers[0]), True)
    assert counted(servers[1]) == counted(servers[0])
