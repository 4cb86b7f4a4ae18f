"""HTTP requests of the suite, each on its own connection, and shell commands that repeat them."""

from __future__ import annotations

import base64
import http.client
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triton_replay.addresses import Address
from triton_replay.wire.answers import Tensor, read_answers
from triton_replay.wire.bodies import (
    JSON_LENGTH,
    Headers,
    NotUnderstood,
    header,
    inflate,
    tensor_body,
)


@dataclass(frozen=True)
class HttpRequest:
    """An HTTP request."""

    method: str
    target: str
    body: bytes = b""
    headers: Headers = ()

    def command(self, server: Address) -> str:
        """Return a shell command that sends the request."""
        words = ["curl", "-i", "-X", self.method]
        for name, value in self.headers:
            words += ["-H", f"{name}: {value}"]
        url = f"http://{server}{self.target}"
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
    """An HTTP response. Without one the status is 0, and `body` has the reason."""

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


def send(server: Address, request: HttpRequest, timeout: float) -> Reply:
    """Send a request and return the response, or a Reply with status 0.

    Args:
        server: Address of the server.
        request: The request.
        timeout: Seconds for each operation of the socket.
    """
    connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout)
    try:
        body = request.body if request.body or request.method == "POST" else None
        connection.request(request.method, request.target, body, dict(request.headers))
        response = connection.getresponse()
        return Reply(response.status, tuple(response.getheaders()), response.read())
    except (OSError, http.client.HTTPException) as error:
        return Reply(0, (), f"{type(error).__name__}: {error}".encode())
    finally:
        connection.close()


def tensor_request(
    target: str, document: dict[str, Any], binary: Sequence[bytes], headers: Headers = ()
) -> HttpRequest:
    """Return a request of the binary tensor data extension."""
    length, body = tensor_body(document, binary)
    return HttpRequest("POST", target, body, (*length, *headers))
