"""The cases over HTTP, by chapter of the protocol and by extension.

No case changes the server: models are not loaded or unloaded, settings are only read, and
registrations of shared memory are invalid.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from triton_replay.conformance.cases import (
    Case,
    Fails,
    get,
    good,
    holds,
    inferred,
    object_of,
    post,
    refused,
    refused_inference,
    refused_somehow,
    same_as_json,
)
from triton_replay.conformance.subject import (
    HttpRequest,
    NotApplicable,
    Reply,
    Subject,
)
from triton_replay.wire.bodies import header

CORE: Final = ("health", "metadata", "inference", "errors")
"""Chapters that every server of the protocol must support."""

IGNORABLE: Final = ("parameters", "schedule_policy", "sequence")
"""Extensions that consist of parameters, which a server may ignore."""

_UNKNOWN: Final = "/v2/models/no_such_model"
_BINARY_ANSWER: Final = {"parameters": {"binary_data_output": True}}
_COMPRESSION_THRESHOLD: Final = 1_500
"""Servers need not compress a smaller body, which fits one packet."""


def _tensors(subject: Subject, reply: Reply) -> None:
    document = object_of(subject, reply)
    for key in ("inputs", "outputs"):
        found = document.get(key)
        if not isinstance(found, list) or not all(
            isinstance(one, dict) and {"name", "datatype", "shape"} <= one.keys() for one in found
        ):
            raise Fails(f"{key}: expected a list of tensors with name, datatype and shape")


def _field(name: str, expected: object) -> Any:  # noqa: ANN401  a check
    def check(subject: Subject, reply: Reply) -> None:
        found = object_of(subject, reply).get(name)
        if found != expected:
            raise Fails(f"{name}: found {found!r}, expected {expected!r}")

    return check


def _only_the_first(subject: Subject, reply: Reply) -> None:
    good(subject, reply)
    expected, found = [next(iter(subject.outputs))], list(reply.outputs())
    if found != expected:
        raise Fails(f"outputs: found {found}, expected {expected}")


def _first_output(subject: Subject, **parameters: object) -> dict[str, Any]:
    if not subject.outputs:
        raise NotApplicable("the metadata have no outputs")
    return {"name": next(iter(subject.outputs)), "parameters": parameters}


def _changed(subject: Subject, **changes: object) -> HttpRequest:
    """Return an inference with changed fields of its first input; None removes a field."""
    document = subject.document()
    if not document["inputs"]:
        raise NotApplicable("the metadata have no inputs")
    first = document["inputs"][0] | changes
    document["inputs"][0] = {name: value for name, value in first.items() if value is not None}
    return HttpRequest("POST", f"{subject.path}/infer", json.dumps(document).encode())


def _binary_bytes(subject: Subject) -> HttpRequest:
    if not any(one.datatype == "BYTES" for one in subject.inputs):
        raise NotApplicable("the model has no BYTES input")
    return subject.binary(**_BINARY_ANSWER)


def _too_few_bytes(subject: Subject) -> HttpRequest:
    request = subject.binary()
    return HttpRequest(request.method, request.target, request.body[:-1], request.headers)


def _came_in_bytes(subject: Subject, reply: Reply) -> None:
    same_as_json(subject, reply)
    if not header(reply.headers, "inference-header-content-length"):
        raise Fails("the response has no Inference-Header-Content-Length: its tensors are JSON")


def _classified(subject: Subject, reply: Reply) -> None:
    good(subject, reply)
    (found,) = reply.outputs().values()
    if found.datatype != "BYTES" or not all(b":" in text for text in found.values.ravel()):
        raise Fails(f"found {found.datatype}, expected BYTES of VALUE:INDEX")


def _classify(subject: Subject) -> HttpRequest:
    first = _first_output(subject, classification=1)
    if subject.outputs[first["name"]] in ("BYTES", "BOOL", "FP16", "BF16"):
        raise NotApplicable(f"the first output has datatype {subject.outputs[first['name']]}")
    return subject.infer(outputs=[first])


def _listed(subject: Subject, reply: Reply) -> None:
    good(subject, reply)
    document = reply.document()
    entries = document if isinstance(document, list) else []
    if not any(isinstance(one, dict) and one.get("name") == subject.model for one in entries):
        raise Fails(f"found {reply.summary()}, expected an entry for {subject.model!r}")


def _counted(subject: Subject, reply: Reply) -> None:
    found = object_of(subject, reply).get("model_stats")
    fields = {"name", "version", "inference_count", "execution_count", "inference_stats"}
    if not isinstance(found, list) or not found or not fields <= dict(found[0]).keys():
        raise Fails(f"model_stats: found {str(found)[:80]}, expected a list with {sorted(fields)}")


def _array(subject: Subject, reply: Reply) -> None:
    good(subject, reply)
    if not isinstance(reply.document(), list):
        raise Fails(f"found {reply.summary()}, expected a JSON list")


def _packed(subject: Subject) -> HttpRequest:
    plain = subject.infer()
    coding = (("Content-Encoding", "gzip"),)
    return HttpRequest("POST", plain.target, gzip.compress(plain.body, mtime=0), coding)


def _packed_answer(subject: Subject) -> HttpRequest:
    plain = subject.infer(id="a" * _COMPRESSION_THRESHOLD)  # the response repeats the id
    return HttpRequest("POST", plain.target, plain.body, (("Accept-Encoding", "gzip"),))


def _came_packed(subject: Subject, reply: Reply) -> None:
    inferred(subject, reply)
    if header(reply.headers, "content-encoding") == "gzip":
        return
    if len(reply.body) < _COMPRESSION_THRESHOLD:
        raise NotApplicable(f"a response of {len(reply.body)} bytes need not be compressed")
    raise Fails("the response is not compressed")


def _generate(verb: str) -> Any:  # noqa: ANN401  makes a request
    def create(subject: Subject) -> HttpRequest:
        if not all(one.count == 1 for one in subject.inputs):
            raise NotApplicable("the model takes more than one element")
        fields = {one.name: one.value() for one in subject.inputs}
        return HttpRequest("POST", f"{subject.path}/{verb}", json.dumps(fields).encode())

    return create


def _events(subject: Subject, reply: Reply) -> None:
    good(subject, reply)
    if not header(reply.headers, "content-type").startswith("text/event-stream"):
        found = header(reply.headers, "content-type")
        raise Fails(f"content-type: found {found}, expected text/event-stream")
    if b"data: {" not in reply.body:
        raise Fails(f"found {reply.summary()}, expected lines `data: {{...}}`")


def _of_version(rest: str) -> Any:  # noqa: ANN401  makes a request
    """Create GET requests for the version in the model's metadata."""

    def create(subject: Subject) -> HttpRequest:
        return HttpRequest("GET", f"{_versioned(subject)}{rest}")

    return create


def _infer_version(subject: Subject) -> HttpRequest:
    return HttpRequest("POST", f"{_versioned(subject)}/infer", subject.infer().body)


def _versioned(subject: Subject) -> str:
    if not subject.version:
        raise NotApplicable("the metadata have no versions")
    return f"{subject.path}/versions/{subject.version}"


def _sequence(subject: Subject) -> HttpRequest:
    return subject.infer(
        parameters={"sequence_id": 4711, "sequence_start": True, "sequence_end": True}
    )


_REGION: Final = {"shared_memory_region": "no_such_region", "shared_memory_byte_size": 1}
_TIMES: Final = {"priority": 0, "timeout": 60_000_000}
_LOAD: Final = post("/v2/repository/models/no_such_model/load")

_CHAPTERS: Final[Mapping[str, Sequence[tuple[Any, ...]]]] = {
    "health": (
        ("the server is live", get("/v2/health/live"), good),
        ("the server is ready", get("/v2/health/ready"), good),
        ("the model is ready", get("{model}/ready"), good),
        ("an unknown model is not ready", get(f"{_UNKNOWN}/ready"), refused_somehow),
        ("the model's version is ready", _of_version("/ready"), good),
    ),
    "metadata": (
        ("of the server", get("/v2"), holds(name=str, version=str, extensions=list)),
        ("of the model", get("{model}"), holds(name=str, platform=str)),
        ("tensors of the model", get("{model}"), _tensors),
        ("of a version", _of_version(""), _tensors),
    ),
    "inference": (
        ("JSON", lambda s: s.infer(), inferred),
        ("the id comes back", lambda s: s.infer(id="42"), _field("id", "42")),
        (
            *("the answer names the model", lambda s: s.infer()),
            lambda s, r: _field("model_name", s.model)(s, r),
        ),
        (
            *("only the requested outputs", lambda s: s.infer(outputs=[_first_output(s)])),
            _only_the_first,
        ),
        ("a named version", _infer_version, inferred),
    ),
    "errors": (
        ("metadata of an unknown model", get(_UNKNOWN), refused),
        ("an unknown version", get("{model}/versions/987654"), refused),
        ("an unknown model", post(f"{_UNKNOWN}/infer", b'{"inputs":[]}'), refused_inference),
        ("no JSON", post("{model}/infer", b"{nonsense"), refused_inference),
        ("no inputs", post("{model}/infer"), refused_inference),
        ("an unknown input", lambda s: _changed(s, name="no_such_input"), refused_inference),
        ("an unknown type", lambda s: _changed(s, datatype="FP7"), refused_inference),
        ("fewer values than the shape", lambda s: _changed(s, data=[]), refused_inference),
        (
            *("an unknown output", lambda s: s.infer(outputs=[{"name": "no_such_output"}])),
            refused_inference,
        ),
    ),
    "binary_tensor_data": (
        ("inputs", lambda s: s.binary(), same_as_json),
        ("inputs and outputs", lambda s: s.binary(**_BINARY_ANSWER), _came_in_bytes),
        ("BYTES", _binary_bytes, _came_in_bytes),
        ("a byte is missing", _too_few_bytes, refused_inference),
    ),
    "parameters": (("an unknown parameter", lambda s: s.infer(parameters={"a": 1}), inferred),),
    "schedule_policy": (("priority and timeout", lambda s: s.infer(parameters=_TIMES), inferred),),
    "classification": (("the largest element", _classify, _classified),),
    "sequence": (("a sequence of one request", _sequence, inferred),),
    "model_repository": (
        ("the index", post("/v2/repository/index"), _listed),
        ("loading an unknown model", _LOAD, refused),
    ),
    "model_configuration": (
        ("of the model", get("{model}/config"), holds(name=str)),
        ("of an unknown model", get(f"{_UNKNOWN}/config"), refused),
    ),
    "statistics": (
        ("of the model", get("{model}/stats"), _counted),
        ("of all models", get("/v2/models/stats"), _counted),
    ),
    "trace": (
        ("settings", get("/v2/trace/setting"), holds(trace_level=list)),
        ("settings of the model", get("{model}/trace/setting"), holds(trace_level=list)),
    ),
    "logging": (("settings", get("/v2/logging"), holds(log_info=bool)),),
    **{
        f"{kind}_shared_memory": (
            ("status", get(f"/v2/{kind}sharedmemory/status"), _array),
            (
                "a region without a name of memory",
                *(post(f"/v2/{kind}sharedmemory/region/no_such_region/register"), refused),
            ),
            (
                "an inference in an unknown region",
                *(lambda s: _changed(s, data=None, parameters=_REGION), refused_inference),
            ),
        )
        for kind in ("system", "cuda")
    },
    "compression": (
        ("of a request", _packed, inferred),
        ("of an answer", _packed_answer, _came_packed),
    ),
    "generate": (
        ("an answer", _generate("generate"), holds(model_name=str)),
        ("a stream of events", _generate("generate_stream"), _events),
    ),
}
CASES: Final = tuple(Case(chapter, *case) for chapter, cases in _CHAPTERS.items() for case in cases)
