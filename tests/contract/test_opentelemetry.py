"""Tracing in the mode `opentelemetry`: the spans that both servers send to a collector.

The tables have the spans of the real server. If it is installed, each run checks them again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc_client
from contract.casebook import get, infer, post, tensor
from contract.cases.settings import TRACE
from contract.probes import Probe, write_probe, write_probes
from contract.recordings import repository_folder
from contract.runtime_models import RUNTIME_MODELS
from contract.wire import Reply, exchange
from support.otlp import Collector, Span, start_collector
from support.servers import COMPLETE, Server, start_reference_server, start_tritonserver

VECTOR = """
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
TELLER = Probe(
    """
    input { name: "NAME" data_type: TYPE_STRING dims: [1] }
    output { name: "TOLD" data_type: TYPE_STRING dims: [-1] }
    """,
    "TellsContext",
)
OWN = {
    "teller": TELLER,
    "told": TELLER,
    "cached": Probe(VECTOR + "response_cache { enable: true }"),
    "geared": Probe(
        'backend: "python"\n' + RUNTIME_MODELS["geared"].config, RUNTIME_MODELS["geared"].code
    ),
    "sequence": Probe(VECTOR + "max_batch_size: 4 sequence_batching { }"),
    "hasty": Probe(
        VECTOR
        + """
        max_batch_size: 4
        dynamic_batching {
          max_queue_delay_microseconds: 1000
          default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 1 }
        }
        """
    ),
}
SHARED = ("vector", "batched", "chain", "fork", "faults", "faulty_chain", "decoupled")


def flags(collector: Collector, *more: str) -> dict[str, Any]:
    return {
        "trace_config": [
            "mode=opentelemetry",
            *("rate=1", "level=TIMESTAMPS"),
            f"opentelemetry,url={collector.url}",
            "opentelemetry,bsp_schedule_delay=20",
            *more,
        ],
        "cache_config": "local,size=65536",
        "allow_metrics": False,
        **COMPLETE,
    }


@pytest.fixture(scope="module")
def repository() -> Iterator[Path]:
    with repository_folder("spans") as folder:
        write_probes(folder / "repository", *SHARED)
        for name, probe in OWN.items():
            write_probe(folder / "repository", name, probe)
        graph = RUNTIME_MODELS["geared"].graph()
        onnx.save(graph, folder / "repository" / "geared" / "1" / "model.onnx")
        yield folder / "repository"


RESOURCE = ("opentelemetry,resource=deployment.environment=test", "opentelemetry,resource=a=b=c")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("real", marks=pytest.mark.oracle),
        "inline",
        "process",
    ],
)
def traced(repository: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Server, Collector]]:
    """Run a server and its collector: the real one, or the reference server with either host."""
    with start_collector() as collector:
        given = flags(collector, *RESOURCE)
        if request.param == "real":
            request.getfixturevalue("oracle_installed")
            starting = start_tritonserver(repository, **given)
        else:
            given["backend_config"] = f"python,host={request.param}"
            starting = start_reference_server(repository, **given)
        with starting as server:
            yield server, collector


# ------------------------------------------------------------------------------------------- spans

MODEL_EVENTS = ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
COMPUTE_EVENTS = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
SERVER_KIND = 2
CALLER_SPAN = "b7ad6b7169203331"


def told(spans: list[Span], parent: str = "", depth: int = 0, number: int = 0) -> list[str]:
    """Return a trace as text: a line for each span with its particular attributes, as a tree."""
    lines: list[str] = []
    below = sorted((s for s in spans if s.parent_id == parent), key=lambda span: span.start_ns)
    for span in below:
        assert span.kind == SERVER_KIND
        assert span.start_ns <= span.end_ns
        attributes = dict(span.attributes)
        line = span.name
        if span.name == "InferRequest":
            line += f": {' '.join(span.events)}"
        elif span.name.startswith("ge_runtime"):
            assert span.events == []
        elif span.name == "compute":
            assert span.events == COMPUTE_EVENTS
            assert span.event_ns == sorted(span.event_ns)
            assert (span.start_ns, span.end_ns) == (span.event_ns[0], span.event_ns[-1])
        else:
            assert span.events == MODEL_EVENTS
            assert (span.start_ns, span.end_ns) == (span.event_ns[0], span.event_ns[-1])
            assert attributes.pop("triton.model_name") == span.name
            assert attributes.pop("triton.trace_parent_id") == number
            line += f" {attributes.pop('triton.model_version')}"
        own = attributes.pop("triton.trace_id", number)
        line += "".join(f" {key}={value}" for key, value in attributes.items())
        lines += ["  " * depth + line, *told(spans, span.span_id, depth + 1, own)]
    return lines


X = tensor("X", "FP32", [2], [1, 2])
ROW = tensor("X", "FP32", [1, 2], [1, 2])
ERROR = tensor("what", "BYTES", [1], ["error default"])
SENT = (
    "InferRequest: HTTP_RECV_START HTTP_RECV_END INFER_RESPONSE_COMPLETE "
    "HTTP_SEND_START HTTP_SEND_END"
)
#: A request, and what is sent of it.
REQUESTS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], list[str]]] = {
    "a model": ("vector", (X,), {}, [SENT, "  vector 1", "    compute"]),
    "an id": (
        *("vector", (X,), {"id": "one two"}),
        [SENT, "  vector 1 triton.request_id=one two", "    compute"],
    ),
    "steps of an ensemble": (
        *("chain", (tensor("IN", "FP32", [1, 4], [1, 2, 3, 4]),), {"id": "e"}),
        [
            SENT,
            "  chain 1 triton.request_id=e",
            *["    batched 1 triton.request_id=e", "      compute"] * 2,
        ],
    ),
    "steps side by side": (
        *("fork", (tensor("IN", "FP32", [1], [1]),), {}),
        [SENT, "  fork 1", *["    vector 1", "      compute"] * 2],
    ),
    "a model's error": ("faults", (ERROR,), {}, [SENT, "  faults 1", "    compute"]),
    "a step's error": (
        *("faulty_chain", (ERROR,), {}),
        [SENT, "  faulty_chain 1", "    faults 1", "      compute"],
    ),
    "a sequence": (
        "sequence",
        (ROW,),
        {"parameters": {"sequence_id": 5, "sequence_start": True, "sequence_end": True}},
        [SENT, "  sequence 1", "    compute"],
    ),
    "a request that is rejected in the queue": ("hasty", (ROW,), {}, [SENT, "  hasty 1"]),
    "a model that asks another": (
        *("teller", (tensor("NAME", "BYTES", [1], ["told"]),), {"id": "b"}),
        [
            SENT,
            "  teller 1 triton.request_id=b",
            *("    compute", "    told 1", "      compute"),
        ],
    ),
}


def spans_of(
    traced: tuple[Server, Collector], request: Callable[[dict[str, str]], bytes]
) -> tuple[Reply, list[str]]:
    """Return the response to a request with a caller's span, and the spans below this span."""
    server, collector = traced
    trace_id = secrets.token_hex(16)
    headers = {"traceparent": f"00-{trace_id}-{CALLER_SPAN}-01"}
    (reply,) = exchange(server.http, request(headers)).replies
    return reply, told(collector.trace(trace_id), CALLER_SPAN)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_leaves_these_spans(name: str, traced: tuple[Server, Collector]):
    model, inputs, more, expected = REQUESTS[name]
    _, lines = spans_of(traced, lambda headers: infer(model, *inputs, headers=headers, **more))
    assert lines == expected


def test_a_response_out_of_the_cache_was_not_computed(traced: tuple[Server, Collector]):
    ask = lambda headers: infer("cached", X, headers=headers)  # noqa: E731
    spans_of(traced, ask)
    assert spans_of(traced, ask)[1] == [SENT, "  cached 1"]


def test_a_request_that_cannot_be_read_was_received(traced: tuple[Server, Collector]):
    _, lines = spans_of(traced, lambda headers: post(VECTOR_PATH, "{", headers=headers))
    assert lines == ["InferRequest: HTTP_RECV_START HTTP_RECV_END"]


def test_a_response_that_is_only_an_end_is_not_sent(traced: tuple[Server, Collector]):
    path = "/v2/models/decoupled/generate_stream"
    _, lines = spans_of(traced, lambda headers: post(path, '{"X": [1]}', headers=headers))
    assert lines == [
        "InferRequest: HTTP_RECV_START HTTP_RECV_END INFER_RESPONSE_COMPLETE",
        *("  decoupled 1", "    compute"),
    ]


def test_grpc_calls_leave_spans_with_events_of_their_own(traced: tuple[Server, Collector]):
    server, collector = traced
    trace_id = secrets.token_hex(16)
    x = grpc_client.InferInput("X", [1], "FP32")
    x.set_data_from_numpy(np.float32([1]))
    with grpc_client.InferenceServerClient(server.grpc) as client:
        headers = {"traceparent": f"00-{trace_id}-{CALLER_SPAN}-01"}
        client.infer("vector", [x], request_id="g", headers=headers)
    assert told(collector.trace(trace_id), CALLER_SPAN) == [
        "InferRequest: GRPC_WAITREAD_START GRPC_WAITREAD_END INFER_RESPONSE_COMPLETE "
        "GRPC_SEND_START GRPC_SEND_END",
        "  vector 1 triton.request_id=g",
        "    compute",
    ]


def test_executions_of_ge_runtime_are_spans_below_compute(traced: tuple[Server, Collector]):
    # The real server takes no spans from models.
    _, collector = traced
    ids = tensor("input_ids", "INT64", [1, 3], [1, 2, 3])
    _, lines = spans_of(traced, lambda headers: infer("geared", ids, headers=headers))
    execution = (
        "      ge_runtime.execution ge_runtime.gear=1 row(s), tokens 4 ge_runtime.requests=1 "
        "ge_runtime.rows=1 ge_runtime.padding=0.25 ge_runtime.memory_wait_seconds=0.0"
    )
    is_real = collector.resources[-1]["telemetry.sdk.language"] == "cpp"
    recorded = [] if is_real else [execution]
    assert lines == [SENT, "  geared 1", "    compute", *recorded]


# ---------------------------------------------------------------------- who sent it, and to whom

VECTOR_PATH = "/v2/models/vector/infer"
NOBODY = tensor("NAME", "BYTES", [1], [""])


def contexts(reply: Reply) -> list[Any]:
    """Return the contexts that models received from `request.trace().get_context()`."""
    (output,) = json.loads(reply.body)["outputs"]
    return [None if text == "None" else json.loads(text) for text in output["data"]]


def asked(server: Server, headers: dict[str, str]) -> Any:
    (reply,) = exchange(server.http, infer("teller", NOBODY, headers=headers)).replies
    (context,) = contexts(reply)
    return context


def test_a_model_is_told_of_its_span_and_hands_it_on(traced: tuple[Server, Collector]):
    server, collector = traced
    trace_id = secrets.token_hex(16)
    headers = {"traceparent": f"00-{trace_id}-{CALLER_SPAN}-01", "tracestate": "a=b,c=d"}
    other = tensor("NAME", "BYTES", [1], ["told"])
    (reply,) = exchange(server.http, infer("teller", other, headers=headers)).replies
    spans = collector.trace(trace_id)
    assert {span.trace_state for span in spans} == {"a=b,c=d"}
    teller, below = (
        {
            "traceparent": f"00-{trace_id}-{span.span_id}-01",
            "tracestate": "a=b,c=d",
        }
        for name in ("teller", "told")
        for span in spans
        if span.name == name
    )
    assert contexts(reply) == [teller, below, None]


TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
#: What stands in `traceparent`, and whether the request is made a part of that trace.
PARENTS = {
    f"00-{TRACE_ID}-{CALLER_SPAN}-00": True,
    f"00-{TRACE_ID}-{CALLER_SPAN}-ff": True,
    f"00-{TRACE_ID}-{CALLER_SPAN}-01".upper(): True,
    f"cc-{TRACE_ID}-{CALLER_SPAN}-01": True,
    f"ff-{TRACE_ID}-{CALLER_SPAN}-01": False,
    f"cc-{TRACE_ID}-{CALLER_SPAN}-01-x": False,
    f"00-{'0' * 32}-{CALLER_SPAN}-01": False,
    f"00-{TRACE_ID}-{'0' * 16}-01": False,
    f"00-{TRACE_ID}-{CALLER_SPAN}": False,
    "00-xyz": False,
}


@pytest.mark.parametrize(("parent", "is_one"), PARENTS.items(), ids=PARENTS)
def test_a_caller_is_known_by_its_header(
    parent: str, is_one: bool, traced: tuple[Server, Collector]
):
    server, _ = traced
    context = asked(server, {"traceparent": parent})
    assert (context["traceparent"][3:35] == TRACE_ID) == is_one
    assert context["traceparent"].endswith("-01")


# ------------------------------------------------------------------------------------- settings


def change(server: Server, **settings: object) -> tuple[int, bytes]:
    (reply,) = exchange(server.http, post(TRACE, json.dumps(settings))).replies
    return reply.status, reply.body


def remaining(server: Server) -> str:
    (reply,) = exchange(server.http, get(TRACE)).replies
    return json.loads(reply.body)["trace_count"]


@pytest.fixture
def set_back(traced: tuple[Server, Collector]) -> Iterator[None]:
    yield
    assert change(traced[0], trace_level=["TIMESTAMPS"], trace_rate="1", trace_count="-1")[0] == 200


def test_settings_show_what_was_given_then_defaults(traced: tuple[Server, Collector]):
    server, collector = traced
    (reply,) = exchange(server.http, get(TRACE)).replies
    assert reply.body.decode() == (
        '{"trace_level":["TIMESTAMPS"],"trace_rate":"1","trace_count":"-1",'
        f'"trace_mode":"opentelemetry","url":"{collector.url}","bsp_schedule_delay":"20",'
        '"resource":"deployment.environment=test","resource":"a=b=c",'
        '"bsp_max_export_batch_size":"512","bsp_max_queue_size":"2048"}'
    )
    with grpc_client.InferenceServerClient(server.grpc) as client:
        settings = client.get_trace_settings().settings
    assert list(settings["resource"].value) == ["deployment.environment=test", "a=b=c"]
    assert sorted(settings) == sorted(json.loads(reply.body))


@pytest.mark.usefixtures("set_back")
def test_some_settings_cannot_be_changed(traced: tuple[Server, Collector]):
    server, _ = traced
    refused = b'{"error":"trace file location can not be updated through network protocol"}'
    assert change(server, trace_file="x") == (501, refused)
    (before,) = exchange(server.http, get(TRACE)).replies
    for name in ("trace_mode", "url", "log_frequency", "bsp_schedule_delay"):
        assert change(server, **{name: "7"}) == (200, before.body)


@pytest.mark.usefixtures("set_back")
def test_a_caller_has_its_request_traced_out_of_turn(traced: tuple[Server, Collector]):
    server, _ = traced
    parent = {"traceparent": f"00-{TRACE_ID}-{CALLER_SPAN}-00"}
    change(server, trace_rate="3", trace_count="2")
    seen = [
        (asked(server, headers) is not None, remaining(server))
        for headers in ({}, parent, {}, {}, parent, parent, {}, {}, {}, parent)
    ]
    turns = [*(False, True), *(True, False, True), *(True, False, False), *(False, True)]
    left = ["2", "2", "1", "1", "1", "0", "0", "0", "0", "0"]
    assert seen == list(zip(turns, left, strict=True))
    change(server, trace_level=["OFF"])
    assert asked(server, parent) is None


@pytest.mark.usefixtures("set_back")
def test_the_level_of_tensors_tells_of_none(traced: tuple[Server, Collector]):
    server, _ = traced
    change(server, trace_level=["TENSORS"])
    _, lines = spans_of(traced, lambda headers: infer("vector", X, headers=headers))
    assert lines == ["InferRequest: "]
    assert asked(server, {}) is None
    assert "Tensor level tracing is not supported by the mode: opentelemetry" in server.log
