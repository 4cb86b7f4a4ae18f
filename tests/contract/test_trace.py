"""Tracing, compared with NVIDIA's server: settings, selected requests, and trace files.

The frontend's records and the model's records are compared separately, because the real server has
no order between them.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.casebook import binary, get, infer, infer_binary, post, tensor
from contract.cases.settings import MODEL_TRACE, TRACE
from contract.wire import Exchange, exchange
from support.servers import Server, start_reference_server
from support.waiting import until

pytestmark = pytest.mark.oracle

CLEARED = dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"))
SERVERS = ("traced_triton", "traced_reference")


def change(server: Server, path: str = TRACE, **settings: object) -> Exchange:
    return exchange(server.http, post(path, json.dumps(settings)))


def clear(server: Server) -> None:
    # Disable tracing first: then no other setting is refused.
    for path in (MODEL_TRACE, TRACE):
        assert change(server, path, trace_level=["OFF"]).replies[0].status == 200
    for path in (TRACE, MODEL_TRACE):
        assert change(server, path, **CLEARED).replies[0].status == 200


def settings(server: Server, path: str = TRACE) -> dict[str, Any]:
    (reply,) = exchange(server.http, get(path)).replies
    return json.loads(reply.body)


# --------------------------------------------------------------------------------------- settings


X = tensor("X", "FP32", [2], [1, 2])
VECTOR = infer("vector", X)
MATRIX = infer("matrix", tensor("X", "INT32", [1, 1], [1]))
REFUSED = infer("vector", tensor("X", "FP32", [2, 2], [1, 2, 3, 4]))
ON = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "log_frequency": "1"}
ON_FOR_FOUR = ON | {"trace_count": "4"}

#: Steps: a setting of the server or of the model `vector`, or a request.
SCRIPTS: dict[str, list[tuple[str, Any]]] = {
    "a model follows until it is set": [
        ("set", {"trace_rate": "10"}),
        ("set model", {"trace_rate": "20"}),
        ("set", {"trace_rate": "11", "trace_count": "3"}),
        ("set model", {"trace_rate": None}),
        ("set", {"trace_rate": None}),
    ],
    "a model that was set to the same goes its own way": [
        ("set", {"trace_rate": "5"}),
        ("set model", {"trace_rate": "5"}),
        ("set", {"trace_rate": "6"}),
    ],
    "levels": [
        ("set", {"trace_level": ["TENSORS"]}),
        ("set model", {"trace_level": ["OFF"]}),
        ("set", {"trace_level": ["other"]}),
        ("set model", {"trace_level": ["other"]}),
        ("set", {"trace_level": []}),
        ("set model", {"trace_level": []}),
        ("set model", {"trace_level": None}),
        ("set", {"trace_level": None}),
    ],
    "a count runs down": [("set", ON_FOR_FOUR), *[("ask", VECTOR)] * 6],
    "a count that has run down refuses changes": [
        ("set", ON | {"trace_count": "1"}),
        ("ask", VECTOR),
        ("set", {"trace_rate": "1"}),
        ("set", {"trace_count": "2"}),
        ("ask", VECTOR),
    ],
    "a rate counts requests": [("set", ON | {"trace_rate": "3"}), *[("ask", VECTOR)] * 7],
    "a change begins to count anew": [
        ("set", ON | {"trace_rate": "3"}),
        *[("ask", VECTOR)] * 2,
        ("set", {"trace_rate": "3"}),
        *[("ask", VECTOR)] * 3,
    ],
    "models share the server's count": [
        ("set", ON_FOR_FOUR),
        ("ask", VECTOR),
        ("ask", MATRIX),
        ("ask", VECTOR),
    ],
    "a model that was set has a count of its own": [
        ("set", ON_FOR_FOUR),
        ("set model", {"trace_rate": "1"}),
        ("ask", VECTOR),
        ("ask", MATRIX),
        ("ask", MATRIX),
        ("set model", {"trace_rate": "1"}),
        ("ask", VECTOR),
        ("set", {"trace_rate": "1"}),
        ("ask", VECTOR),
    ],
    "a count that was set for a model stays its own": [
        ("set", ON_FOR_FOUR),
        ("set model", {"trace_count": "3"}),
        ("ask", VECTOR),
        ("set model", {"trace_rate": "1"}),
        ("set", {"trace_rate": "1"}),
        ("ask", VECTOR),
        ("set model", {"trace_count": None}),
    ],
    "a model's change that the server's values make invalid is refused": [
        ("set", {"trace_rate": "0"}),
        ("set model", {"trace_level": ["TENSORS"]}),
        ("set model", {"trace_level": ["TENSORS"], "trace_rate": "2"}),
        ("set model", {"trace_rate": None}),
    ],
    "refused requests count, unknown models do not": [
        ("set", ON_FOR_FOUR),
        ("ask", REFUSED),
        ("ask", post("/v2/models/vector/infer", "{")),
        ("ask", infer("nobody", X)),
        ("ask", infer("vector", X, headers={"Content-Encoding": "x"})),
        ("ask", VECTOR),
    ],
    "generate counts": [
        ("set", ON_FOR_FOUR),
        ("ask", post("/v2/models/vector/generate", '{"X":[1]}')),
        ("ask", post("/v2/models/vector/generate_stream", '{"X":[1]}')),
        ("ask", post("/v2/models/vector/generate", "{}")),
    ],
}


def play(server: Server, script: list[tuple[str, Any]]) -> list[object]:
    """Play the steps; return the statuses, and the settings of server and model after each."""
    seen: list[object] = []
    try:
        for what, argument in script:
            if what == "ask":
                answer = exchange(server.http, argument)
            else:
                path = MODEL_TRACE if what == "set model" else TRACE
                answer = change(server, path, **argument)
            seen.append((what, answer.replies[0].status))
            seen += [settings(server), settings(server, MODEL_TRACE)]
    finally:
        clear(server)
    return seen


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_settings_move_alike(script, traced_triton: Server, traced_reference: Server):
    assert play(traced_reference, script) == play(traced_triton, script)


# ------------------------------------------------------------------------------------------ files


def files(server: Server) -> list[bytes]:
    """Return the server's numbered files in order, complete or not."""
    found = server.log_file.parent.glob("trace.json.[0-9]*")
    return [path.read_bytes() for path in sorted(found, key=lambda path: int(path.suffix[1:]))]


def ids(text: bytes) -> set[int]:
    """Return a file's request ids, one for each ensemble step; later requests have larger ids."""
    return {int(number) for number in re.findall(rb'"id":(\d+)', text)}


def latest(server: Server) -> int:
    """Return the id of the last traced request."""
    return max(set().union(*map(ids, files(server))), default=0)


def newer(server: Server, before: int) -> list[bytes]:
    """Return the files about requests after id `before`; files without any are incomplete."""
    return [text for text in files(server) if min(ids(text), default=before + 1) > before]


def written(server: Server, before: int, count: int = 1) -> list[bytes]:
    """Return the files about later requests, once this number of files is complete."""

    def are_whole() -> bool:
        texts = newer(server, before)
        return len(texts) >= count and all(text.endswith(b"]") for text in texts)

    until(are_whole, f"{count} files")
    return newer(server, before)


MARKS = itertools.count()


def mark(server: Server) -> None:
    """Trace a request. Earlier requests, which may be written later, have smaller ids."""
    name = f"mark-{next(MARKS)}"
    change(server, **ON)
    exchange(server.http, infer("vector", X, id=name))
    told = f'"request_id":"{name}"'.encode()
    until(lambda: any(told in text and text.endswith(b"]") for text in files(server)), name)


@pytest.fixture
def traced(
    traced_triton: Server, traced_reference: Server, level: list[str]
) -> Iterator[tuple[Server, Server]]:
    servers = traced_triton, traced_reference
    for server in servers:
        mark(server)
        change(server, **ON | {"trace_level": level})
    yield servers
    for server in servers:
        clear(server)


REQUESTS = {
    "JSON": VECTOR,
    "with an id": infer("vector", X, id="one two"),
    "binary": infer_binary(
        "vector",
        b"\0\0\x80?\0\0\0@",
        binary("X", "FP32", [2], 8),
        outputs=[{"name": "Y", "parameters": {"binary_data": True}}],
    ),
    "a batch": infer("batched", tensor("X", "FP32", [2, 4], list(range(8)))),
    "two inputs": infer(
        "pair",
        tensor("A", "FP32", [1, 4], [0.1, 1e20, -1.5, 1234567.5]),
        tensor("B", "INT32", [1, 1, 2], [5, -6]),
    ),
    "strings": infer("words", tensor("T", "BYTES", [2], ["ab", "é"])),
    "an empty string": infer("text", tensor("T", "BYTES", [1, 1], [""])),
    "numbers": infer(
        "types",
        tensor("BOOL", "BOOL", [2], [True, False]),
        tensor("UINT16", "UINT16", [1], [65535]),
        tensor("UINT64", "UINT64", [1], [2**64 - 1]),
        tensor("INT16", "INT16", [1], [-5]),
        tensor("INT64", "INT64", [1], [-(2**63)]),
        tensor("FP64", "FP64", [3], [0.1, 1e300, -0.0]),
    ),
    "half floats": infer_binary(
        "half",
        b"\0\x3c",
        binary("X", "FP16", [1], 2),
        outputs=[{"name": "Y", "parameters": {"binary_data": True}}],
    ),
    "no elements": infer("vector", tensor("X", "FP32", [0], [])),
    "another shape": infer("reshaped", tensor("X", "INT32", [1, 4], [1, 2, 3, 4])),
    "a chain": infer("chain", tensor("IN", "FP32", [1, 4], [1, 2, 3, 4]), id="outer"),
    "a fork": infer("fork", tensor("IN", "FP32", [1], [1])),
    "an error": infer("faults", tensor("what", "BYTES", [1], ["error default"])),
    "an exception": infer("faults", tensor("what", "BYTES", [1], ["raises ValueError"])),
    "an error in a chain": infer("faulty_chain", tensor("what", "BYTES", [1], ["error default"])),
    "a reply that has no JSON": infer_binary("half", b"\0\x3c", binary("X", "FP16", [1], 2)),
    "generate": post("/v2/models/vector/generate", '{"X":[1,2],"id":"g"}'),
    "generate stream": post("/v2/models/vector/generate_stream", '{"X":[1,2]}'),
}
#: All requests at both levels; one at each alone.
LEVELLED = [
    *((name, ["TIMESTAMPS", "TENSORS"]) for name in REQUESTS),
    *(("two inputs", [level]) for level in ("TIMESTAMPS", "TENSORS")),
]


def read(text: bytes) -> tuple[list[int], dict[tuple[int, str], list[object]]]:
    """Return the order of ids in a file, and the frontend's and other records of each id.

    Ids are relative to the file's first id; times are removed. Tensors that are recorded together
    are sorted by name, because the real server has the order of a hash table.
    """
    elements = [
        element
        for _, run in itertools.groupby(
            json.loads(text), lambda element: (element["id"], element.get("activity"))
        )
        for element in sorted(run, key=lambda element: element.get("tensor", {}).get("name", ""))
    ]
    first = min(element["id"] for element in elements)
    order: list[int] = []
    told: dict[tuple[int, str], list[object]] = {}
    for element in elements:
        number = element.pop("id") - first
        order += [number] if number not in order else []
        if "parent_id" in element:
            element["parent_id"] -= first
        side = "model"
        for stamp in element.get("timestamps", ()):
            assert isinstance(stamp.pop("ns"), int)
            side = "front" if stamp["name"].startswith("HTTP") else side
        told.setdefault((number, side), []).append(element)
    return order, told


@pytest.mark.parametrize(("name", "level"), LEVELLED)
def test_traces_tell_the_same(name: str, traced: tuple[Server, Server]):
    told = []
    for server in traced:
        before = latest(server)
        exchange(server.http, REQUESTS[name])
        (text,) = written(server, before)
        told.append(read(text))
    real, ours = told
    assert ours == real


@pytest.mark.parametrize("level", [["TIMESTAMPS"]], ids="-".join)
def test_a_request_that_cannot_be_read_was_received(traced: tuple[Server, Server]):
    told = []
    for server in traced:
        before = latest(server)
        exchange(server.http, post("/v2/models/vector/infer", "{"))
        told.append(read(*written(server, before)))
    real, ours = told
    assert ours == real == ([0], {(0, "front"): ours[1][(0, "front")]})


@pytest.mark.parametrize("name", SERVERS)
def test_files_hold_as_many_traces_as_the_frequency_says(name: str, request: pytest.FixtureRequest):
    server = request.getfixturevalue(name)
    mark(server)
    before = latest(server)
    change(server, **ON | {"log_frequency": "3"})
    try:
        for _ in range(4):
            exchange(server.http, VECTOR)
        assert [len(ids(text)) for text in written(server, before)] == [3]
        change(server, trace_rate="1")  # what waits is written when a setting goes
        assert [len(ids(text)) for text in written(server, before, 2)] == [3, 1]
    finally:
        clear(server)


# ------------------------------------------------------------------------------- differences meant


@pytest.fixture
def level() -> list[str]:
    return ["TIMESTAMPS", "TENSORS"]


def test_a_change_that_is_refused_changes_nothing(traced_triton: Server, traced_reference: Server):
    # The real server has changed its own setting when it finds that a model's becomes invalid.
    rates = []
    for server in (traced_triton, traced_reference):
        try:
            change(server, MODEL_TRACE, trace_level=["TIMESTAMPS"])
            (reply,) = change(server, trace_rate="0").replies
            assert (reply.status, b"sample rate must be non-zero" in reply.body) == (400, True)
            rates.append(settings(server)["trace_rate"])
        finally:
            clear(server)
    assert rates == ["0", "1000"]


def test_a_request_that_is_refused_is_told_of(traced: tuple[Server, Server]):
    # The real server loses this trace, and the memory that it takes.
    _, ours = traced
    before = latest(ours)
    exchange(ours.http, REFUSED)
    (text,) = written(ours, before)
    order, told = read(text)
    assert order == [0]
    assert [element["timestamps"][0]["name"] for element in told[(0, "front")]] == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
    ]


def test_a_file_is_json_whatever_clients_send(traced: tuple[Server, Server]):
    # The real server writes names and strings as they are, and numbers of 8 bits as letters.
    real, ours = traced
    text = tensor("T", "BYTES", [1, 1], ['"\n\\'])
    bytes_ = tensor("UINT8", "UINT8", [2], [1, 255]), tensor("INT8", "INT8", [1], [-1])
    for request_, data in (
        (infer("text", text, id='"'), r'"\"\n\\"'),
        (infer("types", *bytes_), "1,255"),
    ):
        before = latest(real)
        exchange(real.http, request_)
        (file,) = written(real, before)
        with pytest.raises(ValueError, match=r"."):
            json.loads(file)
        before = latest(ours)
        exchange(ours.http, request_)
        (file,) = written(ours, before)
        told = [element for element in json.loads(file) if "tensor" in element]
        assert told[0]["tensor"]["data"] == data


def test_the_file_is_whole_when_the_server_has_stopped(traced_repository: Path, tmp_path: Path):
    # The real server leaves the end of it unwritten.
    file = tmp_path / "trace.json"
    flags = {"trace_config": [f"triton,file={file}", "level=TIMESTAMPS", "rate=1"]}
    with start_reference_server(traced_repository, allow_grpc=False, **flags) as server:
        for _ in range(2):
            exchange(server.http, VECTOR)
    assert len(ids(file.read_bytes())) == 2
    json.loads(file.read_bytes())
