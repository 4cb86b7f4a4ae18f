"""Redaction of headers and tensors before they are written to a capture.

A redacted tensor keeps its shape and datatype, so that the request can be replayed: numbers become
0, strings become "x" repeated to the same length. A body whose tensors cannot be identified is not
written at all.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from triton_replay.capture.records import Response, StreamMessage, Traffic
from triton_replay.recording.grpc_redaction import redact_call
from triton_replay.wire.bodies import (
    Body,
    Headers,
    NotUnderstood,
    header,
    inflate,
    read_body,
)

ALWAYS: Final = ("authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key")
"""Headers that are always redacted."""
REDACTED: Final = "redacted"


@dataclass(frozen=True)
class Redaction:
    """The names of redacted headers, in lower case, and of redacted tensors."""

    headers: Collection[str] = ALWAYS
    tensors: Collection[str] = ()

    def apply(self, message: Traffic) -> Traffic:
        """Return the redacted record."""
        if isinstance(message, StreamMessage):
            return self._apply_to_call(message)
        if any(name.lower() in self.headers for name, _ in message.headers):
            message = replace(message, headers=self._redact_headers(message.headers))
        if header(message.headers, "content-type").startswith("application/grpc"):
            return self._apply_to_call(message)
        if not self.tensors or not message.body:
            return message
        try:
            changed = self._redact_body(message.headers, message.body)
        except NotUnderstood:
            # The body might contain a named tensor.
            return replace(message, body=b"", redacted=True)
        if changed is None:
            return message
        body, json_length = changed
        if isinstance(message, Response):
            message = replace(message, parts=())  # positions in the old body
        headers = tuple(_of_new_body(message.headers, len(body), json_length))
        return replace(message, headers=headers, body=body, body_size=len(body), redacted=True)

    def _apply_to_call(self, message: Traffic) -> Traffic:
        if not self.tensors or not message.body:
            return message
        try:
            body = redact_call(message, self.tensors, _blank_bytes)
        except NotUnderstood:
            return replace(message, body=b"", redacted=True)
        if body is None:
            return message
        return replace(message, body=body, body_size=len(body), redacted=True)

    def _redact_headers(self, headers: Headers) -> Headers:
        return tuple(
            (name, REDACTED if name.lower() in self.headers else value) for name, value in headers
        )

    def _redact_body(self, headers: Headers, body: Body) -> tuple[bytes, str] | None:
        """Return a redacted body and the length of its JSON, or None if nothing is redacted."""
        if header(headers, "content-type").startswith("text/event-stream"):
            events = self._redact_events(bytes(inflate(headers, body)))
            return None if events is None else (events, "")
        found = read_body(headers, body)
        changed = self._redact_fields(found.document)
        pieces: list[bytes | memoryview] = []
        for tensor, data in found.tensors():
            named = str(tensor.get("name")) in self.tensors
            changed = changed or named
            if named and "data" in tensor:
                tensor["data"] = _blank(tensor["data"])
            if data is not None:
                pieces.append(_blank_bytes(str(tensor.get("datatype")), data) if named else data)
        if sum(map(len, pieces)) != len(found.binary):
            raise NotUnderstood("bytes after the last tensor")
        if not changed:
            return None
        text = json.dumps(found.document).encode()
        return b"".join([text, *pieces]), str(len(text))

    def _redact_events(self, body: bytes) -> bytes | None:
        """Redact server-sent events of generate_stream; return None if nothing is redacted."""
        lines = body.split(b"\n")
        changed = False
        for index, line in enumerate(lines):
            if not line.startswith(b"data:"):
                continue
            found = read_body((), line[len(b"data:") :])
            if self._redact_fields(found.document):
                lines[index] = b"data: " + json.dumps(found.document).encode()
                changed = True
        return b"\n".join(lines) if changed else None

    def _redact_fields(self, document: dict[str, Any]) -> bool:
        """Redact the fields of a generate request or response, which are its tensors."""
        named = [name for name in document if name in self.tensors]
        for name in named:
            document[name] = _blank(document[name])
        return bool(named)


def _of_new_body(headers: Headers, size: int, json_length: str) -> Iterable[tuple[str, str]]:
    for name, value in headers:
        match name.lower():
            case "content-length":
                yield name, str(size)
            case "inference-header-content-length":
                yield name, json_length
            case "content-encoding":
                pass
            case _:
                yield name, value


def _blank(data: object) -> object:
    if isinstance(data, list):
        return [_blank(entry) for entry in data]
    if isinstance(data, dict):
        return {key: _blank(entry) for key, entry in data.items()}
    if isinstance(data, str):
        return "x" * len(data)
    return type(data)(0) if isinstance(data, bool | int | float) else data


def _blank_bytes(datatype: str, data: memoryview) -> bytes:
    """Return zeros; BYTES keep the lengths of their elements."""
    if datatype != "BYTES":
        return bytes(len(data))
    blanked = bytearray(b"x" * len(data))
    offset = 0
    while offset < len(data):
        prefix = bytes(data[offset : offset + 4])
        blanked[offset : offset + 4] = prefix
        offset += 4 + int.from_bytes(prefix, "little")
    if offset != len(data):
        raise NotUnderstood("lengths of BYTES do not add up")
    return bytes(blanked)
