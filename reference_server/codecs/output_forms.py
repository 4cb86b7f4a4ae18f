"""Outputs in the form that a client wants, whatever the wire: as classes, or in shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from reference_server.codecs.classification import classify
from reference_server.codecs.infer_options import OutputForm, ResponseForm
from reference_server.core.errors import internal
from reference_server.core.metadata import Signature
from reference_server.core.ports import OutputBuffer
from reference_server.core.response import InferResponse
from reference_server.core.tensor import Tensor

Labels: TypeAlias = Mapping[str, tuple[str, ...]]


def formed(
    response: InferResponse, form: ResponseForm, signature: Signature, labels: Labels
) -> Iterator[tuple[Tensor, OutputForm]]:
    """The outputs, of those that are wanted as classes the classes, each with its form.

    Raises ServerError if an output has no such form.
    """
    for tensor in response.outputs:
        own = form.of(tensor.name)
        if own.classes:
            known = labels.get(tensor.name, ())
            tensor = classify(tensor, own.classes, known, batches=signature.batches)
        yield tensor, own


def write(tensor: Tensor, buffer: OutputBuffer) -> None:
    """Put the bytes of `tensor` into shared memory. Raises ServerError if they do not fit."""
    raw = tensor.raw()
    if len(raw) > buffer.byte_size:
        raise internal(
            f"shared memory size specified with the request for output '{tensor.name}' "
            f"({buffer.byte_size} bytes) should be at least {len(raw)} bytes to hold the results"
        )
    buffer.write(raw)
