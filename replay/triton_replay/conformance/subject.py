"""The server under test, its HTTP requests, the model of the inferences, and generated inputs."""

from __future__ import annotations

import base64
import http.client
import json
import shlex
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from triton_replay.addresses import Address, look_for_server
from triton_replay.errors import ReplayError, ServerUnreachable
from triton_replay.wire.answers import DTYPES, Tensor, read_answers
from triton_replay.wire.bodies import (
    JSON_LENGTH,
    Headers,
    NotUnderstood,
    content_type,
    header,
    inflate,
    tensor_body,
)

_BF16_ONE: Final = b"\x80\x3f"
_WORD: Final = "a"
NOT_IN_JSON: Final = frozenset(("FP16", "BF16"))
"""Datatypes that are sent as binary data only."""


class NotApplicable(Exception):
    """A case does not apply to this server or model; the text says why."""


@dataclass(frozen=True)
class Input:
    """An input whose elements are 1 or "a", in the smallest shape that the metadata allow."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def described(self) -> dict[str, Any]:
        """Return the JSON of the input without values."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    def with_data(self) -> dict[str, Any]:
        """Return the JSON of the input. Raise NotApplicable for datatypes without JSON values."""
        if self.datatype in NOT_IN_JSON:
            raise NotApplicable(f"the model has a {self.datatype} input, which JSON cannot carry")
        return self.described() | {"data": [self.value()] * self.count}

    def value(self) -> Any:  # noqa: ANN401  of JSON
        """Return the JSON value of each element."""
        if self.datatype == "BYTES":
            return _WORD
        return True if self.datatype == "BOOL" else 1.0 if "FP" in self.datatype else 1

    def raw(self) -> bytes:
        """Return the binary data."""
        if self.datatype == "BYTES":
            return (len(_WORD).to_bytes(4, "little") + _WORD.encode()) * self.count
        if self.datatype == "BF16":
            return _BF16_ONE * self.count
        return np.ones(self.shape, DTYPES[self.datatype]).tobytes()


@dataclass(frozen=True)
class Subject:
    """A server and one of its models.

    Args:
        server: Address for HTTP.
        grpc: Address for gRPC, or None.
        timeout: Time limit of a request, in seconds.
        extensions: Extensions that the server announces.
        model: Name of the model.
        inputs: Generated inputs.
        outputs: Datatypes by output name.
        version: A version of the model, or "" if the metadata have none.
        tls: Context of TLS for HTTP, or None.
        grpc_tls: Context of TLS for gRPC, or None.
    """

    server: Address
    grpc: Address | None
    timeout: float
    extensions: frozenset[str]
    model: str
    inputs: tuple[Input, ...]
    outputs: Mapping[str, str]
    version: str
    tls: ssl.SSLContext | None = None
    grpc_tls: ssl.SSLContext | None = None

    @property
    def scheme(self) -> str:
        """Scheme of URLs."""
        return "https" if self.tls else "http"

    @property
    def path(self) -> str:
        """URL path of the model."""
        return f"/v2/models/{self.model}"

    def send(self, request: HttpRequest) -> Reply:
        """Send a request. Raise ServerUnreachable if no server listens any more."""
        reply = send(self.server, request, self.timeout, self.tls)
        if not reply.status:
            look_for_server(self.server, "--server")
        return reply

    @cached_property
    def infers(self) -> bool:
        """True if the server accepts a valid inference, in binary if JSON cannot carry an input.

        If it does not, a refused inference proves nothing.
        """
        try:
            request = self.infer()
        except NotApplicable:
            request = self.binary()
        return self.send(request).status == 200

    def document(self, **more: object) -> dict[str, Any]:
        """Return the JSON of an inference request, with `more` as further top-level fields.

        Raises:
            NotApplicable: An input has a datatype without JSON values.
        """
        return {"inputs": [one.with_data() for one in self.inputs], **more}

    def infer(self, **more: object) -> HttpRequest:
        """Return an inference request with the JSON of `document`. Raise NotApplicable."""
        return HttpRequest("POST", f"{self.path}/infer", json.dumps(self.document(**more)).encode())

    def binary(self, **more: object) -> HttpRequest:
        """Return an inference request with binary inputs, with `more` as top-level fields."""
        parts = [one.raw() for one in self.inputs]
        inputs = [
            one.described() | {"parameters": {"binary_data_size": len(part)}}
            for one, part in zip(self.inputs, parts, strict=True)
        ]
        length, body = tensor_body({"inputs": inputs, **more}, parts)
        return HttpRequest("POST", f"{self.path}/infer", body, length)


def inspect_server(
    server: Address,
    grpc: Address | None,
    model: str,
    timeout: float,
    tls: ssl.SSLContext | None = None,
    grpc_tls: ssl.SSLContext | None = None,
) -> Subject:
    """Read the metadata of a server and a model.

    Args:
        server: Address for HTTP.
        grpc: Address for gRPC, or None.
        model: Name of the model; "" for the first ready model of the index.
        timeout: Time limit of a request, in seconds.
        tls: Context of TLS for HTTP, or None.
        grpc_tls: Context of TLS for gRPC, or None.

    Raises:
        ServerUnreachable: The server does not respond.
        ReplayError: There is no ready model, or its metadata are invalid.
    """
    found = send(server, HttpRequest("GET", "/v2"), timeout, tls)
    if not found.status:
        raise ServerUnreachable(f"--server {server}: {found.body.decode(errors='replace')}")
    extensions = _object(found).get("extensions")
    name = model or _first_ready(server, timeout, tls)
    reply = send(server, HttpRequest("GET", f"/v2/models/{name}"), timeout, tls)
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
            tls,
            grpc_tls,
        )
    except (KeyError, TypeError, ValueError) as error:
        text = f"metadata of model {name!r}: expected inputs and outputs, found {reply.summary()}"
        raise ReplayError(text) from error


def _first_ready(server: Address, timeout: float, tls: ssl.SSLContext | None) -> str:
    reply = send(server, HttpRequest("POST", "/v2/repository/index", b"{}"), timeout, tls)
    try:
        models = reply.document()
        ready = [str(one["name"]) for one in models if one.get("state") == "READY"]
    except (NotUnderstood, KeyError, TypeError, AttributeError):
        ready = []
    if not ready:
        text = f"{server}: the index has no ready model. Name one with --model"
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
    if datatype not in DTYPES and datatype not in ("BYTES", "BF16"):
        raise ValueError(datatype)
    shape = tuple(max(int(dim), 1) for dim in metadata["shape"])
    return Input(str(metadata["name"]), datatype, shape)


# -- HTTP requests, each on its own connection, and shell commands that repeat them


@dataclass(frozen=True)
class HttpRequest:
    """An HTTP request."""

    method: str
    target: str
    body: bytes = b""
    headers: Headers = ()

    @property
    def all_headers(self) -> Headers:
        """The headers, with a Content-Type if there is a body."""
        return (*content_type(self.headers), *self.headers) if self.body else self.headers

    def command(self, server: Address, scheme: str = "http") -> str:
        """Return a shell command that sends the request."""
        words = ["curl", "-i", "-X", self.method]
        for name, value in self.all_headers:
            words += ["-H", f"{name}: {value}"]
        url = f"{scheme}://{server}{self.target}"
        if not self.body:
            return shlex.join([*words, url])
        try:
            text = self.body.decode()
        except UnicodeDecodeError:
            text = "\0"
        if text.isprintable():
            return shlex.join([*words, "--data-raw", text, url])
        sent = shlex.join([*words, "--data-binary", "@-", url])
        return f"echo {base64.b64encode(self.body).decode()} | base64 -d | {sent}"


@dataclass(frozen=True)
class Reply:
    """An HTTP response. If there was no response, the status is 0, and `body` has the reason."""

    status: int
    headers: Headers
    body: bytes

    def document(self) -> Any:  # noqa: ANN401  of JSON
        """Parse the body as JSON. Raise NotUnderstood if it is invalid."""
        try:
            return json.loads(bytes(inflate(self.headers, self.body)))
        except (ValueError, RecursionError) as error:
            raise NotUnderstood(f"the body is not JSON: {error}") from error

    def outputs(self) -> dict[str, Tensor]:
        """Parse the body as one inference response. Raise NotUnderstood if it is invalid."""
        answers = read_answers(self.headers, self.body)
        if len(answers) != 1:
            raise NotUnderstood(f"found {len(answers)} responses, expected one")
        return dict(answers[0].tensors)

    def summary(self) -> str:
        """Return the status and the start of the body, for reports."""
        length = header(self.headers, JSON_LENGTH)
        text = self.body[: int(length) if length.isdigit() else None].decode(errors="replace")
        return f"{self.status or 'no response'}: {' '.join(text.split())[:160]}"


def send(
    server: Address, request: HttpRequest, timeout: float, tls: ssl.SSLContext | None = None
) -> Reply:
    """Send a request and return the response, or a Reply with status 0 if none arrives.

    Args:
        server: Address of the server.
        request: The request.
        timeout: Seconds for each operation of the socket.
        tls: Context of TLS, or None.
    """
    connection = (
        http.client.HTTPSConnection(*server, timeout=timeout, context=tls)
        if tls
        else http.client.HTTPConnection(*server, timeout=timeout)
    )
    try:
        body = request.body if request.body or request.method == "POST" else None
        connection.request(request.method, request.target, body, dict(request.all_headers))
        response = connection.getresponse()
        return Reply(response.status, tuple(response.getheaders()), response.read())
    except (OSError, http.client.HTTPException) as error:
        return Reply(0, (), f"{type(error).__name__}: {error}".encode())
    finally:
        connection.close()
