"""HTTP cases of the suite, and checks that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_replay.conformance.subject import HttpRequest, NotApplicable, Reply, Subject
from triton_replay.wire.answers import Tensor
from triton_replay.wire.bodies import NotUnderstood


class Fails(Exception):
    """A check failed; the text describes the response."""


@dataclass(frozen=True)
class Case:
    """A request and a check of its response.

    Args:
        extension: Name of the extension in the server's metadata, or a chapter of the protocol.
        name: Name of the case.
        request: Creates the request. Raises NotApplicable.
        check: Checks the response. Raises Fails or NotUnderstood.
    """

    extension: str
    name: str
    request: Callable[[Subject], HttpRequest]
    check: Callable[[Subject, Reply], None]

    def prepare(self, subject: Subject) -> tuple[str, Callable[[], None]]:
        """Return a shell command that repeats the request, and a function that sends and checks it.

        Raises:
            NotApplicable: The case does not apply.
        """
        request = self.request(subject)
        command = request.command(subject.server, subject.scheme)
        return command, lambda: self.check(subject, subject.send(request))


def get(target: str) -> Callable[[Subject], HttpRequest]:
    """Create GET requests; `{model}` is replaced by the path of the model."""
    return lambda subject: HttpRequest("GET", target.format(model=subject.path))


def post(target: str, body: bytes = b"{}") -> Callable[[Subject], HttpRequest]:
    """Create POST requests; `{model}` is replaced by the path of the model."""
    return lambda subject: HttpRequest("POST", target.format(model=subject.path), body)


def good(_: Subject, reply: Reply) -> None:
    """Check for status 200."""
    if reply.status != 200:
        raise Fails(f"found {reply.summary()}, expected 200")


def refused(subject: Subject, reply: Reply) -> None:
    """Check for an error status and a JSON object with `error`."""
    refused_somehow(subject, reply)
    document = reply.document()
    if not isinstance(document, dict) or not isinstance(document.get("error"), str):
        raise Fails(f'found {reply.summary()}, expected {{"error": TEXT}}')


def refused_inference(subject: Subject, reply: Reply) -> None:
    """Check like `refused`. Raise NotApplicable if the server refuses a valid inference as well."""
    if not subject.infers:
        raise NotApplicable("the server also refuses a valid inference")
    refused(subject, reply)


def refused_somehow(_: Subject, reply: Reply) -> None:
    """Check for an error status. Triton itself uses 400, 404, 500 and 503."""
    if not 400 <= reply.status < 600:
        raise Fails(f"found {reply.summary()}, expected a status of 400 to 599")


def holds(**kinds: type) -> Callable[[Subject, Reply], None]:
    """Create checks for status 200 and a JSON object with fields of these types."""

    def check(subject: Subject, reply: Reply) -> None:
        document = object_of(subject, reply)
        for name, kind in kinds.items():
            if not isinstance(document.get(name), kind):
                raise Fails(f"{name}: found {document.get(name)!r}, expected {kind.__name__}")

    return check


def object_of(subject: Subject, reply: Reply) -> dict[str, Any]:
    """Return the JSON object of a response with status 200. Raise Fails otherwise."""
    good(subject, reply)
    document = reply.document()
    if not isinstance(document, dict):
        raise Fails(f"found {reply.summary()}, expected a JSON object")
    return document


def inferred(subject: Subject, reply: Reply) -> None:
    """Check for status 200 and for the outputs and datatypes of the metadata."""
    good(subject, reply)
    outputs = reply.outputs()
    for name, datatype in subject.outputs.items():
        if name not in outputs:
            raise Fails(f"output {name!r} is missing")
        if outputs[name].datatype != datatype:
            found = outputs[name].datatype
            raise Fails(f"output {name!r}: found {found}, expected {datatype} as in the metadata")


def same_as_json(subject: Subject, reply: Reply) -> None:
    """Check that the outputs equal those of the same inference in JSON, within a tolerance.

    Values that also differ between two inferences in JSON are not compared.
    """
    inferred(subject, reply)
    expected, outputs = _in_json(subject), reply.outputs()
    for name in subject.outputs:
        one, other = outputs[name], expected[name]
        if one.shape != other.shape:
            raise Fails(f"output {name!r}: found shape {one.shape}, expected {other.shape}")
        if not _are_close(one, other) and _are_close(other, _in_json(subject)[name]):
            raise Fails(f"output {name!r}: the values differ from those in JSON")


def _in_json(subject: Subject) -> Mapping[str, Tensor]:
    plain = subject.send(subject.infer())
    good(subject, plain)
    return plain.outputs()


def _are_close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.datatype == "BYTES":
        return np.array_equal(a.values, b.values)
    return np.allclose(a.values, b.values, 1e-4, 1e-5, equal_nan=True)


def describe(error: Exception) -> str:
    """Return the reason of a failure."""
    return str(error) if isinstance(error, Fails | NotUnderstood) else repr(error)
