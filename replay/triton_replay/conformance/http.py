"""Requests over HTTP, one connection each, and commands that repeat them."""

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
class Ask:
    """A request."""

    method: str
    target: str
    body: bytes = b""
    headers: Headers = ()

    def command(self, server: Address) -> str:
        """A line for a shell that sends it again."""
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
    """What came; status 0 if nothing did, with the reason as `body`."""

    status: int
    headers: Headers
    body: bytes

    def document(self) -> Any:  # noqa: ANN401  of JSON
        """The JSON of the body. Raises NotUnderstood."""
        try:
            return json.loads(bytes(inflate(self.headers, self.body)))
        except (ValueError, RecursionError) as error:
            raise NotUnderstood(f"the body is no JSON: {error}") from error

    def outputs(self) -> dict[str, Tensor]:
        """The tensors of an inference. Raises NotUnderstood."""
        answers = read_answers(self.headers, self.body)
        if len(answers) != 1:
            raise NotUnderstood(f"{len(answers)} answers, expected one")
        return dict(answers[0].tensors)

    def told(self) -> str:
        """The status and the beginning of the body, for people."""
        length = header(self.headers, JSON_LENGTH)
        text = self.body[: int(length) if length.isdigit() else None].decode(errors="replace")
        return f"{self.status or 'no answer'}: {' '.join(text.split())[:160]}"


def send(server: Address, ask: Ask, timeout: float) -> Reply:
    """Send a request and wait for the whole answer, at most `timeout` seconds for each part."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout)
    try:
        body = ask.body if ask.body or ask.method == "POST" else None
        connection.request(ask.method, ask.target, body, dict(ask.headers))
        response = connection.getresponse()
        return Reply(response.status, tuple(response.getheaders()), response.read())
    except (OSError, http.client.HTTPException) as error:
        return Reply(0, (), f"{type(error).__name__}: {error}".encode())
    finally:
        connection.close()


def tensor_ask(
    target: str, document: dict[str, Any], binary: Sequence[bytes], headers: Headers = ()
) -> Ask:
    """A request of the binary tensor data extension: JSON, and after it the bytes."""
    length, body = tensor_body(document, binary)
    return Ask("POST", target, body, (*length, *headers))
