"""Differences between two responses to one request."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final
from urllib.parse import unquote

import numpy as np

from triton_replay.capture.files import Exchange
from triton_replay.capture.records import Request, Response, StreamMessage
from triton_replay.comparing.tolerances import Tolerances, distance
from triton_replay.wire.answers import Answer, Array, Tensor, read_answers
from triton_replay.wire.bodies import INFERENCE, NotUnderstood, header, read_body
from triton_replay.wire.grpc_messages import (
    answer_of_call,
    answer_of_message,
    has_id,
    is_inference,
    model_of_call,
)

ROUNDING = 1e-2
"""Differences up to this share of a tensor's largest value count as rounding (FP16, TF32, BF16)."""
_COUNTS = 2048
"""Whole numbers up to this do not differ by rounding: FP16 represents all of them."""
_VOLATILE = (
    "/stats",
    "/metrics",
    "/trace/setting",
    "/logging",
    "/ModelStatistics",
    "/TraceSetting",
    "/LogSettings",
)
"""Path suffixes of requests whose responses change over time or belong to one server."""
_OPTIONAL: Final = ("model_version",)
"""Fields that a server may omit. They are compared if both responses have them."""


@dataclass(frozen=True)
class Difference:
    """One difference. Differences of the same `kind`, `model` and `output` may have one cause."""

    kind: str
    model: str
    output: str
    detail: str
    """The values of A and B."""
    size: float = 0.0
    """Largest numeric difference."""
    relative: float = inf
    """Largest numeric difference relative to the largest value in A."""
    path: str = ""
    """Path of the JSON field, which starts with `output`, or "" for other differences."""


def model_of(request: Request) -> str:
    """Return the model that executes a request, or its path if no model does."""
    path = request.target.partition("?")[0]
    if request.protocol == "grpc" and is_inference(path):
        return model_of_call(request.body) or path
    found = INFERENCE.match(path)
    return found["model"] if found else path


def failure_of(exchange: Exchange) -> str:
    """Return why a request did not succeed, or "".

    Args:
        exchange: The request with its response.

    Returns:
        The missing response, the status, or an error in a stream whose status reports success.
    """
    response = exchange.response
    if response is None or exchange.status == "none":
        return "no response"
    if response.ended != "complete":
        return "incomplete response"
    success = exchange.status == "grpc 0" or (
        exchange.request.protocol == "http" and 200 <= response.status < 300
    )
    if not success:
        return f"status {exchange.status}".replace("status grpc", "gRPC status")
    if not _may_fail_within(exchange):
        return ""
    try:
        failed = any("error" in answer.fields for answer in _answers(exchange))
    except NotUnderstood:
        return ""
    return "error in the stream" if failed else ""


def _may_fail_within(exchange: Exchange) -> bool:
    """Return whether the response is a stream, whose status does not report later errors."""
    if exchange.request.target.endswith("/ModelStreamInfer"):
        return True
    assert exchange.response is not None
    events = header(exchange.response.headers, "content-type").startswith("text/event-stream")
    return events and b'"error"' in bytes(exchange.response.body)


def outputs_of(exchange: Exchange) -> set[str]:
    """Return the output names in all responses of an exchange, or none if they are unreadable."""
    if not _is_complete(exchange) or not _comparable(exchange):
        return set()
    try:
        return {name for answer in _answers(exchange) for name in answer.tensors}
    except NotUnderstood:
        return set()


def compare_answers(
    model: str, a: Exchange, b: Exchange, tolerances: Tolerances
) -> list[Difference]:
    """Compare the responses to one request.

    Args:
        model: The result of `model_of`.
        a: The request with its first response.
        b: The request with its second response.
        tolerances: Allowed differences.

    Returns:
        All differences; none for responses that are redacted, incomplete in the capture, or
        change over time.
    """
    return list(_compare(model, a, b, tolerances))


def _compare(model: str, a: Exchange, b: Exchange, tolerances: Tolerances) -> Iterator[Difference]:
    if not _is_complete(a) or not _is_complete(b):
        if _is_complete(a) != _is_complete(b):
            lost, kept = ("B", a) if _is_complete(a) else ("A", b)
            kind = f"no complete response in {lost}"
            yield Difference(kind, model, "", f"the other has status {kept.status}")
        return
    if a.status != b.status:
        yield Difference("status", model, "", f"{a.status} and {b.status}: {_text(b)}")
        return
    errors = _grpc_error(a), _grpc_error(b)
    if errors[0] != errors[1]:
        yield Difference("error text", model, "", f"{_short(errors[0])} and {_short(errors[1])}")
    path = a.request.target.partition("?")[0]
    if path.endswith(_VOLATILE) or not (_comparable(a) and _comparable(b)):
        return
    try:
        first, second = _answers(a), _answers(b)
    except NotUnderstood:
        assert a.response is not None
        assert b.response is not None
        if bytes(a.response.body) != bytes(b.response.body):
            yield Difference("text", model, "", f"{_text(a)} and {_text(b)}")
        return
    if len(first) != len(second):
        kind = "stream responses"
        kind += " missing" if len(first) > len(second) else " in B only"
        yield Difference(kind, model, "", f"{len(first)} and {len(second)}")
    pairs = [
        (one, tolerances.names.aligned(model, one, other))
        for one, other in zip(first, second, strict=False)
    ]
    invented = any(x.fields.get("id") != y.fields.get("id") for x, y in pairs) and not _has_id(a)
    found: list[Difference] = []
    for one, other in pairs:
        found += _compare_fields(model, one, other, tolerances, invented_id=invented)
        found += _compare_outputs(model, one, other, tolerances)
    if found and len(first) > 1 and len(first) == len(second):
        contents = [
            [_content(answer, tolerances, invented_id=invented) for answer in side]
            for side in zip(*pairs, strict=True)
        ]
        if contents[0] != contents[1] and Counter(contents[0]) == Counter(contents[1]):
            found = [Difference("order", model, "", f"{len(first)} responses of a stream")]
    yield from found


def _is_complete(exchange: Exchange) -> bool:
    response = exchange.response
    return response is not None and exchange.status != "none" and response.ended == "complete"


def _comparable(exchange: Exchange) -> bool:
    """Return whether the capture has the whole response, without redaction."""
    assert exchange.response is not None
    records: list[Response | StreamMessage] = [exchange.response, *exchange.messages]
    return all(record.whole and not record.redacted for record in records)


def _grpc_error(exchange: Exchange) -> str:
    """Return the error text of a gRPC response, or ""."""
    assert exchange.response is not None
    pairs = (*exchange.response.headers, *exchange.response.trailers)
    return unquote(header(pairs, "grpc-message"))


def _answers(exchange: Exchange) -> list[Answer]:
    """Return the responses; the order of a stream's responses does not depend on timing."""
    request, response = exchange.request, exchange.response
    assert response is not None
    if request.protocol == "http":
        if INFERENCE.match(request.target.partition("?")[0]) or not len(response.body):
            return read_answers(response.headers, response.body)
        return [Answer({}, read_body(response.headers, response.body).document)]
    if request.target.endswith("/ModelInfer"):
        return answer_of_call(response.body)
    if not request.target.endswith("/ModelStreamInfer"):
        raise NotUnderstood("not a call of ModelInfer or ModelStreamInfer")
    received = (message.body for message in exchange.messages if not message.sent)
    if not _has_id(exchange):
        return [answer_of_message(body) for body in received]
    # A stable sort: responses with one request id keep their order.
    return sorted(map(answer_of_message, received), key=lambda one: str(one.fields.get("id", "")))


def _has_id(exchange: Exchange) -> bool:
    """Return whether a request of the exchange has an id, or might have one."""
    request = exchange.request
    sent: list[Request | StreamMessage] = [request]
    sent += [message for message in exchange.messages if message.sent]
    if not all(record.whole for record in sent):
        return True
    try:
        if request.protocol == "grpc":
            return any(has_id(record.body) for record in sent)
        return len(request.body) == 0 or bool(
            read_body(request.headers, request.body).document.get("id")
        )
    except NotUnderstood:
        return True


def _compare_fields(
    model: str, a: Answer, b: Answer, tolerances: Tolerances, *, invented_id: bool
) -> Iterator[Difference]:
    optional = {name for name in _OPTIONAL if None in (a.fields.get(name), b.fields.get(name))}
    optional |= {"id"} if invented_id else set()
    for name in sorted({*a.fields, *b.fields} - optional):
        kind = "error text" if name == "error" else "field"
        for path, *both in _leaves(name, a.fields.get(name), b.fields.get(name)):
            if not tolerances.ignores(path):
                yield Difference(kind, model, name, _detail(name, path, *both), path=path)


def _detail(parent: str, path: str, one: object, other: object) -> str:
    place = path[len(parent) :].lstrip(".")
    return (f"{place}: " if place else "") + f"{_short(one)} and {_short(other)}"


def _leaves(path: str, a: object, b: object) -> Iterator[tuple[str, object, object]]:
    """Yield the paths of different JSON values with both values; null equals an empty object."""
    if {type(a), type(b)} <= {dict, type(None)}:
        one, other = a or {}, b or {}
        assert isinstance(one, dict)
        assert isinstance(other, dict)
        for key in dict.fromkeys([*one, *other]):
            yield from _leaves(f"{path}.{key}", one.get(key), other.get(key))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for place, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _leaves(f"{path}[{place}]", one, other)
    elif a != b or isinstance(a, bool) != isinstance(b, bool):  # JSON's true is not 1
        yield path, a, b


def _content(answer: Answer, tolerances: Tolerances, *, invented_id: bool) -> str:
    """Return the compared fields and tensors of a response as text."""
    fields = (
        (path, value)
        for name, field in answer.fields.items()
        for path, value, _ in _leaves(name, field, None)
        if not tolerances.ignores(path) and not (invented_id and name == "id")
    )
    tensors = (
        (name, one.datatype, one.values.tolist())
        for name, one in answer.tensors.items()
        if not tolerances.ignores(f"outputs.{name}")
    )
    return repr((sorted(fields), sorted(tensors)))


def _compare_outputs(
    model: str, a: Answer, b: Answer, tolerances: Tolerances
) -> Iterator[Difference]:
    for name in sorted({*a.tensors, *b.tensors}):
        if tolerances.ignores(f"outputs.{name}"):
            continue
        if name not in b.tensors or name not in a.tensors:
            kind = "output missing" if name in a.tensors else "output in B only"
            yield Difference(kind, model, name, "")
            continue
        yield from _compare_tensors(model, name, a.tensors[name], b.tensors[name], tolerances)


def _compare_tensors(
    model: str, name: str, a: Tensor, b: Tensor, tolerances: Tolerances
) -> Iterator[Difference]:
    if a.datatype != b.datatype:
        yield Difference("datatype", model, name, f"{a.datatype} and {b.datatype}")
    elif a.shape != b.shape:
        yield Difference("shape", model, name, f"{list(a.shape)} and {list(b.shape)}")
    else:
        tolerance = tolerances.of(model, name, a.datatype)
        if tolerance.json and a.datatype == "BYTES":
            yield from _compare_texts(model, name, a.values, b.values, tolerances)
            return
        wrong = tolerance.violated(a.values, b.values, a.datatype)
        if wrong.any():
            yield _value_difference(model, name, a.values, b.values, wrong)


def _compare_texts(
    model: str, name: str, a: Array, b: Array, tolerances: Tolerances
) -> Iterator[Difference]:
    """Compare the fields of elements that are JSON. Other elements must be equal."""
    tolerance = tolerances.of(model, name, "BYTES")
    parent = f"outputs.{name}"
    found: defaultdict[str, list[str]] = defaultdict(list)
    for place in np.ndindex(a.shape):
        values: list[object] = [a[place], b[place]]
        with contextlib.suppress(ValueError, RecursionError):
            values = [json.loads(bytes(text)) for text in (a[place], b[place])]
        for path, *both in _leaves(parent, *values):
            if not tolerance.near(*both) and not tolerances.ignores(path):
                found[path].append(f"at {list(place)} {_detail(parent, path, *both)}")
    for path, details in found.items():
        detail = f"{len(details)} of {a.size} elements, {details[0]}"
        yield Difference("values", model, name, detail, path=path)


def _value_difference(model: str, name: str, a: Array, b: Array, wrong: Array) -> Difference:
    place = tuple(int(axis) for axis in np.argwhere(wrong)[0])
    count = f"{int(wrong.sum())} of {wrong.size} elements"
    kind, rows = _kind_of_values(a, b, wrong), ""
    if wrong.ndim > 1 and kind != "rounding":
        by_row: Array = np.asarray(wrong.reshape(len(wrong), -1).any(axis=1))
        if not by_row.all():
            kind = "values of some rows" if kind == "values" else kind
            rows = f"; {int(by_row.sum())} of {len(by_row)} rows"
    if a.dtype.kind not in "fiu":
        detail = f"{count}, at {list(place)} {_short(a[place])} and {_short(b[place])}{rows}"
        return Difference(kind, model, name, detail)
    with np.errstate(invalid="ignore"):
        distances = distance(a, b)
    shown = wrong & np.isfinite(distances)
    largest = float(distances[shown].max(initial=0.0))
    if shown.any() and kind not in ("NaN", "infinity"):
        at = int(np.argmax(np.where(shown, distances, -1.0)))
        place = tuple(int(axis) for axis in np.unravel_index(at, distances.shape))
    detail = f"{count}, at {list(place)} {a[place]:.6g} and {b[place]:.6g}{rows}"
    scale = float(np.abs(a[np.isfinite(a)].astype(np.float64)).max(initial=0.0))
    relative = largest / scale if scale and (shown == wrong).all() else inf
    return Difference(kind, model, name, detail, largest, relative)


def _kind_of_values(a: Array, b: Array, wrong: Array) -> str:
    one, other = a[wrong], b[wrong]
    if a.dtype.kind not in "fiu":
        return "order" if _reordered(one, other) else "values"
    if a.dtype.kind == "f":
        for kind, found in (("NaN", np.isnan), ("infinity", np.isinf)):
            if (found(one) != found(other)).any():
                return kind
    if not (np.isfinite(one) & np.isfinite(other)).all():
        return "values"
    if _reordered(one, other):
        return "order"
    distances = distance(one, other)
    if a.dtype.kind in "iu":
        largest_value = max(
            abs(int(extreme(x))) for x in (one, other) for extreme in (np.min, np.max)
        )
        return "off by one" if largest_value > 1 and (distances == 1).all() else "values"
    size = np.abs(a[np.isfinite(a)].astype(np.float64)).max(initial=0.0)
    whole = all((x == np.floor(x)).all() for x in (one, other)) and size <= _COUNTS
    return "rounding" if distances.max() <= ROUNDING * size and not whole else "values"


def _reordered(a: Array, b: Array) -> bool:
    """Return whether the arrays have the same values, in another order."""
    try:
        return len(a) > 1 and bool((np.sort(a) == np.sort(b)).all())
    except TypeError:  # values of several types
        return False


def _text(exchange: Exchange) -> str:
    response = exchange.response
    assert response is not None
    return _short(_grpc_error(exchange) or bytes(response.body[:80]).decode("utf-8", "replace"))


def _short(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
