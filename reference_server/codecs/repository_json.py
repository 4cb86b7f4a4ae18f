"""Repository control over HTTP: bodies to values, and the index to JSON."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable

from reference_server.codecs import rapid_json
from reference_server.codecs.json_numbers import encode_string
from reference_server.core.errors import ServerError, internal

Buffer = bytes | bytearray | memoryview

_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")


def index_request(body: Buffer) -> bool:
    """Whether only ready versions are asked for. Raises ServerError."""
    if not len(body):
        return False
    document = rapid_json.loads(body)
    if type(document) is not dict or "ready" not in document:
        return False
    return rapid_json.as_bool(document["ready"])


def index(rows: Iterable[tuple[str, int | None, str | None, str]]) -> bytes:
    """The index: rows of name, version, state and reason; what is not known is left out."""
    return b"[%b]" % b",".join(_row(*row) for row in rows)


def _row(name: str, version: int | None, state: str | None, reason: str) -> bytes:
    members = [b'"name":' + encode_string(name)]
    if version is not None:
        members.append(b'"version":"%d"' % version)
    if state is not None:
        members.append(b'"state":' + encode_string(state))
    if reason:
        members.append(b'"reason":' + encode_string(reason))
    return b"{%b}" % b",".join(members)


def load_parameters(body: Buffer) -> dict[str, str | bytes]:
    """The parameters of a load request: `config` as text, `file:...` as bytes.

    Raises ServerError for what is neither, and for values that are no strings.
    """
    parameters: dict[str, str | bytes] = {}
    document = rapid_json.loads(body) if len(body) else None
    if type(document) is not dict or "parameters" not in document:
        return parameters
    for key, value in rapid_json.members(document["parameters"]).items():
        text = rapid_json.as_string(value)
        if key == "config":
            parameters[key] = text
        elif key.startswith("file:"):
            parameters[key] = _from_base64(text)
        else:
            raise internal("unexpected error on creating Triton parameter")
    return parameters


def _from_base64(text: str) -> bytes:
    """The bytes that base64 stands for; as in Triton, characters of another alphabet are skipped.

    So is what is left of a group that is not whole.
    """
    digits = _NOT_BASE64.sub(b"", text.encode("utf-8", "surrogateescape"))
    digits = digits[:-1] if len(digits) % 4 == 1 else digits
    return base64.b64decode(digits + b"=" * (-len(digits) % 4))


def unload_dependents(body: Buffer) -> bool:
    """Whether an unload request wants that. As in Triton, a body that makes no sense says no."""
    try:
        document = rapid_json.loads(body)
        parameters = rapid_json.member(document, "parameters")
        return rapid_json.as_bool(rapid_json.member(parameters, "unload_dependents"))
    except ServerError:
        return False
