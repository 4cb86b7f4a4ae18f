"""Requests to ensembles, and the notation of their responses.

`loose` omits the mark of the last response: if steps follow a decoupled step, the mark arrives by
chance with the last response or after it.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from contract.casebook import sort_maps
from support.servers import Server
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

ANSWER_SECONDS = 60
FINAL = "triton_final_response"


@dataclass(frozen=True)
class Question:
    """One request to one ensemble; `ask` returns a server's response."""

    name: str
    ask: Callable[[Server], str]

    def __str__(self) -> str:
        return self.name


def request(model: str, *, rows: int = 1, fields: dict[str, Any], **inputs: str | float) -> Any:
    """Return a message with tensors [rows, 1] of texts or FP32."""
    message = pb.ModelInferRequest(model_name=model, id="q")
    for name, value in inputs.items():
        tensor = message.inputs.add(name=name, shape=[rows, 1])
        if isinstance(value, str):
            tensor.datatype = "BYTES"
            tensor.contents.bytes_contents.extend([value.encode()] * rows)
        else:
            tensor.datatype = "FP32"
            tensor.contents.fp32_contents.extend([value] * rows)
    for output in fields.pop("outputs", ()):
        message.outputs.add(name=output)
    for name, value in fields.items():
        kind = (
            "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "string"
        )
        setattr(message.parameters[name], f"{kind}_param", value)
    return message


def _written(response: Any, *, loose: bool) -> str:
    """Return a response as text, with sorted outputs."""
    outputs = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        texts = output.datatype == "BYTES"
        values = raw[4:].decode() if texts else np.frombuffer(raw, np.float32).tolist()
        outputs[output.name] = (values, list(output.shape))
    parameters = {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in sorted(response.parameters.items())
        if not (loose and name == FINAL)
    }
    return f"{dict(sorted(outputs.items()))} {parameters} id={response.id}"


def _is_bare_mark(response: Any) -> bool:
    return not response.outputs and response.parameters[FINAL].bool_param


def _stream(server: Server, message: Any, *, loose: bool) -> str:
    said = []
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for part in stub.ModelStreamInfer(iter([message]), timeout=ANSWER_SECONDS):
            if part.error_message:
                said.append(f"error: {part.error_message} id={part.infer_response.id}")
            elif not (loose and _is_bare_mark(part.infer_response)):
                said.append(_written(part.infer_response, loose=loose))
    return "\n".join(said)


def stream(model: str, what: str, *, loose: bool = False, **given: Any) -> Question:
    """Send a request on a stream that reports its end."""
    name = f"{model} told '{what}'" + "".join(f", {key}" for key in given)
    fields = {"triton_enable_empty_final_response": True, **given.pop("fields", {})}

    def ask(server: Server) -> str:
        message = request(model, fields=dict(fields), what=what, **given)
        return _stream(server, message, loose=loose)

    return Question(name, ask)


def infer(model: str, fields: dict[str, Any] | None = None, **given: Any) -> Question:
    """Send a request with one response."""

    def ask(server: Server) -> str:
        with grpc.insecure_channel(server.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            message = request(model, fields=dict(fields or {}), **given)
            try:
                return _written(stub.ModelInfer(message, timeout=ANSWER_SECONDS), loose=False)
            except grpc.RpcError as error:
                return f"{error.code().name}: {error.details()}"

    told = ", ".join(f"{key} {value}" for key, value in {**(fields or {}), **given}.items())
    return Question(f"{model} given {told}", ask)


def page(method: str, path: str, body: Any = None) -> Question:
    """Send a request over HTTP; only the status and the body are kept."""
    content = b"" if body is None else json.dumps(body).encode()

    def ask(server: Server) -> str:
        connection = http.client.HTTPConnection(server.http, timeout=ANSWER_SECONDS)
        try:
            connection.request(method, path, content)
            reply = connection.getresponse()
            return f"{reply.status} {reply.read().decode()}"
        finally:
            connection.close()

    return Question(f"{method} {path} {content.decode()}"[:100], ask)


def config(model: str) -> Question:
    """Request the configuration, with sorted maps: the real server's maps have no order."""
    asked = page("GET", f"/v2/models/{model}/config")

    def ask(server: Server) -> str:
        status, _, body = asked.ask(server).partition(" ")
        return f"{status} {json.dumps(sort_maps(json.loads(body)))}"

    return Question(asked.name, ask)


def text(name: str, value: str) -> dict[str, Any]:
    """Return an input of one text as JSON."""
    return {"inputs": [{"name": name, "datatype": "BYTES", "shape": [1, 1], "data": [value]}]}


def shaped(model: str, shape: list[int]) -> Question:
    """Send a tensor of another shape than [rows, 1]."""
    data = [float(number) for number in range(int(np.prod(shape)))]
    given = {"name": "X", "datatype": "FP32", "shape": shape, "data": data}
    asked = page("POST", f"/v2/models/{model}/infer", {"inputs": [given]})
    return Question(f"{model} given {shape}", asked.ask)


def repeated(model: str, what: str) -> Question:
    """Count the parameters of a sequence in an HTTP response, which repeats keys."""
    asked = page("POST", f"/v2/models/{model}/infer", text("what", what))
    name = f"{model} told '{what}': parameters"
    return Question(name, lambda server: str(asked.ask(server).count('"sequence_id"')))


# Responses of the source itself: no step follows, so the whole response is deterministic.
SOURCES = [
    stream(model, what)
    for model in ("just_source", "one_of_source")
    for what in (
        *("1 2", "1 2!", "y1 2 z3", "none 1", "", "1 error 2", "error!", "none!", "1!", "z1 y2"),
    )
]
FOLLOWED = [
    stream(model, what, loose=True)
    for model in ("through", "both_ways", "raw_and_made", "two_branches", "outer")
    for what in ("1 2", "1 2!", "1!", "", "none", "error!")
]
ROWS = [
    *SOURCES,
    *FOLLOWED,
    stream("in_a_row", "1 5", loose=True),
    stream("two_branches", "1 2", loose=True, fields={"outputs": ["O"]}),
    stream("parted", "1"),
    stream("sent", "1"),
    infer("through", what="1"),
    page("POST", "/v2/models/through/infer", text("what", "1")),
    *(
        page("POST", f"/v2/models/through/{form}", {"what": what})
        for form in ("generate", "generate_stream")
        for what in ("1", "1 2", "error", "")
    ),
    *(
        infer(model, what=what)
        for model in (
            *("parted", "parted_on", "parted_join", "parted_deep", "first_of_two", "outer_parted"),
        )
        for what in ("1", "y1", "z1", "none", "error")
    ),
    *(infer("parted_optional", what=what, X=9.0) for what in ("1", "y1", "z1", "none", "error")),
    *(infer("parted_beside", what=what, X=9.0) for what in ("1", "y1")),
    *(repeated("parted", what) for what in ("1", "y1")),
    infer("may_miss", A=1.0),
    infer("may_miss", A=1.0, B=2.0),
    infer("may_miss_outer", A=1.0),
    infer("must_have", B=1.0),
    infer("unmapped", A=1.0),
    infer("miss_all", B=1.0),
    infer("miss_all", A=1.0, B=1.0),
    infer("unmapped", {"timeout": 123456, "k": "v"}, A=1.0),
    infer("unmapped", {"sequence_id": 7, "sequence_start": True}, A=1.0),
    infer("parted", {"outputs": ["a"]}, what="1"),
    infer("sent", what="1"),
    infer("sent", what="1."),
    infer("sent_on", what="1."),
    *(
        infer(model, X=1.0, rows=rows)
        for model in ("too_wide", "batch_same_single", "batch_single_same", "batch_free")
        for rows in (1, 2)
    ),
    infer("unbatched_over_batched", X=1.0, rows=3),
    infer("unbatched_over_batched", X=1.0, rows=7),
    infer("unbatched_fixed", X=1.0, rows=2),
    *(
        shaped(model, [1])
        for model in ("nobatch_same", "nobatch_single_same", "nobatch_same_single")
    ),
    shaped("batch_wide", [3, 2]),
    *(shaped(model, [2, 4]) for model in ("square_in", "square", "column")),
    *(shaped(model, [1, 2, 2]) for model in ("square", "square_out", "column_out")),
    *(shaped(model, [1, 2, 3]) for model in ("square_out", "column_out")),
    shaped("column_out", [2, 3, 1]),
    shaped("column_unbatched", [3]),
    *(config(model) for model in ("through", "outer", "parted", "claims_decoupled")),
]

_MISSES_X = (
    "INVALID_ARGUMENT: in ensemble 'parted_beside', [request id: q] expected 1 inputs but got 0 "
    "inputs for model 'same'. Got input(s) [], but missing required input(s) ['X']. Please provide "
    "all required input(s)."
)
#: A step fails while another one runs. The real server responds equally, but on a busy machine it
#: was seen to answer neither this request nor later requests to the ensemble.
FAILED_BESIDE = {
    "z1": _MISSES_X,
    "none": _MISSES_X,
    "error": "UNAVAILABLE: in ensemble 'parted_beside', told to",
}
