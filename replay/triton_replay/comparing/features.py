"""Features of a model's requests on which a difference may depend.

All features are known before the response: they come from the request, and from the times of
capture A. The times of B would be effects: a slow B has more requests in flight.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import count as count_from
from typing import Final

import numpy as np
from numpy.typing import NDArray

from triton_replay.capture.records import Request
from triton_replay.wire.answers import Array, Tensor, inputs_of
from triton_replay.wire.bodies import INFERENCE, NotUnderstood, read_body
from triton_replay.wire.grpc_messages import (
    STREAMING,
    inputs_of_message,
    is_inference,
    parameters_of,
    read_requests,
)

# Requests that are necessary to reproduce a difference, besides the sequence's requests.
CONNECTION: Final = "earlier requests of the connection"
NEIGHBORS: Final = "the previous request and those in flight"
EARLIER: Final = "all earlier requests"
EQUAL: Final = "earlier equal requests"

_ABSENT: Final = "absent"
_PERIODS: Final = range(2, 9)
"""Numbers of servers behind a load balancer, or of a model's instances, that may take turns."""
_MOST_VALUES: Final = 4096
"""Largest number of distinct values in a tensor for which single values are conditions."""
_MOST_PAIRS: Final = 20_000_000
"""Largest number of pairs of a request and a value; a limit for large captures."""
_MOST_NEGATED: Final = 10
"""Largest number of texts of a property for which conditions may exclude one text."""
_SHOWN: Final = 40
_MEANINGLESS_HEADERS: Final = {
    *("content-length", "inference-header-content-length", "host", "content-type", "te", "date"),
    *("connection", "grpc-timeout", "traceparent", "x-request-id", "accept"),
}


@dataclass(frozen=True)
class Numbers:
    """A numeric feature; conditions on it are ranges."""

    name: str
    values: NDArray[np.float64]
    """The number of each request, or NaN if the request has none."""
    needs: str = ""
    """Other requests that are necessary to reproduce a difference that depends on this feature."""
    of_content: bool = False
    """True if equal requests have equal values, so that a repeated request is no new evidence."""

    @cached_property
    def ranked(self) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """The distinct numbers in ascending order, and the rank of each request's number."""
        known = ~np.isnan(self.values)
        distinct, ranks = np.unique(self.values[known], return_inverse=True)
        codes = np.full(len(self.values), len(distinct), np.intp)
        codes[known] = ranks
        return distinct, codes


@dataclass(frozen=True)
class Values:
    """A feature whose conditions are the presence of one of several values."""

    name: str
    texts: Sequence[str]
    """The condition of each value."""
    rows: NDArray[np.intp]
    """Indexes of requests. With `codes`, these are pairs of a request and one of its values."""
    codes: NDArray[np.intp]
    needs: str = ""
    of_content: bool = False


Feature = Numbers | Values


@dataclass(frozen=True)
class Content:
    """The properties of one request's content."""

    labels: dict[str, str]
    """Texts by name of a property, such as "parameter priority"."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Numbers by name of a property, such as "rows"."""
    values: dict[str, list[str]] = field(default_factory=dict)
    """Texts of conditions that hold for the inputs, by name of a property."""
    elements: dict[str, Array] = field(default_factory=dict)
    """Distinct elements by name of a numeric input."""
    sequence: str = ""
    key: bytes = b""
    """Equal for requests with equal inputs and parameters; empty if not readable."""


def most_values(count: int) -> int:
    """Return how many distinct values of an input are considered in `count` requests."""
    return min(_MOST_VALUES, _MOST_PAIRS // count)


def content_of(request: Request, most: int = _MOST_VALUES) -> Content:
    """Parse a request.

    Args:
        request: The request. If its body is not readable, it has no inputs and no parameters.
        most: The result of `most_values`.
    """
    path = request.target.partition("?")[0]
    grpc = request.protocol == "grpc"
    labels = {"protocol": "gRPC" if grpc else "HTTP"}
    if not request.whole:
        return Content(labels)
    try:
        if grpc and is_inference(path):
            labels["kind of call"] = "stream" if path.endswith(STREAMING) else "single"
            inputs, found = _of_call(request)
        elif route := INFERENCE.match(path):
            labels["kind of call"] = route["verb"]
            inputs, found = _of_http(request)
            found["model version"] = route["version"] or _ABSENT
        else:
            return Content(labels)
    except NotUnderstood:
        return Content(labels)
    labels |= found
    sequence = found.get("parameter sequence_id", "")
    content = Content(
        labels,
        sequence="" if sequence in ('""', "0") else sequence,
        key=_digest(f"{path} {sorted(labels.items())}", inputs),
    )
    _describe(inputs, content, most)
    return content


def _digest(text: str, inputs: Mapping[str, Tensor]) -> bytes:
    digest = blake2b(text.encode(), digest_size=16)
    for name, one in inputs.items():
        digest.update(f"{name} {one.datatype} {one.shape}".encode())
        is_text = one.values.dtype == object
        digest.update(repr(one.values.tolist()).encode() if is_text else one.values.tobytes())
    return digest.digest()


def _of_call(request: Request) -> tuple[Mapping[str, Tensor], dict[str, str]]:
    messages = read_requests(request.body)
    if not messages:
        return {}, {}
    one = messages[0]
    outputs = [(each.name, parameters_of(each)) for each in one.outputs]
    labels = _labels_of(parameters_of(one), one.id, outputs)
    labels["form of the inputs"] = "raw" if one.raw_input_contents else "typed"
    labels["model version"] = one.model_version or _ABSENT
    return inputs_of_message(one), labels


def _of_http(request: Request) -> tuple[Mapping[str, Tensor], dict[str, str]]:
    body = read_body(request.headers, request.body)
    document = body.document
    if "inputs" not in document:  # the generate extension
        numbers = {name: value for name, value in document.items() if not isinstance(value, str)}
        return inputs_of(body), _labels_of(numbers, None, [])
    listed = document.get("outputs")
    outputs = [one for one in listed if isinstance(one, dict)] if type(listed) is list else []
    pairs = [(str(one.get("name")), one.get("parameters")) for one in outputs]
    labels = _labels_of(document.get("parameters"), document.get("id"), pairs)
    labels["form of the inputs"] = "binary" if len(body.binary) else "JSON"
    return inputs_of(body), labels


def _labels_of(
    parameters: object, id_: object, outputs: Sequence[tuple[str, object]]
) -> dict[str, str]:
    labels = {
        "request id": "given" if id_ else _ABSENT,
        "requested outputs": ", ".join(name for name, _ in outputs) or _ABSENT,
    }
    for suffix, found in (("", parameters), *((f" of output {name}", of) for name, of in outputs)):
        if isinstance(found, dict):
            labels |= {f"parameter {name}{suffix}": json.dumps(x) for name, x in found.items()}
    return labels


def features_of(
    requests: Sequence[Request],
    contents: Sequence[Content],
    positions: Sequence[int],
    spans: Sequence[tuple[int, int]] | None,
) -> list[Feature]:
    """Return the features of one model's requests that have at least two values.

    Args:
        requests: The requests, in the order of sending.
        contents: Their contents.
        positions: Positions of the requests among the requests of all models, from 0.
        spans: Nanoseconds in A at which each request and its response ended; None if the requests
            were not sent at recorded times.
    """
    found = [
        *_of_inputs(contents),
        *_of_labels([one.labels for one in contents]),
        *_of_order(requests, contents, positions, spans),
    ]
    seen = set()
    kept = []
    for one in found:
        # Two features with the same information would be an ambiguous cause.
        if isinstance(one, Numbers):
            distinct = len(np.unique(one.values)) > 1
            key: Hashable = one.values.tobytes()
        else:
            distinct = len(one.texts) > 0
            key = (one.texts[0], one.rows.tobytes()) if len(one.texts) == 1 else one.name
        if distinct and key not in seen:
            seen.add(key)
            kept.append(one)
    return kept


# -- inputs


def _describe(inputs: Mapping[str, Tensor], content: Content, most: int) -> None:
    """Add the properties of inputs to a content."""
    first = {tensor.shape[:1] for tensor in inputs.values()}
    if len(first) == 1 and () not in first:
        content.numbers["rows"] = first.pop()[0]
    for name, tensor in inputs.items():
        content.labels[f"input {name}"] = "given"
        content.labels[f"datatype of {name}"] = tensor.datatype
        for axis, size in enumerate(tensor.shape):
            content.numbers[f"size of axis {axis} of {name}"] = size
        content.numbers[f"number of elements of {name}"] = tensor.values.size
        if tensor.values.size:
            for what, number in _numbers_in(tensor.values):
                content.numbers[f"{what} of {name}"] = number
            for group, value in _values_in(tensor.values):
                texts = content.values.setdefault(f"{group} {name}", [])
                if len(texts) <= most:
                    texts.append(f"{name} contains {value}")
            if tensor.values.dtype != object:
                content.elements[name] = _elements(tensor.values)[: most + 1]


def _of_inputs(contents: Sequence[Content]) -> Iterator[Feature]:
    count = len(contents)
    names = dict.fromkeys(name for one in contents for name in one.numbers)
    for name in sorted(names, key=lambda name: (name != "rows", not name.startswith("size"))):
        numbers = np.array([one.numbers.get(name, np.nan) for one in contents], np.float64)
        yield Numbers(name, numbers, of_content=True)
    most = most_values(count)
    for name in dict.fromkeys(name for one in contents for name in one.values):
        values = [one.values.get(name, []) for one in contents]
        if max(map(len, values)) <= most:
            pairs = ((row, text) for row, texts in enumerate(values) for text in texts)
            yield _values(name, pairs, count, of_content=True)
    for name in dict.fromkeys(name for one in contents for name in one.elements):
        kind = next(one.elements[name].dtype for one in contents if name in one.elements)
        elements = [one.elements.get(name, np.empty(0, kind)) for one in contents]
        sizes = [len(one) for one in elements]
        if max(sizes) <= most:
            found, codes = np.unique(np.concatenate(elements), return_inverse=True)
            texts = [f"{name} contains {_number_text(value)}" for value in found.tolist()]
            rows = np.repeat(np.arange(count), sizes)
            yield Values(f"value of {name}", texts, rows, codes, of_content=True)


def _elements(values: Array) -> Array:
    """Return the distinct elements; of floats only whole numbers, as others rarely occur twice."""
    if values.dtype.kind == "f":
        values = values[np.isfinite(values) & (values == np.floor(values))]
    return np.unique(values)


def _numbers_in(values: Array) -> Iterator[tuple[str, float]]:
    if values.dtype == object:
        sizes = [len(one) for one in values.flat if isinstance(one, bytes)]
        if sizes:
            yield "bytes of the longest element", max(sizes)
            yield "bytes of the shortest element", min(sizes)
    elif values.dtype.kind in "fiu":
        finite = values[np.isfinite(values)].astype(np.float64)
        if finite.size:
            least, most = float(finite.min()), float(finite.max())
            yield "smallest value", least
            yield "largest value", most
            yield "largest magnitude", max(-least, most)


def _values_in(values: Array) -> Iterator[tuple[str, str]]:
    """Yield what the values contain, each with the name of its group."""
    if values.dtype == object:
        elements = {one for one in values.flat if isinstance(one, bytes)}
        if not all(one.isascii() for one in elements):
            yield "alphabet of", "text that is not ASCII"
        texts = {one.decode("utf-8", "replace") for one in elements}
        yield from (("element of", f"the element {_short(text)!r}") for text in texts)
        words = {word for text in texts for word in text.split()}
        yield from (("word of", f"the word {_short(word)!r}") for word in words)
        return
    if values.dtype.kind == "f":
        sizes = np.abs(values)
        if np.isnan(values).any():
            yield "NaN in", "NaN"
        if np.isinf(values).any():
            yield "infinity in", "an infinity"
        if ((sizes > 0) & (sizes < np.finfo(values.dtype).tiny)).any():
            yield "subnormal in", "subnormal numbers"
    if values.dtype.kind in "fi" and (values < 0).any():
        yield "sign of", "negative numbers"


def _number_text(value: float) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


# -- labels: for each name, a request has one text


def _of_labels(
    labels: Sequence[Mapping[str, str]], *, of_content: bool = True
) -> Iterator[Feature]:
    count = len(labels)
    for name in dict.fromkeys(name for one in labels for name in one):
        texts = [one.get(name, _ABSENT) for one in labels]
        if len(set(texts)) < 2:
            continue
        pairs = [(row, f"{name} is {_short(text)}") for row, text in enumerate(texts)]
        every = sorted(set(texts))
        if 2 < len(every) <= _MOST_NEGATED:
            pairs += [
                (row, f"{name} is not {_short(text)}")
                for row, own in enumerate(texts)
                for text in every
                if text != own
            ]
        yield _values(name, pairs, count, of_content=of_content)
        numbers = np.array([_number(text) for text in texts])
        if name.startswith("parameter ") and len(np.unique(numbers[~np.isnan(numbers)])) > 2:
            yield Numbers(name, numbers, of_content=of_content)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _values(
    name: str,
    pairs: Iterable[tuple[int, str]],
    count: int,
    needs: str = "",
    *,
    of_content: bool = False,
) -> Values:
    """Return a feature without values that no request or all requests have."""
    rows_of: defaultdict[str, dict[int, None]] = defaultdict(dict)
    for row, text in pairs:
        rows_of[text][row] = None
    kept = {text: list(rows) for text, rows in rows_of.items() if 0 < len(rows) < count}
    rows = [row for rows in kept.values() for row in rows]
    codes = np.repeat(np.arange(len(kept)), [len(rows) for rows in kept.values()])
    indexes = np.array(rows, np.intp)
    return Values(name, tuple(kept), indexes, codes.astype(np.intp), needs, of_content)


# -- connection, headers, sequence, order and time


def _of_order(
    requests: Sequence[Request],
    contents: Sequence[Content],
    positions: Sequence[int],
    spans: Sequence[tuple[int, int]] | None,
) -> Iterator[Feature]:
    count = len(requests)
    labels = [{"connection": str(one.connection)} | _headers_of(one) for one in requests]
    yield from _of_labels(labels, of_content=False)
    yield Numbers("step of the sequence", ordinals(sequence_runs(contents)))
    on_connection = ordinals([one.connection for one in requests])
    yield Numbers("position on the connection", on_connection, CONNECTION)
    seen = ordinals([None if one.sequence else one.key or None for one in contents]) > 1
    repeats = [(int(row), "the request repeats an earlier one") for row in np.flatnonzero(seen)]
    yield _values("repetition", repeats, count, EQUAL)
    yield Numbers("position in the order of sending", np.array(positions, np.float64) + 1, EARLIER)
    pairs = [
        (row, f"it is every {_nth(period)} request of the model, from the {_nth(row % period + 1)}")
        for period in _PERIODS
        for row in range(count)
    ]
    yield _values("period", pairs, count, EARLIER)
    if spans is None:
        return
    times = np.array(spans, np.float64).reshape(-1, 2)
    yield Numbers("requests of the model in flight", in_flight(times), NEIGHBORS)
    gaps = np.diff([one.at / 1e6 for one in requests], prepend=np.nan)
    yield Numbers("milliseconds since the model's previous request", gaps, NEIGHBORS)


def _headers_of(request: Request) -> dict[str, str]:
    headers = ((name.lower(), value) for name, value in request.headers)
    return {f"header {name}": value for name, value in headers if name not in _MEANINGLESS_HEADERS}


def sequence_runs(contents: Sequence[Content]) -> list[tuple[str, int] | None]:
    """Return for each request its sequence id and how often the id was used before, or None."""
    uses: Counter[str] = Counter()
    found: list[tuple[str, int] | None] = []
    for one in contents:
        uses[one.sequence] += one.labels.get("parameter sequence_start") == "true"
        found.append((one.sequence, uses[one.sequence]) if one.sequence else None)
    return found


def in_flight(spans: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each of the spans, shape [count, 2], how many overlap it, itself included."""
    starts, ends = spans[:, 0], np.maximum(spans[:, 0], spans[:, 1])
    begun = np.searchsorted(np.sort(starts), ends, side="right")
    over = np.searchsorted(np.sort(ends), starts, side="left")
    return np.asarray(begun - over, np.float64)


def ordinals(keys: Sequence[Hashable]) -> NDArray[np.float64]:
    """Return how often each key has occurred, from 1; NaN for None."""
    counts: defaultdict[Hashable, Iterator[int]] = defaultdict(lambda: count_from(1))
    return np.array([np.nan if key is None else next(counts[key]) for key in keys], np.float64)


def _nth(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"
