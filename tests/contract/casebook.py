"""The definition of a case, and functions for the rows of the tables in `cases/`.

    case("unknown model", infer("nobody", A), 404)

means: the real server answers these bytes with this status. `recorded/` has the whole response, and
the reference server must send the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contract.wire import Exchange

Forget = Callable[[Exchange], Exchange]


def nothing(exchange: Exchange) -> Exchange:
    """Forget nothing: the whole exchange is compared."""
    return exchange


@dataclass(frozen=True)
class Case:
    """The bytes sent to a server, and the real server's response.

    `status` is the status of the last reply, or None if the server closes without a reply. `says`
    is a part of the answer, for cases without recording. `unstable` removes parts that vary on the
    real server, such as the order in a hash table.
    """

    name: str
    request: bytes | tuple[bytes, ...]
    status: int | None
    says: str = ""
    replies: int = 1
    unstable: Forget = nothing

    def __str__(self) -> str:
        return self.name


def check_row(case: Case, answer: Exchange) -> None:
    """Compare the real server's answer with the status that the row expects."""
    status = answer.replies[-1].status if answer.replies else None
    assert (status, len(answer.replies)) == (case.status, case.replies if case.status else 0), (
        answer
    )


# Sends a case to a server.
Ask = Callable[[Case], Exchange]


def case(
    name: str, request: bytes | Sequence[bytes], status: int | None, says: str = "", **more: Any
) -> Case:
    """Write a row of a table."""
    pieces = request if isinstance(request, bytes) else tuple(request)
    return Case(name, pieces, status, says, **more)


def chapter(title: str, *cases: Case) -> list[Case]:
    """Return a table's cases with its title as the first part of each name."""
    return [replace(row, name=f"{title}: {row.name}") for row in cases]


# --------------------------------------------------------------------------------------- requests


def get(path: str, *, method: str = "GET", headers: dict[str, str] | None = None) -> bytes:
    """Write a request without a body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def post(path: str, body: bytes | str, *, headers: dict[str, str] | None = None) -> bytes:
    """Write a POST request with the body's correct length."""
    content = body.encode() if isinstance(body, str) else body
    length = {"Content-Length": str(len(content))}
    return get(path, method="POST", headers=length | (headers or {})) + content


def infer(
    model: str,
    *inputs: Any,
    outputs: Any = None,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> bytes:
    """Write an infer request in JSON; `fields` are further fields of the request."""
    return post(infer_path(model), document(*inputs, outputs=outputs, **fields), headers=headers)


def infer_path(model: str) -> str:
    name, _, version = model.partition("/")
    return f"/v2/models/{name}/versions/{version}/infer" if version else f"/v2/models/{name}/infer"


def infer_binary(
    model: str,
    tail: bytes,
    *inputs: Any,
    outputs: Any = None,
    header_length: int | str | None = None,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> bytes:
    """Write an infer request whose tensors follow the JSON; `header_length` may be wrong."""
    start = document(*inputs, outputs=outputs, **fields).encode()
    announced = len(start) if header_length is None else header_length
    extra = {"Inference-Header-Content-Length": str(announced)} | (headers or {})
    return post(infer_path(model), start + tail, headers=extra)


def document(*inputs: Any, outputs: Any = None, **fields: Any) -> str:
    """Write the JSON of an infer request."""
    content = fields | {"inputs": list(inputs)}
    if outputs is not None:
        content["outputs"] = outputs
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def tensor(name: str, datatype: str, shape: Any, data: Any) -> dict[str, Any]:
    """Describe an input with its data in JSON."""
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def binary(name: str, datatype: str, shape: Any, size: Any) -> dict[str, Any]:
    """Describe an input whose data follows the JSON."""
    parameters = {"binary_data_size": size}
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}


def byte_strings(*elements: bytes) -> bytes:
    """Encode BYTES elements: four bytes of length, little-endian, then the bytes."""
    return b"".join(len(element).to_bytes(4, "little") + element for element in elements)


# -------------------------------------------------------------- parts of responses that may vary


def bodies(change: Callable[[bytes], bytes]) -> Forget:
    """Apply a change to the body of every reply. Lengths are then not compared."""

    def forget(exchange: Exchange) -> Exchange:
        return replace(
            exchange,
            replies=tuple(
                replace(r, body=change(r.body)).without_header("content-length")
                for r in exchange.replies
            ),
        )

    return forget


def connection(exchange: Exchange) -> Exchange:
    """Forget whether the connection stays open, and the headers about it."""
    replies = tuple(reply.without_header("connection") for reply in exchange.replies)
    return replace(exchange, replies=replies, stays_open=True)


def everything(exchange: Exchange) -> Exchange:
    return Exchange((), stays_open=True)


def sort_maps(value: Any, name: str = "") -> Any:
    """Return a config with the members of its maps in the order of their names."""
    if isinstance(value, list):
        return [sort_maps(item) for item in value]
    if isinstance(value, dict):
        members = sorted(value.items()) if name in CONFIG_MAPS else value.items()
        return {key: sort_maps(item, key) for key, item in members}
    return value


# The fields of a config that are maps; all other fields have the order of the schema.
CONFIG_MAPS = {
    *("cc_model_filenames", "metric_tags", "parameters", "inputs", "input_map", "output_map"),
    "priority_queue_policy",
}
# The real server's maps are hash tables, whose order changes with each start of the server.
maps_in_any_order = bodies(lambda body: json.dumps(sort_maps(json.loads(body))).encode())
