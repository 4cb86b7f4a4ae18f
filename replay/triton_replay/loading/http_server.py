"""HTTP requests of a load: inferences prepared as bytes, and queries to the server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from triton_replay.addresses import Address
from triton_replay.loading.loop import Loop
from triton_replay.loading.queries import InSequence, Query, Requests
from triton_replay.loading.tensors import Model, Region, RequestData, model_path
from triton_replay.wire.answers import tensor_of_wire
from triton_replay.wire.bodies import JSON_LENGTH, Headers, content_type, head_lines
from triton_replay.wire.http_connection import HttpConnection
from triton_replay.wire.sockets import Connection, resolve


@dataclass(eq=False)
class HttpServer:
    """A server that a load uses over HTTP. Implements `queries.Server`.

    Args:
        address: Host and port.
        headers: Headers of every request.
        binary_inputs: Whether inputs are sent as binary data, otherwise as JSON.
        binary_outputs: Whether outputs are requested as binary data, otherwise as JSON.
        option: The option that named the address, for error texts.

    Raises:
        ServerUnreachable: No server listens at the address.
    """

    address: Address
    headers: Headers
    _: KW_ONLY
    binary_inputs: bool = True
    binary_outputs: bool = True
    option: str = "-u"

    def __post_init__(self) -> None:
        self._resolved = resolve(self.address, self.option)

    def connect(self, loop: Loop) -> Connection:
        return HttpConnection(self._resolved, loop.poll, loop.by_number)

    def requests(
        self, model: Model, parameters: Mapping[str, Any], outputs: Mapping[str, Region]
    ) -> Requests:
        return HttpRequests(
            self.address,
            model,
            self.headers,
            parameters,
            outputs,
            binary_inputs=self.binary_inputs,
            binary_outputs=self.binary_outputs,
        )

    def metadata(self, loop: Loop, model: str, version: str) -> Query:
        return self._get(loop, model_path(model, version))

    def config(self, loop: Loop, model: str, version: str) -> Query:
        return self._get(loop, f"{model_path(model, version)}/config")

    def statistics(self, loop: Loop, model: str, version: str) -> Query:
        return self._get(loop, f"{model_path(model, version)}/stats")

    def register(self, loop: Loop, region: str, size: int) -> Query:
        body = json.dumps({"key": f"/{region}", "offset": 0, "byte_size": size}).encode()
        return self._post(loop, f"/v2/systemsharedmemory/region/{region}/register", body)

    def unregister(self, loop: Loop, region: str) -> Query:
        return self._post(loop, f"/v2/systemsharedmemory/region/{region}/unregister", b"{}")

    def text(self, loop: Loop, target: str) -> Query:
        """Return the query that reads the text of any page."""
        request = message("GET", target, self.address, self.headers)
        return Query(self.connect(loop), request, bytes.decode)

    def _get(self, loop: Loop, target: str) -> Query:
        request = message("GET", target, self.address, self.headers)
        return Query(self.connect(loop), request, _object)

    def _post(self, loop: Loop, target: str, body: bytes) -> Query:
        request = message("POST", target, self.address, self.headers, body)
        return Query(self.connect(loop), request, lambda _: None)


class HttpRequests:
    """Creates inference requests for one model. Implements `queries.Requests`.

    Args:
        server: Host and port, for the header Host.
        model: The model.
        headers: Headers of every request.
        parameters: Parameters of every request.
        outputs: Shared memory regions of outputs.
        binary_inputs: Whether inputs are sent as binary data, otherwise as JSON.
        binary_outputs: Whether outputs are requested as binary data, otherwise as JSON.
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
        kind = content_type((*headers, (JSON_LENGTH, "1")) if binary_inputs else headers)
        lines = head_lines("POST", f"{model.path}/infer", server, (*headers, *kind))
        self._head = "\r\n".join([*lines, ""]).encode("latin-1")
        self._parameters = dict(parameters)
        self._outputs = [_output(one.name, outputs, binary_outputs) for one in model.outputs]
        self._binary_inputs = binary_inputs

    def whole(self, data: RequestData) -> bytes:
        text, tail = self._body(data)
        more = {"parameters": self._parameters} if self._parameters else {}
        return self._message(_merge_objects(json.dumps(more), text), tail)

    def in_sequence(self, data: RequestData) -> InSequence:
        text, tail = self._body(data)

        def create(sequence: int, start: bool, end: bool) -> bytes:
            of_sequence = {
                "sequence_id": sequence,
                "sequence_start": start,
                "sequence_end": end,
            }
            more = {"parameters": {**self._parameters, **of_sequence}}
            return self._message(_merge_objects(json.dumps(more), text), tail)

        return create

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
    """Return an HTTP request with these headers and a Content-Length."""
    kind = content_type(headers) if body else ()
    lines = head_lines(method, target, server, (*headers, *kind))
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _object(body: bytes) -> dict[str, Any]:
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError(f"found {body[:80]!r}, expected a JSON object")
    return found


def _merge_objects(first: str, second: str) -> bytes:
    """Merge two serialized JSON objects; the second must not be empty."""
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
