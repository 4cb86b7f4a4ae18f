"""The server under test and the model that it is asked to execute, with inputs made up for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from triton_replay.addresses import Address, look_for_server
from triton_replay.conformance.http import Ask, Reply, send
from triton_replay.errors import ReplayError, ServerUnreachable
from triton_replay.wire.bodies import NotUnderstood

_NUMBERS: Final[Mapping[str, str]] = {
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    "BOOL": "?",
}
_BF16_ONE: Final = b"\x80\x3f"
_WORD: Final = "a"
NOT_IN_JSON: Final = frozenset(("FP16", "BF16"))
"""Types whose values travel as bytes only."""


class NotApplicable(Exception):
    """A case that cannot be tried here; the text says why."""


@dataclass(frozen=True)
class Input:
    """An input: ones, or the text "a", in the smallest shape that the metadata allow."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def described(self) -> dict[str, Any]:
        """Its JSON, without values."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    def with_data(self) -> dict[str, Any]:
        """Its JSON. Raises NotApplicable for types that JSON has no values of."""
        if self.datatype in NOT_IN_JSON:
            raise NotApplicable(f"the model takes {self.datatype}, which has no values in JSON")
        return self.described() | {"data": [self.value()] * self.count}

    def value(self) -> Any:  # noqa: ANN401  of JSON
        """Of each element, in JSON."""
        if self.datatype == "BYTES":
            return _WORD
        return True if self.datatype == "BOOL" else 1.0 if "FP" in self.datatype else 1

    def raw(self) -> bytes:
        """Its bytes, as the binary extension and gRPC have them."""
        if self.datatype == "BYTES":
            return (len(_WORD).to_bytes(4, "little") + _WORD.encode()) * self.count
        if self.datatype == "BF16":
            return _BF16_ONE * self.count
        return np.ones(self.shape, _NUMBERS[self.datatype]).tobytes()


@dataclass(frozen=True)
class Subject:
    """A server and a model that it serves.

    grpc: None where gRPC is not tried. timeout: seconds. outputs: name to datatype. version: one
    that the model's metadata name, or empty.
    """

    server: Address
    grpc: Address | None
    timeout: float
    extensions: frozenset[str]
    model: str
    inputs: tuple[Input, ...]
    outputs: Mapping[str, str]
    version: str

    @property
    def path(self) -> str:
        """Of the model."""
        return f"/v2/models/{self.model}"

    def send(self, ask: Ask) -> Reply:
        """Send a request and wait for its answer. Raises ServerUnreachable if it is gone."""
        reply = send(self.server, ask, self.timeout)
        if not reply.status:
            look_for_server(self.server, "--server")
        return reply

    def document(self, **more: object) -> dict[str, Any]:
        """The JSON of an inference. Raises NotApplicable."""
        return {"inputs": [one.with_data() for one in self.inputs], **more}

    def infer(self, **more: object) -> Ask:
        """An inference in JSON. Raises NotApplicable."""
        return Ask("POST", f"{self.path}/infer", json.dumps(self.document(**more)).encode())


def look_at(server: Address, grpc: Address | None, model: str, timeout: float) -> Subject:
    """Ask the server what it serves. Raises ServerUnreachable or ReplayError.

    model: empty for the first one of the index that is ready.
    """
    found = send(server, Ask("GET", "/v2"), timeout)
    if not found.status:
        raise ServerUnreachable(f"--server {server}: {found.body.decode(errors='replace')}")
    extensions = _object(found).get("extensions")
    name = model or _first_ready(server, timeout)
    reply = send(server, Ask("GET", f"/v2/models/{name}"), timeout)
    try:
        metadata = _object(reply)
        return Subject(
            server,
            grpc,
            timeout,
            frozenset(map(str, extensions)) if isinstance(extensions, list) else frozenset(),
            name,
            tuple(_input(one) for one in metadata["inputs"]),
            {str(one["name"]): str(one["datatype"]) for one in metadata["outputs"]},
            str((metadata.get("versions") or [""])[-1]),
        )
    except (KeyError, TypeError, ValueError) as error:
        text = f"the metadata of model {name!r} tell no inputs and outputs: {reply.told()}"
        raise ReplayError(text) from error


def _first_ready(server: Address, timeout: float) -> str:
    reply = send(server, Ask("POST", "/v2/repository/index", b"{}"), timeout)
    try:
        models = reply.document()
        ready = [str(one["name"]) for one in models if one.get("state") == "READY"]
    except (NotUnderstood, KeyError, TypeError, AttributeError):
        ready = []
    if not ready:
        text = f"the index of {server} has no model that is ready: name one by --model"
        raise ReplayError(text)
    return ready[0]


def _object(reply: Reply) -> dict[str, Any]:
    try:
        found = reply.document()
    except NotUnderstood:
        return {}
    return found if isinstance(found, dict) else {}


def _input(metadata: Mapping[str, Any]) -> Input:
    datatype = str(metadata["datatype"])
    if datatype not in _NUMBERS and datatype not in ("BYTES", "BF16"):
        raise ValueError(datatype)
    shape = tuple(max(int(dim), 1) for dim in metadata["shape"])
    return Input(str(metadata["name"]), datatype, shape)
