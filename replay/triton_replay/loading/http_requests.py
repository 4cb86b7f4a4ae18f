"""Inferences over HTTP as bytes, made before the load begins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from triton_replay.addresses import Address
from triton_replay.loading.model import Model
from triton_replay.loading.questions import InSequence
from triton_replay.loading.tensors import Region, RequestData
from triton_replay.protocol.answers import tensor_of_wire
from triton_replay.protocol.http_bodies import Headers


class HttpRequests:
    """Makes requests to one model.

    binary_inputs, binary_outputs: whether tensors travel in bytes, behind the JSON.
    """

    def __init__(
        self,
        server: Address,
        model: Model,
        headers: Headers,
        parameters: Mapping[str, Any],
        outputs: Mapping[str, Region],
        *,
        binary_inputs: bool,
        binary_outputs: bool,
    ) -> None:
        lines = [f"POST {model.path}/infer HTTP/1.1", f"Host: {server}"]
        lines += [f"{name}: {value}" for name, value in headers]
        self._head = "\r\n".join([*lines, ""]).encode("latin-1")
        self._parameters = dict(parameters)
        self._outputs = [_output(one.name, outputs, binary_outputs) for one in model.outputs]
        self._binary_inputs = binary_inputs

    def whole(self, data: RequestData) -> bytes:
        """A request that belongs to no sequence."""
        text, tail = self._body(data)
        more = {"parameters": self._parameters} if self._parameters else {}
        return self._message(_joined(json.dumps(more), text), tail)

    def in_sequence(self, data: RequestData) -> InSequence:
        """Makes this request for sequences."""
        text, tail = self._body(data)

        def made(sequence: int, start: bool, end: bool) -> bytes:
            of_sequence = {
                "sequence_id": sequence,
                "sequence_start": start,
                "sequence_end": end,
            }
            more = {"parameters": {**self._parameters, **of_sequence}}
            return self._message(_joined(json.dumps(more), text), tail)

        return made

    def _body(self, data: RequestData) -> tuple[str, bytes]:
        described, tail = [], []
        for one in data.tensors:
            entry: dict[str, Any] = {
                "name": one.name,
                "datatype": one.datatype,
                "shape": list(one.shape),
            }
            if one.region is not None:
                entry["parameters"] = _region(one.region)
            elif self._binary_inputs:
                entry["parameters"] = {"binary_data_size": len(one.data)}
                tail.append(one.data)
            else:
                entry["data"] = _values(one.name, one.datatype, one.shape, one.data)
            described.append(entry)
        document = {"inputs": described, "outputs": self._outputs}
        return json.dumps(document, separators=(",", ":")), b"".join(tail)

    def _message(self, text: bytes, tail: bytes) -> bytes:
        lengths = b"Content-Length: %d\r\n" % (len(text) + len(tail))
        if self._binary_inputs:
            lengths += b"Inference-Header-Content-Length: %d\r\n" % len(text)
        return b"".join((self._head, lengths, b"\r\n", text, tail))


def message(
    method: str, target: str, server: Address, headers: Headers, body: bytes = b""
) -> bytes:
    """A request that is no inference."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {server}"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _joined(first: str, second: str) -> bytes:
    """Two JSON objects as one."""
    return (second if first == "{}" else f"{first[:-1]},{second[1:]}").encode()


def _output(name: str, regions: Mapping[str, Region], binary: bool) -> dict[str, Any]:
    if name in regions:
        return {"name": name, "parameters": _region(regions[name])}
    return {"name": name, "parameters": {"binary_data": binary}}


def _region(region: Region) -> dict[str, Any]:
    return {
        "shared_memory_region": region.name,
        "shared_memory_byte_size": region.size,
    }


def _values(name: str, datatype: str, shape: Sequence[int], data: bytes) -> list[Any]:
    values = tensor_of_wire(name, datatype, tuple(shape), memoryview(data)).values.ravel()
    if datatype == "BYTES":
        return [value.decode() for value in values]
    return list(values.tolist())
