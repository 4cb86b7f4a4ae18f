"""A server of a load, asked over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from triton_replay.addresses import Address
from triton_replay.loading.http_connection import HttpConnection
from triton_replay.loading.http_requests import HttpRequests, message
from triton_replay.loading.loop import Loop
from triton_replay.loading.model import Model, model_path
from triton_replay.loading.questions import Question, Requests
from triton_replay.loading.slots import Connection
from triton_replay.loading.sockets import resolve
from triton_replay.loading.tensors import Region
from triton_replay.protocol.http_bodies import Headers


class HttpServer:
    """Raises ServerUnreachable if nobody listens at the address.

    option: which has the address.
    binary_inputs, binary_outputs: whether tensors travel in bytes, behind the JSON.
    """

    def __init__(
        self,
        address: Address,
        headers: Headers,
        *,
        binary_inputs: bool = True,
        binary_outputs: bool = True,
        option: str = "-u",
    ) -> None:
        self._address = address
        self._headers = headers
        self._binary_inputs = binary_inputs
        self._binary_outputs = binary_outputs
        self._resolved = resolve(address, option)

    def connect(self, loop: Loop) -> Connection:
        return HttpConnection(self._resolved, loop.poll, loop.by_number)

    def requests(
        self, model: Model, parameters: Mapping[str, Any], outputs: Mapping[str, Region]
    ) -> Requests:
        return HttpRequests(
            self._address,
            model,
            self._headers,
            parameters,
            outputs,
            binary_inputs=self._binary_inputs,
            binary_outputs=self._binary_outputs,
        )

    def metadata(self, loop: Loop, model: str, version: str) -> Question:
        return self._get(loop, model_path(model, version))

    def config(self, loop: Loop, model: str, version: str) -> Question:
        return self._get(loop, f"{model_path(model, version)}/config")

    def statistics(self, loop: Loop, model: str, version: str) -> Question:
        return self._get(loop, f"{model_path(model, version)}/stats")

    def register(self, loop: Loop, region: str, size: int) -> Question:
        body = json.dumps({"key": f"/{region}", "offset": 0, "byte_size": size}).encode()
        return self._post(loop, f"/v2/systemsharedmemory/region/{region}/register", body)

    def unregister(self, loop: Loop, region: str) -> Question:
        return self._post(loop, f"/v2/systemsharedmemory/region/{region}/unregister", b"{}")

    def text(self, loop: Loop, target: str) -> Question:
        """Any page, as text."""
        request = message("GET", target, self._address, self._headers)
        return Question(self.connect(loop), request, bytes.decode)

    def _get(self, loop: Loop, target: str) -> Question:
        request = message("GET", target, self._address, self._headers)
        return Question(self.connect(loop), request, _object)

    def _post(self, loop: Loop, target: str, body: bytes) -> Question:
        request = message("POST", target, self._address, self._headers, body)
        return Question(self.connect(loop), request, lambda _: None)


def _object(body: bytes) -> dict[str, Any]:
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, found {body[:80]!r}")
    return found
