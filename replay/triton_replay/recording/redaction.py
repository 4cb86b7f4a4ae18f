"""Redaction of credentials and tensors before they are written to a capture.

If the name of a header suggests a credential, its value is overwritten. If the name of a query
parameter does, the parameter is removed from the target.

A redacted tensor keeps its shape and datatype, so that the request can be replayed: numbers become
0, strings become "x" repeated to the same length. A body whose tensors cannot be identified is not
written at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote_plus

from triton_replay.capture.records import Request, Response, StreamMessage, Traffic
from triton_replay.wire.bodies import (
    MAX_UNPACKED,
    Body,
    Headers,
    NotUnderstood,
    header,
    inflate,
    read_body,
)
from triton_replay.wire.grpc_messages import (
    CONTENTS,
    framed,
    is_inference,
    messages,
    read_messages,
    read_requests,
)

SECRET_NAMES: Final = (
    *("auth", "cookie", "token", "key", "secret", "csrf", "xsrf", "passw", "passphrase", "pwd"),
    *("credential", "signature", "session", "jwt", "assertion", "client-cert"),
)
"""Headers and query parameters that contain one of these words in their names are redacted."""
_SECRET_NAME: Final = re.compile("|".join(SECRET_NAMES) + "|^sig$", re.IGNORECASE)
REDACTED: Final = "redacted"


@dataclass(frozen=True)
class Redaction:
    """Names of headers, query parameters and tensors to redact. Headers are in lower case.

    Args:
        headers: Further names of redacted headers and query parameters, besides SECRET_NAMES.
        tensors: Names of redacted tensors.
        kept: Names of headers and query parameters that hold no credential.
        max_unpacked: Largest decompressed size of a body in bytes. A larger body is not kept.
    """

    headers: Collection[str] = ()
    tensors: Collection[str] = ()
    kept: Collection[str] = ()
    max_unpacked: int = MAX_UNPACKED

    def apply(self, message: Traffic) -> Traffic:
        """Return the redacted record."""
        if isinstance(message, StreamMessage):
            return self._apply_to_call(message)
        if any(self._is_secret(name) for name, _ in message.headers):
            message = replace(message, headers=self._redact_headers(message.headers))
        if isinstance(message, Response):
            if any(self._is_secret(name) for name, _ in message.trailers):
                message = replace(message, trailers=self._redact_headers(message.trailers))
        elif "?" in message.target:
            message = replace(message, target=self._redact_target(message.target))
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
            body = _redact_call(message, self.tensors, self.max_unpacked)
        except NotUnderstood:
            return replace(message, body=b"", redacted=True)
        if body is None:
            return message
        return replace(message, body=body, body_size=len(body), redacted=True)

    def _redact_headers(self, headers: Headers) -> Headers:
        return tuple(
            (name, REDACTED if self._is_secret(name) else value) for name, value in headers
        )

    def _redact_target(self, target: str) -> str:
        path, _, query = target.partition("?")
        parameters = re.split("[&;]", query)
        kept = [
            parameter
            for parameter in parameters
            if not self._is_secret(unquote_plus(parameter.partition("=")[0]))
        ]
        if len(kept) == len(parameters):
            return target
        return f"{path}?{'&'.join(kept)}" if kept else path

    def _is_secret(self, name: str) -> bool:
        lower = name.lower()
        if lower in self.headers:
            return True
        return _SECRET_NAME.search(lower) is not None and lower not in self.kept

    def _redact_body(self, headers: Headers, body: Body) -> tuple[bytes, str] | None:
        """Return a redacted body and the length of its JSON, or None if nothing is redacted."""
        if header(headers, "content-type").startswith("text/event-stream"):
            events = self._redact_events(bytes(inflate(headers, body, self.max_unpacked)))
            return None if events is None else (events, "")
        found = read_body(headers, body, self.max_unpacked)
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


# -- tensors in gRPC messages

_CONTENTS: Final = frozenset(CONTENTS.values()) - {"bytes_contents"}


def _redact_call(message: Traffic, names: Collection[str], limit: int) -> bytes | None:
    """Redact the tensors in a gRPC body.

    Args:
        message: The record with the body.
        names: Names of the tensors.
        limit: Largest decompressed size of the body, in bytes.

    Returns:
        The new body, or None if it has none of the tensors.

    Raises:
        NotUnderstood: The body is not valid.
    """
    if isinstance(message, Request) and not is_inference(message.target):
        return None
    if isinstance(message, Request) or (isinstance(message, StreamMessage) and message.sent):
        found = read_requests(message.body, limit)
        changed = [_tensors(one.inputs, one.raw_input_contents, names) for one in found]
    else:
        if isinstance(message, StreamMessage):
            found = read_messages(messages.ModelStreamInferResponse, message.body, limit)
            answers = [one.infer_response for one in found]
        else:
            answers = found = read_messages(messages.ModelInferResponse, message.body, limit)
        changed = [_tensors(one.outputs, one.raw_output_contents, names) for one in answers]
    return framed(found) if any(changed) else None


def _tensors(
    tensors: Any,  # noqa: ANN401
    raw: Any,  # noqa: ANN401
    names: Collection[str],
) -> bool:
    """Redact the named tensors; return whether there are any."""
    # Each tensor that is not in shared memory has raw contents, in the order of the tensors.
    in_order = [one for one in tensors if "shared_memory_region" not in one.parameters]
    if raw and len(raw) != len(in_order):
        raise NotUnderstood(f"{len(raw)} raw contents of {len(in_order)} tensors")
    named = [one for one in tensors if one.name in names]
    for tensor in named:
        for key in _CONTENTS:
            values = getattr(tensor.contents, key)
            values[:] = [type(value)(0) for value in values]
        texts = tensor.contents.bytes_contents
        texts[:] = [b"x" * len(text) for text in texts]
    for index in range(len(raw)):
        if in_order[index].name in names:
            raw[index] = _blank_bytes(in_order[index].datatype, memoryview(raw[index]))
    return bool(named)
