"""The cases over HTTP, by chapter of the protocol and by extension.

None changes the server: models are neither loaded nor unloaded, settings are read only, and what is
registered is refused or removed again.
"""

from __future__ import annotations

import gzip
import json
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
    refused_somehow,
    same_as_json,
)
from triton_replay.conformance.http import Ask, Reply, tensor_ask
from triton_replay.conformance.subject import NotApplicable, Subject
from triton_replay.wire.bodies import header

CORE: Final = ("health", "metadata", "inference", "errors")
"""The chapters that every server of the protocol has."""

IGNORABLE: Final = ("parameters", "schedule_policy", "sequence")
"""Extensions of parameters alone: a server that ignores them answers no worse."""

_NOBODY: Final = "/v2/models/no_such_model"


def _tensors(subject: Subject, reply: Reply) -> None:
    document = object_of(subject, reply)
    for key in ("inputs", "outputs"):
        found = document.get(key)
        if not isinstance(found, list) or not all(
            isinstance(one, dict) and {"name", "datatype", "shape"} <= one.keys() for one in found
        ):
            raise Fails(f"{key} is no list of tensors with name, datatype and shape")


def _field(name: str, expected: object) -> Any:  # noqa: ANN401  a check
    def check(subject: Subject, reply: Reply) -> None:
        found = object_of(subject, reply).get(name)
        if found != expected:
            raise Fails(f"{name} is {found!r}, expected {expected!r}")

    return check


def _only_the_first(subject: Subject, reply: Reply) -> None:
    good(subject, reply)
    expected, found = [next(iter(subject.outputs))], list(reply.outputs())
    if found != expected:
        raise Fails(f"outputs {found}, expected {expected}")


def _first_output(subject: Subject, **parameters: object) -> dict[str, Any]:
    if not subject.outputs:
        raise NotApplicable("the metadata name no outputs")
    return {"name": next(iter(subject.outputs)), "parameters": parameters}


def _changed(subject: Subject, **changes: object) -> Ask:
    """An inference whose first input is not what it should be; None takes a field away."""
    document = subject.document()
    if not document["inputs"]:
        raise NotApplicable("the metadata name no inputs")
    first = document["inputs"][0] | changes
    document["inputs"][0] = {name: value for name, value in first.items() if value is not None}
    return Ask("POST", f"{subject.path}/infer", json.dumps(document).encode())


def _binary(subject: Subject, *, answer: bool) -> Ask:
    parts = [one.raw() for one in subject.inputs]
    document: dict[str, Any] = {
        "inputs": [
            one.described() | {"parameters": {"binary_data_size": len(part)}}
            for one, part in zip(subject.inputs, parts, strict=True)
        ]
    }
    if answer:
        document["parameters"] = {"binary_data_output": True}
    return tensor_ask(f"{subject.path}/infer", document, parts)


def _binary_bytes(subject: Subject) -> Ask:
    if not any(one.datatype == "BYTES" for one in subject.inputs):
        raise NotApplicable("the model takes no BYTES")
    return _binary(subject, answer=True)


def _too_few_bytes(subject: Subject) -> Ask:
    ask = _binary(subject, answer=False)
    return Ask(ask.method, ask.target, ask.body[:-1], ask.headers)


def _came_in_bytes(subject: Subject, reply: Reply) -> None:
    same_as_json(subject, reply)
    if not header(reply.headers, "inference-header-content-length"):
        raise Fails("the answer has no Inference-Header-Content-Length: its tensors are JSON")


def _classified(subject: Subject, reply: Reply) -> None:
    good(subject, reply)
    (found,) = reply.outputs().values()
    if found.datatype != "BYTES" or not all(b":" in text for text in found.values.ravel()):
        raise Fails(f"found {found.datatype}, expected BYTES of VALUE:INDEX")


def _classify(subject: Subject) -> Ask:
    first = _first_output(subject, classification=1)
    if subject.outputs[first["name"]] in ("BYTES", "BOOL", "FP16", "BF16"):
        raise NotApplicable(f"the first output is {subject.outputs[first['name']]}")
    return subject.infer(outputs=[first])


def _listed(subject: Subject, reply: Reply) -> None:
    good(subject, reply)
    document = reply.document()
    entries = document if isinstance(document, list) else []
    if not any(isinstance(one, dict) and one.get("name") == subject.model for one in entries):
        raise Fails(f"{reply.told()} does not list model {subject.model!r}")


def _counted(subject: Subject, reply: Reply) -> None:
    found = object_of(subject, reply).get("model_stats")
    fields = {"name", "version", "inference_count", "execution_count", "inference_stats"}
    if not isinstance(found, list) or not found or not fields <= dict(found[0]).keys():
        raise Fails(f"model_stats is {str(found)[:80]}, expected a list with {sorted(fields)}")


def _array(subject: Subject, reply: Reply) -> None:
    good(subject, reply)
    if not isinstance(reply.document(), list):
        raise Fails(f"found {reply.told()}, expected a JSON list")


def _packed(subject: Subject) -> Ask:
    plain = subject.infer()
    coding = (("Content-Encoding", "gzip"),)
    return Ask("POST", plain.target, gzip.compress(plain.body, mtime=0), coding)


def _packed_answer(subject: Subject) -> Ask:
    plain = subject.infer()
    return Ask("POST", plain.target, plain.body, (("Accept-Encoding", "gzip"),))


def _came_packed(subject: Subject, reply: Reply) -> None:
    inferred(subject, reply)
    if header(reply.headers, "content-encoding") != "gzip":
        raise Fails("the answer is not compressed")


def _generate(verb: str) -> Any:  # noqa: ANN401  makes a request
    def ask(subject: Subject) -> Ask:
        if not all(one.count == 1 for one in subject.inputs):
            raise NotApplicable("the model takes more than one element")
        fields = {one.name: one.value() for one in subject.inputs}
        return Ask("POST", f"{subject.path}/{verb}", json.dumps(fields).encode())

    return ask


def _events(subject: Subject, reply: Reply) -> None:
    good(subject, reply)
    if not header(reply.headers, "content-type").startswith("text/event-stream"):
        raise Fails(f"the content is {header(reply.headers, 'content-type')}, expected events")
    if b"data: {" not in reply.body:
        raise Fails(f"found {reply.told()}, expected lines `data: {{...}}`")


def _of_version(rest: str) -> Any:  # noqa: ANN401  makes a request
    """A question about the version of the model that its metadata name."""

    def ask(subject: Subject) -> Ask:
        return Ask("GET", f"{_versioned(subject)}{rest}")

    return ask


def _infer_version(subject: Subject) -> Ask:
    return Ask("POST", f"{_versioned(subject)}/infer", subject.infer().body)


def _versioned(subject: Subject) -> str:
    if not subject.version:
        raise NotApplicable("the metadata name no versions")
    return f"{subject.path}/versions/{subject.version}"


def _sequence(subject: Subject) -> Ask:
    return subject.infer(
        parameters={"sequence_id": 4711, "sequence_start": True, "sequence_end": True}
    )


CASES: Final = (
    Case("health", "the server is live", get("/v2/health/live"), good),
    Case("health", "the server is ready", get("/v2/health/ready"), good),
    Case("health", "the model is ready", get("{model}/ready"), good),
    Case("health", "an unknown model is not ready", get(f"{_NOBODY}/ready"), refused_somehow),
    Case("health", "its version is ready", _of_version("/ready"), good),
    Case("metadata", "of the server", get("/v2"), holds(name=str, version=str, extensions=list)),
    Case("metadata", "of the model", get("{model}"), holds(name=str, platform=str)),
    Case("metadata", "tensors of the model", get("{model}"), _tensors),
    Case("metadata", "of a version", _of_version(""), _tensors),
    Case("inference", "JSON", lambda s: s.infer(), inferred),
    Case("inference", "the id comes back", lambda s: s.infer(id="42"), _field("id", "42")),
    Case(
        "inference",
        "the answer names the model",
        lambda s: s.infer(),
        lambda s, r: _field("model_name", s.model)(s, r),
    ),
    Case(
        "inference",
        "outputs that are asked for",
        lambda s: s.infer(outputs=[_first_output(s)]),
        _only_the_first,
    ),
    Case("inference", "a version that is named", _infer_version, inferred),
    Case("errors", "metadata of an unknown model", get(_NOBODY), refused),
    Case("errors", "an unknown version", get("{model}/versions/987654"), refused),
    Case("errors", "an unknown model", post(f"{_NOBODY}/infer", b'{"inputs":[]}'), refused),
    Case("errors", "no JSON", post("{model}/infer", b"{nonsense"), refused),
    Case("errors", "no inputs", post("{model}/infer"), refused),
    Case("errors", "an unknown input", lambda s: _changed(s, name="no_such_input"), refused),
    Case("errors", "an unknown type", lambda s: _changed(s, datatype="FP7"), refused),
    Case("errors", "fewer values than the shape", lambda s: _changed(s, data=[]), refused),
    Case(
        "errors",
        "an unknown output",
        lambda s: s.infer(outputs=[{"name": "no_such_output"}]),
        refused,
    ),
    Case("binary_tensor_data", "inputs", lambda s: _binary(s, answer=False), same_as_json),
    Case(
        "binary_tensor_data",
        "inputs and outputs",
        lambda s: _binary(s, answer=True),
        _came_in_bytes,
    ),
    Case("binary_tensor_data", "BYTES", _binary_bytes, _came_in_bytes),
    Case("binary_tensor_data", "a byte is missing", _too_few_bytes, refused),
    Case("parameters", "one that is unknown", lambda s: s.infer(parameters={"a": 1}), inferred),
    Case(
        "schedule_policy",
        "priority and timeout",
        lambda s: s.infer(parameters={"priority": 0, "timeout": 60_000_000}),
        inferred,
    ),
    Case("classification", "the largest element", _classify, _classified),
    Case("sequence", "one of a single request", _sequence, inferred),
    Case("model_repository", "the index", post("/v2/repository/index"), _listed),
    Case(
        "model_repository",
        "loading an unknown model",
        post("/v2/repository/models/no_such_model/load"),
        refused,
    ),
    Case("model_configuration", "of the model", get("{model}/config"), holds(name=str)),
    Case("model_configuration", "of an unknown model", get(f"{_NOBODY}/config"), refused),
    Case("statistics", "of the model", get("{model}/stats"), _counted),
    Case("statistics", "of all models", get("/v2/models/stats"), _counted),
    Case("trace", "settings", get("/v2/trace/setting"), holds(trace_level=list)),
    Case("trace", "settings of the model", get("{model}/trace/setting"), holds(trace_level=list)),
    Case("logging", "settings", get("/v2/logging"), holds(log_info=bool)),
    *(
        case
        for kind in ("system", "cuda")
        for case in (
            Case(f"{kind}_shared_memory", "status", get(f"/v2/{kind}sharedmemory/status"), _array),
            Case(
                f"{kind}_shared_memory",
                "a region without a name of memory",
                post(f"/v2/{kind}sharedmemory/region/no_such_region/register"),
                refused,
            ),
            Case(
                f"{kind}_shared_memory",
                "an inference in an unknown region",
                lambda s: _changed(
                    s,
                    data=None,
                    parameters={
                        "shared_memory_region": "no_such_region",
                        "shared_memory_byte_size": 1,
                    },
                ),
                refused,
            ),
        )
    ),
    Case("compression", "of a request", _packed, inferred),
    Case("compression", "of an answer", _packed_answer, _came_packed),
    Case("generate", "an answer", _generate("generate"), holds(model_name=str)),
    Case("generate", "a stream of events", _generate("generate_stream"), _events),
)
