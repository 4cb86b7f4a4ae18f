"""What a case is, and the checks that cases share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_replay.conformance.http import Ask, Reply
from triton_replay.conformance.subject import Subject
from triton_replay.wire.bodies import NotUnderstood


class Fails(Exception):
    """What must hold does not; the text says what was found."""


@dataclass(frozen=True)
class Case:
    """One thing that must hold of a server.

    extension: as servers announce it in their metadata, or a chapter of the protocol itself.
    ask: makes the request; raises NotApplicable. check: raises Fails or NotUnderstood.
    """

    extension: str
    name: str
    ask: Callable[[Subject], Ask]
    check: Callable[[Subject, Reply], None]


def get(target: str) -> Callable[[Subject], Ask]:
    """A question; `{model}` stands for the path of the model."""
    return lambda subject: Ask("GET", target.format(model=subject.path))


def post(target: str, body: bytes = b"{}") -> Callable[[Subject], Ask]:
    """A request with a body; `{model}` stands for the path of the model."""
    return lambda subject: Ask("POST", target.format(model=subject.path), body)


def good(_: Subject, reply: Reply) -> None:
    """Status 200."""
    if reply.status != 200:
        raise Fails(f"found {reply.told()}, expected 200")


def refused(subject: Subject, reply: Reply) -> None:
    """A status of an error, and JSON with `error`, as the protocol has it for what it refuses."""
    refused_somehow(subject, reply)
    document = reply.document()
    if not isinstance(document, dict) or not isinstance(document.get("error"), str):
        raise Fails(f'found {reply.told()}, expected {{"error": TEXT}}')


def refused_somehow(_: Subject, reply: Reply) -> None:
    """A status of an error; Triton itself answers 400, 404, 500 and 503."""
    if not 400 <= reply.status < 600:
        raise Fails(f"found {reply.told()}, expected a status of 400 to 599")


def holds(**kinds: type) -> Callable[[Subject, Reply], None]:
    """Status 200 and an object with these fields of these types."""

    def check(subject: Subject, reply: Reply) -> None:
        document = object_of(subject, reply)
        for name, kind in kinds.items():
            if not isinstance(document.get(name), kind):
                raise Fails(f"{name} is {document.get(name)!r}, expected {kind.__name__}")

    return check


def object_of(subject: Subject, reply: Reply) -> dict[str, Any]:
    """The JSON object of a good answer. Raises Fails."""
    good(subject, reply)
    document = reply.document()
    if not isinstance(document, dict):
        raise Fails(f"found {reply.told()}, expected a JSON object")
    return document


def inferred(subject: Subject, reply: Reply) -> None:
    """Status 200, and the outputs of the metadata with their types and as many values as shaped."""
    good(subject, reply)
    outputs = reply.outputs()
    for name, datatype in subject.outputs.items():
        if name not in outputs:
            raise Fails(f"output {name!r} is missing")
        if outputs[name].datatype != datatype:
            found = outputs[name].datatype
            raise Fails(f"output {name!r} is {found}, the metadata say {datatype}")


def same_as_json(subject: Subject, reply: Reply) -> None:
    """The outputs of an inference, near those of the same one in JSON."""
    inferred(subject, reply)
    plain = subject.send(subject.infer())
    good(subject, plain)
    expected, outputs = plain.outputs(), reply.outputs()
    for name in subject.outputs:
        one, other = outputs[name], expected[name]
        if one.shape != other.shape:
            raise Fails(f"output {name!r} has shape {one.shape}, in JSON {other.shape}")
        exact = one.datatype == "BYTES"
        if not (
            np.array_equal(one.values, other.values)
            if exact
            else np.allclose(one.values, other.values, 1e-4, 1e-5, equal_nan=True)
        ):
            raise Fails(f"output {name!r} has other values than in JSON")


def tell(error: Exception) -> str:
    """Why a case fails."""
    return str(error) if isinstance(error, Fails | NotUnderstood) else repr(error)
